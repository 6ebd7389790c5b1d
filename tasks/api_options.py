"""What the Python API is asked for: how mini-batches are drawn, what may be held, which nodes are visited."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, check_fanouts, shuffled_batches
from kernels.topology import Topology
from storage.cache.plan import CachePlan
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from storage.graph_store import LABELS, SPLITS, GraphStore, Split, StoreInfo
from tasks.loader import MiniBatchLoader
from tasks.objective import Labels, labelled

NodeSet = Split | Literal["all"]
Nodes = NodeSet | npt.ArrayLike


def whole_number(name: str, value: object, *, least: int | None = None) -> int:
    """Return an integer, NumPy's too, as Python's; a budget is bytes, not a text such as "2GB", no float is cut short.

    Raises
    ------
    InputError
        If it is none, or too small.
    """
    if isinstance(value, bool | np.bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} must be an integer (got {value!r})")
    if least is not None and value < least:
        raise InputError(f"{name} must be >= {least} (got {value})")
    return int(value)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How mini-batches are drawn and loaded; `GraphLoader` says what each field means."""

    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    shuffle: bool
    replace: bool
    superbatch: int
    threads: int
    prefetch: int
    stall_timeout_s: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed))
        for name in ("batch_size", "superbatch", "threads", "prefetch"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least=1))
        try:
            check_fanouts(self.fanouts)
        except ValueError as error:
            raise InputError(str(error)) from error
        object.__setattr__(self, "fanouts", tuple(int(fanout) for fanout in self.fanouts))

    @property
    def purpose(self) -> Purpose:
        """What the draws are for: an evaluation's are never training's."""
        return Purpose.TRAIN if self.shuffle else Purpose.VALIDATE

    def batches(self, nodes: IdArray, epoch: int) -> list[IdArray]:
        """Seeds of each mini-batch of an epoch."""
        if self.shuffle:
            return shuffled_batches(nodes, self.batch_size, seed=self.seed, epoch=epoch)
        return [nodes[begin : begin + self.batch_size] for begin in range(0, len(nodes), self.batch_size)]

    def loader(self, topology: Topology, features: FeatureTiers) -> MiniBatchLoader:
        """Start the threads that sample."""
        sampler = NeighborSampler(topology, self.fanouts, seed=self.seed, purpose=self.purpose, replace=self.replace)
        return MiniBatchLoader(
            sampler,
            features,
            superbatch=self.superbatch,
            threads=self.threads,
            prefetch=self.prefetch,
            stall_timeout_s=self.stall_timeout_s,
        )


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the device tier is to hold, and the most memory to use; `GraphLoader` says what each field means."""

    cache_plan: CachePlan | Path | str | None
    device_budget: int
    profile_epochs: int
    host_budget: int | None
    disk_budget: int | None
    scratch: Path | None
    check: bool

    def __post_init__(self) -> None:
        least = {"device_budget": 0, "host_budget": 0, "disk_budget": 0, "profile_epochs": 1}
        for name in least:
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value, least=least[name]))
        if self.device_budget and self.cache_plan is not None:
            raise InputError("give either cache_plan or device_budget: a plan has a budget of its own")

    def plan(self, num_nodes: int) -> CachePlan | None:
        """Load the plan that is given, if one is.

        Raises
        ------
        InputError
            If there is no such file, or it is a plan for another store.
        """
        plan = self.cache_plan
        if isinstance(plan, Path | str):
            if not Path(plan).is_file():
                raise InputError(f"there is no cache plan at {plan}: give the plan.h5 of a run over this store")
            plan = CachePlan.load(Path(plan))
        if plan is not None:
            highest = max(ids.max(initial=-1) for ids in (plan.feature_ids, plan.adjacency_ids))
            if highest >= num_nodes:
                raise InputError(
                    f"the plan caches node {highest}, the store has {num_nodes} nodes: it is another store's; "
                    "give the plan of a run over this one, or device_budget in its place"
                )
        return plan


def chosen_nodes(store: GraphStore, nodes: str | npt.NDArray[np.int64], labels: Labels) -> npt.NDArray[np.int64]:
    """Ids to visit.

    Raises
    ------
    InputError
        If there is no such split, or nothing in it.
    """
    if not isinstance(nodes, str):
        return nodes
    if nodes == "all":
        return np.arange(store.info.num_nodes)
    split = next((split for split in SPLITS if split == nodes), None)
    if split is None:
        raise InputError(f"nodes must be {', '.join(SPLITS)}, all, or an array of ids (got {nodes!r})")
    chosen = store.read_split(split)
    if store.has(LABELS) or store.info.is_multi_label:
        chosen = chosen[labelled(labels)[chosen]]
    if not len(chosen):
        raise InputError(f"{store.path} has no labelled node in its {split} split: give the ids of the nodes to visit")
    return chosen


def most_visited(info: StoreInfo, nodes: str | npt.NDArray[np.int64]) -> int:
    """How many ids `chosen_nodes` gives at most, of a split or of an array."""
    return len(nodes) if not isinstance(nodes, str) else info.split_sizes.get(nodes, info.num_nodes)


def given_nodes(ids: npt.NDArray[Any], num_nodes: int) -> npt.NDArray[np.int64]:
    """Ids that were given, checked.

    Raises
    ------
    InputError
        If they are no ids of nodes.
    """
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
        raise InputError(f"nodes must be a 1-D array of integer ids (got {ids.ndim}-D {ids.dtype})")
    wrong = (ids < 0) | (ids >= num_nodes)
    if wrong.any():
        raise InputError(f"node {ids[wrong][0]} is outside [0, {num_nodes})")
    return ids.astype(np.int64)
