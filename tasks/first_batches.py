"""The first mini-batches from disk, sampled in the least memory: they tell how large others are expected to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernels.mfg import IdArray, Sample
from kernels.rank_map import RankMap
from storage.blocks.buffer import LEAST_BLOCKS
from storage.blocks.hyperbatch import HyperbatchSampler
from storage.blocks.stored_topology import StoredTopology
from storage.graph_store import GraphStore
from tasks.batch_sizes import BatchSizes

PROBED = 2
"""Mini-batches that are sampled to learn how large they get."""
_MARGIN = 1.15
"""How much larger than those others are expected to be, at most."""


def sample_first(
    store: GraphStore,
    seeds: Sequence[IdArray],
    cached_lists: IdArray,
    sampler_of: Callable[[StoredTopology], HyperbatchSampler],
    *,
    threads: int,
) -> tuple[tuple[Sample, ...], int]:
    """Sample the first mini-batches; also the bytes that a cache of some adjacency lists takes."""
    least = LEAST_BLOCKS * store.info.block_bytes
    with StoredTopology(
        store, np.empty(0, np.int64), buffer_bytes=least, indptr_buffer_bytes=least, threads=threads
    ) as topology:
        list_bytes = 0
        if len(cached_lists):
            _, degree = topology.lists(np.asarray(cached_lists, np.int64))
            offsets = 8 * (len(degree) + 1) + RankMap.nbytes_for(store.info.num_nodes)
            list_bytes = int(degree.sum()) * topology.id_dtype.itemsize + offsets
        return sampler_of(topology).sample(seeds, epoch=0, first_batch=0).samples, list_bytes


def expected_sizes(found: BatchSizes, largest: BatchSizes) -> BatchSizes:
    """Sizes that others are expected to have at most, where some have those found; none above what is possible."""
    return found.times(_MARGIN).at_most(largest)
