from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.blocks.buffer import BlockBuffer
from storage.blocks.io_stats import IoStats
from storage.blocks.reader import BlockReader
from storage.errors import BudgetError, ChecksumMismatchError, MachineError
from storage.graph_store import FEATURES, GraphStore
from tests.storage.blocks.recut import recut_store
from tests.storage.stores import BLOCK_BYTES, write_small_store


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphStore, np.ndarray]:
    path = tmp_path_factory.mktemp("buffer") / "graph.h5"
    contents = write_small_store(path)
    return GraphStore.open(path), contents["features"].reshape(-1).view(np.uint8)


def new_buffer(store: GraphStore, blocks: int, **options: Any) -> BlockBuffer:
    reader = BlockReader(store.path, store.extent(FEATURES), stats=IoStats())
    return BlockBuffer(reader, blocks * store.extent(FEATURES).block_bytes, **options)


def held_blocks(buffer: BlockBuffer) -> list[int]:
    """Blocks in memory now, or on their way there; the one that goes first in front."""
    with buffer._changed:
        return list(buffer._held)


def expected(all_bytes: np.ndarray, block: int, block_bytes: int = BLOCK_BYTES) -> np.ndarray:
    return all_bytes[block * block_bytes : (block + 1) * block_bytes]


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(2, 30), st.integers(1, 4), st.sampled_from([64, 4096, 8192]))
def test_serves_every_block_whatever_its_size(
    written: tuple[GraphStore, np.ndarray], data: st.DataObject, slots: int, depth: int, block_bytes: int
) -> None:
    store, all_bytes = written
    buffer = new_buffer(recut_store(store, block_bytes), slots, depth=depth)
    num_blocks = buffer.extent.num_blocks
    for _ in range(3):
        chosen = data.draw(st.lists(st.integers(0, num_blocks - 1), unique=True, max_size=40).map(sorted))
        in_order = data.draw(st.booleans())
        seen = []
        for lease in buffer.serve(np.array(chosen, np.int64), ascending=in_order):
            with lease:
                assert np.array_equal(lease.data, expected(all_bytes, lease.block, block_bytes))
                seen.append(lease.block)
        assert sorted(seen) == chosen
        assert not in_order or seen == chosen
        assert len(held_blocks(buffer)) <= buffer.num_slots
    buffer.close()


def test_what_was_used_last_stays_and_is_served_first(written: tuple[GraphStore, np.ndarray]) -> None:
    buffer = new_buffer(written[0], 4)
    for wanted in ([0, 1, 2, 3], [0], [5, 6]):  # 0 was used after 1, 2 and 3
        for lease in buffer.serve(np.array(wanted)):
            lease.release()
    assert held_blocks(buffer) == [3, 0, 5, 6]
    order = []
    for lease in buffer.serve(np.array([0, 1, 6])):
        order.append(lease.block)
        lease.release()
    assert order == [0, 6, 1]
    counts = buffer.reader.stats.counts()
    assert (counts.hit_blocks, counts.read_blocks) == (3, 7)


def test_consecutive_blocks_are_one_request(written: tuple[GraphStore, np.ndarray]) -> None:
    buffer = new_buffer(written[0], 12)
    for lease in buffer.serve(np.array([0, 1, 2, 3, 7, 8])):
        lease.release()
    counts = buffer.reader.stats.counts()
    assert (counts.reads, counts.read_bytes) == (2, 6 * BLOCK_BYTES)
    assert counts.sizes == {4 * BLOCK_BYTES: 1, 2 * BLOCK_BYTES: 1}
    assert counts.busy_s > 0


def test_a_buffer_full_of_pinned_blocks_waits(written: tuple[GraphStore, np.ndarray]) -> None:
    buffer = new_buffer(written[0], 2)
    first, second = list(buffer.serve(np.array([0, 1])))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [lease.data.copy() for lease in buffer.serve(np.array([2]))])
        time.sleep(0.1)
        assert not waiting.done()
        assert held_blocks(buffer) == [0, 1]
        assert np.array_equal(first.data, expected(written[1], 0))
        second.release()
        assert np.array_equal(waiting.result(5)[0], expected(written[1], 2))
    assert np.array_equal(first.data, expected(written[1], 0))


