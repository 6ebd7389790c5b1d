"""The `garden` command. Nothing heavy is imported before it is needed, so that `--help` is quick."""

from __future__ import annotations

import gc
import inspect
import io
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from flows.commands import advise, compare, configuration, graphs, models, run, sweep, up, upkeep
from flows.commands.values import Command, Group

_EXAMPLES = """
[bold]Examples[/bold]

[green]garden run demo[/green]: a generated graph, no files needed

[green]garden run --edges mine.csv --features x.npy --labels y.npy[/green]: your own

[green]garden advise mine.yaml[/green]: how to run it on this machine, and what to expect

[green]garden inspect demo[/green]: which stages are finished, and what they made

[green]garden predict demo@champion -o classes.parquet[/green]: classes of all nodes

[green]garden doctor[/green]: what this machine can do

[green]garden up[/green]: Prefect and MLflow in the browser

[bold]Exit codes[/bold]: 0 done; 2 input, configuration or a data file is wrong; 3 this machine cannot do it now; 1 else
"""

app = typer.Typer(
    cls=Group,
    name="garden",
    help="Train GNNs on graphs larger than the GPU or the memory of one machine: cached, block-wise, tracked.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: tuple[tuple[str, Callable[..., None], str], ...] = (
    ("run", run.run, run.EXAMPLES),
    ("sweep", sweep.sweep, sweep.EXAMPLES),
    ("compare", compare.compare, compare.EXAMPLES),
    ("up", up.up, up.UP_EXAMPLES),
    ("down", up.down, up.DOWN_EXAMPLES),
    ("status", up.status, up.STATUS_EXAMPLES),
    ("advise", advise.advise, advise.EXAMPLES),
    ("inspect", graphs.inspect, graphs.INSPECT_EXAMPLES),
    ("verify", graphs.verify, graphs.VERIFY_EXAMPLES),
    ("predict", models.predict, models.PREDICT_EXAMPLES),
    ("embed", models.embed, models.EMBED_EXAMPLES),
    ("gc", upkeep.collect, upkeep.GC_EXAMPLES),
    ("doctor", upkeep.doctor, upkeep.DOCTOR_EXAMPLES),
)
for _name, _command, _examples in _COMMANDS:
    # Typer would break the lines of a paragraph where the source does.
    _help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(_command.__doc__ or ""))
    app.command(_name, cls=Command, help=_help, epilog=_examples)(_command)
app.add_typer(configuration.app, name="config")


def _say_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"garden {version('garden-gnn')}")
        except PackageNotFoundError:
            typer.echo("garden, run from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names of files need not be UTF-8
    try:
        app()
    finally:
        gc.freeze()  # the process ends: collecting what it made, piece by piece, would take another second


if __name__ == "__main__":
    main()
