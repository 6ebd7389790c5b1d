"""What stages promise counts what they hold: hubs, degrees of very large graphs, rows that are not there."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.load import load_config
from storage.cache.pre_sampling import take_profile
from storage.errors import InputError
from storage.graph_store import GraphStore, write_store
from tasks import build_cache, reorder
from tasks.profile import sampling_of
from tasks.profile_memory import ProfilePlan
from tasks.stored_columns import degree_bytes


def test_hotness_of_a_hub_takes_what_was_promised(tmp_path: Path) -> None:
    """A list of 16 MB is held whole while inclusion probabilities are computed, beside 20,000 nodes."""
    num_nodes, num_edges = 20_000, 4_000_000
    indptr = np.full(num_nodes + 1, num_edges)
    indptr[0] = 0
    indices = np.arange(num_edges, dtype=np.int32) % num_nodes
    splits = {"train": np.arange(1, 500)}
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=indices, splits=splits, block_bytes=1 << 14)
    config = load_config("demo", ["layout.order=hotness", "profile.epochs=1", "sampling.fanouts=[2, 2]"])
    with GraphStore.open(tmp_path / "graph.h5") as store:
        reorder._ranks(config, store, 0)  # compiled
        tracemalloc.start()
        reorder._ranks(config, store, 0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak > 4 * num_edges
        assert peak <= reorder._profile_plan(config, store, 0).memory_bytes


def with_edges(store: GraphStore, num_edges: int) -> GraphStore:
    """The same store, said to have so many edges."""
    extents = {name: store.extent(name) for name in store.datasets}
    return GraphStore(store.path, replace(store.info, num_edges=num_edges), extents, store.num_file_bytes)


def test_degrees_take_eight_bytes_from_two_to_the_31_edges_on(tmp_path: Path) -> None:
    write_store(tmp_path / "graph.h5", indptr=np.zeros(1001, np.int64), indices=np.empty(0, np.int32))
    config = load_config("demo", [])
    store = GraphStore.open(tmp_path / "graph.h5")
    fewer, more = (with_edges(store, num_edges) for num_edges in (2**31 - 1, 2**31))
    promised = [build_cache.cache_estimate(one, config).memory_bytes for one in (fewer, more)]
    assert promised[1] - promised[0] == 4 * 1000
    assert (degree_bytes(fewer.info), degree_bytes(more.info)) == (8 * 1000, 16 * 1000)


def test_a_dynamic_cache_without_features_is_refused(tmp_path: Path) -> None:
    indptr, splits = np.arange(101), {"train": np.arange(50)}
    write_store(tmp_path / "graph.h5", indptr=indptr, indices=np.zeros(100, np.int32), splits=splits)
    config = load_config("demo", ["cache.device_budget=1MB", "cache.dynamic.share=0.5"])
    with GraphStore.open(tmp_path / "graph.h5") as store:
        with sampling_of(store, config, ProfilePlan(0, None, 1), 1) as sampled:
            profile = take_profile(*sampled)
        with pytest.raises(InputError, match="no features for a dynamic cache to hold"):
            build_cache.plan_cache(store, profile, config)
