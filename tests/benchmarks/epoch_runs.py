"""One measurement of `bench_epoch` in a process of its own: our trainer, DGL's layers, or the bare matrix products."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.benchmarks import workloads
from tests.benchmarks.core_watch import Stopwatch, Tally


def reset_peak() -> None:
    """Count peak memory from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Most resident bytes of this process since the last reset (not of data-loader workers)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class EnoughError(Exception):
    """All epochs that count have been timed."""


class EpochClock:
    """Times the epochs between its calls; the first is dropped. Raises EnoughError when enough have been kept."""

    def __init__(self, count: int, *, by_cpu: bool) -> None:
        self.tally, self._count = Tally(by_cpu=by_cpu), count
        self._watch: Stopwatch | None = None

    def __call__(self) -> None:
        """Take note that an epoch has ended."""
        if self._watch is None:
            reset_peak()
        else:
            self.tally.add(self._watch.read())
        if len(self.tally.seconds) == self._count:
            raise EnoughError
        self._watch = Stopwatch()


class Case:
    """What is asked, and the arrays."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.model: str = asked.model
        self.fanouts = [int(fanout) for fanout in asked.fanouts.split(",")]
        self.epochs, self.workers = asked.epochs, asked.workers
        self.nodes = workloads.train_nodes(asked.batches)
        self.indptr = np.load(asked.data / "indptr.npy")
        self.indices = np.load(asked.data / "indices.npy")
        self.features = np.load(asked.data / "features.npy")
        self.labels = np.load(asked.data / "labels.npy")
        self.widths = [workloads.FEATURES] + [workloads.HIDDEN] * (len(self.fanouts) - 1) + [workloads.CLASSES]


def our_epochs(case: Case, clock: EpochClock) -> None:
    """Epochs of our trainer."""
    from kernels.nn.layers import NodeDegrees
    from kernels.topology import Topology
    from storage.cache.tiers import FeatureTiers
    from tasks.trainer import train
    from tasks.training_types import Splits, TrainOptions

    topology = Topology.in_memory(case.indptr, case.indices.astype(np.int32))
    case.indices = np.empty(0)
    degrees = NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=topology.num_nodes))
    options = TrainOptions(
        kind=case.model,  # type: ignore[arg-type]
        fanouts=tuple(case.fanouts),
        hidden=workloads.HIDDEN,
        heads=workloads.HEADS if case.model == "gat" else None,
        dropout=0.0,
        epochs=1_000_000,
        batch_size=workloads.BATCH_SIZE,
        learning_rate=workloads.LEARNING_RATE,
        **OURS,
    )
    splits = Splits(case.nodes, np.empty(0, np.int64), np.empty(0, np.int64))
    features, classes = FeatureTiers(case.features, np.empty(0, np.int64)), workloads.CLASSES
    train(
        topology, features, case.labels, splits, degrees, options, num_classes=classes, on_epoch=lambda _: clock()
    )  # fmt: skip


OURS: dict[str, Any] = {"compute_threads": os.cpu_count(), "threads": 1}
"""Options of ours that change speed alone: all cores to the layers, as sampling is a small part of the work."""


def dgl_epochs(case: Case, clock: EpochClock) -> None:
    """Epochs over DGL's data loader, as its own examples train."""
    import dgl

    ids = torch.arange(len(case.indices))
    graph = dgl.graph(("csc", (torch.from_numpy(case.indptr), torch.from_numpy(case.indices), ids)))
    graph.ndata["feat"], graph.ndata["label"] = torch.from_numpy(case.features), torch.from_numpy(case.labels)
    sampler = dgl.dataloading.NeighborSampler(
        case.fanouts, prefetch_node_feats=["feat"], prefetch_labels=["label"], fused=True
    )
    loader = dgl.dataloading.DataLoader(
        graph,
        torch.from_numpy(case.nodes),
        sampler,
        batch_size=workloads.BATCH_SIZE,
        shuffle=True,
        num_workers=case.workers,
        **({"persistent_workers": True} if case.workers else {}),
    )
    model = DglModel(case)
    optimizer = torch.optim.Adam(model.parameters(), lr=workloads.LEARNING_RATE)
    while True:
        for _inputs, _seeds, blocks in loader:
            logits = model(blocks, blocks[0].srcdata["feat"])
            loss = functional.cross_entropy(logits, blocks[-1].dstdata["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        clock()


class DglModel(nn.Module):
    """Layers of dgl.nn with ReLU between them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        from dgl import nn as dgl_nn

        pairs = list(zip(case.widths[:-1], case.widths[1:], strict=True))
        heads = workloads.HEADS
        self.kind = case.model
        made: dict[str, Callable[[int, int, bool], nn.Module]] = {
            "sage": lambda i, o, _last: dgl_nn.SAGEConv(i, o, "mean"),
            "gcn": lambda i, o, _last: dgl_nn.GraphConv(i, o, norm="both", allow_zero_in_degree=True),
            "gat": lambda i, o, last: dgl_nn.GATConv(i, o if last else o // heads, heads, allow_zero_in_degree=True),
        }
        self.convs = nn.ModuleList(made[case.model](i, o, n == len(pairs) - 1) for n, (i, o) in enumerate(pairs))

    def forward(self, blocks: list[Any], h: torch.Tensor) -> torch.Tensor:
        """Logits of the seeds."""
        for index, (conv, block) in enumerate(zip(self.convs, blocks, strict=True)):
            h, is_last = conv(block, h), index == len(self.convs) - 1
            if self.kind == "gat":
                h = h.mean(1) if is_last else h.flatten(1)
            h = h if is_last else torch.relu(h)
        return h


def floor_epochs(case: Case, clock: EpochClock) -> None:
    """The matrix products of an epoch and nothing else: forward, and the gradients that training needs.

    Rows are as many as the sampled hops of our first epoch have. GAT projects all sources; the others multiply
    destinations alone where that is less, GraphSAGE by two matrices at once.
    """
    from kernels.rng import Purpose
    from kernels.sampler import NeighborSampler
    from kernels.topology import Topology

    topology = Topology.in_memory(case.indptr, case.indices)
    sampler = NeighborSampler(topology, case.fanouts, seed=0, purpose=Purpose.TRAIN)
    size = workloads.BATCH_SIZE
    batches = [case.nodes[begin : begin + size] for begin in range(0, len(case.nodes), size)]
    shapes: list[list[tuple[int, int, int]]] = []
    for index, batch in enumerate(batches):
        (sample,) = sampler.sample([batch], epoch=0, first_batch=index).samples
        hops = sample.hops[::-1]
        shapes.append([_product(case, layer, hop.num_dst, hop.num_src) for layer, hop in enumerate(hops)])
    rows = max(m for batch in shapes for m, _, _ in batch)
    pools = {k: torch.randn(rows, k) for _, k, n in shapes[0] for k in (k, n)}
    weights = [torch.randn(k, n) for _, k, n in shapes[0]]
    while True:
        for batch_shapes in shapes:
            for layer, (m, k, n) in enumerate(batch_shapes):
                x, grad, weight = pools[k][:m], pools[n][:m], weights[layer]
                torch.mm(x, weight)
                torch.mm(x.T, grad)
                if layer:
                    torch.mm(grad, weight.T)
        clock()


def _product(case: Case, layer: int, num_dst: int, num_src: int) -> tuple[int, int, int]:
    """Rows and widths of a layer's product."""
    in_dim, out_dim = case.widths[layer], case.widths[layer + 1]
    is_last = layer == len(case.fanouts) - 1
    if case.model == "gat":
        return num_src, in_dim, out_dim * (workloads.HEADS if is_last else 1)
    return num_dst, in_dim * (2 if case.model == "sage" else 1), out_dim


SIDES = {"ours": our_epochs, "dgl": dgl_epochs, "floor": floor_epochs}


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model")
    parser.add_argument("fanouts")
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds on one thread instead of wall seconds")
    asked = parser.parse_args()
    if asked.cpu:
        # Threads that wait for each other on shared cores spin, and that is no work.
        torch.set_num_threads(1)
        OURS["compute_threads"] = 1
    case = Case(asked)
    clock = EpochClock(case.epochs, by_cpu=asked.cpu)
    with contextlib.suppress(EnoughError):
        SIDES[asked.side](case, clock)
    epoch_s = statistics.median(clock.tally.seconds)
    result = {"epoch_s": round(epoch_s, 4), "epochs": case.epochs, "discarded": clock.tally.discarded}
    result |= {"batch_ms": round(1e3 * epoch_s / asked.batches, 1), "peak_bytes": peak_bytes()}
    print(json.dumps(result | ({"workers": asked.workers} if asked.side == "dgl" else {})), flush=True)


if __name__ == "__main__":
    main()
