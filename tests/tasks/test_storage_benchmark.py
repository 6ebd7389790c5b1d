"""The methods that the benchmark of training from disk sets side by side put the same rows together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import storage_workload
from tests.benchmarks.storage_baselines import belady, changes, least_recently_used, nothing
from tests.benchmarks.storage_runs import BASELINES, BELADY, LRU, MEMORY, OURS, PAGES, Measurement, Run
from tests.benchmarks.storage_workload import Size, write_workload


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty mini-batches; rows of 512 bytes, pages of eight."""
    path = tmp_path_factory.mktemp("tiny") / "graph.h5"
    write_workload(path, Size(20_000, 200_000), block_bytes=1 << 16)
    return path


def test_every_method_gives_the_same_rows_and_the_same_loss(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(storage_workload.SIZES, "tiny", Size(20_000, 200_000, batch_size=10))
    found: dict[str, Any] = {name: Measurement(Run(str(tiny), name, 4)).measure() for name in (OURS, *BASELINES)}
    for name in BASELINES:
        assert np.allclose(found[name]["checksums"], found[OURS]["checksums"]), name
        assert found[name]["measured_batches"] == 20
    assert found[BELADY]["hit_rate"] >= found[LRU]["hit_rate"] > 0
    assert found[BELADY]["page_reads"] < found[PAGES]["page_reads"]
    losses = {Measurement(Run(str(tiny), name, 4, "train")).measure()["loss"] for name in (OURS, PAGES, BELADY)}
    assert losses == {Measurement(Run(str(tiny), MEMORY)).measure()["loss"]}


def test_caches_hold_what_their_policy_says() -> None:
    batches = [np.array(ids) for ids in ([0, 1], [2, 3], [0, 4], [2, 5])]
    assert [list(one.hit) for one in changes(batches, 6, 0, nothing)] == [[], [], [], []]
    recent = changes(batches, 6, 2, least_recently_used(6, 2))
    assert [list(one.hit) for one in recent] == [[], [], [], []]
    known = changes(batches, 6, 2, belady(batches, 6, 2))
    assert [list(one.hit) for one in known] == [[], [], [0], [0]]
    assert [sorted(batch[one.miss]) for batch, one in zip(batches, known, strict=True)] == [[0, 1], [2, 3], [4], [5]]
