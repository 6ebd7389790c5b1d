"""Freed memory is kept for as long as it is asked for, and no longer."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kernels.cpu.heap import kept_memory

SIZE = 64 << 20


def faults_of_one_array(size: int = SIZE) -> int:
    """Page faults of allocating, filling and freeing a large array (4 KB or 2 MB a page)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(size, np.uint8).fill(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_array_of_the_same_size_costs_no_pages_the_second_time() -> None:
    afresh = [faults_of_one_array() for _ in range(2)][-1]
    with kept_memory():
        faults_of_one_array()
        with kept_memory():
            pass  # the inner one must not end the outer one
        again = faults_of_one_array()
    assert again < 8 <= afresh


@pytest.mark.parametrize(("size", "is_kept"), [(40 << 20, True), (2 * SIZE, False)])
def test_other_threads_keep_what_fits_their_heaps(size: int, is_kept: bool) -> None:
    with kept_memory(), ThreadPoolExecutor(1) as thread:
        thread.submit(faults_of_one_array, size).result()
        again = thread.submit(faults_of_one_array, size).result()
    assert (again < 8) == is_kept


def test_memory_goes_back_at_the_end() -> None:
    with kept_memory():
        faults_of_one_array()
        held = resident_bytes()
    assert held - resident_bytes() > SIZE // 2
    assert faults_of_one_array() >= 8


def test_steps_under_a_budget_reuse_their_memory() -> None:
    """In a process of its own, whose heap nobody else has grown: what is planned is kept, what is beyond is not."""
    code = """
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from kernels.cpu.heap import give_back_large_arrays, kept_memory, reused_heap
from tests.kernels.test_heap import faults_of_one_array, resident_bytes
MIB = 1 << 20
give_back_large_arrays()
before = resident_bytes()
with reused_heap(64 * MIB), ThreadPoolExecutor(1) as thread:
    assert resident_bytes() - before < MIB, "nothing is taken before it is used"
    first, again = faults_of_one_array(3 * MIB), faults_of_one_array(3 * MIB)
    assert again < 8 < first, (first, again)
    faults_of_one_array(48 * MIB)
    held = resident_bytes() - before
    assert held > 47 * MIB, held
    faults_of_one_array(128 * MIB)
    assert resident_bytes() - before < held + MIB, "more than what is planned goes back at once"
    elsewhere = [thread.submit(faults_of_one_array, 3 * MIB).result() for _ in range(3)]
    assert min(elsewhere) > 8, elsewhere
assert resident_bytes() - before < 2 * MIB, resident_bytes() - before
assert faults_of_one_array(3 * MIB) > 8
with kept_memory():
    with reused_heap(MIB):
        pass  # the inner one must not end the outer one
    faults_of_one_array(SIZE := 80 * MIB)
    assert faults_of_one_array(SIZE) < 8
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_a_process_with_a_budget_keeps_no_large_array() -> None:
    """In a process of its own: by then others have raised glibc's limit, or fixed it."""
    code = """
import numpy as np
from kernels.cpu.heap import give_back_large_arrays
from tests.kernels.test_heap import resident_bytes
kept = []
for told in (False, True):
    if told:
        give_back_large_arrays()
    np.empty(8 << 20, np.uint8).fill(1)
    arrays, between = [], []
    for _ in range(8):
        arrays.append(np.full(2 << 20, 1, np.uint8))
        between.append(bytes(100_000))  # keeps the end of the heap in use
    before = resident_bytes()
    arrays.clear()
    kept.append(16 * (1 << 20) - (before - resident_bytes()))
assert kept[0] > 8 << 20 > 1 << 20 > kept[1], kept
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
