"""What training takes from a store and a cache plan; several processes map the large arrays and share their pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.nn.layers import NodeDegrees
from kernels.topology import Topology
from storage.cache.cached_topology import cached_topology
from storage.cache.plan import CachePlan
from storage.cache.tiers import FeatureTiers
from storage.content_checks import check_adjacency
from storage.errors import InputError
from storage.graph_store import FEATURES, INDICES, INDPTR, LABELS, GraphStore
from storage.mapped import hold_dataset, map_dataset, map_held
from tasks.objective import Labels
from tasks.training_types import Splits

_PINNED = (INDICES, FEATURES)


@dataclass(frozen=True, slots=True)
class LoadedData:
    """Arguments of `tasks.trainer.train`, in its order, and the number of classes."""

    topology: Topology
    """Adjacency with its cache."""
    features: FeatureTiers
    """Features in their tiers."""
    labels: Labels
    """Of all nodes."""
    splits: Splits
    """Nodes to train, validate and test on."""
    degrees: NodeDegrees
    """Of all nodes."""
    num_classes: int
    """Classes, or labels of a multi-label task."""
    held: dict[str, int]
    """Descriptors of the arrays that this process holds for workers, by dataset, until `close`."""

    def close(self) -> None:
        """Hold nothing for workers that are yet to start; what is mapped stays."""
        for descriptor in self.held.values():
            os.close(descriptor)
        self.held.clear()


def load_training_data(
    store_path: Path,
    plan_path: Path,
    *,
    shared: bool = False,
    verify: bool = True,
    on_gpu: bool = False,
    held: Mapping[str, int] | None = None,
) -> LoadedData:
    """Open a store and a plan and fill the tiers.

    Parameters
    ----------
    store_path, plan_path : Path
    shared : bool
        Map features and topology, so that processes share one copy in the page cache; otherwise they are read past
        it into this process's own memory. The device tier is this process's own either way. With `on_gpu`, what GPUs
        read in place is read once, into memory that all map.
    verify : bool
        Check what is mapped against its checksums; what is read always is.
    on_gpu : bool
        Whether a GPU is to hold the rows of the plan: no host memory stands in for it then.
    held : mapping, optional
        `LoadedData.held` of the process that started this one, whose descriptors it was given.

    Raises
    ------
    InputError
        If the graph has no features or no labels.
    StorageError
        If a file is damaged.
    """
    plan, holds = CachePlan.load(plan_path), dict[str, int]()
    with GraphStore.open(store_path) as store:
        has_labels = store.has(LABELS) or store.info.is_multi_label
        if not store.has(FEATURES) or not has_labels:
            missing = "features" if has_labels else "labels"
            raise InputError(
                f"the graph has no {missing}: give data.{missing}, or stop before training (--until cache)"
            )

        def large(name: str) -> npt.NDArray[Any]:
            if held and name in held:
                return map_held(held[name], store.extent(name))
            if shared and on_gpu and name in _PINNED:
                array, holds[name] = hold_dataset(store.path, store.extent(name))
                return array
            if shared:
                return map_dataset(store.path, store.extent(name), verify=verify)
            return store.reader(name).read_all()

        indptr, indices = large(INDPTR), large(INDICES)
        check_adjacency(store.path, indptr, indices)
        return LoadedData(
            cached_topology(indptr, indices, plan.adjacency_ids),
            FeatureTiers(
                large(FEATURES),
                plan.feature_ids,
                dynamic_rows=plan.dynamic_rows,
                dynamic=plan.dynamic_options,
                stands_in=not on_gpu,
            ),
            store.read_multi_labels() if store.info.is_multi_label else store.read_labels(),
            Splits(store.read_split("train"), store.read_split("valid"), store.read_split("test")),
            NodeDegrees(np.diff(indptr), store.read_out_degree()),
            store.info.num_classes,
            holds,
        )
