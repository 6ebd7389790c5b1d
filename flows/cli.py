"""The `garden` command. Nothing heavy is imported before it is needed, so that `--help` is quick."""

from __future__ import annotations

import contextlib
import enum
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from conf.schema import PipelineConfig

_EXAMPLES = """
[bold]Examples[/bold]

[green]garden run demo[/green]: a generated graph, no files needed

[green]garden run cora --set data.path=data/cora[/green]: a public data set

[green]garden run demo --set cache.device_budget=12MiB[/green]: all that does not depend on it is reused

[green]garden run mine.yaml --set training.epochs=50 --json[/green]: your configuration; the last line is JSON

[green]garden up[/green]: Prefect and MLflow in the browser
"""

app = typer.Typer(
    name="garden",
    help="Train GNNs on graphs larger than the GPU or the memory of one machine: cached, block-wise, tracked.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Stage(enum.StrEnum):
    """Stages, in order."""

    INGEST = "ingest"
    REORDER = "reorder"
    PROFILE = "profile"
    CACHE = "cache"
    TRAIN = "train"


@app.callback()
def _root() -> None:
    pass  # makes `run` a command even while commands are few


@app.command(epilog=_EXAMPLES)
def run(
    config: Annotated[str, typer.Argument(help="Name of a preset, or a YAML file (docs/configuration.md).")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting; repeat for more.")
    ] = None,
    until: Annotated[Stage, typer.Option(help="Last stage to run.")] = Stage.TRAIN,
    verify_inputs: Annotated[
        bool, typer.Option("--verify-inputs", help="Hash input files anew instead of trusting size, time and inode.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with the results as one line of JSON.")] = False,
) -> None:
    """Run the pipeline: ingest, reorder, profile, cache, train.

    Stages that are finished for this input and configuration are reused. A run that was killed goes on after its last
    finished stage, in training after its last finished epoch.

    Presets: demo, cora, citeseer, pubmed, pubmed_full, musae_facebook, ogb, igb, edge_list.
    """
    with _exit_codes():
        from conf.load import load_config

        _run(load_config(config, overrides or ()), until, verify_inputs=verify_inputs, as_json=as_json)


@app.command()
def up(
    state_dir: Annotated[Path, typer.Option(help="Directory of the databases, artifacts and logs.")] = Path(".garden"),
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
) -> None:
    """Start the Prefect and MLflow servers and serve the flows, on this machine only. Ctrl-C stops everything.

    Runs that `garden run` makes meanwhile with the same state directory appear there as they go.
    """
    with _exit_codes():
        from flows.servers import local_servers
        from flows.terminal import say

        signal.signal(signal.SIGTERM, _interrupt)
        start = time.perf_counter()
        with (
            local_servers(state_dir.absolute(), prefect_port, mlflow_port, say) as check,
            contextlib.suppress(KeyboardInterrupt),
        ):
            say(f"ready after {time.perf_counter() - start:.0f} s; Ctrl-C stops everything")
            say(f"  Prefect  http://127.0.0.1:{prefect_port}/v2/deployments")
            say(f"  MLflow   http://127.0.0.1:{mlflow_port}/#/experiments?workflowType=machine_learning")
            say(f"  logs     {state_dir / 'logs'}")
            while True:
                check()
                time.sleep(0.5)
        say("stopped")


def main() -> None:
    """Run the command line."""
    try:
        app()
    finally:
        gc.freeze()  # the process ends: collecting what it made, piece by piece, would take another second


def _run(config: PipelineConfig, until: Stage, *, verify_inputs: bool, as_json: bool) -> None:
    from flows.environment import prefect_settings, set_defaults
    from flows.terminal import say, set_up_logging, show_summary, use_progress_bars

    signal.signal(signal.SIGTERM, _interrupt)
    set_up_logging()
    if not as_json:
        use_progress_bars()
    set_defaults(prefect_settings(config.state_dir))
    with _orchestrator(config.state_dir) as wait_until_ready:
        with _quick_imports():  # they take as long as the server takes to start
            from flows.pipeline import pipeline
            from tasks.tracking import check_store

            check_store(config.state_dir)
            for module in ("matplotlib.figure", *(["torch._dynamo"] if until is Stage.TRAIN else [])):
                importlib.import_module(module)  # the plots and the optimizer would, more slowly
        wait_until_ready()
        summary: dict[str, Any] = pipeline(config, until=until.value, verify_inputs=verify_inputs)
    if as_json:
        say(json.dumps(summary))
    else:
        show_summary(summary, _where_to_look(config, summary))


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
    from flows.servers import answers, running_servers, temporary_prefect
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


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    """End with one line and an exit code: 2 wrong input, 3 not on this machine now, 1 anything else."""
    try:
        yield
    except KeyboardInterrupt:
        _fail("stopped before the end; run the same command again to go on", 1)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            _fail(str(error), code)
        traceback.print_exc()
        _fail(f"{type(error).__name__}: {error} (a defect of this program: report it with the lines above)", 1)


def _fail(message: str, code: int) -> NoReturn:
    from flows.terminal import say_error

    say_error(message)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
