"""What a comparison of cache policies refuses, and what it recommends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.compare import CompareConfig
from kernels.topology import Topology
from storage.errors import InputError
from storage.graph_store import GraphStore
from tasks.compare import check_batches, seed_order
from tasks.compare_measure import Graph
from tests.storage.stores import write_small_store

GRAPH = Graph(Topology.in_memory(np.arange(13), np.arange(12, dtype=np.int32)), np.arange(6), (2,), 6, 4, 1, False, 32)


@pytest.mark.parametrize("asked", [CompareConfig(workload="time_order"), CompareConfig(trained_epochs=1)])
def test_a_workload_of_one_mini_batch_is_refused(asked: CompareConfig) -> None:
    with pytest.raises(InputError, match=r"has one mini-batch, of 6 training nodes.*lower sampling\.batch_size"):
        check_batches(GRAPH, asked)
    check_batches(replace(GRAPH, batch_size=5), asked)
    check_batches(GRAPH, CompareConfig(workload="moving_community"))
    check_batches(GRAPH, CompareConfig())


def test_communities_need_a_label_of_a_training_node(tmp_path: Path) -> None:
    labels_N = np.arange(3000) % 2 - 1  # of the odd nodes only
    write_small_store(tmp_path / "graph.h5", labels=labels_N)
    asked = CompareConfig(workload="moving_community")
    with GraphStore.open(tmp_path / "graph.h5") as store:
        with pytest.raises(InputError, match="no training node has a label"):
            seed_order(store, asked, np.arange(0, 3000, 2))
        np.testing.assert_array_equal(seed_order(store, asked, np.arange(10)), labels_N)
