"""How training's memory is shared: the least that is named will do, and what is above it is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conf.load import load_config
from storage.graph_store import GraphStore, write_store
from tasks.bounds import superbatch_bytes
from tasks.in_flight import DEFAULT_IN_FLIGHT_BYTES
from tasks.inference import DEFAULT_CHUNK_BYTES
from tasks.training_config import MemoryShares, training_estimate
from tests.graphs import power_law_graph

NODES = 20_000
BUDGET = "cache.device_budget"
CASES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "many threads": ("sampling.threads=8", "sampling.superbatch=1", "sampling.batch_size=50"),
    "workers": ("training.workers=3", "sampling.batch_size=50"),
    "all neighbors": ("sampling.fanouts=[-1, -1]",),
    "wide": ("model.hidden=512", "sampling.batch_size=10"),
    "mlp": ("model.kind=mlp", "sampling.fanouts=[]"),
    "bytes asked": ("sampling.in_flight_bytes=3MB", "sampling.batch_size=50"),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shares") / "graph.h5"
    indptr, indices = power_law_graph(NODES, 100_000)
    features, labels = np.ones((NODES, 30), np.float32), np.arange(NODES) % 5
    splits = {"train": np.arange(100), "valid": np.arange(100, 200), "test": np.arange(200, 300)}
    write_store(path, indptr=indptr, indices=indices, features=features, labels=labels, splits=splits, block_bytes=4096)
    return path


def shares(path: Path, case: str, budget: int | None) -> MemoryShares:
    overrides = [*CASES[case], *([] if budget is None else [f"host_budget={budget}"])]
    config = load_config("demo", overrides)
    with GraphStore.open(path) as store:
        found = MemoryShares.of(config, store)
        assert training_estimate(config, store).memory_bytes == found.total_bytes
        assert found.in_flight_bytes >= (superbatch_bytes(store.info, config.sampling) if case != "bytes asked" else 1)
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_is_named_will_do_and_nothing_less(path: Path, case: str) -> None:
    """What a refusal names is the total of too small a budget, whichever that was."""
    named = shares(path, case, 1).total_bytes
    assert shares(path, case, named - 1).total_bytes == named
    for above in (0, 1, 1000, named // 10, named, 100 * named):
        assert shares(path, case, named + above).total_bytes <= named + above


@pytest.mark.parametrize("case", CASES)
def test_a_larger_budget_is_used(path: Path, case: str) -> None:
    least, plenty, default = shares(path, case, 1), shares(path, case, 1 << 40), shares(path, case, None)
    assert plenty.chunk_bytes == default.chunk_bytes == DEFAULT_CHUNK_BYTES > least.chunk_bytes
    if case == "bytes asked":
        assert least.in_flight_bytes == plenty.in_flight_bytes == 3_000_000
    else:
        assert least.in_flight_bytes < default.in_flight_bytes == DEFAULT_IN_FLIGHT_BYTES < plenty.in_flight_bytes


@pytest.mark.parametrize("case", ["plain", "mlp", "all neighbors"])
def test_what_is_asked_beyond_the_graph_takes_no_memory(path: Path, case: str) -> None:
    """Mini-batches end with the nodes, caches with all rows and lists; counted, they refused a graph of 3 MB."""
    with GraphStore.open(path) as store:
        whole, endless = (
            MemoryShares.of(
                load_config("demo", [*CASES[case], f"sampling.batch_size={batch}", f"{BUDGET}={device}"]), store
            )
            for batch, device in ((NODES, "5MB"), (10**15, "1PB"))
        )
    assert whole.total_bytes == endless.total_bytes
