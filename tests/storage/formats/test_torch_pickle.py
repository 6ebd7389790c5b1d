"""Split files of `torch.save`: arrays are read in both layouts, everything else is refused without running it."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from storage.errors import InputError
from storage.formats.torch_pickle import load_saved_arrays


def save(path: Path, value: Any, *, zipped: bool) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("zipped", [True, False])
def test_arrays_come_back_in_both_layouts(tmp_path: Path, zipped: bool) -> None:
    value = {
        "edge": np.arange(6).reshape(3, 2),
        "column order": np.asfortranarray(np.ones((2, 3), np.float32)),
        "big-endian": np.arange(3, dtype=">i4"),
        "empty": np.empty((0, 2)),
        "nested": {"bool": np.array([True])},
        "number": 3,
        "scalar": np.float64(0.5),
    }
    loaded = load_saved_arrays(save(tmp_path / "a.pt", value, zipped=zipped))
    assert list(loaded) == list(value)
    for name in ("edge", "column order", "big-endian", "empty"):
        array: npt.NDArray[Any] = value[name]  # type: ignore[assignment]
        assert type(loaded[name]) is np.ndarray
        assert (loaded[name].shape, loaded[name].dtype.itemsize) == (array.shape, array.dtype.itemsize)
        assert np.array_equal(loaded[name], array)
    assert loaded["nested"]["bool"].tolist() == [True]
    assert (loaded["number"], loaded["scalar"]) == (3, 0.5)


class Attack:
    def __init__(self, function: Any, *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "attack",
    [Attack(os.system, "touch owned"), Attack(eval, "open('owned', 'w')"), Attack(np.load, "owned"), Attack(bytes, 9)],
)
def test_a_crafted_pickle_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: Attack, zipped: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"a\.pt is no readable file of arrays \((it asks for|_no_bytes)"):
        load_saved_arrays(save(tmp_path / "a.pt", {"edge": attack}, zipped=zipped))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_refused_with_the_way_out(tmp_path: Path, zipped: bool) -> None:
    with pytest.raises(InputError, match="it holds torch tensors: save it with NumPy arrays in their place"):
        load_saved_arrays(save(tmp_path / "a.pt", {"edge": torch.zeros(2)}, zipped=zipped))


@pytest.mark.parametrize("array", [np.array([{}], object), np.zeros(2, "i4,i4"), np.array(["a"])])
def test_only_plain_numbers_are_read(tmp_path: Path, array: npt.NDArray[Any]) -> None:
    with pytest.raises(InputError, match="only plain numbers are read"):
        load_saved_arrays(save(tmp_path / "a.pt", {"edge": array}, zipped=False))


def array_state(*state: Any) -> bytes:
    """A legacy file with an array whose state says what it likes."""
    headers = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, dict[str, Any]())]
    array = np.zeros(3).__reduce__()
    return b"".join([*headers, pickle.dumps({"edge": Reduced(array[0], array[1], state)}, 2)])


class Reduced:
    def __init__(self, *reduced: Any) -> None:
        self._reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ((1, (1 << 40,), np.dtype(np.int64), False, b"12345678"), "holds 8 bytes, not 8796093022208"),
        ((1, (-1,), np.dtype(np.int64), False, b""), "an array of shape"),
        ((1, (1,), np.dtype(np.int64), False, [3]), "an array of objects"),
        ((1, (1,), "i8", False, b"12345678"), "an array of objects"),
        ((1, (1,)), "not enough values"),
    ],
)
def test_a_crafted_array_allocates_nothing(tmp_path: Path, state: tuple[Any, ...], problem: str) -> None:
    (tmp_path / "a.pt").write_bytes(array_state(*state))
    with pytest.raises(InputError, match=problem):
        load_saved_arrays(tmp_path / "a.pt")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for zipped in (True, False):
        whole = save(tmp_path / "a.pt", {"edge": np.arange(6)}, zipped=zipped).read_bytes()
        end = len(whole) - (0 if zipped else 8)  # the last pickle of the legacy layout holds nothing
        for length in range(0, end, 3):
            (tmp_path / "a.pt").write_bytes(whole[:length])
            with pytest.raises(InputError, match="no readable file of arrays"):
                load_saved_arrays(tmp_path / "a.pt")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with pytest.raises(InputError, match="does not exist"):
        load_saved_arrays(path)
    for content, problem in ((pickle.dumps(1) * 5, r"not written by torch\.save"), (array_state()[:40], "no readable")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=problem):
            load_saved_arrays(path)
    with pytest.raises(InputError, match="it holds int, not a dict"):
        load_saved_arrays(save(path, 3, zipped=True))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps({}))
    with pytest.raises(InputError, match=r"not written by torch\.save"):
        load_saved_arrays(path)
