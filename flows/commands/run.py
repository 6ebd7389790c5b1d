"""`garden run`: the pipeline, from a configuration or from files alone."""

from __future__ import annotations

import contextlib
import enum
import errno
import gc
import importlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.ending import exit_codes, interrupt

if TYPE_CHECKING:
    from conf.schema import PipelineConfig

EXAMPLES = """
[bold]Examples[/bold]

[green]garden run demo[/green]: a generated graph, no files needed

[green]garden run cora --set data.path=data/cora[/green]: a public data set

[green]garden run demo --set cache.device_budget=12MiB[/green]: all that does not depend on it is reused

[green]garden run mine.yaml --set training.epochs=50 --json[/green]: your configuration; the last line is JSON

[green]garden run --name mine --edges e.csv --features x.npy --labels y.npy[/green]: your files, no configuration

[green]garden run --name mine --edges e.parquet --until reorder[/green]: prepare a graph without features or labels
"""
_FILES_PANEL = "Without CONFIG"


class Stage(enum.StrEnum):
    """Stages, in order."""

    INGEST = "ingest"
    REORDER = "reorder"
    PROFILE = "profile"
    CACHE = "cache"
    TRAIN = "train"


class EdgeFormat(enum.StrEnum):
    """Formats that `--edges` reads."""

    EDGE_LIST = "edge_list"
    PARQUET = "parquet"
    MATRIX_MARKET = "matrix_market"
    NPZ = "npz"
    DGL = "dgl"


def run(
    config: Annotated[
        str | None, typer.Argument(help="Name of a preset, or a YAML file (docs/configuration.md).")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting; repeat for more.")
    ] = None,
    until: Annotated[Stage, typer.Option(help="Last stage to run.")] = Stage.TRAIN,
    verify_inputs: Annotated[
        bool, typer.Option("--verify-inputs", help="Hash input files anew instead of trusting size, time and inode.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with the results as one line of JSON.")] = False,
    edges: Annotated[
        Path | None, typer.Option(rich_help_panel=_FILES_PANEL, help="Edges: text, Parquet, .mtx, .npz or .bin (DGL).")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(rich_help_panel=_FILES_PANEL, help="Features: .npy or Parquet, one row a node.")
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(rich_help_panel=_FILES_PANEL, help="Labels: .npy or Parquet, one row a node.")
    ] = None,
    edge_format: Annotated[
        EdgeFormat | None, typer.Option("--format", rich_help_panel=_FILES_PANEL, help="Default: by the suffix.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(rich_help_panel=_FILES_PANEL, help="Name of the run and of the model it registers.")
    ] = None,
    symmetrize: Annotated[
        bool | None,
        typer.Option(
            "--symmetrize/--directed",
            rich_help_panel=_FILES_PANEL,
            help="Add the reverse of every edge, or keep edges as they are.  [default: symmetrize]",
        ),
    ] = None,
) -> None:
    """Run the pipeline: ingest, reorder, profile, cache, train.

    Stages that are finished for this input and configuration are reused; training always runs again. A run
    that was killed goes on after its last finished stage, in training after its last finished epoch.

    Presets: demo, cora, citeseer, pubmed, pubmed_full, musae_facebook, ogb, igb, edge_list, rmat_billion.

    In place of CONFIG, --edges (with --features, --labels) names your files: a 2-layer GraphSAGE is trained on a
    random 60 % of the labelled nodes, validated on 20 % and tested on the rest; --set changes that and all else.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        from conf.files import config_from_files
        from conf.load import ConfigError, load_config

        of_files: dict[str, object] = {
            "--edges": edges,
            "--features": features,
            "--labels": labels,
            "--format": edge_format,
        }
        of_files |= {"--name": name, "--symmetrize/--directed": symmetrize}
        given = [option for option, value in of_files.items() if value is not None]
        if config is not None:
            if given:
                raise ConfigError(f"{given[0]} goes without CONFIG: use --set with {config!r} instead")
            loaded = load_config(config, overrides or ())
        else:
            loaded = config_from_files(
                edges,
                features,
                labels,
                name=name,
                file_format=edge_format,
                symmetrize=symmetrize is not False,
                overrides=overrides or (),
            )
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
    from flows.terminal import say, set_up_logging, show_summary, use_progress_bars
    from tasks.readiness import check_config

    if trains:
        check_config(config)
    _make_state_dir(config.state_dir)
    signal.signal(signal.SIGTERM, interrupt)
    set_up_logging()
    if not as_json:
        use_progress_bars()
    set_defaults(prefect_settings(config.state_dir))
    with _orchestrator(config.state_dir) as wait_until_ready:
        with _quick_imports():  # they take as long as the server takes to start
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
        show_summary(summary, _where_to_look(config, summary))


def _make_state_dir(path: Path) -> None:
    """Make the state directory; MLflow and Prefect, which would, do not say what is wrong with it."""
    path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the state directory cannot be written to", str(path))


@contextlib.contextmanager
def _quick_imports() -> Iterator[None]:
    """Keep the garbage collector from going again and again through what is imported: a third of the time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


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

    folder = config.state_dir / "runs" / str(summary["mlflow_run_id"])
    served = str(summary["mlflow_run_url"])
    return {
        "curves, pictures, all settings": served if running_servers(config.state_dir) else f"garden up, then {served}",
        "this summary": str(folder / "summary.json"),
        "artifacts": str(config.state_dir / "artifacts"),
    }
