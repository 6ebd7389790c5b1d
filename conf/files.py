"""A configuration made of file names alone, for `garden run --edges ...`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conf.load import ConfigError, apply_overrides, validate_config
from conf.schema import PipelineConfig

_FORMAT_OF_SUFFIX = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el"), "edge_list"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".mtx": "matrix_market",
    ".npz": "npz",
    **dict.fromkeys((".bin", ".dgl"), "dgl"),
}
_BRINGS_SPLIT = ("dgl",)


def config_from_files(
    edges: Path | None,
    features: Path | None = None,
    labels: Path | None = None,
    *,
    name: str | None = None,
    id_column: str | None = None,
    file_format: str | None = None,
    symmetrize: bool = True,
    overrides: Sequence[str] = (),
) -> PipelineConfig:
    """Make the configuration of a graph that is given by its files.

    Parameters
    ----------
    edges
        Edge file.
    features, labels
        Tables with one row a node.
    name
        Name of the run and the model; by default that of the edge file.
    id_column
        Column of features and labels that holds the ids.
    file_format
        Value of `data.format`; by default the suffix tells it.
    symmetrize
        Add the reverse of every edge.
    overrides
        As for `load_config`; they come last.

    Raises
    ------
    ConfigError
        If there are no edges, the suffix is unknown, or a value is not allowed.
    """
    if edges is None:
        raise ConfigError(
            "give a configuration (`garden run demo`), or your files: --edges FILE --features FILE --labels FILE"
        )
    chosen = file_format or format_of(edges)
    data: dict[str, Any] = {"format": chosen, "edges": str(edges), "symmetrize": symmetrize}
    data |= {key: str(path) for key, path in (("features", features), ("labels", labels)) if path is not None}
    data |= {} if id_column is None else {"id_column": id_column}
    data |= {} if chosen in _BRINGS_SPLIT else {"split": "random"}
    tree: dict[str, Any] = {"name": name or _name_of(edges), "data": data}
    apply_overrides(tree, overrides)
    return validate_config(tree, str(edges))


def _name_of(edges: Path) -> str:
    """Name of a file without its suffixes, as far as a name may hold its characters."""
    stem = edges.name.removesuffix("".join(edges.suffixes[-2:] if edges.suffix == ".gz" else edges.suffixes[-1:]))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).lstrip("._-")[:100] or "graph"


def format_of(edges: Path) -> str:
    """Tell the format of an edge file by its suffix, gzip aside.

    Raises
    ------
    ConfigError
        If the suffix is unknown.
    """
    suffixes = [suffix.lower() for suffix in edges.suffixes if suffix.lower() != ".gz"]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in _FORMAT_OF_SUFFIX:
        known = ", ".join(_FORMAT_OF_SUFFIX)
        raise ConfigError(f"{edges}: the suffix does not tell the format (known: {known}): give --format")
    return _FORMAT_OF_SUFFIX[suffix]
