"""What is served: forms that fit, in `garden up` and in `prefect.yaml` alike."""

from __future__ import annotations

import pytest
import yaml
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.schema_tools.validation import validate

from conf.grid import parse_grid
from flows.deployments import DEPLOYMENTS, Served
from flows.forms import FILLED_IN
from flows.sweep import DEMO_GRID, sweep
from tests.flows.conftest import ROOT


def test_prefect_yaml_names_what_is_served() -> None:
    tree = yaml.safe_load((ROOT / "prefect.yaml").read_text())
    named = sorted((entry["entrypoint"].partition(":")[2], entry["name"]) for entry in tree["deployments"])
    names = {"local": "pool", "nightly": "pool-nightly"}
    assert named == sorted((served.flow.name, names[served.name]) for served in DEPLOYMENTS)
    assert all(entry["parameters"] == FILLED_IN for entry in tree["deployments"])


@pytest.mark.parametrize("served", DEPLOYMENTS, ids=lambda served: f"{served.flow.name}-{served.name}")
def test_every_form_has_titles_and_takes_what_it_is_filled_in_with(served: Served) -> None:
    schema = served.flow.parameters.model_dump_for_openapi()
    validate(FILLED_IN, schema, raise_on_error=True)
    for name, parameter in schema["properties"].items():
        assert parameter["title"] != name, "a person reads words, not names of parameters"
        assert parameter["description"]
    config = served.flow.validate_parameters(FILLED_IN)["config"]
    assert config.data.format == "demo"


def test_a_sweep_reads_its_grid_by_line_and_has_one_to_start_with() -> None:
    lines = {**FILLED_IN, "grid": ["model.hidden=8,16"]}
    assert sweep.validate_parameters(lines)["grid"] == {"model.hidden": [8, 16]}
    defaults = get_call_parameters(sweep.fn, (), dict(FILLED_IN))
    assert sweep.validate_parameters(defaults)["grid"] == parse_grid(DEMO_GRID)
