from __future__ import annotations

import logging
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mfg import IdArray
from storage.blocks.gathering import Gatherer, GatherOptions
from storage.blocks.spill_room import SpillRoom
from storage.blocks.stored_features import StoredFeatures
from storage.errors import BudgetError, ChecksumMismatchError, MachineError
from storage.graph_store import FEATURES, GraphStore, write_store
from tests.spilling import SpillMeter
from tests.storage.blocks.recut import recut_store, store_of

NUM_NODES = 60


def store_with_rows(path: Path, width: int, dtype: str, block_bytes: int, num_nodes: int = NUM_NODES) -> GraphStore:
    rng = np.random.default_rng(width)
    rows = rng.integers(0, 200, (num_nodes, width)).astype(dtype)
    empty = {"indptr": np.zeros(num_nodes + 1, np.int64), "indices": np.zeros(0, np.int32)}
    return store_of(path, block_bytes, features=rows, **empty)


@st.composite
def hyperbatches(draw: st.DrawFn, num_nodes: int = NUM_NODES) -> list[IdArray]:
    ids = st.lists(st.integers(0, num_nodes - 1), unique=True, max_size=40)
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    return [np.array(batch, dtype) for batch in draw(st.lists(ids, max_size=6))]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_rows_are_the_stores_whatever_the_memory(data: st.DataObject) -> None:
    """Rows that straddle two or more blocks, caches of any size, both ways to choose, groups and spills."""
    width, dtype = data.draw(st.integers(0, 9)), data.draw(st.sampled_from(["float32", "float16", "uint8"]))
    block_bytes = data.draw(st.sampled_from([8, 24, 64, 4096]))
    planned = np.array(data.draw(st.lists(st.integers(0, NUM_NODES - 1), unique=True).map(sorted)), np.int64)
    with tempfile.TemporaryDirectory() as folder:
        store = store_with_rows(Path(folder) / "graph.h5", width, dtype, block_bytes)
        rows = store.read_features()
        with StoredFeatures(store, planned, buffer_bytes=block_bytes * data.draw(st.integers(2, 9))) as features:
            assert np.array_equal(features.device_CD, rows[planned])
            cache_bytes = data.draw(st.integers(0, 70)) * width * rows.itemsize
            options = GatherOptions(
                cache_bytes,
                data.draw(st.sampled_from([0, 1 << 20])),
                Path(folder),
                data.draw(st.sampled_from(["top", "mean"])),
            )
            shares = data.draw(st.sampled_from([1, 2]))
            gatherer = Gatherer(features, options.split(shares))
            for _ in range(3):
                batches, number = data.draw(hyperbatches()), 0
                for group in gatherer.groups(batches):
                    for i in range(len(group)):
                        found = group.rows(i)
                        assert np.array_equal(found.gather(), rows[batches[number]])
                        assert found.tiers[1].nbytes <= cache_bytes  # all of it only where hyperbatches share one
                        number += 1
                    group.close()
                assert number == len(batches)
            with_gather = data.draw(st.lists(st.integers(0, NUM_NODES - 1), max_size=9))
            assert np.array_equal(features.gather(np.array(with_gather, np.int64)), rows[with_gather])


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> GraphStore:
    """Rows of 516 bytes, which divide no block."""
    return store_with_rows(tmp_path_factory.mktemp("wide") / "graph.h5", 129, "float32", 4096, num_nodes=2000)


def drawn(num_batches: int, size: int, seed: int = 0) -> list[IdArray]:
    """Skewed like a graph's accesses: the first tenth of the nodes takes half of them."""
    rng = np.random.default_rng(seed)
    return [
        np.unique(np.concatenate([rng.integers(0, 200, size), rng.integers(0, 2000, size)])) for _ in range(num_batches)
    ]


def gathered_bytes(
    store: GraphStore, batches: list[IdArray], cache_rows: int, folder: Path, keep: str = "top"
) -> tuple[int, int, int]:
    """Bytes read, written, and read requests of blocks."""
    with StoredFeatures(store, np.arange(0), buffer_bytes=1 << 15) as features:
        before = features.stats.counts()
        options = GatherOptions(cache_rows * (516 + 8), 1 << 20, folder, keep)  # type: ignore[arg-type]
        for group in Gatherer(features, options).groups(batches):
            for i in range(len(group)):
                group.rows(i)
            group.close()
        counts = features.stats.counts().since(before)
        return counts.read_bytes, counts.write_bytes, counts.read_blocks


