"""What may stand for a node's label, and what it becomes: a class in 0..C-1, or -1 for none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from storage.errors import InputError
from storage.formats.base import LabelColumn


def to_labels(raw: npt.NDArray[Any], where: str) -> LabelColumn:
    """Normalise labels.

    Integers (floats that are whole too): negative and NaN are unlabelled; the classes that occur become 0..C-1 in
    ascending order and keep their number as name. Strings: sorted; None and "" are unlabelled. Two dimensions: one-hot
    rows, an all-zero row being unlabelled.

    Parameters
    ----------
    raw : (N,), (N, 1) or one-hot (N, C) array
    where : str
        How errors name it.

    Returns
    -------
    LabelColumn

    Raises
    ------
    InputError
        A label is a fraction or infinite, a row names several classes, or the array is no column of labels.
    """
    if raw.ndim == 2 and raw.shape[1] == 1:
        raw = raw[:, 0]
    if raw.ndim == 2:
        return _from_one_hot(raw, where)
    if raw.ndim != 1:
        raise InputError(f"{where} has shape {raw.shape}: give one label a node, or one-hot rows")
    if raw.dtype.kind in "OUST":
        return _from_strings(raw)
    if raw.dtype.kind not in "biuf":
        raise InputError(f"{where} holds {raw.dtype}: give integers or strings")
    return _from_numbers(raw, where)


def _from_numbers(raw: npt.NDArray[Any], where: str) -> LabelColumn:
    if raw.dtype.kind == "f":
        wrong = np.flatnonzero(np.isinf(raw) | ((raw != np.floor(raw)) & ~np.isnan(raw)))
        if len(wrong):
            raise InputError(
                f"{where}: row {wrong[0]} is {raw[wrong[0]]}, which is no class: labels are whole numbers "
                "(regression targets are not supported)"
            )
        raw = np.where(np.isnan(raw), -1, raw)
    labels_N = np.maximum(raw.astype(np.int64), -1)
    classes = np.unique(labels_N[labels_N >= 0])
    compact_N = np.where(labels_N < 0, -1, np.searchsorted(classes, labels_N))
    return LabelColumn(compact_N.astype(np.int64), tuple(str(label) for label in classes))


def _from_strings(raw: npt.NDArray[Any]) -> LabelColumn:
    text_N = np.array(["" if label is None else str(label) for label in raw], np.str_)
    classes = np.unique(text_N[text_N != ""])
    labels_N = np.where(text_N == "", -1, np.searchsorted(classes, text_N))
    return LabelColumn(labels_N.astype(np.int64), tuple(str(label) for label in classes))


def _from_one_hot(raw: npt.NDArray[Any], where: str) -> LabelColumn:
    if raw.dtype.kind not in "biuf" or not np.all((raw == 0) | (raw == 1)):
        raise InputError(f"{where} has shape {raw.shape} but is not one-hot: give one label a node")
    ones_N = raw.sum(axis=1, dtype=np.int64)
    several = np.flatnonzero(ones_N > 1)
    if len(several):
        raise InputError(
            f"{where}: row {several[0]} names {ones_N[several[0]]} classes: multi-label tasks are not supported, give "
            "one class a node"
        )
    labels_N = np.where(ones_N == 0, -1, raw.argmax(axis=1))
    return LabelColumn(labels_N.astype(np.int64), tuple(str(label) for label in range(raw.shape[1])))