def test_blocks_that_stay_pinned_are_said_to_stall(written: tuple[GraphStore, np.ndarray]) -> None:
    buffer = new_buffer(written[0], 2, stall_timeout_s=0.1)
    held = list(buffer.serve(np.array([0, 1])))
    with pytest.raises(MachineError, match=r"no block of features/x was given back for 0\.1 s"):
        next(buffer.serve(np.array([2])))
    held[0].release()
    assert np.array_equal(next(buffer.serve(np.array([2]))).data, expected(written[1], 2))


def test_blocks_whose_readers_have_left_wake_whoever_waits(
    written: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that ends for nobody: the waiting one must not need the read's future to be done already."""
    buffer, go_on, read = new_buffer(written[0], 2, stall_timeout_s=5), threading.Event(), BlockReader.read_into
    set_result = Future.set_result

    def read_later(*arguments: Any) -> None:
        go_on.wait(5)
        read(*arguments)

    def set_later(future: Future[Any], result: Any) -> None:
        if threading.current_thread().name.startswith("block-buffer"):
            time.sleep(0.2)  # the window between the last notification and the future
        set_result(future, result)

    monkeypatch.setattr(BlockReader, "read_into", read_later)
    monkeypatch.setattr(Future, "set_result", set_later)
    for block in (0, 1):
        taken, _ = buffer._take([block], 0, wait=True)
        buffer.unpin(taken[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: [lease.data.copy() for lease in buffer.serve(np.array([2]))])
        time.sleep(0.1)
        go_on.set()
        assert np.array_equal(waiting.result(20)[0], expected(written[1], 2))


def test_threads_share_a_small_buffer(written: tuple[GraphStore, np.ndarray]) -> None:
    store, all_bytes = written
    buffer, wrong = new_buffer(store, 3), threading.Event()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            for lease in buffer.serve(np.flatnonzero(rng.random(buffer.extent.num_blocks) < 0.3)):
                with lease:
                    if not np.array_equal(lease.data, expected(all_bytes, lease.block)):
                        wrong.set()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong.is_set()


def test_a_damaged_block_is_an_error_each_time_and_blocks_nothing(tmp_path: Path) -> None:
    write_small_store(tmp_path / "graph.h5")
    store = GraphStore.open(tmp_path / "graph.h5")
    with store.path.open("r+b") as file:
        file.seek(store.extent(FEATURES).offset + 3 * BLOCK_BYTES + 17)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    buffer = new_buffer(store, 2)
    for _ in range(5):
        with pytest.raises(ChecksumMismatchError, match="block 3"):
            for lease in buffer.serve(np.arange(2, 6)):
                lease.release()
    for lease in buffer.serve(np.arange(4, 12)):
        lease.release()


def test_a_disk_that_fails_is_an_error_that_says_where(
    written: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = new_buffer(written[0], 4)

    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", broken)
        with pytest.raises(MachineError, match=f"{written[0].path} cannot be read at byte .* inside features/x"):
            next(buffer.serve(np.arange(3)))
        # Reads ahead of the one that failed go on when it is left: let them fail too, or they hold their blocks.
        deadline = time.monotonic() + 10
        while held_blocks(buffer):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert [lease.block for lease in buffer.serve(np.arange(3))] == [0, 1, 2]  # it works again: nothing was kept


def test_short_reads_are_completed(written: tuple[GraphStore, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def short(descriptor: int, targets: list[memoryview], offset: int) -> int:
        return real(descriptor, [targets[0][:4096]], offset)

    monkeypatch.setattr(os, "preadv", short)
    buffer = new_buffer(recut_store(written[0], 8192), 8)
    for lease in buffer.serve(np.arange(5)):
        with lease:
            assert np.array_equal(lease.data, expected(written[1], lease.block, 8192))


def test_leaving_early_gives_everything_back(written: tuple[GraphStore, np.ndarray]) -> None:
    buffer = new_buffer(written[0], 4)
    for _ in range(20):
        for lease in buffer.serve(np.arange(10)):
            lease.release()
            break
    assert len(list(buffer.serve(np.arange(4)))) == 4


def test_two_blocks_are_the_least(written: tuple[GraphStore, np.ndarray]) -> None:
    with pytest.raises(BudgetError, match=f"at least {2 * BLOCK_BYTES} bytes"):
        new_buffer(written[0], 1)