def test_each_block_is_read_once_and_spills_count(wide: GraphStore, tmp_path: Path) -> None:
    batches = drawn(8, 200)
    num_blocks, requests = wide.extent(FEATURES).num_blocks, sum(map(len, batches))
    read, written, blocks = gathered_bytes(wide, batches, 0, tmp_path)
    assert blocks == num_blocks
    assert written == requests * 516
    assert read >= wide.extent(FEATURES).nbytes + written
    read_all, written_all, blocks_all = gathered_bytes(wide, batches, 2000, tmp_path)
    assert (read_all, written_all, blocks_all) == (wide.extent(FEATURES).nbytes, 0, num_blocks)


def test_the_most_accessed_rows_spare_the_most_spilling(wide: GraphStore, tmp_path: Path) -> None:
    batches = drawn(8, 200)
    most, mean = (gathered_bytes(wide, batches, 300, tmp_path, keep)[1] for keep in ("top", "mean"))
    assert most <= mean
    count = np.bincount(np.concatenate(batches), minlength=2000)
    assert most == (count.sum() - np.sort(count)[::-1][:300].sum()) * 516


def test_rows_that_one_hyperbatch_keeps_serve_the_next_one(wide: GraphStore, tmp_path: Path) -> None:
    """Held at once, two hyperbatches share one cache of all the memory; blocks of its rows alone are skipped."""
    rows, cache_bytes = wide.read_features(), 250 * (516 + 8)
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        gatherer, held = Gatherer(features, GatherOptions(cache_bytes, 1 << 20, tmp_path, one_cache=True).split(2)), []
        for number in range(2):
            before, batches = features.stats.counts(), drawn(8, 200, seed=number)
            (group,) = gatherer.groups(batches)
            for i in range(len(group)):
                found = group.rows(i)
                assert np.array_equal(found.gather(), rows[batches[i]])
            held.append((group, found.tiers[1], features.stats.counts().since(before)))
        (_, first, counted), (_, second, after) = held
        assert first is second
        assert len(first) == 250
        assert after.read_blocks <= counted.read_blocks - 200 * 516 // 4096
        assert after.write_bytes < sum(map(len, batches)) * 516 * 0.6
        for group, *_ in held:
            group.close()


