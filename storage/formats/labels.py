"""What may stand for a node's label, and what it becomes: a class in 0..C-1, -1 for none, or rows of 0 and 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.distinct import distinct
from storage.errors import InputError
from storage.formats.array_files import ArrayFile
from storage.formats.base import LabelColumn

Locate = Callable[[int], str]
_PIECE_ROWS = 1 << 16
_PIECE_ROW_BYTES = 64  # of a piece: as read, checked, sorted, numbered
_CLASS_BYTES = 4
_LARGEST_LABEL = 2**53  # from there on, a float no longer tells whole numbers apart


def to_labels(raw: npt.NDArray[Any], where: str, locate: Locate | None = None) -> LabelColumn:
    """Normalise labels.

    Integers (floats that are whole too): negative and NaN are unlabelled; the classes that occur become 0..C-1 in
    ascending order and keep their number as name. Strings: sorted; None and "" are unlabelled. Two dimensions: rows of
    0 and 1, negative and NaN being unknown. Where all is known and no row has two ones, they are one-hot rows, an
    all-zero row being unlabelled; else a node may have several labels.

    Parameters
    ----------
    raw : (N,), (N, 1) or (N, C) array
    where : str
        How errors name it.
    locate : callable
        How errors name the label of a row, where that is not its number.

    Returns
    -------
    LabelColumn

    Raises
    ------
    InputError
        A label is a fraction or infinite, or the array holds neither a label a node nor rows of 0 and 1.
    """
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim == 2:
        return _from_rows(raw, where)
    if raw.ndim != 1:
        raise InputError(f"{where} has shape {raw.shape}: give one label a node, or rows of 0 and 1")
    if raw.dtype.kind in "OUST":
        return _from_strings(raw)
    if raw.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {raw.dtype}: give integers or strings")

    def pieces() -> Iterator[npt.NDArray[Any]]:
        return (raw[start : start + _PIECE_ROWS] for start in range(0, len(raw), _PIECE_ROWS))

    return _from_numbers(pieces, len(raw), locate or _row_of(where))


def array_labels(array: ArrayFile) -> LabelColumn:
    """Normalise the labels of an array on disk, as `to_labels` does; numbers, one a node, are read piece by piece."""
    rows = array.shape[0] if array.shape else 0
    if array.dtype.kind not in "biuf" or array.shape not in ((rows,), (rows, 1)):
        return to_labels(array.load(), array.where)
    return _from_numbers(lambda: array.flat_chunks(0, rows, _PIECE_ROWS), rows, _row_of(array.where))


def array_label_bytes(array: ArrayFile) -> int:
    """Memory that `array_labels` takes at most of numbers, one a node, and at least of anything else."""
    rows = array.shape[0] if array.shape else 0
    if array.dtype.kind not in "biuf" or array.shape not in ((rows,), (rows, 1)):
        return array.nbytes
    return _CLASS_BYTES * rows + _PIECE_ROW_BYTES * min(rows, _PIECE_ROWS)


def _row_of(where: str) -> Locate:
    return lambda row: f"{where}: row {row}"


def _from_numbers(read: Callable[[], Iterable[npt.NDArray[Any]]], num_rows: int, locate: Locate) -> LabelColumn:
    """Number the classes that occur, piece by piece: there may be very many nodes."""
    classes = np.empty(0, np.int64)
    for _, numbers in _whole_numbers(read(), locate):
        classes = distinct(np.concatenate([classes, distinct(numbers)]))
    classes = classes[classes >= 0]
    labels_N = np.empty(num_rows, np.int32)
    for start, numbers in _whole_numbers(read(), locate):
        labels_N[start : start + len(numbers)] = np.where(numbers < 0, -1, np.searchsorted(classes, numbers))
    return LabelColumn(labels_N, tuple(str(label) for label in classes))


def _whole_numbers(pieces: Iterable[npt.NDArray[Any]], locate: Locate) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Labels as integers, -1 where there is none, and the row of the first one, piece by piece."""
    start = 0
    for piece in pieces:
        yield start, _integers(piece, start, locate)
        start += len(piece)


def _integers(piece: npt.NDArray[Any], start: int, locate: Locate) -> npt.NDArray[np.int64]:
    """Labels of the rows from `start` on as integers."""
    if piece.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # of signalling NaNs
            wrong = np.flatnonzero(np.isinf(piece) | ((piece != np.floor(piece)) & ~np.isnan(piece)))
        if len(wrong):
            raise InputError(
                f"{locate(start + int(wrong[0]))} is {piece[wrong[0]]}, which is no class: labels are whole numbers "
                "(regression targets are not supported)"
            )
        piece = np.where(np.isnan(piece), -1, np.maximum(piece, -1))
    huge = np.flatnonzero(piece > _LARGEST_LABEL)
    if len(huge):
        found = f"{locate(start + int(huge[0]))} is {piece[huge[0]]}"
        raise InputError(f"{found}, beyond the largest class {_LARGEST_LABEL}")
    return np.maximum(piece.astype(np.int64), -1)


def _from_strings(raw: npt.NDArray[Any]) -> LabelColumn:
    text_N = np.array(["" if label is None else str(label) for label in raw], np.str_)
    classes = np.unique(text_N[text_N != ""])
    if any("\0" in name for name in classes.tolist()):
        raise InputError("a label holds a zero byte, which a store cannot keep: rename that class")
    labels_N = np.where(text_N == "", -1, np.searchsorted(classes, text_N))
    return LabelColumn(labels_N.astype(np.int32), tuple(str(label) for label in classes))


def _from_rows(raw: npt.NDArray[Any], where: str) -> LabelColumn:
    names = tuple(str(label) for label in range(raw.shape[1]))
    known = _known_entries(raw, where)
    rows_NC = np.where(known, raw == 1, -1).astype(np.int8)
    ones_N = (rows_NC == 1).sum(axis=1)
    if known.all() and not (ones_N > 1).any():
        labels_N = np.where(ones_N == 0, -1, rows_NC.argmax(axis=1))
        return LabelColumn(labels_N.astype(np.int32), names, rows_NC)
    labels_N = np.where(known.any(axis=1), 0, -1)
    return LabelColumn(labels_N.astype(np.int32), names, rows_NC, one_class=False)


def _known_entries(raw: npt.NDArray[Any], where: str) -> npt.NDArray[np.bool_]:
    """(N, C) which entries are 0 or 1; NaN and negative ones are unknown, anything else is refused."""
    if raw.dtype.kind not in "biuf":
        raise InputError(f"{where} has shape {raw.shape} of {raw.dtype}: rows of labels hold 0 and 1")
    known: npt.NDArray[np.bool_] = (raw == 0) | (raw == 1)
    unknown = ~known & (raw < 0) | (np.isnan(raw) if raw.dtype.kind == "f" else False)
    wrong = np.argwhere(~known & ~unknown)
    if len(wrong):
        row, column = wrong[0]
        raise InputError(
            f"{where}: row {row}, column {column} is {raw[row, column]}: rows of labels hold 0 and 1, negative or NaN "
            "where unknown; or give one label a node"
        )
    return known
