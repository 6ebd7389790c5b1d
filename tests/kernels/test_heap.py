"""Freed memory is kept for as long as it is asked for, and no longer."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np

from kernels.cpu.heap import kept_memory

SIZE = 64 << 20


def faults_of_one_array() -> int:
    """Page faults of allocating, filling and freeing a large array (4 KB or 2 MB a page)."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(SIZE, np.uint8).fill(1)
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


def test_memory_goes_back_at_the_end() -> None:
    with kept_memory():
        faults_of_one_array()
        held = resident_bytes()
    assert held - resident_bytes() > SIZE // 2
    assert faults_of_one_array() >= 8
