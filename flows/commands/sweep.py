"""`garden sweep`: every combination of some settings' values, trained on shared preparation and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.run import run_flow

EXAMPLES = """
[bold]Examples[/bold]

[green]garden sweep demo --grid training.learning_rate=0.01,0.003 --grid model.hidden=64,128[/green]: four points

[green]garden sweep mine.yaml --grid sampling.fanouts=[5,5],[10,10] --json[/green]: the last line is JSON
"""


def sweep(
    config: Annotated[str, typer.Argument(help="Name of a preset, or a YAML file (docs/configuration.md).")],
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="a.b=v,w", help="Values of one setting to try; repeat for more.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting; repeat for more.")
    ] = None,
    verify_inputs: Annotated[
        bool, typer.Option("--verify-inputs", help="Hash input files anew instead of trusting size, time and inode.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with the results as one line of JSON.")] = False,
) -> None:
    """Train every combination of some settings' values, and say which scores best on the validation nodes.

    MLflow holds one run for the sweep and one below it for each point; what the points share is prepared once.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        from conf.grid import grid_points, parse_grid
        from conf.load import load_config

        loaded, values = load_config(config, overrides or ()), parse_grid(grid)
        grid_points(loaded, values)  # what is wrong with it is said before anything starts
        run_flow(loaded, "sweep", trains=True, as_json=as_json, grid=values, verify_inputs=verify_inputs)
