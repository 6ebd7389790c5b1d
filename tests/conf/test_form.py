"""Forms: simple enough for a browser, and worth a whole configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from conf.form import CacheForm, Form, PrepareForm, TrainForm, filled_in, form_schema
from conf.load import ConfigError, load_config, preset_names

FORMS = (PrepareForm, CacheForm, TrainForm)


@pytest.mark.parametrize("form", FORMS)
def test_every_field_is_one_a_browser_can_show(form: type[Form]) -> None:
    schema = form_schema(form)
    assert schema["additionalProperties"] is False
    for name, field in schema["properties"].items():
        assert field["title"], name
        assert field["description"], name
        assert field["type"] in ("string", "integer", "number", "boolean", "array"), name
        assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(field), name
    positions = [field["position"] for field in schema["properties"].values()]
    assert positions == sorted(positions)
    assert "required" not in schema, "a person may leave every field as it is"


def test_choices_and_bounds_are_the_configurations() -> None:
    fields = form_schema(TrainForm)["properties"]
    assert {"sage", "gcn", "gat", "mlp"} <= set(fields["model"]["enum"])
    assert fields["epochs"]["minimum"] == 1
    assert fields["learning_rate"]["exclusiveMinimum"] == 0
    assert set(fields["dataset"]["enum"]) == (set(preset_names()) - {"edge_list"}) | {"files", "yaml"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("preset", [name for name in preset_names() if name != "edge_list"])
def test_an_empty_form_is_the_preset(form: type[Form], preset: str) -> None:
    assert filled_in(form.model_validate({"dataset": preset})) == load_config(preset)


def test_what_is_filled_in_goes_where_it_belongs() -> None:
    values: dict[str, Any] = {
        "dataset": "cora",
        "path": "/data/my: cora",
        "name": "mine",
        "model": "sage",
        "hidden": 8,
        "epochs": 3,
        "learning_rate": 0.5,
        "metric": "macro_f1",
        "fanouts": "5, -1",
        "batch_size": 7,
        "device_budget": "12MiB",
        "host_budget": "1 GB",
        "order": "none",
        "seed": 3,
        "settings": ["training.patience=2", "model.hidden=16"],
    }
    config = filled_in(TrainForm.model_validate(values), ["state_dir=/state", "seed=5"])
    assert config.data.path == Path("/data/my: cora")
    assert (config.name, config.model.kind, config.training.metric) == ("mine", "sage", "macro_f1")
    assert config.model.hidden == 16, "further settings come last"
    assert (config.training.epochs, config.training.learning_rate, config.training.patience) == (3, 0.5, 2)
    assert (config.sampling.fanouts, config.sampling.batch_size) == ((5, -1), 7)
    assert (config.cache.device_budget, config.host_budget, config.layout.order) == (12 << 20, 10**9, "none")
    assert (config.seed, config.state_dir) == (3, Path("/state"))


def test_files_and_a_configuration_file(tmp_path: Path) -> None:
    files = {"dataset": "files", "name": "mine", "edges": "e.parquet", "features": "x.npy", "labels": "y.npy"}
    config = filled_in(TrainForm.model_validate(files))
    assert (config.data.format, config.data.edges, config.data.split) == ("parquet", Path("e.parquet"), "random")
    (tmp_path / "mine.yaml").write_text("name: yours\ntraining: {epochs: 4}\n")
    config = filled_in(TrainForm.model_validate({"dataset": "yaml", "path": str(tmp_path / "mine.yaml")}))
    assert (config.name, config.training.epochs) == ("yours", 4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": "files"}, "needs Edges"),
        ({"dataset": "files", "name": "mine", "edges": "e.csv", "path": "x"}, "Path has no effect"),
        ({"edges": "e.csv"}, "Edges goes with data set 'files'"),
        ({"dataset": "yaml"}, "needs Path"),
        ({"dataset": "yaml", "path": "nowhere.yaml"}, "neither a file nor a preset"),
        ({"settings": ["training.epoch=3"]}, "unknown key 'training.epoch'"),
        ({"model": "mlp"}, "mlp"),
    ],
)
def test_what_makes_no_sense_together_is_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filled_in(TrainForm.model_validate(values))


@pytest.mark.parametrize("values", [{"epoch": 3}, {"epochs": 0}, {"dataset": "korra"}, {"fanouts": "ten"}])
def test_unknown_fields_and_values_out_of_bounds_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainForm.model_validate(values)
