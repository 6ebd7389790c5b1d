"""`garden sweep`: every combination of some settings' values, trained on shared preparation and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import Load, takes_graph
from flows.commands.run import run_flow
from flows.commands.values import EndWithJson, VerifyInputs

EXAMPLES = """
[bold]Examples[/bold]

[green]garden sweep demo --grid training.learning_rate=0.01,0.003 --grid model.hidden=64,128[/green]: four points

[green]garden sweep mine.yaml --grid sampling.fanouts=[5,5],[10,10] --json[/green]: the last line is JSON

[green]garden sweep --edges e.csv --features x.npy --labels y.npy --grid model.kind=sage,gcn[/green]: your files
"""


@takes_graph
def sweep(
    load: Load,
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="a.b=v,w", help="Values of one setting to try; repeat for more.")
    ],
    verify_inputs: VerifyInputs = False,
    as_json: EndWithJson = False,
) -> None:
    """Train every combination of some settings' values, and say which scores best on the validation nodes.

    MLflow holds one run for the sweep and one below it for each point; what the points share is prepared once.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        from conf.grid import grid_points, parse_grid

        values = parse_grid(grid)
        loaded = load()
        grid_points(loaded, values)  # what is wrong with it is said before anything starts
        run_flow(loaded, "sweep", trains=True, as_json=as_json, grid=values, verify_inputs=verify_inputs)
