"""What the Python API's loader yields: one mini-batch, with everything that a loop of one's own may ask about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.mfg import IdArray, Mfg, Sample
from kernels.nn.layers import NodeDegrees
from storage.graph_store import GraphStore
from tasks.objective import Labels

OriginalIds = npt.NDArray[np.int64] | npt.NDArray[np.str_]


class NodeColumns:
    """What a store knows of all its nodes beside features; what is rarely asked for is read at its first use."""

    def __init__(
        self, path: Path, labels: Labels, read_degrees: Callable[[GraphStore], NodeDegrees], *, holds_ids: bool
    ) -> None:
        self.labels = labels
        self._path, self._read_degrees, self._holds_ids = path, read_degrees, holds_ids

    @cached_property
    def degrees(self) -> NodeDegrees:
        """Whole-graph degrees of all nodes."""
        with GraphStore.open(self._path) as store:
            return self._read_degrees(store)

    @cached_property
    def _original_ids(self) -> OriginalIds:
        with GraphStore.open(self._path) as store:
            return store.read_original_ids()

    def original_ids_of(self, nodes: IdArray) -> OriginalIds:
        """(n,) ids of some nodes in the files that were ingested; read from the disk each time or held from then on."""
        if self._holds_ids:
            return self._original_ids[nodes]
        with GraphStore.open(self._path) as store:
            return store.read_original_ids_of(nodes)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One mini-batch: what a step of training needs."""

    sample: Sample
    """The sampled structure; `kernels.interop_dgl` and `kernels.interop_pyg` convert it."""
    rows: Tensor
    """(num_inputs, F) features of the input nodes, as stored: float32, float16 or uint8."""
    identity: tuple[int, int, int]
    """(seed, epoch, batch index): what all draws of this mini-batch are keyed by."""
    columns: NodeColumns = field(repr=False)
    """What the store knows of all nodes."""

    @property
    def mfgs(self) -> tuple[Mfg, ...]:
        """Hops in the order of the layers: the input layer's first, the seeds' last (`sample.hops` is the reverse)."""
        return self.sample.hops[::-1]

    @property
    def x(self) -> Tensor:
        """(num_inputs, F) float32 features of the input nodes."""
        return self.rows.to(torch.float32)

    @property
    def y(self) -> Tensor:
        """(num_seed_rows,) int64 classes of the unique seeds, -1 where unlabelled; (n, C) int8 if multi-label."""
        return torch.from_numpy(self.columns.labels[self.sample.seed_nodes])

    @property
    def input_nodes(self) -> Tensor:
        """(num_inputs,) int64 ids in the store; the unique seeds come first."""
        return torch.from_numpy(self.sample.input_nodes.astype(np.int64))

    @property
    def seed_nodes(self) -> Tensor:
        """(num_seed_rows,) int64 ids in the store of the unique seeds: one row of output each."""
        return torch.from_numpy(self.sample.seed_nodes.astype(np.int64))

    @property
    def seed_inverse(self) -> Tensor:
        """(num_seeds,) int64 row of output of each seed given; seeds given twice share one."""
        return torch.from_numpy(self.sample.seed_inverse)

    @property
    def original_ids(self) -> OriginalIds:
        """(num_seed_rows,) ids of the unique seeds in the files that were ingested.

        Its first use reads those of all nodes; of a graph that stays on disk, each use reads the blocks that hold them.
        """
        return self.columns.original_ids_of(self.sample.seed_nodes)

    @property
    def degrees(self) -> NodeDegrees:
        """Whole-graph degrees of the input nodes, which GCN layers read."""
        return self.columns.degrees.take(self.sample.input_nodes)
