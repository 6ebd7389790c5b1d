"""The three-way split: a dynamic cache gets bytes where seeds drift, and none where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cpu.greedy import read_bytes
from kernels.mfg import IdArray
from kernels.sampler import shuffled_batches
from kernels.topology import Topology
from storage.cache.allocation import LEAST_GAIN, Split, allocate
from storage.cache.drift import Segment, moving_community
from storage.cache.hotset import DynamicOptions
from storage.cache.laboratory import requests_of, run_dynamic, serve_both
from storage.cache.policies import PolicyCase, garden_plan
from storage.cache.pre_sampling import profile_accesses
from storage.cache.trace import AccessTrace, TraceFile, record_trace
from tests.graphs import csc_from_edges

NUM_NODES, DEGREE, ROW, BATCH, FANOUTS = 4000, 6, 64, 40, (3, 3)
BUDGET = NUM_NODES * ROW // 8
DST = np.repeat(np.arange(NUM_NODES), DEGREE)
SRC = DST // 200 * 200 + np.random.default_rng(0).integers(0, 200, len(DST))  # disjoint communities of 200 nodes
TOPOLOGY = Topology.in_memory(*csc_from_edges(NUM_NODES, SRC, DST))
TRAIN = np.arange(NUM_NODES)
TRIED = {"shares": (0.25, 0.5), "gammas": (0.5, 0.9), "intervals": (1, 5)}


@pytest.fixture(scope="module")
def case() -> PolicyCase:
    sizes: dict[str, Any] = {"batch_size": BATCH, "superbatch": 4, "epochs": 2, "heldout_epochs": 1}
    profile = profile_accesses(TOPOLOGY, TRAIN, FANOUTS, seed=7, replace=False, threads=2, **sizes)
    return PolicyCase(profile, TOPOLOGY, TRAIN, BATCH, FANOUTS, ROW)


def trace_of(batches: list[IdArray], folder: Path) -> AccessTrace:
    record_trace(folder / "trace.h5", [Segment(TOPOLOGY, batches)], FANOUTS, seed=0)
    with TraceFile(folder / "trace.h5") as file:
        return file.read()


def test_it_gets_bytes_where_seeds_move(case: PolicyCase, tmp_path: Path) -> None:
    moving = moving_community(TRAIN, TRAIN // 200, BATCH, 240, width=1, seed=1)
    trace = trace_of(moving, tmp_path)
    chosen = allocate(case, BUDGET, trace.part(0, 48), **TRIED)  # type: ignore[arg-type]
    assert chosen.options.share > 0, chosen
    assert set(chosen.saved_by_share) == {0.0, 0.25, 0.5}
    assert chosen.saved_by_share[chosen.options.share] >= chosen.saved_by_share[0.0] + LEAST_GAIN
    requests = requests_of(case, trace.part(48, 240))
    static = Split.of(case, BUDGET, 0.0, requests).static_saved
    both = Split.of(case, BUDGET, chosen.options.share, requests).avoided(chosen.options, trace, 48)
    assert both > static + 0.05


def test_it_gets_none_where_they_do_not(case: PolicyCase, tmp_path: Path) -> None:
    epochs = [shuffled_batches(TRAIN, BATCH, seed=3, epoch=epoch) for epoch in range(2)]
    trace = trace_of([batch for epoch in epochs for batch in epoch], tmp_path)
    chosen = allocate(case, BUDGET, trace, **TRIED)  # type: ignore[arg-type]
    assert chosen.options == DynamicOptions()
    assert max(chosen.saved_by_share.values()) < chosen.saved_by_share[0.0] + LEAST_GAIN


def test_all_three_share_one_budget_and_swaps_are_paid(case: PolicyCase, tmp_path: Path) -> None:
    trace = trace_of(shuffled_batches(TRAIN, BATCH, seed=3, epoch=0), tmp_path)
    requests = requests_of(case, trace)
    for share in (0.0, 0.25, 1.0):
        plan = Split.of(case, BUDGET, share, requests).plan
        assert plan.total_bytes <= BUDGET
        assert bool(plan.dynamic_rows) == (share > 0)
    assert Split.of(case, BUDGET, 0.0, requests).static_saved == serve_both(requests, *garden_plan(case, BUDGET)).saved
    split, options = Split.of(case, BUDGET, 0.5, requests), DynamicOptions(0.5, 0.9, 1)
    assert split.avoided(DynamicOptions(0.5, 0.9, 10**6), trace, 0) == split.static_saved
    served = run_dynamic(split.plan.feature_ids, split.layout, options, trace)
    assert served.moved_rows > split.layout.rows
    gain = (served.dynamic_hits - served.moved_rows) * ROW / total_bytes(case, trace)
    assert split.avoided(options, trace, 0) == pytest.approx(split.static_saved + gain)


def total_bytes(case: PolicyCase, trace: AccessTrace) -> float:
    """Bytes that all requests move, by the rules of reading: a row's line, and of a list its offset's and its ids'."""
    counts, lengths = trace.adjacency_counts(), TOPOLOGY.in_degree()
    moved = [int(count) * read_bytes(int(length), case.rules) for count, length in zip(counts, lengths, strict=True)]
    return float(64 * len(trace.nodes) + sum(moved))
