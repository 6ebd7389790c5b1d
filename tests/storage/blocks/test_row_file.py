"""Rows in a file of our own come back, whole and by strips, whatever their width, type and number."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.blocks.extent import aligned_empty
from storage.blocks.io_stats import IoStats
from storage.blocks.row_file import LEAST_STRIP_BYTES, RowFile, RowLayout, RowsInTurn
from storage.errors import ChecksumMismatchError, MachineError

DTYPES = ["float32", "float16", "uint8"]


@given(
    num_rows=st.integers(1, 9000),
    width=st.integers(1, 80),
    columns=st.integers(0, 80),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1 << 20),
    by_strips=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    num_rows: int,
    width: int,
    columns: int,
    dtype: str,
    seed: int,
    by_strips: bool,
) -> None:
    rng = np.random.default_rng(seed)
    rows: Any = (100 * rng.random((num_rows, width))).astype(dtype)
    layout = RowLayout(num_rows, width, min(columns, width), rows.itemsize)
    stats = IoStats()
    file = RowFile(tmp_path_factory.getbasetemp(), layout, stats, dtype)
    if by_strips:
        for first in range(0, width, layout.columns):
            file.append_strip(rows[:, first : first + layout.columns])
    else:
        for part in np.array_split(rows, rng.integers(1, 6)):
            file.append(part)
    file.finish()
    assert stats.counts().write_bytes == layout.nbytes
    whole, turns = RowsInTurn(file), rng.multinomial(num_rows, [0.3, 0.6, 0.1])
    assert np.array_equal(np.concatenate([whole.take(int(count)) for count in turns]), rows)
    named = np.sort(rng.integers(0, num_rows, 20))
    for number, strip in enumerate(file.strips):
        first = number * layout.columns
        expected = rows[:, first : first + layout.columns]
        pieces = strip.between(named, named)
        for _, begin, part in strip.read(pieces):
            here = named[(named >= begin) & (named < begin + len(part))]
            assert np.array_equal(part[here - begin, : expected.shape[1]], expected[here])
    file.close()


def test_a_strip_is_read_alone(tmp_path: Path) -> None:
    """Its bytes and no others."""
    stats, layout = IoStats(), RowLayout(20_000, 64, 8)
    file = RowFile(tmp_path, layout, stats)
    file.append(np.zeros((20_000, 64), np.float32))
    file.finish()
    before = stats.counts()
    for _ in file.strips[3].read(np.arange(file.num_pieces)):
        pass
    assert stats.counts().since(before).read_bytes == layout.num_pieces * layout.strip_bytes == 5 << 17
    file.close()


@pytest.mark.parametrize("target", [128 << 10, 1 << 20])
def test_requests_stay_large_and_pieces_small(target: int) -> None:
    for width in (16, 128, 1433):
        for strips in range(1, min(width, target // LEAST_STRIP_BYTES) + 1):
            layout = RowLayout(10_000_000, width, -(-width // strips), target_bytes=target)
            assert layout.strip_bytes >= LEAST_STRIP_BYTES
            assert layout.piece_bytes <= target + layout.num_strips * 4096
            assert layout.nbytes < 1.5 * 10_000_000 * width * 4


def test_what_changed_on_disk_is_found(tmp_path: Path) -> None:
    file = RowFile(tmp_path, RowLayout(5000, 16, 4), IoStats())
    file.append(np.random.default_rng(0).random((5000, 16), np.float32))
    file.finish()
    spill = file._file
    os.pwrite(spill._descriptor, aligned_empty(4096).data, spill._begin[0] + spill.piece_bytes)
    assert len(list(file.strips[0].read(np.arange(1)))) == 1
    with pytest.raises(ChecksumMismatchError, match="came back changed"):
        list(file.strips[1].read(np.arange(1)))
    with pytest.raises(ChecksumMismatchError, match="came back changed"):
        list(file.read(np.arange(1)))
    os.ftruncate(spill._descriptor, 0)
    with pytest.raises(MachineError, match="cut short"):
        list(file.strips[2].read(np.arange(1)))
    file.close()
