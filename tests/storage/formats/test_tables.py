"""Feature and label files: `.npy` in every shape it comes in, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from storage.errors import InputError
from storage.formats import base
from storage.formats.tables import open_features, read_labels


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 20])
def test_npy_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, chunk_bytes: int) -> None:
    monkeypatch.setattr(base, "CHUNK_BYTES", chunk_bytes)
    feat = np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.asarray(feat, order=order))  # type: ignore[call-overload]
    table = open_features(tmp_path / "x.npy")
    assert (table.num_rows, table.dim, table.dtype) == (37, 5, np.dtype(np.float32))
    assert np.array_equal(np.concatenate(list(table.chunks())), feat)
    assert np.array_equal(np.concatenate(list(table.chunks())), feat), "read again"


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros((2, 2, 2))])
def test_features_need_two_dimensions(tmp_path: Path, array: npt.NDArray[np.float64]) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InputError, match=r"features need two dimensions, \(nodes, features\)"):
        open_features(tmp_path / "x.npy")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[{}]], object), allow_pickle=True)
    with pytest.raises(InputError, match=r"no readable \.npy file"):
        open_features(tmp_path / "x.npy")
    with pytest.raises(InputError, match=r"no readable \.npy file"):
        read_labels(tmp_path / "x.npy")


def test_truncated_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((100, 3)))
    whole = (tmp_path / "x.npy").read_bytes()
    for length in (0, 5, 60, len(whole) - 1):
        (tmp_path / "x.npy").write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"no readable \.npy file"):
            open_features(tmp_path / "x.npy")
        with pytest.raises(InputError, match=r"no readable \.npy file"):
            read_labels(tmp_path / "x.npy")


def test_missing_files_are_named(tmp_path: Path) -> None:
    for read in (open_features, read_labels):
        with pytest.raises(InputError, match=r"x\.npy does not exist"):
            read(tmp_path / "x.npy")
