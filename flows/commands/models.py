"""`garden predict` and `garden embed`: a trained model applied to all nodes of a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.commands.ending import exit_codes
from flows.commands.run import EdgeFormat
from flows.commands.values import AsJson, StateDir, nbytes

if TYPE_CHECKING:
    from storage.formats.base import GraphSource

PREDICT_EXAMPLES = """
[bold]Examples[/bold]

[green]garden predict demo@champion .garden/artifacts/reorder/DIGEST -o classes.parquet[/green]: the training graph

[green]garden predict .garden/artifacts/train/DIGEST graph.h5 -o classes.parquet[/green]: any store

[green]garden predict mine@3 --edges new.csv --features new.npy -o new.parquet[/green]: nodes it has never seen

[green]garden inspect demo[/green]: where the store and the model of a configuration lie
"""
EMBED_EXAMPLES = """
[bold]Examples[/bold]

[green]garden embed demo@champion .garden/artifacts/reorder/DIGEST -o emb.parquet[/green]: columns id, embedding

[green]garden embed demo@champion graph.h5 -o emb.npy[/green]: a bare (nodes, width) array in the input's order

[green]garden embed mine@3 --edges new.csv --features new.npy -o new.parquet[/green]: a new graph
"""
_NEW_PANEL = "A new graph in place of STORE"

_Model = Annotated[str, typer.Argument(help="Model folder, artifact of a training, or NAME@champion, NAME@VERSION.")]
_Store = Annotated[
    Path | None, typer.Argument(help="Store (graph.h5), or the artifact of a reorder stage that holds one.")
]
_Edges = Annotated[Path | None, typer.Option(rich_help_panel=_NEW_PANEL, help="Edges, as for `garden run`.")]
_Features = Annotated[Path | None, typer.Option(rich_help_panel=_NEW_PANEL, help="Features, one row a node.")]
_Format = Annotated[
    EdgeFormat | None, typer.Option("--format", rich_help_panel=_NEW_PANEL, help="Default: by the suffix.")
]
_Symmetrize = Annotated[
    bool | None,
    typer.Option(
        "--symmetrize/--directed",
        rich_help_panel=_NEW_PANEL,
        help="Add the reverse of every edge, or not.  [default: as the training graph]",
    ),
]
_HostBudget = Annotated[str | None, typer.Option(metavar="BYTES", help="Most memory to use, as 2GiB; default: free.")]


def predict(
    model: _Model,
    store: _Store = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")] = Path("predictions.parquet"),
    edges: _Edges = None,
    features: _Features = None,
    edge_format: _Format = None,
    symmetrize: _Symmetrize = None,
    host_budget: _HostBudget = None,
    state_dir: StateDir = Path(".garden"),
    as_json: AsJson = False,
) -> None:
    """Predict the class of every node, exactly, over all its neighbors.

    Writes one row a node with the columns id (as in the input files), class (its name) and p_CLASS, the probability
    of each class. A model of a multi-label task has no column class: each p_LABEL is a probability of its own.

    --edges and --features predict a new graph with features of the same width: GNNs need not have seen a node.
    Edges and features are read as those of the training graph were.
    """
    new = (edges, features, edge_format, symmetrize)
    _write("classes", model, store, out, new, host_budget, state_dir, as_json=as_json)


def embed(
    model: _Model,
    store: _Store = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet or .npy file to write.")] = Path(
        "embeddings.parquet"
    ),
    edges: _Edges = None,
    features: _Features = None,
    edge_format: _Format = None,
    symmetrize: _Symmetrize = None,
    host_budget: _HostBudget = None,
    state_dir: StateDir = Path(".garden"),
    as_json: AsJson = False,
) -> None:
    """Write the hidden representation of every node: what enters the model's last layer.

    Parquet holds the columns id and embedding; .npy holds the rows alone, in the order of the input.
    """
    new = (edges, features, edge_format, symmetrize)
    _write("hidden", model, store, out, new, host_budget, state_dir, as_json=as_json)


_NewGraph = tuple[Path | None, Path | None, str | None, bool | None]


def _write(
    output: Literal["classes", "hidden"],
    model: str,
    store: Path | None,
    out: Path,
    new: _NewGraph,
    host_budget: str | None,
    state_dir: Path,
    *,
    as_json: bool,
) -> None:
    with exit_codes():
        from conf.load import ConfigError
        from flows.environment import prefect_settings, set_defaults
        from flows.terminal import set_up_logging

        edges, features, edge_format, symmetrize = new
        if (store is None) == (edges is None):
            raise ConfigError("give a STORE, or a new graph with --edges and --features: one of the two")
        if edges is None and any(value is not None for value in new):
            raise ConfigError("--features, --format, --symmetrize and --directed go with --edges")
        budget = nbytes(host_budget, "--host-budget")
        set_up_logging()
        set_defaults(prefect_settings(state_dir))  # the registry's client imports Prefect
        from tasks.budgets import Budgets
        from tasks.model_reference import open_model
        from tasks.predict import ingested, write_output

        budgets, named = Budgets(budget, host_option="--host-budget"), open_model(model, state_dir)
        if store is not None:
            written = write_output(named, store, out, output, budgets)
        else:
            assert edges is not None, "checked above"
            with ingested(named, lambda: _open(edges, features, edge_format), symmetrize, out, budgets) as path:
                written = write_output(named, path, out, output, budgets)
        what = "classes" if output == "classes" else "values a node"
        result = {"path": str(written.path), "rows": written.rows, "columns": written.columns}
        typer.echo(json.dumps(result) if as_json else f"{out}: {written.rows:,} nodes, {written.columns:,} {what}")


def _open(edges: Path, features: Path | None, edge_format: str | None) -> GraphSource:
    from conf.files import config_from_files
    from tasks.sources import open_source

    return open_source(config_from_files(edges, features, name="new", file_format=edge_format).data)
