"""The CUDA backend on a real GPU: correctness, then ratios measured in one run; `--dry-run` does the same on the shim.

Writes JSON with hardware, date and commit, anew after each step, so that a run that is cut short leaves what it had.
Speeds are of the steady state: every form runs once before it is timed. A check that fails is noted, and the others go
on; it ends with 1 at last, as on a GPU does a gate that is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import mmap
import platform
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kernels.cuda.baselines import classify_with_counters, sample_by_warps
from kernels.cuda.classify import classify_rows
from kernels.cuda.current import device_launcher, launching_through, to_torch
from kernels.cuda.gather import TierTable, gather_rows
from kernels.cuda.host_rows import PinnedRows
from kernels.cuda.launch import Array, DeviceLauncher
from kernels.cuda.probe import probe
from kernels.cuda.sample import fill_rows, plan_rows
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.cuda.unique import unique_nodes
from kernels.mfg import Mfg
from kernels.nn.layers import Rows
from kernels.nn.model import ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from tasks.device_loader import DeviceLoader
from tasks.epoch_stream import LoadStats
from tests.gpu.checks import CHECKS

FANOUTS, NUM_CLASSES, HIDDEN, SUPERBATCH = (5, 10, 15), 47, 256, 8
BUDGET_SHARE = 0.1
Note = Callable[..., None]
"""Takes a name, a figure, and the part of the record that it goes to."""


@dataclass(frozen=True)
class Size:
    """How large the workload is."""

    nodes: int
    edges: int
    width: int
    batch: int
    batches: int


FULL, TINY = Size(10_000_000, 200_000_000, 128, 1000, 64), Size(3000, 30_000, 16, 20, 8)


def make_graph(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """(indptr, indices) whose degrees follow a power law on both sides; node 0 is the one most often named."""
    rng = np.random.default_rng(0)
    weight = (np.arange(size.nodes) + 10.0) ** -0.8
    degree = rng.poisson(rng.permutation(weight) * (size.edges / weight.sum()))
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    # Inverse of the continuous law: no search among ten million steps for each edge.
    low, high = 10.0**0.2, (size.nodes + 10.0) ** 0.2
    indices = np.empty(indptr[-1], np.int32)
    for begin in range(0, len(indices), 1 << 24):
        part = indices[begin : begin + (1 << 24)]
        drawn = (low + rng.random(len(part), np.float32).astype(np.float64) * (high - low)) ** 5 - 10.0
        part[:] = np.clip(drawn, 0, size.nodes - 1)
    return indptr, indices


def page_aligned(shape: tuple[int, int], dtype: type) -> np.ndarray:
    """Memory that begins where a page does, as a store's does; NumPy's begins 16 bytes later, so rows span sectors."""
    num_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    raw = np.empty(num_bytes + mmap.PAGESIZE, np.uint8)
    begin = -raw.ctypes.data % mmap.PAGESIZE
    return raw[begin : begin + num_bytes].view(dtype).reshape(shape)


def seconds(launcher: DeviceLauncher, body: Callable[[], Any], repeats: int = 3) -> float:
    """Least wall seconds of a body, after one run that does not count."""
    times = []
    for _ in range(repeats + 1):
        launcher.finish(launcher.record())
        start = time.perf_counter()
        body()
        launcher.finish(launcher.record())
        times.append(time.perf_counter() - start)
    return min(times[1:])


class Workload:
    """Graph, features, caches of a tenth of the data, and both forms of an epoch."""

    def __init__(self, launcher: DeviceLauncher, size: Size) -> None:
        self.launcher, self.size = launcher, size
        indptr, indices = make_graph(size)
        features = page_aligned((size.nodes, size.width), np.float32)
        np.random.default_rng(1).random(out=features, dtype=np.float32)
        budget = int(BUDGET_SHARE * (indices.nbytes + features.nbytes))
        rows = int(0.8 * budget) // (size.width * 4)
        # Node 0 is the hottest by construction: the plan is a prefix.
        lists = int(np.searchsorted(indptr, int(0.2 * budget) // 4))
        self.topology = cached_topology(indptr, indices, np.arange(lists))
        self.features, self.indices = launcher.reach(features), launcher.reach(indices)
        self.device = DeviceTopology.place(launcher, self.topology, self.indices)
        self.plain = DeviceTopology.place(launcher, Topology.in_memory(indptr, indices), self.indices)
        self.tiers = DeviceTiers(launcher, PinnedRows(launcher, self.features), np.arange(rows))
        seeds = np.random.default_rng(2).choice(size.nodes, size.batch * size.batches, replace=False)
        self.batches = shuffled_batches(seeds, size.batch, seed=3, epoch=0)
        self.sampler = NeighborSampler(self.topology, FANOUTS, seed=4, purpose=Purpose.TRAIN)
        cuda_sampler = CudaSampler(launcher, self.device, self.sampler)
        self.loader = DeviceLoader(launcher, cuda_sampler, self.tiers, in_place=True, superbatch=SUPERBATCH)
        self.stats = LoadStats()
        spec = ModelSpec("sage", size.width, HIDDEN, NUM_CLASSES, len(FANOUTS), dropout=0.0)
        self.model = build_model(spec, seed=0).to(launcher.torch_device)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, hops: tuple[Mfg, ...], rows: Rows) -> None:
        """Train on one mini-batch whose labels are made up."""
        self.optimizer.zero_grad()
        logits = self.model(hops, rows)
        labels = torch.arange(len(logits), device=logits.device) % NUM_CLASSES
        torch.nn.functional.cross_entropy(logits, labels).backward()
        self.optimizer.step()

    def our_epoch(self) -> None:
        """Super-batches through the caches, loaded ahead as training loads them."""
        with self.loader.epoch(self.batches, epoch=0) as stream:
            for batch in stream:
                self.step(batch.sample.hops, batch.rows)
        self.stats = stream.stats

    def baseline_epoch(self) -> None:
        """One mini-batch at a time: a warp a row over UVA, and a gather without a cache."""
        for index, seeds in enumerate(self.batches):
            hops, nodes = self.baseline_sample(seeds, index)
            self.step(hops, to_torch(self.baseline_rows(nodes)))

    def baseline_sample(self, seeds: np.ndarray, index: int) -> tuple[tuple[Mfg, ...], Array]:
        """Hops and input nodes of one mini-batch in the baseline's shape."""
        launcher, xp = self.launcher, self.launcher.xp
        uniq = launcher.to_device(seeds.astype(np.int32))
        hops = []
        for hop, fanout in enumerate(reversed(FANOUTS)):
            ptr = launcher.to_device(np.array([0, len(uniq)]))
            keys = launcher.to_device(self.sampler.stream_keys(0, range(index, index + 1), hop))
            plan = plan_rows(launcher, self.plain, uniq, ptr, fanout, stream_keys=keys)
            neighbors = sample_by_warps(launcher, plan, uniq)
            edge_ptr = launcher.to_device(np.array([0, len(neighbors)]))
            src, src_ptr, _, local = unique_nodes(launcher, uniq, ptr, neighbors, edge_ptr, len(uniq) + len(neighbors))
            num_src = int(src_ptr[1])  # synchronize!
            hops.append(Mfg(plan.row_ptr, local, num_src))
            uniq = xp.ascontiguousarray(src[:num_src])
        return tuple(hops), uniq

    def baseline_rows(self, nodes: Array) -> Array:
        """Rows from host memory alone."""
        xp, table = self.launcher.xp, TierTable.of(self.launcher, [self.features])
        out = xp.empty((len(nodes), self.size.width), np.float32)
        gather_rows(self.launcher, table, xp.zeros(len(nodes), np.uint8), nodes.astype(np.int64), out)
        return out


