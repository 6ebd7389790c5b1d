"""Passes over all candidates of a cache plan: what each is worth is computed where it is needed and never stored.

A candidate is a node's feature row (kind 0) or its adjacency list (kind 1). Its key, the bits of value over size in
float64, ascends with the density.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.intrinsics import bits_of

LEVEL_BITS = 16
BINS = 1 << LEVEL_BITS
_LOW = np.uint64(BINS - 1)


class Rules(NamedTuple):
    """What decides value and size of a candidate, beside its counts: plain numbers, which pass from function to
    function for nothing, where arrays among them would cost ten times what is computed here."""

    row_bytes: int
    """Bytes of a row; 0 where nodes have none."""
    id_bytes: int
    """Bytes of an id."""
    offset_bytes: int
    """Bytes of a list's offset."""
    row_worth: int
    """Value of one access to a row."""
    list_worth: int
    """Value of one read of a list."""
    list_byte_worth: int
    """Further value of one read, for each byte that it moves."""
    max_fanout: int
    """Most ids drawn of a list; -1 for all."""
    line_bytes: int
    """Least bytes that a read moves, a power of two."""


class Candidates(NamedTuple):
    """Counts, degrees and rules that decide value and size of every candidate."""

    feature_count_N: npt.NDArray[np.integer]
    """(N,) accesses to each row."""
    adjacency_count_N: npt.NDArray[np.integer]
    """(N,) reads of each list, of the same dtype."""
    in_degree_N: npt.NDArray[np.integer]
    """(N,) length of each list, contiguous."""
    rules: Rules


class Range(NamedTuple):
    """Which candidates a pass looks at."""

    kinds: int
    """1 rows, 2 lists, 3 both."""
    low: np.uint64
    """Least key."""
    high: np.uint64
    """Keys lie below it."""
    most_bytes: int
    """Largest size."""


@njit(nogil=True, cache=True)
def read_bytes(degree: int, rules: Rules) -> int:
    """Bytes that one sampling of a list moves: its offset's lines, and a line an id drawn unless the list is less."""
    if degree == 0:
        return 0
    moved = _whole_lines(degree * rules.id_bytes, rules.line_bytes)
    if rules.max_fanout >= 0:
        drawn = min(degree, rules.max_fanout)
        moved = min(moved, drawn * _whole_lines(rules.id_bytes, rules.line_bytes))
    return moved + _whole_lines(rules.offset_bytes, rules.line_bytes) if moved > 0 else 0


@njit(nogil=True, cache=True)
def _whole_lines(size: int, line_bytes: int) -> int:
    return (size + line_bytes - 1) & -line_bytes


@njit(nogil=True, cache=True)
def value_and_size(rules: Rules, kind: int, count: int, degree: int) -> tuple[int, int]:
    """Value (0: no candidate) and bytes of one candidate, from its count and the length of the node's list."""
    if kind == 0:
        return (count * rules.row_worth, rules.row_bytes) if rules.row_bytes else (0, 1)
    if count == 0 or degree == 0:
        return 0, 1
    worth = rules.list_worth
    if rules.list_byte_worth:
        worth += rules.list_byte_worth * read_bytes(degree, rules)
    return count * worth, rules.offset_bytes + degree * rules.id_bytes


@njit(nogil=True, cache=True)
def _counts(all_of: Candidates, kind: int) -> npt.NDArray[np.integer]:
    return all_of.feature_count_N if kind == 0 else all_of.adjacency_count_N


@njit(nogil=True, cache=True)
def histogram(
    all_of: Candidates,
    among: Range,
    begin: int,
    end: int,
    prefix: np.uint64,
    level: int,
    count: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
) -> None:
    """Add the candidates of nodes [begin, end) whose key begins with `prefix` to bins of its next 16 bits."""
    rules, degree_N = all_of.rules, all_of.in_degree_N
    shift = np.uint64(level * LEVEL_BITS)
    for kind in range(2):
        if not among.kinds & (1 << kind):
            continue
        count_N = _counts(all_of, kind)
        for v in range(begin, end):
            value, size = value_and_size(rules, kind, count_N[v], degree_N[v])
            if value <= 0 or size > among.most_bytes:
                continue
            key = bits_of(np.float64(value) / np.float64(size))
            # Shifted twice: a shift by all 64 bits is undefined.
            if among.low <= key < among.high and ((key >> shift) >> np.uint64(LEVEL_BITS)) == prefix:
                chosen = (key >> shift) & _LOW
                count[chosen] += 1
                held[chosen] += size


@njit(nogil=True, cache=True)
def take_all(
    all_of: Candidates,
    among: Range,
    begin: int,
    end: int,
    taken_rows_N: npt.NDArray[np.bool_],
    taken_lists_N: npt.NDArray[np.bool_],
) -> float:
    """Mark all candidates of nodes [begin, end) in a range; returns their value."""
    rules, degree_N = all_of.rules, all_of.in_degree_N
    worth = 0.0
    for kind in range(2):
        if not among.kinds & (1 << kind):
            continue
        count_N, taken_N = _counts(all_of, kind), taken_rows_N if kind == 0 else taken_lists_N
        for v in range(begin, end):
            value, size = value_and_size(rules, kind, count_N[v], degree_N[v])
            if value <= 0 or size > among.most_bytes:
                continue
            key = bits_of(np.float64(value) / np.float64(size))
            if among.low <= key < among.high:
                taken_N[v] = True
                worth += value
    return worth


