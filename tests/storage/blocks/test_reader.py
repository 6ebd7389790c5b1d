"""The block reader reads any range, direct or buffered, whole or in short reads, from many threads."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.blocks import reader as reader_module
from storage.blocks.reader import BlockReader
from storage.errors import StorageError
from storage.graph_store import FEATURES, GraphStore
from tests.storage.stores import BLOCK_BYTES, write_small_store


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphStore, np.ndarray]:
    path = tmp_path_factory.mktemp("store") / "g.h5"
    written = write_small_store(path)
    return GraphStore.open(path), written["features"]


def open_reader(store: GraphStore, *, direct: bool = True) -> BlockReader:
    return BlockReader(store.path, store.extent(FEATURES), direct=direct)


@settings(deadline=None)
@given(st.data(), st.booleans())
def test_any_range_of_rows(stored: tuple[GraphStore, np.ndarray], data: st.DataObject, direct: bool) -> None:
    store, feat_ND = stored
    start = data.draw(st.integers(0, len(feat_ND)))
    stop = data.draw(st.integers(start, len(feat_ND)))
    reader = open_reader(store, direct=direct)
    assert np.array_equal(reader.read_rows(start, stop), feat_ND[start:stop])
    reader.close()


def test_blocks_are_the_bytes_of_the_file(stored: tuple[GraphStore, np.ndarray]) -> None:
    store, feat_ND = stored
    reader = open_reader(store)
    raw = feat_ND.view(np.uint8).reshape(-1)
    assert np.array_equal(reader.read_blocks(3, 5), raw[3 * BLOCK_BYTES : 5 * BLOCK_BYTES])
    last = reader.extent.num_blocks - 1
    assert np.array_equal(reader.read_blocks(last, last + 1), raw[last * BLOCK_BYTES :])


def test_many_threads_read_at_once(stored: tuple[GraphStore, np.ndarray]) -> None:
    store, feat_ND = stored
    reader = open_reader(store)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: reader.read_rows(i, i + 200), range(0, 2800, 70)))
    for i, result in zip(range(0, 2800, 70), results, strict=True):
        assert np.array_equal(result, feat_ND[i : i + 200])


def test_reads_go_past_the_page_cache_where_the_disk_allows(
    stored: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = stored
    flags: list[int] = []
    real_open = os.open

    def opened(path: str, flag: int, *rest: Any) -> int:
        flags.append(flag)
        return real_open(path, flag, *rest)

    monkeypatch.setattr(os, "open", opened)
    open_reader(store).read_all()
    open_reader(store, direct=False).read_all()
    assert [bool(flag & os.O_DIRECT) for flag in flags] == [True, False]


def test_short_reads_are_continued(stored: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    store, feat_ND = stored
    real = os.preadv

    def short(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return real(descriptor, [buffers[0][:5000]], offset)

    monkeypatch.setattr(os, "preadv", short)
    assert np.array_equal(open_reader(store, direct=False).read_all(), feat_ND)


def test_short_direct_reads_go_on_buffered(
    stored: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, feat_ND = stored
    real = os.preadv
    first = [True]

    def short_once(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        return 1000 if first and first.pop() else count

    monkeypatch.setattr(os, "preadv", short_once)
    assert np.array_equal(open_reader(store).read_all(), feat_ND)


@pytest.mark.parametrize("refusing", ["open", "preadv"])
def test_a_file_system_that_refuses_direct_reads_is_read_buffered_and_named(
    stored: tuple[GraphStore, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusing: str,
) -> None:
    store, feat_ND = stored
    monkeypatch.setattr(reader_module, "_refused_direct", set())
    real_open, real_preadv = os.open, os.preadv
    direct: set[int] = set()

    def guarded_open(path: Path, flags: int) -> int:
        if flags & os.O_DIRECT and refusing == "open":
            raise OSError(errno.EINVAL, "refused")
        return real_open(path, flags)

    def guarded_preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        import fcntl

        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT and refusing == "preadv":
            raise OSError(errno.EINVAL, "refused")
        return real_preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "open", guarded_open)
    monkeypatch.setattr(os, "preadv", guarded_preadv)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert np.array_equal(open_reader(store).read_all(), feat_ND)
    assert [record.getMessage() for record in caplog.records] == [
        f"direct I/O is refused where {store.path} lies: reads go through the page cache"
    ]
    assert not direct


def test_a_file_cut_short_after_opening_is_noticed(tmp_path: Path) -> None:
    write_small_store(tmp_path / "g.h5")
    store = GraphStore.open(tmp_path / "g.h5")
    extent = store.extent(FEATURES)
    os.truncate(store.path, extent.offset + extent.nbytes // 2)
    with pytest.raises(StorageError, match="inside features/x: it was cut short"):
        store.read_features()


def test_a_closed_reader_opens_again_and_gives_its_descriptor_back(stored: tuple[GraphStore, np.ndarray]) -> None:
    store, feat_ND = stored
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader = open_reader(store)
    for _ in range(3):
        assert np.array_equal(reader.read_rows(0, 10), feat_ND[:10])
        reader.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    del reader


def test_a_close_waits_for_no_read_and_breaks_none(
    stored: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, feat_ND = stored
    before = len(list(Path("/proc/self/fd").iterdir()))
    reader = open_reader(store)
    preadv, numbers = os.preadv, []

    def close_first(number: int, buffers: Sequence[memoryview], offset: int) -> int:
        reader.close()
        numbers.append(number)
        return preadv(number, buffers, offset)

    monkeypatch.setattr(os, "preadv", close_first)
    assert np.array_equal(reader.read_rows(0, 3000), feat_ND)
    assert numbers
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_closes_and_reads_of_many_threads_mix(stored: tuple[GraphStore, np.ndarray]) -> None:
    store, feat_ND = stored
    reader = open_reader(store)

    def read_and_close(i: int) -> bool:
        equal = np.array_equal(reader.read_rows(i, i + 200), feat_ND[i : i + 200])
        reader.close()
        return equal

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read_and_close, range(0, 2800, 7)))


def test_a_missing_file_is_an_error_of_storage(tmp_path: Path) -> None:
    write_small_store(tmp_path / "g.h5")
    store = GraphStore.open(tmp_path / "g.h5")
    store.path.unlink()
    with pytest.raises(StorageError, match="cannot be opened"):
        store.read_features()
