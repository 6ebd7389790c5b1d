"""`garden config`: what a configuration comes to, whether it is valid, and its schema."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.ending import exit_codes

_EXAMPLES = """
[bold]Examples[/bold]

[green]garden config show demo > mine.yaml[/green]: all settings of a preset, to start your own from

[green]garden config show mine.yaml --set training.epochs=50 --json[/green]: what a run would use

[green]garden config validate mine.yaml[/green]: exit code 2 and what to change, if it is wrong

[green]garden config schema > garden.schema.json[/green]: for an editor that completes and checks YAML
"""

app = typer.Typer(help="Show, check or describe configurations.", epilog=_EXAMPLES, no_args_is_help=True)

_Config = Annotated[str, typer.Argument(help="Name of a preset, or a YAML file.")]
_Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting; repeat for more.")
]


@app.command(epilog=_EXAMPLES)
def show(
    config: _Config,
    overrides: _Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of YAML.")] = False,
) -> None:
    """Print every setting with its value, as YAML that `garden run` reads."""
    with exit_codes():
        import json

        import yaml

        from conf.load import load_config

        tree = load_config(config, overrides or ()).model_dump(mode="json")
        typer.echo(json.dumps(tree) if as_json else yaml.safe_dump(tree, sort_keys=False, width=120).rstrip())


@app.command(epilog=_EXAMPLES)
def validate(config: _Config, overrides: _Overrides = None) -> None:
    """Check a configuration; input files are not looked at."""
    with exit_codes():
        from conf.load import load_config

        loaded = load_config(config, overrides or ())
        typer.echo(f"{config} is valid: run {loaded.name!r}, format {loaded.data.format}, model {loaded.model.kind}")


@app.command(epilog=_EXAMPLES)
def schema() -> None:
    """Print the JSON schema of configurations."""
    with exit_codes():
        import json

        from conf.schema import PipelineConfig

        typer.echo(json.dumps(PipelineConfig.model_json_schema(), indent=2))
