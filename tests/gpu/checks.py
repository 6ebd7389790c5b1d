"""Every op on the device against the reference and the CPU, without drawn examples: what a bare machine can run."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from kernels import reference
from kernels.cuda.baselines import classify_with_counters, sample_by_classes, sample_by_edges, sample_by_warps
from kernels.cuda.current import from_torch, launching_through, to_torch
from kernels.cuda.gather import TierTable, check_rows, count_accesses, gather_rows
from kernels.cuda.host_rows import HostRows, PageableRows, PinnedRows
from kernels.cuda.launch import Array, DeviceLauncher
from kernels.cuda.sample import plan_rows
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.selfcheck import differences
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate
from kernels.nn.attention import Attention, attend
from kernels.nn.dropout import dropout
from kernels.nn.layers import NodeDegrees
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from storage.cache.device_slots import DeviceSlots
from storage.cache.dynamic import DynamicCache
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.tiers import FeatureTiers
from tasks.trainer import train
from tasks.training_reports import TrainResult
from tasks.training_types import Splits, TrainOptions
from tests.gpu.ops import CudaOps


def small_graph(num_nodes: int, mean_degree: int, dtype: type, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices) with empty lists, hubs and multi-edges."""
    rng = np.random.default_rng(seed)
    degree = np.minimum(rng.zipf(1.7, num_nodes) * mean_degree // 3, num_nodes)
    degree[:: max(1, num_nodes // 9)] = 0
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return indptr, rng.integers(0, num_nodes, indptr[-1]).astype(dtype)


def check_sampling(launcher: DeviceLauncher) -> None:
    """Sampling ops, every fanout's form, both id widths, with and without replacement."""
    for dtype in (np.int32, np.int64):
        topology = cached_topology(*small_graph(700, 9, dtype), np.arange(0, 700, 3))
        device, ops = DeviceTopology.place(launcher, topology), CudaOps(launcher)
        nodes: Any = np.random.default_rng(1).integers(0, 700, 900).astype(dtype)
        ptr = np.array([0, 0, 300, 900])
        uniq, uniq_ptr, inverse = reference.unique_per_batch(nodes, ptr)
        got = ops.unique_per_batch(launcher.to_device(nodes), launcher.to_device(ptr))
        _equal(launcher, got, (uniq, uniq_ptr, inverse))
        keys = np.array([1, 2**63, 5], np.uint64)
        on_device = launcher.to_device(uniq), launcher.to_device(uniq_ptr)
        for fanout in (-1, 1, 2, 5, 20, 70, 1200):
            for replace in (False, True):
                expected = reference.sample_neighbors(
                    topology, uniq, uniq_ptr, fanout, stream_keys=keys, replace=replace, edge_ids=fanout == 2
                )
                found = ops.sample_neighbors(
                    device, *on_device, fanout, stream_keys=launcher.to_device(keys), replace=replace,
                    edge_ids=fanout == 2,
                )  # fmt: skip
                _equal(launcher, found[:3], expected[:3])
                _agree(found[3] == expected[3], f"reads at fanout {fanout}")
        degree_U = topology.in_degree()[uniq]
        classes = ops.classify_by_degree(*on_device, launcher.to_device(degree_U), 5)
        _equal(launcher, classes, reference.classify_by_degree(uniq, uniq_ptr, degree_U, 5))


def check_other_forms(launcher: DeviceLauncher) -> None:
    """The forms that ours is measured against."""
    topology = Topology.in_memory(*small_graph(700, 9, np.int32))
    nodes, ptr, keys = np.arange(700, dtype=np.int32), np.array([0, 300, 700]), np.array([1, 2], np.uint64)
    row_ptr, expected, _, _ = reference.sample_neighbors(topology, nodes, ptr, 5, stream_keys=keys)
    device = DeviceTopology.place(launcher, topology)
    uniq, uniq_ptr = launcher.to_device(nodes), launcher.to_device(ptr)
    plan = plan_rows(launcher, device, uniq, uniq_ptr, 5, stream_keys=launcher.to_device(keys))
    for preload in (0, 16):
        _equal(launcher, [sample_by_classes(launcher, device, plan, uniq, uniq_ptr, preload=preload)], [expected])
    _equal(launcher, [sample_by_edges(launcher, device, plan, uniq)], [expected])
    drawn = launcher.to_host(sample_by_warps(launcher, plan, uniq))
    for v in range(700):
        row = topology.indices[topology.indptr[v] : topology.indptr[v + 1]]
        _agree(bool(np.isin(drawn[row_ptr[v] : row_ptr[v + 1]], row).all()), f"the reservoir of node {v}")
    counted = classify_with_counters(launcher, plan.degree_U, [0, 300, 700], 5)
    _agree(sum(len(full) + len(random) for full, random in counted) == 700, "classes by counters")


def check_mini_batches(launcher: DeviceLauncher) -> None:
    """K = 8, three hops, rows through all tiers, against the CPU sampler."""
    topology = cached_topology(*small_graph(2000, 12, np.int32, seed=5), np.arange(0, 2000, 3))
    batches = shuffled_batches(np.arange(400), 50, seed=1, epoch=0)
    cpu = NeighborSampler(topology, [5, 2, 20], seed=9, purpose=Purpose.TRAIN)
    expected = cpu.sample(batches, epoch=0, first_batch=0)
    lists = launcher.reach(topology.indices)
    sampled = CudaSampler(launcher, DeviceTopology.place(launcher, topology, lists), cpu).sample(
        batches, epoch=0, first_batch=0
    )
    _agree(sampled.adjacency_reads == expected.adjacency_reads, "adjacency reads")
    features = launcher.reach(np.random.default_rng(0).standard_normal((2000, 24)).astype(np.float32))
    for got, wanted in zip(sampled.samples, expected.samples, strict=True):
        _equal(launcher, [got.input_nodes, got.seed_inverse], [wanted.input_nodes, wanted.seed_inverse])
        for hop, wanted_hop in zip(got.hops, wanted.hops, strict=True):
            _equal(launcher, [hop.indptr, hop.indices], [wanted_hop.indptr, wanted_hop.indices])
    groups = [sample.input_nodes for sample in sampled.samples]
    for rows in (PinnedRows(launcher, features), PageableRows(launcher, features)):
        tiers = DeviceTiers(launcher, rows, np.arange(0, 2000, 4), held_tier(launcher, rows, np.arange(1, 2000, 8)))
        gathered, located = tiers.gather_group(groups), tiers.locate_group(groups)
        for wanted, one, other in zip(expected.samples, gathered.rows, located.rows, strict=True):
            _equal(launcher, [one, from_torch(launcher, other.tensor())], [features[wanted.input_nodes]] * 2)
        _agree(tiers.reads.dynamic_rows > 0, "rows of the dynamic cache")


def held_tier(launcher: DeviceLauncher, rows: HostRows, ids: np.ndarray) -> DynamicCache:
    """A dynamic cache that holds some rows."""
    layout = DynamicLayout(len(ids), max(1, rows.width * rows.dtype.itemsize), rows.num_rows)
    cache = DynamicCache(DeviceSlots(launcher, rows, layout), layout, DynamicOptions(share=1, epochs=99))
    cache.is_watching, where = True, launcher.to_device(ids)
    launcher.wait(cache.readable.ready)  # its scores are zeroed on another stream

    def score(_: int, score_N: Array, weight: float) -> None:
        score_N[where] += weight

    cache.observe(1, score)
    cache.update()
    cache.is_watching = False
    return cache


def check_rows_and_counts(launcher: DeviceLauncher) -> None:
    """Gather from tiers of every width, and access counts."""
    rng = np.random.default_rng(3)
    for width, dtype in ((1, np.uint8), (3, np.float16), (8, np.float32), (70, np.float32), (128, np.float64)):
        tiers = [rng.integers(0, 99, (rows, width)).astype(dtype) for rows in (9, 0, 30)]
        tier_n = rng.choice(np.array([0, 2], np.uint8), 500)
        slot_n = rng.integers(0, 9, 500)
        table = TierTable.of(launcher, [launcher.to_device(tier) for tier in tiers])
        out, where = launcher.xp.empty((500, width), dtype), (launcher.to_device(tier_n), launcher.to_device(slot_n))
        check_rows(launcher, gather_rows(launcher, table, *where, out), *where)
        expected = np.empty((500, width), dtype)
        reference.gather_rows(tiers, tier_n, slot_n, expected)
        _equal(launcher, [out], [expected])
    ids, counts = rng.integers(0, 50, 9000).astype(np.int32), launcher.xp.zeros(50, np.int64)
    count_accesses(launcher, counts, launcher.to_device(ids))
    _equal(launcher, [counts], [np.bincount(ids, minlength=50)])


def check_layers(launcher: DeviceLauncher) -> None:
    """Fused aggregates, forward and backward; exact for sums and dropout, to 1e-5 for attention."""
    rng = np.random.default_rng(4)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 300))])
    mfg = Mfg(indptr, rng.integers(0, 900, indptr[-1]).astype(np.int32), 900)
    on_device = Mfg(launcher.to_device(mfg.indptr), launcher.to_device(mfg.indices), 900)
    weight, scale, own = (torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in (900, 300, 300))
    asked = Attention(2, 8, dropout=0.3, key=np.uint64(8))
    at = launcher.torch_device
    bodies = {
        "mean": lambda m, h, d: aggregate(m, h, reduce="mean", beside=True),
        "gcn": lambda m, h, d: aggregate(m, h, weight_S=weight.to(d), scale_D=scale.to(d), own_D=own.to(d)),
        "attention": lambda m, h, d: attend(m, h, asked),
        "dropout": lambda m, h, d: dropout(h, 0.3, np.uint64(5)),
    }
    for name, body in bodies.items():
        rows = torch.randn(900, asked.width, generator=torch.Generator().manual_seed(9))
        found = []
        for hop, device in ((mfg, torch.device("cpu")), (on_device, at)):
            x = rows.to(device).clone().requires_grad_()
            with launching_through(launcher) if hop is on_device else nullcontext():
                out = body(hop, x, device)
                out.cos().sum().backward()
            assert x.grad is not None
            found.append((out.detach().cpu(), x.grad.cpu()))
        for one, other in zip(*found, strict=True):
            tolerance = 1e-5 if name == "attention" else 1e-6
            torch.testing.assert_close(other, one, rtol=tolerance, atol=10 * tolerance)


