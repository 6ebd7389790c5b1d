"""`garden run`: the pipeline, from a configuration or from files alone."""

from __future__ import annotations

import contextlib
import enum
import errno
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.ending import exit_codes, interrupt
from flows.commands.files import Load, takes_graph
from flows.commands.values import EndWithJson, VerifyInputs, quick_imports

if TYPE_CHECKING:
    from conf.schema import PipelineConfig

EXAMPLES = """
[bold]Examples[/bold]

[green]garden run demo[/green]: a generated graph, no files needed

[green]garden run cora --set data.path=data/cora[/green]: a public data set

[green]garden run demo --set cache.device_budget=12MiB[/green]: all that does not depend on it is reused

[green]garden run mine.yaml --set training.epochs=50 --json[/green]: your configuration; the last line is JSON

[green]garden run --edges mine.csv --features x.npy --labels y.npy[/green]: your files; the run is called mine

[green]garden run --edges mine.csv --features x.csv --labels y.csv --id-column id[/green]: rows by id, strings too

[green]garden run --edges mine.parquet --until reorder[/green]: prepare a graph without features or labels
"""


class Stage(enum.StrEnum):
    """Stages, in order."""

    INGEST = "ingest"
    REORDER = "reorder"
    PROFILE = "profile"
    CACHE = "cache"
    TRAIN = "train"


def _stage(text: str) -> Stage:
    try:
        return Stage(text)
    except ValueError:
        near = [stage for stage in Stage if text[:3].lower() == stage[:3]]
        hint = f"did you mean {near[0].value!r}? " if near else ""
        raise typer.BadParameter(f"{text!r} is no stage: {hint}stages are {', '.join(Stage)}") from None


@takes_graph
def run(
    load: Load,
    until: Annotated[
        Stage, typer.Option(parser=_stage, metavar="|".join(Stage), help="Last stage to run.")
    ] = Stage.TRAIN,
    verify_inputs: VerifyInputs = False,
    as_json: EndWithJson = False,
) -> None:
    """Run the pipeline: ingest, reorder, profile, cache, train.

    Stages that are finished for this input and configuration are reused; training always runs again. A run
    that was killed goes on after its last finished stage, in training after its last finished epoch.

    Presets: demo, cora, citeseer, pubmed, pubmed_full, musae_facebook, ogb, igb, edge_list, rmat_billion.

    In place of CONFIG, --edges (with --features, --labels) names your files: a 2-layer GraphSAGE is trained on a
    random 60 % of the labelled nodes, validated on 20 % and tested on the rest; --set changes that and all else.
    Row i of features and labels is node i, unless --id-column names a column of ids in both.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        loaded = load()
        trains = until is Stage.TRAIN
        run_flow(loaded, "pipeline", trains=trains, as_json=as_json, until=until.value, verify_inputs=verify_inputs)


def run_flow(config: PipelineConfig, flow: str, *, trains: bool, as_json: bool, **arguments: Any) -> None:
    """Run one of the flows, named as its module is, and show what it came to.

    Parameters
    ----------
    config
        What to do.
    flow
        Name of the flow.
    trains
        Whether it trains, so that training's needs are checked and imported beforehand.
    as_json
        Show the results as one line of JSON.
    **arguments
        Further arguments of the flow.
    """
    from flows.environment import prefect_settings, set_defaults
    from flows.terminal import note, say, set_up_logging, show_summary, use_progress_bars, waiting

    note(f"starting {config.name}")
    with quick_imports():
        from tasks.readiness import check_config, check_files

    if trains:
        check_config(config)
    check_files(config)
    _make_state_dir(config.state_dir)
    signal.signal(signal.SIGTERM, interrupt)
    set_up_logging()
    if not as_json:
        use_progress_bars()
    set_defaults(prefect_settings(config.state_dir))
    with _orchestrator(config.state_dir) as wait_until_ready:
        with waiting("loading libraries and starting Prefect's server"):
            with quick_imports():  # they take as long as the server takes to start
                start = getattr(importlib.import_module(f"flows.{flow}"), flow)
                from tasks.tracking import check_store

                check_store(config.state_dir)
                for module in ("matplotlib.figure", *(["torch._dynamo"] if trains else [])):
                    importlib.import_module(module)  # the plots and the optimizer would, more slowly
            wait_until_ready()
        summary: dict[str, Any] = start(config, **arguments)
    if as_json:
        say(json.dumps(summary))
    else:
        show_summary(summary, _process_seconds(), _where_to_look(config, summary))


def _make_state_dir(path: Path) -> None:
    """Make the state directory; MLflow and Prefect, which would, do not say what is wrong with it."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the state directory cannot be written to", str(path))


def _process_seconds() -> float:
    """Wall time of this process so far, with its start."""
    import psutil

    return time.time() - psutil.Process().create_time()


@contextlib.contextmanager
def _orchestrator(state_dir: Path) -> Iterator[Any]:
    """Find the Prefect server that was named or runs here, or start one for this run."""
    from flows.answering import answers
    from flows.servers import running_servers
    from flows.temporary_server import temporary_prefect
    from storage.errors import MachineError

    url = os.environ.get("PREFECT_API_URL")
    servers = None if url else running_servers(state_dir)
    if url:
        if not answers(f"{url.rstrip('/')}/health", 5):
            raise MachineError(f"no Prefect server answers at {url}; start it, or unset PREFECT_API_URL to do without")
        yield lambda: None
    elif servers is not None:
        for name, value in servers.client_settings().items():
            os.environ.setdefault(name, value)
        yield lambda: None
    else:
        with temporary_prefect(state_dir) as wait_until_ready:
            yield wait_until_ready


def _where_to_look(config: PipelineConfig, summary: dict[str, Any]) -> dict[str, str]:
    from flows.servers import running_servers
    from tasks.artifacts import CONFIG_FILE

    garden, folder = _command(), config.state_dir / "runs" / str(summary["mlflow_run_id"])
    served = str(summary["mlflow_run_url"])
    at = "" if str(config.state_dir) == ".garden" else f" --state-dir {config.state_dir}"
    where = {
        "curves, pictures, all settings": served
        if running_servers(config.state_dir)
        else f"{garden} up{at}, then {served}",
        "this summary": str(folder / "summary.json"),
        "this configuration, whole": str(folder / CONFIG_FILE),
        "stages and their artifacts": f"{garden} inspect {config.name}{at}",
    }
    version = _registered(config, summary)
    if version is not None:
        where["model"] = version
        where["classes of all nodes"] = f"{garden} predict {config.name}@champion{at} -o classes.parquet"
    return where


def _registered(config: PipelineConfig, summary: dict[str, Any]) -> str | None:
    """The version that this run registered, and which one is the champion; None where it trained none.

    None too where MLflow has gone away meanwhile: the run has said so, and ended well all the same.
    """
    from storage.errors import MachineError
    from tasks.specs import TRAIN
    from tasks.tracking_models import registered_version

    if TRAIN not in summary["stages"]:
        return None
    try:
        found = registered_version(config.state_dir, config.name, summary["stages"][TRAIN]["digest"])
    except MachineError:
        return None
    if found is None:
        return None
    version, champion = found
    name = f"{config.name}@{version}"
    return f"{name}, the champion" if version == champion else f"{name}; the champion stays {config.name}@{champion}"


def _command() -> str:
    """How the user calls this command: by name where that is on the path, else as it was called."""
    return "garden" if shutil.which("garden") or not sys.argv[0].endswith("garden") else os.path.relpath(sys.argv[0])
