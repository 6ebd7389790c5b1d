"""Reading ahead changes no chunk, passes errors on, and ends its thread with the reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from storage.formats.base import EdgeArrays, EdgeChunk, read_ahead


def numbered(count: int) -> Iterator[EdgeChunk]:
    for i in range(count):
        yield np.array([i]), np.array([-i])


@pytest.mark.parametrize("count", [0, 1, 7])
def test_chunks_keep_their_order(count: int) -> None:
    assert [(int(u[0]), int(v[0])) for u, v in read_ahead(numbered(count))] == [(i, -i) for i in range(count)]


def test_an_error_comes_after_the_chunks_before_it() -> None:
    def breaks() -> Iterator[EdgeChunk]:
        yield from numbered(2)
        raise OSError("the disk went away")

    reader = read_ahead(breaks())
    assert [int(next(reader)[0][0]) for _ in range(2)] == [0, 1]
    with pytest.raises(OSError, match="the disk went away"):
        next(reader)


def test_a_reader_that_is_dropped_leaves_no_thread() -> None:
    before = threading.active_count()
    reader = read_ahead(numbered(100))
    next(reader)
    assert threading.active_count() == before + 1
    reader.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_arrays_come_in_chunks() -> None:
    edges = EdgeArrays(np.arange(3), np.arange(3, 6), "here")
    assert [(u.tolist(), v.tolist()) for u, v in edges.chunks()] == [([0, 1, 2], [3, 4, 5])]
    assert edges.locate(2) == "here, row 2"