def test_groups_or_spills_by_arithmetic(wide: GraphStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Mini-batches that share no block are grouped, those that each touch all blocks are spilled."""
    caplog.set_level(logging.INFO)
    apart: list[IdArray] = [np.arange(start, start + 400) for start in range(0, 2000, 400)]
    assert gathered_bytes(wide, apart, 400, tmp_path)[1] == 0
    assert "grouped" in caplog.text
    caplog.clear()
    together: list[IdArray] = [np.arange(start, 2000, 5) for start in range(5)]
    assert gathered_bytes(wide, together, 400, tmp_path)[1] > 0
    assert "spilled" in caplog.text


@pytest.mark.parametrize("cache_rows", [0, 150])
@pytest.mark.parametrize("shares", [1, 3])
def test_spills_keep_to_the_room_there_is(
    wide: GraphStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_rows: int, shares: int
) -> None:
    """From what one mini-batch takes on, any room does: the hyperbatch is cut; less is refused, and says what does."""
    batches, rows, meter = drawn(8, 200), wide.read_features(), SpillMeter(monkeypatch)
    one = 516 * (max(map(len, batches)) - cache_rows) + 4096
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        for room in (shares * one, 3 * shares * one, shares * one // 2):
            meter.peak_bytes, found = 0, 0
            options = GatherOptions(shares * cache_rows * 524, 1 << 20, tmp_path, room=SpillRoom(room, beside=1000))
            groups = Gatherer(features, options.split(shares)).groups(batches)
            if room < shares * one:
                with pytest.raises(BudgetError, match=f"disk_budget leaves {room}: set disk_budget to at least") as why:
                    list(groups)
                assert int(str(why.value).split("at least ")[1].split(",")[0]) <= 1000 + shares * one
                break
            for group in groups:
                for i in range(len(group)):
                    assert np.array_equal(group.rows(i).gather(), rows[batches[found]])
                    found += 1
                group.close()
            assert found == len(batches)
            assert 0 < meter.peak_bytes <= room // shares


def test_rows_that_fit_the_cache_in_groups_need_no_room(wide: GraphStore, tmp_path: Path) -> None:
    """Spilling would move fewer bytes."""
    batches = [np.arange(start, 2000, 5) for start in range(5)]
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        options = GatherOptions(400 * 524, 1 << 20, tmp_path, room=SpillRoom(10_000))
        for group in Gatherer(features, options).groups(batches):
            group.close()
        assert features.stats.counts().write_bytes == 0


def test_a_full_disk_is_said_before_reading(wide: GraphStore, tmp_path: Path, limit_file_size: int) -> None:
    batches = [np.arange(2000), np.arange(2000), np.arange(0, 2000, 2)]
    assert limit_file_size < sum(map(len, batches)) * 516
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        gatherer = Gatherer(features, GatherOptions(0, 1 << 20, tmp_path))
        with pytest.raises(MachineError, match="disk is full"):
            next(gatherer.groups(batches))
    assert not list(tmp_path.iterdir())


def test_a_spilled_byte_that_changes_is_an_error(wide: GraphStore, tmp_path: Path) -> None:
    import os

    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        group = next(Gatherer(features, GatherOptions(0, 1 << 20, tmp_path)).groups([np.arange(500)]))
        assert np.array_equal(group.rows(0).gather(), wide.read_features()[:500])
        descriptor = group._spill._descriptor  # type: ignore[union-attr]
        with os.fdopen(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR), "r+b") as file:
            file.seek(1000)
            file.write(b"?")
        with pytest.raises(ChecksumMismatchError, match="came back changed"):
            group.rows(0)
        group.close()


def test_a_damaged_block_is_an_error(tmp_path: Path) -> None:
    rows = np.ones((100, 64), np.float32)
    write_store(
        tmp_path / "g.h5",
        indptr=np.zeros(101, np.int64),
        indices=np.zeros(0, np.int32),
        features=rows,
        block_bytes=4096,
    )
    store = GraphStore.open(tmp_path / "g.h5")
    with (tmp_path / "g.h5").open("r+b") as file:
        file.seek(store.extent(FEATURES).offset + 9000)
        file.write(b"?")
    with (
        StoredFeatures(store, np.arange(0), buffer_bytes=1 << 15) as features,
        pytest.raises(ChecksumMismatchError, match="block 2 of features/x"),
    ):
        list(Gatherer(features, GatherOptions(0, 1 << 20, tmp_path / "spill")).groups([np.arange(100)]))


def test_recut_stores_have_right_checksums(wide: GraphStore) -> None:
    assert not list(recut_store(wide, 64).damage(lambda _: None))


def test_what_an_epoch_reads_is_counted_and_nothing_else(wide: GraphStore) -> None:
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        features.read_rows(np.arange(0, wide.info.num_nodes, 2))
        with features.watched_epoch(0):
            features.read_rows(np.arange(wide.info.num_nodes))
        features.read_rows(np.arange(wide.info.num_nodes))
        whole = features.stats.counts().read_bytes
    assert 0 < features.epoch_io.read_bytes < whole / 2


def owner(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array whose memory it is."""
    while isinstance(rows.base, np.ndarray):
        rows = rows.base
    return rows


def test_a_closed_group_gives_its_cache_back(wide: GraphStore, tmp_path: Path) -> None:
    with StoredFeatures(wide, np.arange(0), buffer_bytes=1 << 15) as features:
        gatherer = Gatherer(features, GatherOptions(1 << 20, 1 << 20, tmp_path))
        (group,) = gatherer.groups([np.arange(100)])
        assert len(group.rows(0).tiers[1])
        cache = weakref.ref(owner(group._cache_CD))  # a view of no rows would keep it as a whole
        assert cache() is not None
        group.close()
        assert cache() is None
        assert len(group) == 1


@pytest.mark.parametrize("width", [1, 129])
def test_a_cache_and_its_ids_keep_within_their_bytes(tmp_path: Path, width: int) -> None:
    store, cache_bytes = store_with_rows(tmp_path / "graph.h5", width, "float32", 4096, num_nodes=2000), 6000
    with StoredFeatures(store, np.arange(0), buffer_bytes=1 << 15) as features:
        gatherer = Gatherer(features, GatherOptions(cache_bytes, 1 << 20, tmp_path))
        for group in gatherer.groups([np.arange(2000)]):
            cached = len(group.rows(0).tiers[1])
            assert 0 < cached * (4 * width + 8) <= cache_bytes
            group.close()
