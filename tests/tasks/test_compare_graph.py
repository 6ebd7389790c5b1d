"""What a comparison of cache policies refuses, and what it recommends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf.compare import CompareConfig
from conf.load import load_config
from kernels.topology import Topology
from storage.errors import InputError
from storage.graph_store import GraphStore
from tasks.compare import check_batches, seed_order
from tasks.compare_advice import recommend
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


FACTS = {
    "budgets": [100, 6 << 20],
    "device_budget": 6 << 20,
    "feature_hit_rate": {name: [0.1, 0.2] for name in ("smoothed", "presc", "full_link", "static_oracle")},
    "saved": {"garden_plan": [0.1, 0.2]},
    "dynamic": {
        "share": 0.5,
        "gamma": 0.9,
        "interval_batches": 5,
        "static": 0.1,
        "static_and_dynamic": 0.3,
        "tried": {"0": 0.1, "0.5": 0.3},
    },
}


@pytest.mark.parametrize(
    ("overrides", "share"),
    [([], 0.5), (["cache.dynamic.share=0.2"], 0.5), (["storage.mode=storage", "host_budget=2GB"], 0.0)],
)
def test_a_dynamic_cache_is_recommended_where_one_is_kept(overrides: list[str], share: float) -> None:
    config = load_config("demo", overrides)
    recommended, sentence = recommend(config, FACTS)
    assert recommended.cache.dynamic.share == share
    assert ("with a dynamic cache of 50%" in sentence) == bool(share)
    assert ("which training from disk does not keep" in sentence) == (not share)
    type(config).model_validate_json(recommended.model_dump_json())


def test_why_there_is_no_dynamic_cache_is_told_in_numbers() -> None:
    dynamic = {"share": 0.0, "gamma": 0.999, "interval_batches": 0, "static": 0.2, "static_and_dynamic": 0.2}
    facts = FACTS | {"dynamic": dynamic | {"tried": {"0": 0.2, "0.25": 0.15, "0.5": 0.1}}}
    recommended, sentence = recommend(load_config("demo"), facts)
    assert recommended.cache.dynamic.share == 0
    assert "would not pay (on the first fifth 15.0% of the bytes of misses were avoided with 25% of the bud" in sentence
    assert "20.0% without)" in sentence


def test_what_is_recommended_is_validated() -> None:
    broken = load_config("demo").model_copy(update={"name": "not a name"})
    with pytest.raises(ValueError, match="name"):
        recommend(broken, FACTS)


def test_no_trace_stays_whether_recording_ends_or_not(tmp_path: Path) -> None:
    def cancel(done: int, total: int) -> None:
        assert (tmp_path / "trace.h5").exists()
        raise KeyboardInterrupt

    batches = [np.arange(3), np.arange(3, 6)]
    with pytest.raises(KeyboardInterrupt):
        GRAPH.trace(tmp_path, batches, 0, cancel)
    assert list(tmp_path.iterdir()) == []
    assert GRAPH.trace(tmp_path, batches, 0, lambda done, total: None).num_batches == 2
    assert list(tmp_path.iterdir()) == []
