"""What every flow opens and closes around its stages: tracking, links both ways, the summary."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import logging
import os
import time
from collections.abc import Collection, Iterator

from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.runtime import flow_run

from conf.load import to_yaml
from conf.schema import PipelineConfig
from flows.environment import OUR_LOGGERS
from flows.summary import summarize, to_markdown
from storage.atomic import write_text
from tasks.artifacts import CONFIG_FILE
from tasks.plots import plot_time
from tasks.run_context import RunContext
from tasks.specs import STAGES
from tasks.tracking import FLOW_RUN_TAG, Tracking
from tasks.training_config import chosen_backend

_logger = logging.getLogger(__name__)

# The process of a served run ends with it; taking apart what it has imported, piece by piece, would take seconds more,
# and a cancelled run counts as cancelled only once its process is gone.
atexit.register(gc.freeze)


@contextlib.contextmanager
def open_run(
    config: PipelineConfig, *, verify_inputs: bool = False, may_build: Collection[str] = STAGES
) -> Iterator[RunContext]:
    """Open the MLflow run of a flow, and leave a summary in Prefect, in MLflow and on disk when the block ends well.

    Parameters
    ----------
    config
        What was asked.
    verify_inputs
        Hash raw input files anew.
    may_build
        Stages that this flow builds; others must be finished.

    Yields
    ------
    RunContext
        Its `summary` is filled in once the block has ended.

    Raises
    ------
    MachineError
        If MLflow is away.
    NoDeviceError
        If a GPU is asked for and cannot be used.
    """
    start = time.perf_counter()
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)
    backend = chosen_backend(config)  # before anything is written
    tracking = Tracking.connect(config.state_dir, config.experiment)
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(tracking.parent_run(config.name, _links_to_prefect()))
        parent.log_params(config.model_dump(mode="json"))
        parent.set_tags({"backend": backend})
        run = stack.enter_context(
            contextlib.closing(
                RunContext(config, tracking, parent, verify_inputs=verify_inputs, may_build=may_build, backend=backend)
            )
        )
        mlflow_url = tracking.run_url(parent)
        with _best_effort("the link artifact"):
            create_link_artifact(
                mlflow_url,
                link_text="MLflow run",
                key="mlflow-run",
                description="Curves, pictures, the whole configuration, the model and its card",
            )
        yield run
        run.summary = summarize(run, time.perf_counter() - start)
        _publish(run, mlflow_url)


def prefect_run_url() -> str:
    """Return where a browser shows this flow run; deep links need the second UI's path."""
    base = os.environ.get("PREFECT_UI_URL", "http://127.0.0.1:4200")
    return f"{base}/v2/runs/flow-run/{flow_run.id}"


def _links_to_prefect() -> dict[str, str]:
    flow_name, url = str(flow_run.flow_name), prefect_run_url()
    note = f"Flow `{flow_name}`, [run {flow_run.name} in Prefect]({url})"
    return {
        FLOW_RUN_TAG: str(flow_run.id),
        "prefect.flow_run_url": url,
        "prefect.flow": flow_name,
        "mlflow.note.content": note,
    }


def _publish(run: RunContext, mlflow_url: str) -> None:
    """Draw where the time went and leave the summary in the three places where people look."""
    run.directory.mkdir(parents=True, exist_ok=True)
    stage_s = {name: stage["seconds"] for name, stage in run.summary["stages"].items()}
    plot_time({"run": stage_s, **run.facts.get("training_s", {})}, run.directory / "time.png")
    run.picture(run.directory / "time.png")
    write_text(run.directory / "summary.json", json.dumps(run.summary, indent=2) + "\n")
    write_text(run.directory / CONFIG_FILE, to_yaml(run.config))
    run.parent.log_artifact(run.directory / "summary.json")
    with _best_effort("the summary artifact"):
        markdown = to_markdown(run.summary, {"MLflow run": mlflow_url})
        create_markdown_artifact(markdown, key="summary", description=f"Summary of {run.config.name}")


@contextlib.contextmanager
def _best_effort(what: str) -> Iterator[None]:
    """Go on without an ornament: a server that stumbles must not cost the run that is done."""
    try:
        yield
    except Exception as error:
        _logger.warning("Prefect did not take %s (%s)", what, error)