@njit(nogil=True, cache=True)
def take_in_order(
    all_of: Candidates,
    among: Range,
    room_bytes: int,
    taken_rows_N: npt.NDArray[np.bool_],
    taken_lists_N: npt.NDArray[np.bool_],
) -> tuple[int, float]:
    """Mark those in a range that still fit, rows first, by id; returns the room left and the value taken."""
    rules, degree_N = all_of.rules, all_of.in_degree_N
    worth = 0.0
    for kind in range(2):
        if not among.kinds & (1 << kind):
            continue
        count_N, taken_N = _counts(all_of, kind), taken_rows_N if kind == 0 else taken_lists_N
        for v in range(len(degree_N)):
            value, size = value_and_size(rules, kind, count_N[v], degree_N[v])
            if value <= 0 or size > room_bytes:
                continue
            key = bits_of(np.float64(value) / np.float64(size))
            if among.low <= key < among.high:
                taken_N[v] = True
                room_bytes -= size
                worth += value
    return room_bytes, worth


@njit(nogil=True, cache=True)
def collect(
    all_of: Candidates,
    among: Range,
    node_M: npt.NDArray[np.int64],
    value_M: npt.NDArray[np.int64],
    size_M: npt.NDArray[np.int64],
) -> tuple[int, int]:
    """Write the candidates of a range, rows first, by id; returns how many rows and how many in all."""
    rules, degree_N = all_of.rules, all_of.in_degree_N
    found, num_rows = 0, 0
    for kind in range(2):
        if among.kinds & (1 << kind):
            count_N = _counts(all_of, kind)
            for v in range(len(degree_N)):
                value, size = value_and_size(rules, kind, count_N[v], degree_N[v])
                if value <= 0 or size > among.most_bytes:
                    continue
                key = bits_of(np.float64(value) / np.float64(size))
                if among.low <= key < among.high:
                    node_M[found], value_M[found], size_M[found] = v, value, size
                    found += 1
        if kind == 0:
            num_rows = found
    return num_rows, found


@njit(nogil=True, cache=True)
def tally(
    all_of: Candidates, taken_rows_N: npt.NDArray[np.bool_], taken_lists_N: npt.NDArray[np.bool_]
) -> tuple[int, int, int, int, float, float]:
    """Add up what is taken and what there is: accesses to rows, to lists, and value, each as (taken, all)."""
    rules, degree_N = all_of.rules, all_of.in_degree_N
    row_count_N, list_count_N = all_of.feature_count_N, all_of.adjacency_count_N
    row_hits, rows, list_hits, lists, saved, total = 0, 0, 0, 0, 0.0, 0.0
    for v in range(len(degree_N)):
        row_value = value_and_size(rules, 0, row_count_N[v], degree_N[v])[0]
        list_value = value_and_size(rules, 1, list_count_N[v], degree_N[v])[0]
        rows += row_count_N[v]
        lists += list_count_N[v]
        total += row_value + list_value
        if taken_rows_N[v]:
            row_hits += row_count_N[v]
            saved += row_value
        if taken_lists_N[v]:
            list_hits += list_count_N[v]
            saved += list_value
    return row_hits, rows, list_hits, lists, saved, total


@njit(nogil=True, cache=True)
def list_bytes(all_of: Candidates, taken_lists_N: npt.NDArray[np.bool_]) -> int:
    """Bytes of the lists taken, their offsets included."""
    rules, degree_N, total = all_of.rules, all_of.in_degree_N, 0
    for v in range(len(taken_lists_N)):
        if taken_lists_N[v]:
            total += rules.offset_bytes + degree_N[v] * rules.id_bytes
    return total


@njit(nogil=True, cache=True)
def rank_bin(rank: int, digits: int) -> int:
    """Number of a rank among those that differ in their leading binary digits, in ascending order without gaps."""
    dropped = 0
    while rank >> (digits + dropped):
        dropped += 1
    return (dropped << (digits - 1)) + (rank >> dropped)


@njit(nogil=True, cache=True)
def ranked_sums(
    rank_N: npt.NDArray[np.integer],
    count_N: npt.NDArray[np.integer],
    digits: int,
    rows_K: npt.NDArray[np.int64],
    sums_K: npt.NDArray[np.int64],
) -> None:
    """Sum of `count_N` over the first `rows_K[k]` nodes by the leading digits of `rank_N`, ties by id, 0 left out."""
    largest = 0
    for v in range(len(rank_N)):
        largest = max(largest, rank_N[v])
    most = rank_bin(largest, digits)
    number, total = np.zeros(most + 2, np.int64), np.zeros(most + 2, np.int64)
    for v in range(len(rank_N)):
        if rank_N[v] > 0:
            chosen = rank_bin(rank_N[v], digits)
            number[chosen] += 1
            total[chosen] += count_N[v]
    left_K = np.zeros(len(rows_K), np.int64)
    edge_K = np.full(len(rows_K), -1, np.int64)
    is_edge = np.zeros(most + 2, np.bool_)
    for k in range(len(rows_K)):
        left_K[k], sums_K[k], rank = rows_K[k], 0, most
        while rank >= 0 and number[rank] <= left_K[k]:
            left_K[k] -= number[rank]
            sums_K[k] += total[rank]
            rank -= 1
        edge_K[k] = rank
        if rank >= 0 and left_K[k] > 0:
            is_edge[rank] = True
    for v in range(len(rank_N)):
        chosen = rank_bin(rank_N[v], digits)
        if rank_N[v] > 0 and is_edge[chosen]:
            for k in range(len(rows_K)):
                if edge_K[k] == chosen and left_K[k] > 0:
                    left_K[k] -= 1
                    sums_K[k] += count_N[v]
