"""The `split` folder of an OGB data set: ids of nodes or graphs as CSV, or held-out links in files of `torch.save`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from storage.errors import InputError
from storage.formats.base import IdArray, Links
from storage.formats.edge_data import EdgeWeights, check_edge_data
from storage.formats.files import require_file
from storage.formats.text_dialect import plain_dialect
from storage.formats.text_table import TextTable
from storage.formats.torch_pickle import load_saved_arrays

_SPLITS = ("train", "valid", "test")
_WHOLE = "split_dict"
_SUFFIXES = (".csv.gz", ".csv", ".pt")
_EDGE_DATA = ("weight", "year", "relation")


@dataclass(frozen=True)
class OgbSplit:
    """What a split scheme holds: one of both, or neither."""

    nodes: Mapping[str, IdArray] | None = None
    """Ids of nodes (or graphs), by split."""
    links: Mapping[str, Links] | None = None
    """Held-out links, by split."""


def split_files(folder: Path, scheme: str | None) -> dict[str, Path]:
    """Find the files of a split scheme, by split; none where the data set has no splits.

    Raises
    ------
    InputError
        There is no such scheme, or several and none was named.
    """
    schemes = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if scheme is None and len(schemes) > 1:
        raise InputError(f"{folder} holds several splits ({', '.join(schemes)}): set split_scheme to one of them")
    if scheme is not None and scheme not in schemes:
        raise InputError(f"{folder} has no split {scheme!r}: it holds {', '.join(schemes) or 'none'}")
    if not schemes:
        return {}
    chosen = folder / (scheme or schemes[0])
    candidates = {split: [chosen / f"{split}{end}" for end in _SUFFIXES] for split in (*_SPLITS, _WHOLE)}
    found = {split: [file for file in files if file.exists()] for split, files in candidates.items()}
    return {split: files[0] for split, files in found.items() if files}


def read_split(folder: Path, scheme: str | None, edge_weights: EdgeWeights) -> OgbSplit:
    """Read a split scheme.

    Raises
    ------
    InputError
        A file is missing, or is not what it should be.
    """
    files = split_files(folder, scheme)
    if not files:
        return OgbSplit()
    where = next(iter(files.values())).parent
    content = load_saved_arrays(files[_WHOLE]) if _WHOLE in files else {split: _read(files[split]) for split in files}
    if any(isinstance(part, dict) for part in content.values()):
        links = {split: _to_links(part, f"{where}/{split}", edge_weights) for split, part in content.items()}
        return OgbSplit(links=links)
    missing = [split for split in _SPLITS if split not in content]
    if missing:
        raise InputError(f"{where} has no {missing[0]} split: it holds {', '.join(content)}")
    return OgbSplit(nodes={split: _to_ids(content[split], f"{where}/{split}") for split in _SPLITS})


def _read(file: Path) -> Any:
    """Ids, or a dict of arrays."""
    if file.suffix == ".pt":
        return load_saved_arrays(file)
    table = TextTable(require_file(file), plain_dialect(file, ",", quote='"'))
    columns = [frame.to_series(0).to_numpy() for frame in table.read({0: pl.Int64})]
    return np.concatenate([np.empty(0, np.int64), *columns])


def _to_ids(value: Any, where: str) -> npt.NDArray[np.int64]:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or (value.dtype.kind not in "iu" and len(value)):
        raise InputError(f"{where} holds no list of ids: give one integer a line")
    return value.astype(np.int64)


def _to_links(value: Any, where: str, edge_weights: EdgeWeights) -> Links:
    """Held-out links from `edge` and `edge_neg`, or from `source_node`, `target_node` and `target_node_neg`."""
    if not isinstance(value, dict):
        raise InputError(f"{where} holds no dict of arrays")
    if "head" in value:
        raise InputError(f"{where} is a knowledge graph in OGB's form: write its triples as text, for format triples")
    check_edge_data(", ".join(name for name in _EDGE_DATA if name in value), where, edge_weights)
    if "edge" in value:
        negatives = _to_pairs(value["edge_neg"], f"{where}, edge_neg") if "edge_neg" in value else None
        return Links(_to_pairs(value["edge"], f"{where}, edge"), negatives=negatives)
    ends = [_to_ids(value.get(name), f"{where}, {name}") for name in ("source_node", "target_node")]
    if len(ends[0]) != len(ends[1]):
        raise InputError(f"{where} has {len(ends[0])} sources and {len(ends[1])} targets")
    return Links(np.stack(ends, axis=1), candidates=_to_candidates(value.get("target_node_neg"), len(ends[0]), where))


def _to_candidates(value: Any, num_links: int, where: str) -> npt.NDArray[np.int64] | None:
    """False targets to rank each link's target against (ogbl-citation2: 1000 a link)."""
    if value is None:
        return None
    is_table = isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iu"
    if not is_table or len(value) != num_links:
        raise InputError(f"{where}, target_node_neg holds no row of integers for each of {num_links} links")
    candidates: npt.NDArray[np.int64] = value.astype(np.int64, copy=False)
    return candidates


def _to_pairs(value: Any, where: str) -> npt.NDArray[np.int64]:
    if not isinstance(value, np.ndarray) or value.ndim != 2 or value.shape[1] != 2 or value.dtype.kind not in "iu":
        raise InputError(f"{where} holds no (links, 2) integers")
    return value.astype(np.int64)
