"""Node features on their way into a store: checked in one pass, then converted chunk by chunk to a compact type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from storage.blocks.writer import ArrayStream
from storage.errors import InputError
from storage.formats.base import FeatureTable
from storage.progress import Advance, OpenProgress, no_progress

NanPolicy = Literal["refuse", "zero"]
Normalization = Literal["none", "row"]


@dataclass(frozen=True)
class FeatureFacts:
    """What one pass over the features found."""

    non_finite: int
    """Values that are NaN, infinite or beyond float32."""
    is_binary: bool
    """Whether every value is 0 or 1 (values that are not finite aside)."""
    zero_rows: int
    """Rows without any value but 0."""
    in_order: bool = True
    """Whether the rows come in the order of their nodes."""


def inspect_features(
    table: FeatureTable, num_nodes: int, nan_policy: NanPolicy, progress: OpenProgress = no_progress
) -> FeatureFacts:
    """Check features before anything is written.

    Raises
    ------
    InputError
        There is not one row a node or no column, the type holds no numbers, or values are not finite and `nan_policy`
        refuses them.
    """
    if table.num_rows != num_nodes:
        raise InputError(
            f"{table.where} has {table.num_rows} rows, but the graph has {num_nodes} nodes: "
            "give one row a node, and num_nodes if the last nodes have no edge"
        )
    if not table.dim:
        raise InputError(f"{table.where} has no column of features: give one at least, or leave data.features empty")
    if table.dtype.kind not in "biuf":
        raise InputError(f"{table.where} holds {table.dtype}, which is no number: give numeric features")
    with progress("checking features", "rows") as advance:
        return _inspect(table, nan_policy, advance)


def _inspect(table: FeatureTable, nan_policy: NanPolicy, advance: Advance) -> FeatureFacts:
    non_finite = zero_rows = row = 0
    is_binary = True
    for raw in table.chunks():
        chunk = _narrowed(raw)
        finite = np.isfinite(chunk) if chunk.dtype.kind == "f" else np.ones(chunk.shape, np.bool_)
        bad = int(finite.size - np.count_nonzero(finite))
        if bad and nan_policy == "refuse":
            place, column = np.argwhere(~finite)[0]
            value = raw[place, column]
            problem = f"is {value}, beyond float32" if np.isfinite(value) else f"is {value}"
            raise InputError(
                f"{table.where}: row {row + place}, column {column} {problem}: correct it, or store 0 in place of "
                "values that are not finite: --set data.nan_policy=zero"
            )
        non_finite += bad
        is_binary = is_binary and bool(np.all((chunk == 0) | (chunk == 1) | ~finite))
        zero_rows += int(np.count_nonzero(~np.any((chunk != 0) & finite, axis=1)))
        row += len(chunk)
        advance(row, table.num_rows)
    _check_rows(table, row)
    return FeatureFacts(non_finite, is_binary, zero_rows)


def stored_features(table: FeatureTable, facts: FeatureFacts, normalize: Normalization) -> ArrayStream:
    """Stream the features in the type the store keeps: uint8 for 0/1, float16 as it is, else float32.

    `normalize="row"` divides each row by its sum (rows that sum to 0 stay) and gives float32.
    """
    dtype = np.dtype(np.float16 if table.dtype == np.float16 else np.float32)
    if normalize == "row":
        dtype = np.dtype(np.float32)
    elif facts.is_binary:
        dtype = np.dtype(np.uint8)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        rows = 0
        for raw in table.chunks():
            rows += len(raw)
            chunk = _narrowed(raw)
            clean = np.nan_to_num(chunk, nan=0, posinf=0, neginf=0) if facts.non_finite else chunk
            yield (_normalized(clean) if normalize == "row" else clean).astype(dtype, copy=False)
        _check_rows(table, rows)

    return ArrayStream((table.num_rows, table.dim), dtype, chunks())


def _check_rows(table: FeatureTable, rows: int) -> None:
    if rows != table.num_rows:
        raise InputError(
            f"{table.where} declares {table.num_rows} rows and {rows} could be read: write it anew, or run again when "
            "nothing writes to it"
        )


def _narrowed(chunk: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Doubles as float32, where what is too large becomes infinite."""
    if chunk.dtype.kind != "f" or chunk.dtype.itemsize <= 4:
        return chunk
    with np.errstate(over="ignore"):
        return chunk.astype(np.float32)


def _normalized(chunk: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Divide each row by its sum, in double precision."""
    total = chunk.sum(axis=1, dtype=np.float64, keepdims=True)
    total[total == 0] = 1
    normalized: npt.NDArray[np.float32] = (chunk / total).astype(np.float32)
    return normalized
