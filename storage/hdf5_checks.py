"""What an HDF5 file declares is compared with what it holds before anything of the size it names is allocated."""

from __future__ import annotations

import math
from pathlib import Path

import h5py

from storage.errors import StorageError


def check_stored(path: Path, dataset: h5py.Dataset) -> None:
    """Refuse a dataset that declares more bytes than the file holds for it.

    Raises
    ------
    StorageError
        It does; nothing was allocated.
    """
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize  # not NumPy's product, which wraps around
    held = min(dataset.id.get_storage_size(), path.stat().st_size)
    if declared > held:
        raise StorageError(
            f"{path} is damaged: {dataset.name[1:]} declares {declared} bytes and {held} are there; delete it and run "
            "again"
        )


def check_contiguous(path: Path, dataset: h5py.Dataset) -> None:
    """Refuse a dataset that is no plain range of the file's bytes, or holds no plain values.

    Raises
    ------
    StorageError
        It is not.
    """
    settings = dataset.id.get_create_plist()
    is_plain = settings.get_layout() == h5py.h5d.CONTIGUOUS and not settings.get_external_count()
    if not is_plain or dataset.dtype.kind not in "iufS":
        raise StorageError(f"{path} is damaged: {dataset.name[1:]} is no plain array; delete it and run again")
