"""Exact inference from disk: equal whichever way edges go, within its memory, as many bytes as the arithmetic says."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, ModelSpec, build_model
from kernels.nn.streamed import Units
from kernels.rank_map import RankMap
from kernels.topology import Topology
from storage.blocks.edge_runs import MemoryRuns, SpilledRuns, Windows
from storage.blocks.io_stats import IoStats
from storage.blocks.row_pieces import FeaturePieces, windows_of
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.cache.tiers import FeatureTiers
from storage.graph_store import GraphStore, write_store
from tasks import tile_plan, tiled_inference
from tasks.inference import ExactInference
from tasks.inference_sizes import pieces_bytes
from tasks.needed_lists import ListReads
from tasks.tile_plan import LayerSizes, TilePlan, least_tile_bytes, most_spilled_bytes, plan_tiles, strips_disk_bytes
from tasks.tiled_inference import TiledInference
from tests.graphs import power_law_graph
from tests.storage.blocks.recut import store_of

MB = 1 << 20
NONE = np.empty(0, np.int64)


@pytest.fixture(scope="module")
def wide_graph() -> tuple[Topology, np.ndarray[Any, Any]]:
    """6000 nodes of 40 neighbors and more, hubs among them, with rows of 1 KB."""
    indptr, indices = power_law_graph(6000, 240_000, seed=4)
    rows = np.random.default_rng(0).standard_normal((6000, 256)).astype(np.float32)
    return Topology.in_memory(indptr, indices), rows


def outputs_of(inference: TiledInference, model: GnnModel) -> torch.Tensor:
    """Outputs of all nodes asked for."""
    return torch.cat(list(inference.stream(model)))


Way = Literal["memory", "disk", "strips"]


def planned(way: Way, plans: list[TilePlan], strip_units: int = 3) -> Callable[[LayerSizes, int, int], TilePlan]:
    """A planner that sends edges one way, and notes what it planned."""

    def plan(sizes: LayerSizes, budget_bytes: int, _: int) -> TilePlan:
        in_strips = way == "strips" and sizes.units is not None
        plans.append(
            tile_plan._plan(sizes, budget_bytes, 0 if way == "memory" else 4096, strip_units if in_strips else 0)
        )
        return plans[-1]

    return plan


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
@pytest.mark.parametrize("way", ["memory", "disk", "strips"])
def test_all_ways_equal_exact_inference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide_graph: Any, kind: Any, way: Way
) -> None:
    """In many tiles and windows, from blocks that rows straddle, for nodes that need most others."""
    topology, rows = wide_graph
    rows = rows[:, :20].astype(np.float16)
    store = store_of(tmp_path / "graph.h5", 8192 + 24, indptr=topology.indptr, indices=topology.indices, features=rows)
    degrees = NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=len(rows)))
    spec, nodes = (
        ModelSpec(kind, 20, 32, 5, 2),
        np.sort(np.random.default_rng(1).permutation(6000)[:700]),
    )
    plans = list[TilePlan]()
    model, degrees_of = build_model(spec, seed=2), degrees if kind == "gcn" else None
    expected = ExactInference(topology, nodes, spec, degrees=degrees_of).run(model, FeatureTiers(rows, NONE))
    monkeypatch.setattr(tiled_inference, "plan_tiles", planned(way, plans))
    with (
        StoredTopology(store, NONE, buffer_bytes=MB, indptr_buffer_bytes=MB) as stored,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        inference = TiledInference(
            stored, features, nodes, spec, degrees=degrees_of, budget_bytes=MB, directory=tmp_path
        )
        inference._tile_bytes = 400_000 if way != "strips" else 4 * MB  # sums in strips wait in pieces beside tiles
        found = outputs_of(inference, model)
    assert {plan.goes_by_disk for plan in plans} == {way != "memory"}
    assert max(plan.num_tiles for plan in plans) > 1 or way == "strips"
    assert all((plan.strip_units == 3) == (way == "strips") for plan in plans)
    assert torch.allclose(found, expected.logits, rtol=1e-4, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.h5"]


@pytest.mark.parametrize(("way", "budget"), [("memory", 3 * MB), ("disk", 2 * MB), ("strips", 9 * MB)])
def test_bytes_and_memory_are_those_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wide_graph: Any, way: Way, budget: int
) -> None:
    """One layer over all nodes, from buffers that hold next to nothing of the sources."""
    topology, rows = wide_graph
    write_store(
        tmp_path / "graph.h5", indptr=topology.indptr, indices=topology.indices, features=rows, block_bytes=32768
    )
    store, spec, plans = GraphStore.open(tmp_path / "graph.h5"), ModelSpec("sage", 256, 8, 300, 1), list[TilePlan]()
    stats = IoStats()
    monkeypatch.setattr(tiled_inference, "plan_tiles", planned(way, plans, strip_units=64))
    with (
        StoredTopology(store, NONE, buffer_bytes=64 << 10, stats=stats) as stored,
        StoredFeatures(store, NONE, buffer_bytes=64 << 10, stats=stats) as features,
    ):
        inference = TiledInference(stored, features, None, spec, budget_bytes=budget, directory=tmp_path)
        model, before = build_model(spec, seed=0), stats.counts()
        tracemalloc.start()
        try:
            for _ in inference.stream(model):
                pass
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    found, (plan,) = stats.counts().since(before), plans
    assert plan.num_tiles >= 2 or plan.strip_units
    assert found.read_bytes + found.write_bytes == pytest.approx(plan.moved_bytes, rel=0.1)
    assert peak < budget + pieces_bytes(spec, len(rows), 1024, 32768) + MB  # and what Python takes


@pytest.mark.parametrize(("num_nodes", "width"), [(1_000, 1433), (10_000_000, 256), (33_600_000, 128), (1 << 30, 64)])
def test_the_least_memory_has_room_for_sums(num_nodes: int, width: int) -> None:
    least = least_tile_bytes(num_nodes, width)
    sizes = LayerSizes(
        num_sources=num_nodes,
        num_dst=num_nodes,
        num_edges=15 * num_nodes,
        source_bytes=4 * width * num_nodes,
        width=width,
        sums_width=width,
        out_width=width,
    )
    assert plan_tiles(sizes, least, 0).tile_bytes >= least // 2
    apart = replace(sizes, units=Units(width), is_stored=True)
    assert plan_tiles(apart, least, 1 << 60).moved_bytes < 30 * sizes.source_bytes


def test_fewest_bytes_are_moved() -> None:
    """Narrow rows of long lists go by the disk; wide rows, and whatever one tile holds, stay in memory."""
    billion = LayerSizes(
        num_sources=1 << 25,
        num_dst=6_000_000,
        num_edges=700_000_000,
        source_bytes=128 << 25,
        width=64,
        sums_width=64,
        out_width=128,
    )
    plan = plan_tiles(billion, 600_000_000, most_spilled_bytes(billion.num_edges))
    passes = -(-256 * 6_000_000 // plan.tile_bytes)
    own = (128 << 25) * 6_000_000 // (1 << 25)
    assert plan.goes_by_disk
    assert plan.moved_bytes == pytest.approx(passes * (128 << 25) + own + 12 * 700_000_000 + 4 * 700_000_000, rel=1e-6)
    in_memory = (256 * 6_000_000 + 14 * 700_000_000) // 600_000_000 * (128 << 25)
    assert plan.moved_bytes < in_memory / 2
    assert not plan_tiles(billion, 100_000_000_000, 1 << 40).goes_by_disk
    assert not plan_tiles(billion, 600_000_000, most_spilled_bytes(billion.num_edges) - 1).goes_by_disk
    few_edges = replace(billion, num_edges=1_000_000)
    assert not plan_tiles(few_edges, 600_000_000, 1 << 40).goes_by_disk


@pytest.mark.parametrize("budget", [MB, 3 * MB, 40 * MB, 600 * MB, 20_000 * MB])
@pytest.mark.parametrize("width", [1, 64, 1024])
@pytest.mark.parametrize("apart", [False, True])
def test_shares_keep_the_budget(budget: int, width: int, apart: bool) -> None:
    sizes = LayerSizes(
        num_sources=1 << 20,
        num_dst=1 << 20,
        num_edges=30 << 20,
        source_bytes=4 * width << 20,
        width=width,
        sums_width=width,
        out_width=width,
        units=Units(width) if apart else None,
        is_stored=apart,
    )
    plan = plan_tiles(sizes, budget, 1 << 40)
    passing = tile_plan._passing(sizes, plan.buffer_bytes, plan.strip_units)[0]
    lists = plan.lists_at_once * 96 + plan.entries_at_once * 32
    beside = pieces = 0
    if plan.strip_units:
        rows, sums = sizes.in_strips(plan.strip_units, plan.piece_bytes)
        beside = rows.index_bytes + sums.index_bytes + rows.strip_memory_bytes + sums.strip_memory_bytes
        pieces = rows.memory_bytes + sums.memory_bytes
    assert plan.tile_bytes + passing + lists + beside + plan.rows_at_once * 4 * 7 * width <= budget
    assert pieces <= plan.tile_bytes
    assert budget == MB or plan.tile_bytes >= budget // (4 if plan.strip_units else 2)


@pytest.mark.parametrize("mib", [8, 16, 40])
@pytest.mark.parametrize("is_stored", [False, True])
def test_strips_where_memory_is_far_too_small(mib: int, is_stored: bool) -> None:
    """512 MB of rows a pass: dozens of passes over whole rows, a few over strips."""
    whole = LayerSizes(
        num_sources=1_000_000,
        num_dst=1_000_000,
        num_edges=15_000_000,
        source_bytes=512_000_000,
        width=128,
        sums_width=128,
        out_width=128,
        is_stored=is_stored,
    )
    apart = replace(whole, units=Units(128))
    plan = plan_tiles(apart, mib * MB, 1 << 40)
    assert plan.goes_by_disk
    assert plan.moved_bytes < plan_tiles(whole, mib * MB, 1 << 40).moved_bytes / 2
    room = strips_disk_bytes(apart, plan.strip_units, mib * MB)
    most = max(strips_disk_bytes(apart, 1 << bits, mib * MB) for bits in range(7))
    assert plan_tiles(apart, mib * MB, most) == plan
    assert plan_tiles(apart, mib * MB, room - 1).strip_width != plan.strip_units
    assert not plan_tiles(apart, mib * MB, min(most_spilled_bytes(15_000_000), room) - 1).strip_width
    assert not plan_tiles(apart, 4000 * MB, 1 << 40).strip_width


@given(data=st.data(), shift=st.integers(0, 16), num_slots=st.integers(1, 200_000), num_edges=st.integers(0, 6000))
@settings(max_examples=60, deadline=None)
def test_runs_hold_the_edges_of_each_window_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: Any, shift: int, num_slots: int, num_edges: int
) -> None:
    shift = max(shift, (num_slots - 1).bit_length() - 6)  # 64 windows at most
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    slots = np.minimum(rng.geometric(0.001, num_edges) * rng.integers(1, 200), num_slots) - 1
    targets = np.sort(rng.integers(0, 1 << 30, num_edges)).astype(np.int32)
    for kind in ("memory", "disk"):
        windows = Windows(num_slots, min(shift, 16))
        runs: Any = (
            MemoryRuns(windows, num_edges, np.dtype(np.int32))
            if kind == "memory"
            else SpilledRuns(windows, num_edges, 4096, tmp_path_factory.getbasetemp(), IoStats())
        )
        for part in np.array_split(np.arange(num_edges), 3):
            assert runs.has_room(len(part))
            runs.add(slots[part], targets[part])
        runs.finish()
        first, last = windows.ranges()
        assert all(((first <= slot) & (slot <= last)).any() for slot in slots)
        for window in range(windows.count):
            here = slots >> windows.shift == window
            read = list(runs.read(window))
            found = np.concatenate([NONE, *(part for part, _ in read)]) + (window << windows.shift)
            assert np.array_equal(found, slots[here])
            assert np.array_equal(np.concatenate([NONE, *(part for _, part in read)]), targets[here])
        runs.close()


@given(
    row_bytes=st.sampled_from([4, 12, 36, 100, 260]),
    shift=st.integers(0, 8),
    seed=st.integers(0, 1 << 20),
    share=st.floats(0.01, 1),
)
@settings(max_examples=40, deadline=None)
def test_windows_hold_the_rows_of_the_store(
    tmp_path_factory: pytest.TempPathFactory, row_bytes: int, shift: int, seed: int, share: float
) -> None:
    """Rows narrower and wider than a block of 24 bytes, that straddle blocks and windows."""
    rng, path = np.random.default_rng(seed), tmp_path_factory.mktemp("windows") / "graph.h5"
    rows = rng.standard_normal((150, row_bytes // 4)).astype(np.float32)
    empty = {"indptr": np.zeros(151, np.int64), "indices": np.empty(0, np.int32)}
    with store_of(path, 24, features=rows, **empty) as store, StoredFeatures(store, NONE, buffer_bytes=400) as features:
        pieces, windows = FeaturePieces(features), Windows(150, shift)
        named = np.flatnonzero(rng.random(150) < share)
        windows.add(named)
        found = set()
        for window, part in windows_of(pieces, pieces.between(*windows.ranges()), shift, windows.edges_W > 0):
            here = named[named >> shift == window]
            assert np.array_equal(part[here - (window << shift)], rows[here])
            found |= set(here.tolist())
        assert found == set(named.tolist())


def test_lists_come_some_at_a_time(tmp_path: Path, wide_graph: Any) -> None:
    """However few entries fit: a hub's list comes in parts."""
    topology, rows = wide_graph
    write_store(tmp_path / "graph.h5", indptr=topology.indptr, indices=topology.indices, features=rows[:, :1])
    nodes = RankMap.from_sorted_ids(np.arange(0, 6000, 3), 6000)
    with StoredTopology(GraphStore.open(tmp_path / "graph.h5"), NONE, buffer_bytes=8 * MB) as stored:
        reads, degree = ListReads(stored, 100, 64), topology.in_degree()[::3][10:1500]
        parts = list(reads.edges(nodes, 10, 1500))
        assert max(len(sources) for sources, _ in parts) == 64
        assert np.array_equal(np.concatenate([t for _, t in parts]), np.repeat(np.arange(1490), degree))
        wanted = [topology.indices[topology.indptr[v] : topology.indptr[v + 1]] for v in range(30, 4500, 3)]
        assert np.array_equal(np.concatenate([s for s, _ in parts]), np.concatenate(wanted))


def test_what_training_leaves_in_the_heap_goes_back(tmp_path: Path) -> None:
    """Else arrays of evaluation that came and went there stay resident beside those that are counted."""
    indptr, indices = power_law_graph(500, 3000, seed=1)
    rows = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)
    store_of(tmp_path / "graph.h5", 4096, indptr=indptr, indices=indices, features=rows).close()
    command = [sys.executable, "-m", "tests.tasks.heap_after_training", str(tmp_path / "graph.h5"), str(tmp_path)]
    done = subprocess.run(command, check=True, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert int(done.stdout) > 30 * MB
