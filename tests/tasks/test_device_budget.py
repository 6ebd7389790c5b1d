"""`cache.device_budget: auto`: what a GPU leaves, and a plan that fills it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.schema import PipelineConfig
from kernels.cuda.current import launching_through
from kernels.rank_map import RankMap
from storage.cache.plan import CachePlan, build_plan
from storage.cache.pre_sampling import profile_accesses
from storage.cache.profile import AccessProfile
from storage.errors import MachineError
from storage.graph_store import GraphStore, write_store
from tasks import device_memory
from tasks.device_budget import with_settled_budget
from tasks.training_config import stand_in_bytes
from tests.cudasim.launcher import SimLauncher
from tests.tasks.training_graphs import Data, community_data

ASKED: dict[str, Any] = {
    "cache": {"device_budget": "auto"},
    "sampling": {"fanouts": [4, 4], "batch_size": 50, "superbatch": 2},
    "profile": {"epochs": 1, "heldout_epochs": 1},
}


class _Gpu(SimLauncher):
    def __init__(self, free_bytes: int, count: int = 1) -> None:
        super().__init__()
        self._free_bytes, self._count = free_bytes, count

    def free_bytes(self) -> int:
        return self._free_bytes

    def device_count(self) -> int:
        return self._count


@pytest.fixture(scope="module")
def data() -> Data:
    return community_data(4000)


@pytest.fixture(scope="module")
def profile(data: Data) -> AccessProfile:
    sizes: dict[str, Any] = {"batch_size": 50, "superbatch": 2, "seed": 0, "epochs": 1, "heldout_epochs": 1}
    return profile_accesses(data.topology, data.splits.train[:200], (4, 4), replace=False, threads=1, **sizes)


@pytest.fixture(scope="module")
def path(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("budget") / "graph.h5"
    splits = {"train": data.splits.train[:200], "valid": data.splits.valid, "test": data.splits.test}
    topology, rows = data.topology, np.tile(data.rows, (1, 64))
    labels = np.asarray(data.labels, np.int64)
    sizes: dict[str, Any] = {"indptr": topology.indptr, "indices": topology.indices, "features": rows, "labels": labels}
    write_store(target, **sizes, splits=splits, block_bytes=4096)
    return target


def _settled(path: Path, gpu: _Gpu, profile: AccessProfile | None, **changes: Any) -> int:
    config = PipelineConfig.model_validate({**ASKED, **changes})
    with GraphStore.open(path) as store, launching_through(gpu):
        return int(with_settled_budget(config, "cuda", store, profile).cache.device_budget)


def test_on_a_cpu_it_is_a_stand_in(path: Path) -> None:
    config = PipelineConfig.model_validate(ASKED)
    with GraphStore.open(path) as store:
        settled = with_settled_budget(config, "cpu", store)
        assert settled.cache.device_budget == 6 << 20 == stand_in_bytes(config)
        assert with_settled_budget(settled, "cuda", store) is settled


def test_it_leaves_what_training_takes_and_a_reserve(
    path: Path, profile: AccessProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, free = 1 << 20, 24 << 20
    monkeypatch.setattr(device_memory, "RESERVE_BYTES", reserve)
    found = _settled(path, _Gpu(free), profile)
    assert 0 < found < 8 << 20
    assert found % (1 << 19) == 0
    assert found - (1 << 19) <= _settled(path, _Gpu(free - 1000), profile) <= found  # a part in 32 to 64
    assert _settled(path, _Gpu(free), None) <= found  # nothing known of mini-batches: the largest possible
    whole = _settled(path, _Gpu(80 << 30), profile)
    assert whole == 4000 * 8 * 64 * 4 + 24_000 * 4 + 8 * 4001 + 2 * RankMap.nbytes_for(4000)
    assert _settled(path, _Gpu(80 << 30, count=2), profile, training={"workers": 2}) == whole
    with pytest.raises(MachineError, match=r"training takes .* 0 for caches"):
        _settled(path, _Gpu(reserve), profile)
    with pytest.raises(MachineError, match="training takes"):  # two workers on one GPU
        _settled(path, _Gpu(free), profile, training={"workers": 2})


def _plan(data: Data, profile: AccessProfile, budget: int, use_spare: bool) -> CachePlan:
    return build_plan(
        profile, data.topology.in_degree(), row_bytes=100, id_bytes=4, device_budget=budget, max_fanout=4,
        use_spare=use_spare, counting="input",
    )  # fmt: skip


@pytest.mark.parametrize("budget", [0, 900, 1500, 40_000, 150_000, 450_000, 10_000_000])
def test_spare_bytes_hold_further_rows_and_lists(data: Data, profile: AccessProfile, budget: int) -> None:
    plain, filled = (_plan(data, profile, budget, use_spare) for use_spare in (False, True))
    assert set(plain.feature_ids) <= set(filled.feature_ids)
    assert set(plain.adjacency_ids) <= set(filled.adjacency_ids)
    assert plain.total_bytes <= filled.total_bytes <= budget
    added = np.setdiff1d(filled.feature_ids, plain.feature_ids)
    left_out = np.setdiff1d(np.arange(4000), filled.feature_ids)
    assert not len(added) or not len(left_out) or added.max() < left_out.min()
    if len(left_out):
        assert budget - filled.total_bytes < 100 + RankMap.nbytes_for(4000)
    if budget == 10_000_000:
        assert len(filled.feature_ids) == len(filled.adjacency_ids) == 4000
        assert len(plain.feature_ids) < 4000
