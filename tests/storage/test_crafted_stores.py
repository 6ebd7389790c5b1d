"""Stores that were made to harm: what they declare is refused before anything of that size is allocated."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from storage.cache.files import read_arrays, write_arrays
from storage.errors import StorageError
from storage.graph_store import GraphStore
from tests.storage.stores import write_small_store

HUGE = 1 << 44
Craft = Callable[[h5py.File], None]


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Let this process have 1 GiB more than it has: an allocation of what is declared fails at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def redeclare(name: str, shape: tuple[int, ...], dtype: object = np.int32, **layout: object) -> Craft:
    """Put an array that holds nothing in another one's place."""

    def craft(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, shape=shape, dtype=dtype, **layout)

    return craft


def set_block_bytes(value: int) -> Craft:
    def craft(file: h5py.File) -> None:
        file.attrs["block_bytes"] = value

    return craft


def drop(name: str) -> Craft:
    def craft(file: h5py.File) -> None:
        del file[name]

    return craft


CHUNKED = {"chunks": (1024,)}


@pytest.mark.parametrize(
    ("craft", "problem"),
    [
        (redeclare("topology/indptr", (HUGE,), np.int64), "topology/indptr declares .* bytes and"),
        (redeclare("topology/indices", (HUGE,)), "topology/indices declares .* bytes and"),
        (redeclare("topology/indices", (HUGE,), **CHUNKED), "topology/indices is no plain array"),
        (redeclare("features/x", (3000, HUGE), np.float32), "features/x declares .* bytes and"),
        (redeclare("features/x", (1 << 62, 1 << 62), np.float32), "features/x declares .* bytes and"),
        (redeclare("labels/names", (HUGE,), h5py.string_dtype(), **CHUNKED), "labels/names declares .* bytes and"),
        (redeclare("blocks/crc32/features/x", (HUGE,), np.uint32, **CHUNKED), "blocks/crc32/features/x declares"),
        (redeclare("blocks/crc32/features/x", (0,), np.uint32), "features/x has not one CRC-32 a block"),
        (redeclare("features/x", (3000,), h5py.string_dtype()), "features/x is no plain array"),
        (redeclare("labels/y", (0,)), r"labels/y holds int32 of shape \(0,\), but there are 3000 nodes"),
        (redeclare("splits/train", (0, 3)), "splits/train holds int32 of shape"),
        (redeclare("topology/indptr", (0,), np.int64), "there are -1 nodes"),
        (redeclare("topology/indptr", (), np.int64), "damaged"),
        (set_block_bytes(0), "blocks of 0 bytes"),
        (set_block_bytes(1 << 60), "blocks of 1152921504606846976 bytes"),
        (drop("topology/indices"), "damaged"),
        (drop("blocks/crc32"), "damaged"),
    ],
)
def test_what_a_store_declares_is_checked_before_it_is_allocated(tmp_path: Path, craft: Craft, problem: str) -> None:
    path = tmp_path / "g.h5"
    write_small_store(path)
    with h5py.File(path, "r+") as file:
        craft(file)
    with pytest.raises(StorageError, match=problem) as caught:
        GraphStore.open(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_the_object_index_table_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "g.h5"
    write_small_store(path)
    with h5py.File(path, "r+") as file:
        redeclare("blocks/nodes/topology/indices", (HUGE,), np.int64, **CHUNKED)(file)
    with pytest.raises(StorageError, match="declares"):
        GraphStore.open(path).block_nodes()


def test_a_plan_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.h5"
    write_arrays(path, kind="plan", version=1, arrays={"ids": np.arange(3)}.items(), scalars={})
    with h5py.File(path, "r+") as file:
        redeclare("ids", (HUGE,), np.int64, **CHUNKED)(file)
    with pytest.raises(StorageError, match=f"ids declares {8 * HUGE} bytes and 0 are there"):
        read_arrays(path, kind="plan", version=1, arrays=["ids"], scalars=[])
