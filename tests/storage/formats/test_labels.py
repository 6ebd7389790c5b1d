"""Labels of every kind become classes, or an error that says why not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from storage.errors import InputError
from storage.formats.labels import to_labels


@pytest.mark.parametrize(
    ("raw", "labels", "names"),
    [
        (np.array([1, 0, 2]), [1, 0, 2], "012"),
        (np.array([1, -7, 0], np.int8), [1, -1, 0], "01"),
        (np.array([3.0, np.nan, 5.0, -1.0]), [0, -1, 1, -1], "35"),
        (np.array([[2], [0]]), [1, 0], "02"),
        (np.array([True, False]), [1, 0], "01"),
        (np.array([7, 7], np.uint64), [0, 0], "7"),
        (np.array(["b", "a", ""]), [1, 0, -1], "ab"),
        (np.array(["b", None], object), [0, -1], "b"),
        (np.array([[0, 1, 0], [0, 0, 0], [1, 0, 0]]), [1, -1, 0], "012"),
        (np.array([[0.0, 1.0]], np.float32), [1], "01"),
        (np.array([-1, -1]), [-1, -1], ""),
        (np.array([], np.int64), [], ""),
    ],
)
def test_what_is_accepted(raw: npt.NDArray[np.generic], labels: list[int], names: str) -> None:
    column = to_labels(raw, "y")
    assert column.labels_N.dtype == np.int32
    assert column.labels_N.tolist() == labels
    assert column.names == tuple(names)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (np.array([0.0, 1.5]), "y: row 1 is 1.5, which is no class"),
        (np.array([0.0, np.inf]), "y: row 1 is inf, which is no class"),
        (np.array([[0, 2], [1, 0]]), "y: row 0, column 1 is 2: rows of labels hold 0 and 1"),
        (np.array([[0, 0.5], [1, 0]]), "y: row 0, column 1 is 0.5"),
        (np.array([["a", "b"]]), "rows of labels hold 0 and 1"),
        (np.zeros((2, 2, 2)), "give one label a node"),
        (np.array([1j, 2j]), "holds complex128"),
        (np.array([0, 1e300]), r"y: row 1 is 1e\+300, beyond the largest class"),
        (np.array([0, 2**64 - 1], np.uint64), "y: row 1 is 18446744073709551615, beyond"),
    ],
)
def test_what_is_refused(raw: npt.NDArray[np.generic], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        to_labels(raw, "y")


@pytest.mark.parametrize(
    ("raw", "rows", "labelled"),
    [
        (np.array([[0, 1], [1, 1]]), [[0, 1], [1, 1]], [0, 0]),
        (np.array([[0, 1], [0, -1]]), [[0, 1], [0, -1]], [0, 0]),
        (np.array([[0.0, 1.0], [np.nan, np.nan]]), [[0, 1], [-1, -1]], [0, -1]),
        (np.array([[True, True]]), [[1, 1]], [0]),
    ],
)
def test_rows_with_several_labels(raw: npt.NDArray[np.generic], rows: list[list[int]], labelled: list[int]) -> None:
    column = to_labels(raw, "y")
    assert not column.one_class
    assert column.rows_NC is not None
    assert column.rows_NC.tolist() == rows
    assert column.labels_N.tolist() == labelled
