"""Files of `torch.save` that hold dicts of NumPy arrays, as OGB's splits: read without torch, nothing else admitted."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from storage.errors import InputError
from storage.formats.files import require_file
from storage.formats.pickled_arrays import FAULTS, ArrayUnpickler

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_PICKLES_BEFORE_DATA = 3


class _SplitUnpickler(ArrayUnpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Say of tensors what to do; refuse all else but arrays."""
        if module.partition(".")[0] == "torch":
            raise pickle.UnpicklingError("it holds torch tensors: save it with NumPy arrays in their place")
        return super().find_class(module, name)


def load_saved_arrays(path: Path) -> dict[str, Any]:
    """Read a dict of arrays, of numbers or of such dicts.

    Two layouts exist: a zip file with `NAME/data.pkl`, and before PyTorch 1.6 five pickles in a row, the fourth of
    which is the object.

    Raises
    ------
    InputError
        The file is missing or damaged, or asks for anything but arrays, dicts, lists and numbers.
    """
    try:
        with require_file(path).open("rb") as file:
            loaded = _load_zipped(file) if zipfile.is_zipfile(file) else _load_legacy(file)
        if not isinstance(loaded, dict):
            raise ValueError(f"it holds {type(loaded).__name__}, not a dict")
        return {str(key): _plain(value) for key, value in loaded.items()}
    except (*FAULTS, zipfile.BadZipFile, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is no readable file of arrays ({error})") from error


def _load_legacy(file: BinaryIO) -> Any:
    file.seek(0)
    magic, *_, loaded = (_SplitUnpickler(file).load() for _ in range(_PICKLES_BEFORE_DATA + 1))
    if magic != _LEGACY_MAGIC:
        raise ValueError("it was not written by torch.save")
    return loaded


def _load_zipped(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
        # torch never compresses; what is compressed could unfold to any size.
        if len(names) != 1 or archive.getinfo(names[0]).compress_type != zipfile.ZIP_STORED:
            raise ValueError("it was not written by torch.save")
        return _SplitUnpickler(io.BytesIO(archive.read(names[0]))).load()


def _plain(value: Any) -> Any:
    """Arrays as plain `ndarray`, also within dicts."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return np.asarray(value) if isinstance(value, np.ndarray) else value
