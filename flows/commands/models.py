"""`garden predict` and `garden embed`: a trained model applied to all nodes of a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import EdgeFormat
from flows.commands.values import AsJson, StateDir, nbytes, quick_imports

if TYPE_CHECKING:
    from storage.formats.base import GraphSource

PREDICT_EXAMPLES = """
[bold]Examples[/bold]

[green]garden predict demo@champion -o classes.parquet[/green]: the graph that it was trained on

[green]garden predict demo@2 5905fde8 -o classes.csv[/green]: another store of the state directory, by its digest

[green]garden predict .garden/artifacts/train/DIGEST graph.h5 -o classes.parquet[/green]: any model, any store

[green]garden predict mine@3 --edges new.csv --features new.npy -o new.parquet[/green]: nodes it has never seen
"""
EMBED_EXAMPLES = """
[bold]Examples[/bold]

[green]garden embed demo@champion -o emb.parquet[/green]: columns id, embedding

[green]garden embed demo@champion graph.h5 -o emb.npy[/green]: a bare (nodes, width) array in the input's order

[green]garden embed mine@3 --edges new.csv --features new.npy -o new.csv[/green]: a new graph; columns id, e0, e1, ...
"""
_NEW_PANEL = "A new graph in place of STORE"

_Model = Annotated[str, typer.Argument(help="Model folder, artifact of a training, or NAME@champion, NAME@VERSION.")]
_Store = Annotated[
    str | None,
    typer.Argument(
        help="Store (graph.h5), artifact that holds one, or its digest; default: what the model was trained on."
    ),
]
_Edges = Annotated[Path | None, typer.Option(rich_help_panel=_NEW_PANEL, help="Edges, as for `garden run`.")]
_Features = Annotated[Path | None, typer.Option(rich_help_panel=_NEW_PANEL, help="Features, one row a node.")]
_IdColumn = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", rich_help_panel=_NEW_PANEL, help="Column of features with the ids that edges use."),
]
_Format = Annotated[
    EdgeFormat | None, typer.Option("--format", rich_help_panel=_NEW_PANEL, help="Default: by the suffix.")
]
_Symmetrize = Annotated[
    bool | None,
    typer.Option(
        "--symmetrize/--directed",
        rich_help_panel=_NEW_PANEL,
        show_default="as the training graph",
        help="Add the reverse of every edge, or not.",
    ),
]
_HostBudget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Most memory to use, as 2GiB; default: free. What does not fit stays on disk."),
]

_DiskBudget = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Most disk to take at any time, output and scratch files; default: free."),
]


def predict(
    model: _Model,
    store: _Store = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet or CSV file to write.")] = Path(
        "predictions.parquet"
    ),
    edges: _Edges = None,
    features: _Features = None,
    id_column: _IdColumn = None,
    edge_format: _Format = None,
    symmetrize: _Symmetrize = None,
    host_budget: _HostBudget = None,
    disk_budget: _DiskBudget = None,
    state_dir: StateDir = Path(".garden"),
    as_json: AsJson = False,
) -> None:
    """Predict the class of every node, exactly, over all its neighbors.

    Writes one row a node with the columns id (as in the input files), class (its name) and p_CLASS, the probability
    of each class. A model of a multi-label task has no column class: each p_LABEL is a probability of its own.

    Without STORE, the graph is the one that the model was trained on, while its artifact is there.

    A graph or an output that memory, or --host-budget, does not hold is read from disk layer by layer; the numbers are
    the same to rounding. Scratch files lie in the state directory and are gone in the end.

    --edges and --features predict a new graph with features of the same width: GNNs need not have seen a node.
    Edges and features are read as those of the training graph were.
    """
    new = (edges, features, id_column, edge_format, symmetrize)
    _write("classes", model, store, out, new, (host_budget, disk_budget), state_dir, as_json=as_json)


def embed(
    model: _Model,
    store: _Store = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet, CSV or .npy file to write.")] = Path(
        "embeddings.parquet"
    ),
    edges: _Edges = None,
    features: _Features = None,
    id_column: _IdColumn = None,
    edge_format: _Format = None,
    symmetrize: _Symmetrize = None,
    host_budget: _HostBudget = None,
    disk_budget: _DiskBudget = None,
    state_dir: StateDir = Path(".garden"),
    as_json: AsJson = False,
) -> None:
    """Write the hidden representation of every node: what enters the model's last layer.

    Parquet holds the columns id and embedding, CSV id and e0, e1 and so on; .npy holds the rows alone, in the order of
    the input. Without STORE, the graph is the one that the model was trained on.

    A graph or an output that memory, or --host-budget, does not hold is read from disk layer by layer. Scratch files
    lie in the state directory and are gone in the end.
    """
    new = (edges, features, id_column, edge_format, symmetrize)
    _write("hidden", model, store, out, new, (host_budget, disk_budget), state_dir, as_json=as_json)


_SUFFIXES = {"classes": (".parquet", ".csv"), "hidden": (".parquet", ".csv", ".npy")}
_NewGraph = tuple[Path | None, Path | None, str | None, str | None, bool | None]


def _write(
    output: Literal["classes", "hidden"],
    model: str,
    store: str | None,
    out: Path,
    new: _NewGraph,
    budgets: tuple[str | None, str | None],
    state_dir: Path,
    *,
    as_json: bool,
) -> None:
    with exit_codes():
        from conf.load import ConfigError
        from flows.environment import prefect_settings, set_defaults
        from flows.terminal import set_up_logging

        edges, features, id_column, edge_format, symmetrize = new
        if store is not None and edges is not None:
            raise ConfigError("give a STORE, or a new graph with --edges and --features: not both")
        if out.suffix not in _SUFFIXES[output]:
            raise ConfigError(f"{out}: the output is {' or '.join(_SUFFIXES[output])}: choose such a name")
        if edges is None and any(value is not None for value in new):
            raise ConfigError("--features, --id-column, --format, --symmetrize and --directed go with --edges")
        most = (nbytes(budgets[0], "--host-budget"), nbytes(budgets[1], "--disk-budget"))
        set_up_logging()
        set_defaults(prefect_settings(state_dir))  # the registry's client imports Prefect
        with quick_imports():
            from tasks.budgets import Budgets
            from tasks.model_reference import open_model, trained_on
            from tasks.predict import find_store, ingested, scratch_folder, write_output

            within = Budgets(*most, host_option="--host-budget", disk_option="--disk-budget")
            named, scratch = open_model(model, state_dir), scratch_folder(state_dir, out)
        if edges is None:
            path = trained_on(named, state_dir) if store is None else find_store(store, state_dir)
            written = write_output(named, path, out, output, within, scratch=scratch)
        else:
            with ingested(
                named, lambda: _open(edges, features, id_column, edge_format), symmetrize, scratch, within
            ) as path:
                held = path.stat().st_size
                written = write_output(named, path, out, output, within, scratch=scratch, held_bytes=held)
        what = "classes" if output == "classes" else "values a node"
        result = {"path": str(written.path), "rows": written.rows, "columns": written.columns}
        typer.echo(json.dumps(result) if as_json else f"{out}: {written.rows:,} nodes, {written.columns:,} {what}")


def _open(edges: Path, features: Path | None, id_column: str | None, edge_format: str | None) -> GraphSource:
    from conf.files import config_from_files
    from tasks.sources import open_source

    return open_source(config_from_files(edges, features, id_column=id_column, file_format=edge_format).data)