def check_before_use(launcher: DeviceLauncher) -> None:
    """What is looked at before a GPU is used for the first time."""
    _agree(differences(launcher) == [], "the check before use")


def check_training(launcher: DeviceLauncher) -> None:
    """Two epochs of training with all three caches: the CPU's mini-batches and losses; and without pinned memory."""
    rng = np.random.default_rng(6)
    topology = cached_topology(*small_graph(1500, 9, np.int32, seed=6), np.arange(0, 1500, 4))
    labels, features = rng.integers(0, 5, 1500), rng.standard_normal((1500, 20)).astype(np.float32)
    degrees = NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=1500))
    splits = Splits(np.arange(0, 1500, 2), np.arange(1, 1500, 4), np.arange(3, 1500, 4))
    dynamic = DynamicOptions(share=0.5, interval_batches=4)
    asked = TrainOptions(kind="gcn", fanouts=(4, 6), hidden=16, epochs=2, batch_size=60, threads=1, compute_threads=1)

    def trained(options: TrainOptions) -> TrainResult:
        tiers = FeatureTiers(features, np.arange(0, 1500, 5), dynamic_rows=150, dynamic=dynamic)
        return train(topology, tiers, labels, splits, degrees, options, num_classes=5)

    for options in (asked, dataclasses.replace(asked, kind="sage", pinned="off")):
        expected = trained(dataclasses.replace(options, backend="cpu"))
        # Updates in the thread that gathers: whether one comes in time is not to decide.
        with launching_through(launcher), patch.object(DynamicCache, "_start_update", DynamicCache.update):
            found = trained(dataclasses.replace(options, backend="cuda"))
        for one, other in zip(found.history, expected.history, strict=True):
            _agree(abs(one.loss - other.loss) < 1e-3 * other.loss, f"losses {one.loss} and {other.loss}")
            _agree(one.adjacency_reads == other.adjacency_reads, "adjacency reads of training")
        _agree(found.feature_reads.dynamic_rows > 0, "rows of the dynamic cache in training")


def check_bridge(launcher: DeviceLauncher) -> None:
    """Arrays and tensors share memory in both directions."""
    array = launcher.to_device(np.arange(6, dtype=np.float32))
    tensor = to_torch(array)
    tensor += 1
    _equal(launcher, [array, from_torch(launcher, tensor)], [np.arange(1, 7, dtype=np.float32)] * 2)


CHECKS = (
    check_bridge,
    check_before_use,
    check_sampling,
    check_other_forms,
    check_rows_and_counts,
    check_mini_batches,
    check_layers,
    check_training,
)


def _equal(launcher: DeviceLauncher, got: object, expected: object) -> None:
    for one, other in zip(got, expected, strict=True):  # type: ignore[call-overload]
        host = launcher.to_host(one)
        _agree(host.dtype == other.dtype and np.array_equal(host, other), "an array differs from the reference")


def _agree(is_right: bool, what: str) -> None:
    if not is_right:
        raise AssertionError(what)
