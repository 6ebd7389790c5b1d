"""However threads are scheduled, no more than two chunks of edges are in memory: the present one and the next."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import node_ids
from storage.csc import build_csc
from storage.csc_external import LEAST_WORK_BYTES, build_external_csc
from storage.formats.base import EdgeArrays, EdgeChunk, Numbering, TypedChunk

NODES, CHUNKS, EDGES = 50, 6, 1000


class Tracked:
    """Chunks of edges that know how many of them are alive whenever one more is made."""

    def __init__(self) -> None:
        self.most = 0
        self._alive, self._lock = 0, threading.Lock()

    def chunks(self) -> Iterator[EdgeChunk]:
        rng = np.random.default_rng(0)
        for _ in range(CHUNKS):
            yield self._made(rng), self._made(rng)

    def typed(self) -> Iterator[TypedChunk]:
        for src, dst in self.chunks():
            yield src, dst, np.zeros(EDGES, np.int32)

    def locate(self, row: int) -> str:
        return str(row)

    def _made(self, rng: np.random.Generator) -> Any:
        ids = rng.integers(0, NODES, EDGES)
        with self._lock:
            self._alive += 1
            self.most = max(self.most, self._alive)
        weakref.finalize(ids, self._gone)
        return ids

    def _gone(self) -> None:
        with self._lock:
            self._alive -= 1


def external(edges: Tracked, folder: Path, **options: Any) -> object:
    return build_external_csc(
        edges.chunks, NODES, folder, approx_edges=CHUNKS * EDGES, work_bytes=LEAST_WORK_BYTES, **options
    )


@pytest.mark.parametrize(
    "take",
    [
        lambda edges, folder: build_csc(edges.chunks, NODES),
        lambda edges, folder: build_csc(edges.chunks, NODES, read_typed=edges.typed),
        external,
        lambda edges, folder: external(edges, folder, read_typed=edges.typed),
        lambda edges, folder: node_ids.discover_ids(edges, Numbering(folder)),
    ],
)
def test_two_chunks_are_in_memory_where_the_reader_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, take: Callable[[Tracked, Path], object]
) -> None:
    def submit(pool: ThreadPoolExecutor, *call: Any) -> Future[Any]:
        """Others have the core for a while, the reader's thread among them."""
        coming = submitted(pool, *call)
        time.sleep(0.02)
        return coming

    submitted = ThreadPoolExecutor.submit
    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    edges = Tracked()
    take(edges, tmp_path)
    assert edges.most <= 2 * 2, "arrays: sources and destinations"


def test_chunks_in_use_are_counted() -> None:
    edges = Tracked()
    held = list(edges.chunks())
    assert edges.most == 2 * len(held) == 2 * CHUNKS
    assert len(list(EdgeArrays(*held[0]).chunks())) == 1
