"""How many mini-batches make a hyperbatch, and what of their rows stays: arithmetic against what happens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from storage.blocks.extent import DIRECT_ALIGNMENT
from storage.blocks.gathering import KEPT_ID_BYTES, Gatherer, GatherOptions
from storage.blocks.stored_features import StoredFeatures
from storage.graph_store import GraphStore
from storage.store_writer import write_store
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_options import GENERATIONS
from tasks.hyperbatch_size import Hyperbatches

NODES, WIDTH, BATCHES, IN_EACH, ROWS = 4000, 64, 8, 400, 300
ROW_BYTES = 4 * WIDTH


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hyperbatches") / "graph.h5"
    features = np.random.default_rng(0).standard_normal((NODES, WIDTH), np.float32)
    indptr = np.zeros(NODES + 1, np.int64)
    write_store(path, indptr=indptr, indices=np.empty(0, np.int32), features=features, block_bytes=1 << 14)
    return path


@pytest.mark.parametrize("shared", [0, 100, 300])
@pytest.mark.parametrize("count", [1, 4])
def test_spilled_bytes_are_those_expected(store_path: Path, tmp_path: Path, shared: int, count: int) -> None:
    """Rows that all mini-batches need are kept for all; where there are few, each hyperbatch has its own cache."""
    rng = np.random.default_rng(1)
    batches = [
        np.concatenate([np.arange(shared), shared + rng.choice(NODES - shared, IN_EACH - shared, replace=False)])
        for _ in range(BATCHES)
    ]
    with GraphStore.open(store_path) as store:
        sizes = BatchSizes(nodes=IN_EACH, edges=0, frontier=0, id_bytes=8)
        hyperbatches = Hyperbatches(
            store=store, expected=sizes, bound=sizes, largest=sizes, num_batches=BATCHES, shared_nodes=shared,
            room=1 << 40, is_disk_budgeted=False,
        )  # fmt: skip
        cache = ROWS * (ROW_BYTES + KEPT_ID_BYTES)
        expected = hyperbatches.traffic(count, cache, 1 << 20, spills=False)
        with StoredFeatures(store, np.arange(0), buffer_bytes=1 << 16) as features:
            options = GatherOptions(cache, 1 << 20, tmp_path, one_cache=expected.one_cache).split(GENERATIONS)
            gatherer = Gatherer(features, options)
            for first in range(0, BATCHES, count):
                for group in gatherer.groups(batches[first : first + count]):
                    group.close()
            spilled = features.stats.counts().write_bytes
    padding = BATCHES * DIRECT_ALIGNMENT
    assert spilled == pytest.approx(BATCHES * expected.spilled, rel=0.2, abs=padding)
    if shared != 100:
        assert expected.one_cache == (shared > 0)