def measure(launcher: DeviceLauncher, size: Size, note: Note) -> None:
    """Ratios of one run, noted one after the other."""
    start = time.perf_counter()
    work = Workload(launcher, size)
    note("graph", {"nodes": size.nodes, "edges": len(work.topology.indices), "width": size.width,
                   "made_in_s": time.perf_counter() - start})  # fmt: skip
    copies = copy_bandwidths(launcher, size)
    for name, figure in copies.items():
        note(name, figure)
    for name, figure in gather_bandwidths(work, copies).items():
        note(name, figure)
    ours_s = seconds(launcher, work.our_epoch, 1)
    note("feature_hit_rate", work.tiers.reads.hit_rate)
    note("host_bytes_an_epoch", work.tiers.reads.host_bytes // 2)
    note("loading_s", {"sample": work.stats.sample_s, "gather": work.stats.gather_s, "wait": work.stats.wait_s})
    baseline_s = seconds(launcher, work.baseline_epoch, 1)
    note("epoch_s", {"ours": ours_s, "dgl_uva_shape": baseline_s})
    note("epoch_speedup", baseline_s / ours_s)
    note("sampling_speedup_over_warp_rows", sampling_ratio(work))
    note("classifying_speedup_over_counters", classifying_ratio(work))
    note("peak_bytes", launcher.peak_bytes())


def gates(figures: dict[str, Any]) -> dict[str, bool]:
    """What a GPU has to reach; what was not measured was not reached."""
    return {
        "epoch at least twice as fast as DGL's shape over UVA": figures.get("epoch_speedup", 0) >= 2,
        "DGL's shape reaches 80 % of the link on misses": figures.get("gather_miss_share_of_pcie", 0) >= 0.8,
    }


def sampling_ratio(work: Workload) -> dict[str, float]:
    """One frontier of many rows at each fanout, all passes: a warp a row over ours; lists on the device, over UVA."""
    launcher, found = work.launcher, {}
    nodes = np.random.default_rng(5).permutation(work.size.nodes)[: work.size.batch * 100].astype(np.int32)
    uniq, ptr = launcher.to_device(nodes), launcher.to_device(np.array([0, len(nodes)]))
    keys = launcher.to_device(np.array([6], np.uint64))
    places = {"uva": work.plain, "device": DeviceTopology.place(launcher, Topology.in_memory(
        work.topology.indptr, work.topology.indices))}  # fmt: skip
    for where, topology in places.items():
        for fanout in FANOUTS:

            def plan(topology: DeviceTopology = topology, fanout: int = fanout) -> Any:
                return plan_rows(launcher, topology, uniq, ptr, fanout, stream_keys=keys)

            def ours(topology: DeviceTopology = topology, plan: Callable[[], Any] = plan) -> None:
                planned = plan()
                fill_rows(launcher, topology, planned, uniq, len(nodes), int(planned.row_ptr[-1]))

            def warps(plan: Callable[[], Any] = plan) -> None:
                sample_by_warps(launcher, plan(), uniq)

            found[f"{where}_{fanout}"] = seconds(launcher, warps) / seconds(launcher, ours)
    return found


def classifying_ratio(work: Workload) -> float:
    """Classes of a super-batch by scans, over mini-batch after mini-batch with atomic counters."""
    launcher, num_rows = work.launcher, work.size.batch * 100
    nodes = np.random.default_rng(8).permutation(work.size.nodes)[:num_rows].astype(np.int32)
    ptr = np.linspace(0, len(nodes), SUPERBATCH + 1).astype(np.int64)
    uniq, uniq_ptr = launcher.to_device(nodes), launcher.to_device(ptr)
    degree_U = launcher.to_device(work.topology.in_degree()[nodes].astype(np.int64))
    counted_s = seconds(launcher, lambda: classify_with_counters(launcher, degree_U, ptr.tolist(), FANOUTS[0]))
    return counted_s / seconds(launcher, lambda: classify_rows(launcher, uniq, uniq_ptr, degree_U, FANOUTS[0]))


def copy_bandwidths(launcher: DeviceLauncher, size: Size) -> dict[str, float]:
    """Bytes a second of plain copies: host to device, and on the device (read and write counted)."""
    rows = min(size.nodes, 2_000_000)
    host = torch.empty(rows, size.width, pin_memory=launcher.torch_device.type == "cuda")
    one, other = (torch.empty(rows, size.width, device=launcher.torch_device) for _ in range(2))
    num_bytes = host.numel() * 4
    return {
        "pcie_copy_bytes_per_s": num_bytes / seconds(launcher, lambda: one.copy_(host, non_blocking=True)),
        "device_copy_bytes_per_s": 2 * num_bytes / seconds(launcher, lambda: other.copy_(one)),
    }


def gather_bandwidths(work: Workload, copies: dict[str, float]) -> dict[str, float]:
    """Shares of the copies' bandwidth: random rows that all hit the device cache, and that all come over UVA."""
    launcher, xp, num_rows = work.launcher, work.launcher.xp, work.size.batch * 200
    hits = np.random.default_rng(6).integers(0, len(work.tiers.planned_rows), num_rows)
    misses = launcher.to_device(np.random.default_rng(7).integers(0, work.size.nodes, num_rows))
    table = TierTable.of(launcher, [work.tiers.planned_rows])
    slots, zeros = launcher.to_device(hits), xp.zeros(num_rows, np.uint8)
    out = xp.empty((num_rows, work.size.width), np.float32)
    num_bytes = out.nbytes
    hit_s = seconds(launcher, lambda: gather_rows(launcher, table, zeros, slots, out))
    miss_s = seconds(launcher, lambda: work.baseline_rows(misses))
    return {
        "gather_hit_share_of_copy": 2 * num_bytes / hit_s / copies["device_copy_bytes_per_s"],
        "gather_miss_share_of_pcie": num_bytes / miss_s / copies["pcie_copy_bytes_per_s"],
    }


def main() -> None:
    """Check, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="on the host shim, with a tiny graph")
    parser.add_argument("--out", type=Path, default=Path("on_gpu.json"), help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.dry_run:
        from tests.cudasim.launcher import SimLauncher

        launcher: DeviceLauncher = SimLauncher()
    else:
        found = probe()
        if not found.is_usable:
            parser.exit(3, f"no GPU to use: {found.sentence}\n")
        launcher = device_launcher(0)
    record: dict[str, Any] = {"dry_run": arguments.dry_run, "environment": environment(arguments.dry_run)}
    record |= {"checks_s": {}, "failed": {}, "figures": {}}

    def note(name: str, figure: Any, part: str = "figures") -> None:
        record[part][name] = figure
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")
        print(f"{name}: {figure}", flush=True)

    with launcher.stream():
        check_all(launcher, note)
        # On a GPU tensors find their launcher by where they lie.
        with launching_through(launcher) if arguments.dry_run else contextlib.nullcontext(), noted("measure", note):
            measure(launcher, TINY if arguments.dry_run else FULL, note)
    record["gates"] = gates(record["figures"])
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))
    missed = [name for name, met in record["gates"].items() if not met and not arguments.dry_run]
    if missed or record["failed"]:
        parser.exit(1, f"failed: {', '.join(record['failed'])}; missed: {', '.join(missed)}\n")


def check_all(launcher: DeviceLauncher, note: Note) -> None:
    """Run every check, whatever the others found."""
    for check in CHECKS:
        start = time.perf_counter()
        with noted(check.__name__, note):
            check(launcher)
            note(check.__name__, time.perf_counter() - start, "checks_s")


@contextlib.contextmanager
def noted(name: str, note: Note) -> Iterator[None]:
    """Note what fails, and go on: a machine that is lent for minutes is to tell all that it can."""
    try:
        yield
    except Exception:
        note(name, traceback.format_exc(limit=-6), "failed")


def environment(dry_run: bool) -> dict[str, Any]:
    """Describe where this ran."""
    git = shutil.which("git")
    asked = [] if git is None else [git, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip() if asked else "unknown"
    device = "host shim" if dry_run else f"{torch.cuda.get_device_name(0)} ({torch.cuda.device_count()} in all)"
    today = datetime.date.today().isoformat()
    return {"device": device, "torch": torch.__version__, "python": platform.python_version(), "date": today,
            "commit": commit}  # fmt: skip


if __name__ == "__main__":
    main()
