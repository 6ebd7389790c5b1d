"""`garden sweep`: every combination of some settings' values, trained on shared preparation and compared."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import (
    Config,
    Edges,
    Features,
    Format,
    IdColumn,
    Labels,
    Name,
    Overrides,
    Symmetrize,
    configuration,
)
from flows.commands.run import run_flow
from flows.commands.values import EndWithJson, VerifyInputs

EXAMPLES = """
[bold]Examples[/bold]

[green]garden sweep demo --grid training.learning_rate=0.01,0.003 --grid model.hidden=64,128[/green]: four points

[green]garden sweep mine.yaml --grid sampling.fanouts=[5,5],[10,10] --json[/green]: the last line is JSON

[green]garden sweep --edges e.csv --features x.npy --labels y.npy --grid model.kind=sage,gcn[/green]: your files
"""


def sweep(
    grid: Annotated[
        list[str], typer.Option("--grid", metavar="a.b=v,w", help="Values of one setting to try; repeat for more.")
    ],
    config: Config = None,
    overrides: Overrides = None,
    verify_inputs: VerifyInputs = False,
    as_json: EndWithJson = False,
    edges: Edges = None,
    features: Features = None,
    labels: Labels = None,
    id_column: IdColumn = None,
    edge_format: Format = None,
    name: Name = None,
    symmetrize: Symmetrize = None,
) -> None:
    """Train every combination of some settings' values, and say which scores best on the validation nodes.

    MLflow holds one run for the sweep and one below it for each point; what the points share is prepared once.
    """
    with exit_codes("stopped before the end; run the same command again to go on"):
        from conf.grid import grid_points, parse_grid

        values = parse_grid(grid)
        loaded = configuration(
            config,
            overrides,
            edges=edges,
            features=features,
            labels=labels,
            id_column=id_column,
            edge_format=edge_format,
            name=name,
            symmetrize=symmetrize,
        )
        grid_points(loaded, values)  # what is wrong with it is said before anything starts
        run_flow(loaded, "sweep", trains=True, as_json=as_json, grid=values, verify_inputs=verify_inputs)
