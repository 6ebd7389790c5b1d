"""Features keep a compact exact type, and bad values are found before anything is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from storage.errors import InputError
from storage.features import NanPolicy, Normalization, inspect_features, stored_features
from storage.formats import base
from storage.formats.base import FeatureTable


def stored(
    feat_ND: npt.NDArray[Any], *, normalize: Normalization = "none", nan_policy: NanPolicy = "refuse"
) -> npt.NDArray[Any]:
    table = FeatureTable.from_array(feat_ND)
    facts = inspect_features(table, len(feat_ND), nan_policy)
    stream = stored_features(table, facts, normalize)
    chunks = list(stream.chunks)
    assert all(chunk.dtype == stream.dtype for chunk in chunks)
    return np.concatenate([np.empty((0, feat_ND.shape[1]), stream.dtype), *chunks])


@pytest.mark.parametrize("given_type", [np.bool_, np.uint8, np.int64, np.float16, np.float32, np.float64])
def test_zeros_and_ones_are_stored_in_a_byte(given_type: npt.DTypeLike) -> None:
    feat = np.array([[0, 1], [1, 1]]).astype(given_type)
    assert stored(feat).dtype == np.uint8
    assert stored(feat).tolist() == [[0, 1], [1, 1]]


@pytest.mark.parametrize(
    ("given_type", "expected"),
    [(np.float16, np.float16), (np.float32, np.float32), (np.float64, np.float32), (np.int16, np.float32)],
)
def test_other_values_keep_a_floating_type(given_type: npt.DTypeLike, expected: npt.DTypeLike) -> None:
    feat = np.array([[0, 2], [3, 1]]).astype(given_type)
    assert stored(feat).dtype == expected
    assert stored(feat).tolist() == feat.tolist()


def test_rows_divided_by_their_sum() -> None:
    feat = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0]], np.uint8)
    assert stored(feat, normalize="row").dtype == np.float32
    assert stored(feat, normalize="row").tolist() == [[0.5, 0.5, 0], [0, 0, 0], [1, 0, 0]]


@settings(deadline=None)
@given(
    feat=hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(width=32)),
    normalize=st.booleans(),
    chunk_bytes=st.integers(1, 100),
)
def test_what_is_stored_is_finite_and_chunks_do_not_matter(
    feat: npt.NDArray[np.float32], normalize: bool, chunk_bytes: int
) -> None:
    rule: Normalization = "row" if normalize else "none"
    whole = stored(feat, normalize=rule, nan_policy="zero")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNK_BYTES", chunk_bytes)
        assert np.array_equal(stored(feat, normalize=rule, nan_policy="zero"), whole)
    if not normalize:
        assert np.array_equal(whole.astype(np.float32), np.where(np.isfinite(feat), feat, 0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_value_that_is_not_finite_is_named(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "CHUNK_BYTES", 16)
    feat = np.ones((5, 3))
    feat[3, 1] = feat[4, 0] = value
    with pytest.raises(InputError, match=r"the features: row 3, column 1 is .*nan_policy=zero"):
        stored(feat)
    facts = inspect_features(FeatureTable.from_array(feat), 5, "zero")
    assert (facts.non_finite, facts.is_binary, facts.zero_rows) == (2, True, 0)
    assert stored(feat, nan_policy="zero")[3:].tolist() == [[1, 0, 1], [0, 1, 1]]


def test_rows_of_zeros_are_counted() -> None:
    feat = np.array([[0, 0], [0, np.nan], [2, 0]])
    assert inspect_features(FeatureTable.from_array(feat), 3, "zero").zero_rows == 2


def test_a_wrong_number_of_rows_names_both_counts() -> None:
    with pytest.raises(InputError, match="the features has 3 rows, but the graph has 4 nodes"):
        inspect_features(FeatureTable.from_array(np.zeros((3, 2))), 4, "refuse")


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(InputError, match="the features has no column of features: give one at least"):
        inspect_features(FeatureTable.from_array(np.zeros((4, 0))), 4, "refuse")


def test_a_value_too_large_is_said_to_be_so() -> None:
    with pytest.raises(InputError, match=r"row 1, column 0 is 1e\+300, beyond float32: correct it"):
        inspect_features(FeatureTable.from_array(np.array([[1.0], [1e300]])), 2, "refuse")


def test_values_must_be_numbers() -> None:
    with pytest.raises(InputError, match="holds <U1, which is no number"):
        inspect_features(FeatureTable.from_array(np.array([["a"]])), 1, "refuse")
