"""The Python API: mini-batches of a graph store for a model and a training loop of one's own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from kernels.mfg import IdArray
from storage.cache.plan import CachePlan
from tasks.api_batch import Batch
from tasks.api_open import open_graph
from tasks.api_options import LoadOptions, Nodes, TierOptions, whole_number
from tasks.data_source import Stream
from tasks.epoch_stream import LoadStats, MiniBatch

__all__ = ["Batch", "Epoch", "GraphLoader"]

_ONE_PROCESS = (
    "works in the process that opened it, where its own threads load ahead: iterate it there, without a DataLoader "
    "(or with num_workers=0), or open one in each process"
)


class GraphLoader:
    """Mini-batches of a graph store, sampled and gathered ahead by threads; use as a context manager.

    With `shuffle`, the mini-batches are those of `garden run` with the same store, nodes and values. They depend on
    `nodes`, `fanouts`, `batch_size`, `seed`, `shuffle`, `replace` and the epoch alone.

    Parameters
    ----------
    store_path : path
        A store that ingest or reorder wrote (`graph.h5`).
    nodes : "train", "valid", "test", "all" or (n,) integers
        What to visit. Unlabelled nodes of a split are left out where the store has labels; ids that are given are all
        kept, and one given twice shares a row with itself where both fall into one mini-batch.
    fanouts : sequence of int
        Neighbors a node from the input layer to the seed layer (as DGL; PyG's `num_neighbors` reversed), one a layer;
        -1 takes all. None at all samples no neighbors.
    batch_size : int
        Seed nodes a mini-batch; the last one of an epoch may hold fewer.
    cache_plan : CachePlan or path, optional
        What the device tier holds: a plan, or the `plan.h5` of a run over the same store. Its dynamic cache learns from
        each epoch, one at a time; from disk, the cache of frequent rows takes its place.
    device_budget : int
        In place of a plan: bytes that the device tier may hold. `profile_epochs` epochs are sampled first, and as many
        again to predict hit rates, to find what is worth holding; 0 holds nothing.
    profile_epochs : int
        Epochs to sample where `device_budget` asks for a plan.
    host_budget : int, optional
        Most bytes of memory to use. Where it does not hold the graph, topology and features stay on disk and are read
        in blocks: the same mini-batches, one epoch at a time; `superbatch` and `prefetch` have no effect then. The
        least is 8 MB, the rows of three mini-batches, and some blocks; what is too little is refused, and named.
    disk_budget : int, optional
        Most bytes of disk for rows and samples that wait there, where the graph stays on disk; default: what is free.
    scratch : path, optional
        Folder where those files, which have no names, take their space; default: the store's.
    seed : int
        Seed of order and draws; any integer, its low 64 bits count.
    shuffle : bool
        Visit the nodes in a new order each epoch. Without it they come in the order given and their neighbors from
        another stream, so that an evaluation never repeats what training draws.
    replace : bool
        Draw neighbors with replacement.
    superbatch : int
        Mini-batches sampled and fetched as one.
    threads : int
        Sampling threads.
    prefetch : int
        Mini-batches that stand ready.
    stall_timeout_s : float
        Give up when no mini-batch has arrived for so long.
    check : bool
        Compare a sample of the rows of each mini-batch with the store's, whichever tier they came from; iterating
        raises `TierMismatchError` on a difference.

    Attributes
    ----------
    info : StoreInfo
        Sizes of the store.
    plan : CachePlan or None
        What the device tier holds, and the hit rates to expect.
    memory_bytes : int
        The most that the loader will use: store, tiers, sampling ahead and rows in flight; not the model's.
    device_bytes : int
        Bytes that the device tier holds: rows, lists and their maps.
    topology : Topology or StoredTopology
    features : FeatureTiers or StoredFeatures
        `features.reads` counts what was read from each tier.

    Raises
    ------
    InputError
        If nodes, plan or sizes are wrong; it is a ValueError.
    RuntimeError
        When it is iterated once it is closed, or in another process than the one that opened it.
    BudgetError
        If `host_budget` or `disk_budget` is too small; names the one that would do.
    MachineError
        If the disk has no room for what is to wait there.
    StorageError
        If the store or the plan is missing or damaged.
    """

    def __init__(
        self,
        store_path: Path | str,
        nodes: Nodes = "train",
        *,
        fanouts: Sequence[int],
        batch_size: int = 1000,
        cache_plan: CachePlan | Path | str | None = None,
        device_budget: int = 0,
        profile_epochs: int = 4,
        host_budget: int | None = None,
        disk_budget: int | None = None,
        scratch: Path | str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        replace: bool = False,
        superbatch: int = 4,
        threads: int = 2,
        prefetch: int = 2,
        stall_timeout_s: float = 600.0,
        check: bool = False,
    ) -> None:
        self._options = LoadOptions(
            fanouts=tuple(fanouts),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            replace=replace,
            superbatch=superbatch,
            threads=threads,
            prefetch=prefetch,
            stall_timeout_s=stall_timeout_s,
        )
        folder = None if scratch is None else Path(scratch)
        tiers = TierOptions(cache_plan, device_budget, profile_epochs, host_budget, disk_budget, folder, check)
        with ExitStack() as stack:
            graph = open_graph(Path(store_path), nodes, self._options, tiers, stack)
            self._opened = stack.pop_all()
        self.info, self.plan, self.memory_bytes = graph.info, graph.plan, graph.memory_bytes
        self.topology, self.features = graph.topology, graph.features
        self.device_bytes = graph.device_bytes
        self._nodes, self._columns, self._loader = graph.nodes, graph.columns, graph.loader
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        self._is_closed, self._is_watched, self._process = False, False, os.getpid()

    def epoch(self, epoch: int) -> Epoch:
        """Mini-batches of one epoch: `for batch in loader.epoch(e)`.

        Parameters
        ----------
        epoch : int
            From 0; the same epoch is the same mini-batches.

        Returns
        -------
        Epoch

        Raises
        ------
        InputError
            If the epoch is no integer, or negative.
        """
        epoch = whole_number("epoch", epoch, least=0)
        return Epoch(self, self._options.batches(self._nodes, epoch), epoch)

    def __len__(self) -> int:
        """Number of mini-batches an epoch."""
        batch_size = self._options.batch_size
        return (len(self._nodes) + batch_size - 1) // batch_size

    def close(self) -> None:
        """Stop all threads, those of unfinished epochs too; safe to call twice."""
        self._is_closed = True
        for stream in list(self._streams):
            stream.close()
        self._loader.close()
        self.features.close()
        self._opened.close()

    def __enter__(self) -> GraphLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _started(self, batches: Sequence[IdArray], epoch: int) -> Iterator[tuple[Stream, dict[str, float]]]:
        self._check_open()
        # One epoch at a time teaches the dynamic cache.
        watched = nullcontext(dict[str, float]()) if self._is_watched else self.features.watched_epoch(epoch)
        was_watched, self._is_watched = self._is_watched, True
        try:
            with watched as figures, self._loader.epoch(batches, epoch=epoch) as stream:
                self._streams.add(stream)
                yield stream, figures
        finally:
            self._is_watched = was_watched

    def _dress(self, loaded: MiniBatch, epoch: int) -> Batch:
        assert isinstance(loaded.rows, Tensor)  # this loader gathers
        identity = (self._options.seed, epoch, loaded.sample.batch_index)
        return Batch(loaded.sample, loaded.rows, identity, self._columns)

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this GraphLoader is closed")
        if os.getpid() != self._process:  # each would load all mini-batches, with locks that no thread here releases
            raise RuntimeError(f"a GraphLoader {_ONE_PROCESS}")

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"a GraphLoader cannot be pickled: it {_ONE_PROCESS}")


class Epoch:
    """One epoch of a `GraphLoader`, in order; iterating it again loads the same mini-batches again.

    Leaving the loop early stops the threads behind it.
    """

    def __init__(self, loader: GraphLoader, batches: Sequence[IdArray], epoch: int) -> None:
        self._loader, self._batches, self._epoch = loader, batches, epoch
        self._stats, self._cache_figures = LoadStats(), dict[str, float]()

    @property
    def cache_figures(self) -> Mapping[str, float]:
        """What the dynamic cache did in the last iteration; empty without one, and until it has ended."""
        return self._cache_figures

    @property
    def stats(self) -> LoadStats:
        """Seconds and adjacency reads of the last iteration; complete once it has ended."""
        return self._stats

    def __len__(self) -> int:
        """Number of mini-batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        with self._loader._started(self._batches, self._epoch) as (stream, figures):
            self._stats, self._cache_figures = stream.stats, figures
            for loaded in stream:
                yield self._loader._dress(loaded, self._epoch)
                # A stream that `close` has stopped would keep its consumer waiting.
                self._loader._check_open()
