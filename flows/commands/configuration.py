"""`garden config`: what a configuration comes to, whether it is valid, and its schema."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import Load, takes_graph
from flows.commands.values import Command, Group

_EXAMPLES = """
[bold]Examples[/bold]

[green]garden config show demo > mine.yaml[/green]: all settings of a preset, to start your own from

[green]garden config validate mine.yaml[/green]: exit code 2 and what to change, if it is wrong

[green]garden config schema > garden.schema.json[/green]: for an editor that completes and checks YAML
"""
_SHOW_EXAMPLES = """
[bold]Examples[/bold]

[green]garden config show demo > mine.yaml[/green]: all settings of a preset, to start your own from

[green]garden config show --edges e.csv --features x.npy --labels y.npy > mine.yaml[/green]: of your own files

[green]garden config show mine.yaml --set training.epochs=50 --json[/green]: what a run would use
"""
_VALIDATE_EXAMPLES = """
[bold]Examples[/bold]

[green]garden config validate mine.yaml[/green]: exit code 2 and what to change, if it is wrong

[green]garden config validate --edges e.csv --features x.npy --labels y.npy[/green]: of your own files
"""
_SCHEMA_EXAMPLES = """
[bold]Examples[/bold]

[green]garden config schema > garden.schema.json[/green]: for an editor that completes and checks YAML
"""

app = typer.Typer(cls=Group, help="Show, check or describe configurations.", epilog=_EXAMPLES, no_args_is_help=True)


@app.command(cls=Command, epilog=_SHOW_EXAMPLES)
@takes_graph
def show(
    load: Load,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of YAML.")] = False,
) -> None:
    """Print every setting with its value, as YAML that `garden run` reads. Relative paths count from where it runs."""
    with exit_codes():
        import json

        from conf.load import to_yaml

        loaded = load()
        typer.echo(json.dumps(loaded.model_dump(mode="json")) if as_json else to_yaml(loaded).rstrip())


@app.command(cls=Command, epilog=_VALIDATE_EXAMPLES)
@takes_graph
def validate(load: Load) -> None:
    """Check a configuration; input files are not looked at."""
    with exit_codes():
        loaded = load()
        typer.echo(f"valid: run {loaded.name!r}, format {loaded.data.format}, model {loaded.model.kind}")


@app.command(cls=Command, epilog=_SCHEMA_EXAMPLES)
def schema() -> None:
    """Print the JSON schema of configurations."""
    with exit_codes():
        import json

        from conf.schema import PipelineConfig

        typer.echo(json.dumps(PipelineConfig.model_json_schema(), indent=2))
