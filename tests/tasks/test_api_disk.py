"""The Python API on a graph that stays on disk: what it loads, refuses, checks, and how much memory it takes."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.blocks.row_group import Group
from storage.blocks.stored_topology import StoredTopology
from storage.errors import BudgetError, ChecksumMismatchError, MachineError, TierMismatchError
from storage.graph_store import FEATURES, GraphStore, write_store
from tasks.api import GraphLoader
from tests.cgroups import NoControlGroupsError, memory_group
from tests.graphs import power_law_graph
from tests.spilling import SpillMeter
from tests.tasks.loader_peak import SEEDS, write_graph
from tests.tasks.test_on_disk import open_spills

SMALL: dict[str, Any] = {"fanouts": [3, 5], "batch_size": 256, "seed": 11}
NUM_NODES = 60_000
NODES = np.random.default_rng(0).permutation(NUM_NODES)[:1500]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one graph, with rows and without."""
    folder = tmp_path_factory.mktemp("stores")
    indptr, indices = power_law_graph(NUM_NODES, 600_000)
    rows = np.random.default_rng(0).standard_normal((NUM_NODES, 100)).astype(np.float32)
    for name, features in (("rows", rows), ("bare", None)):
        write_store(folder / f"{name}.h5", indptr=indptr, indices=indices, features=features, block_bytes=1 << 16)
    return folder


def budget_below(path: Path, **options: Any) -> int:
    with GraphLoader(path, NODES, **SMALL, **options) as memory:
        return memory.memory_bytes - 1


def from_disk(path: Path, budget: int, **options: Any) -> GraphLoader:
    loader = GraphLoader(path, NODES, **SMALL, host_budget=budget, **options)
    assert isinstance(loader.topology, StoredTopology)
    return loader


def smallest(path: Path, **options: Any) -> int:
    """What is named: for opening, where a plan is made for that, then for what these leave."""
    budget = 1 << 20
    for _ in range(4):
        try:
            GraphLoader(path, NODES, **SMALL, host_budget=budget, **options).close()
        except BudgetError as error:
            found = re.search(r"set host_budget to at least (\d+)", str(error))
            if found is None:
                return budget
            budget = int(found[1])
        else:
            return budget
    return pytest.fail("a budget that was named did not do")


@pytest.mark.parametrize("nodes", ["all", "train"])
@pytest.mark.parametrize("options", [{}, {"device_budget": 200_000, "profile_epochs": 1}], ids=["", "plan"])
def test_a_budget_far_too_small_is_refused_before_anything_is_read(
    tmp_path: Path, nodes: str, options: dict[str, Any]
) -> None:
    """Labels of a million nodes, their ids and a set of them take megabytes."""
    num_nodes = 1_000_000
    splits = {"train": np.arange(num_nodes), "valid": np.arange(0), "test": np.arange(0)}
    indptr, labels = np.minimum(np.arange(num_nodes + 1), 9), np.zeros(num_nodes, np.int32)
    write_store(
        tmp_path / "g.h5", indptr=indptr, indices=np.arange(9, dtype=np.int32), labels=labels, splits=splits,
        block_bytes=4096,
    )  # fmt: skip
    for budget in (1, 1_500_000):
        with GraphStore.open(tmp_path / "g.h5"):  # what opening a store reads is not the loader's
            tracemalloc.start()
        with pytest.raises(BudgetError, match="set host_budget to at least"):
            GraphLoader(tmp_path / "g.h5", nodes, **SMALL, host_budget=budget, **options)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < budget + 400_000


@pytest.mark.parametrize("options", [{}, {"device_budget": 200_000, "profile_epochs": 1}], ids=["", "plan"])
@pytest.mark.parametrize("is_tight", [False, True])
def test_a_graph_without_features(stores: Path, options: dict[str, Any], *, is_tight: bool) -> None:
    path = stores / "bare.h5"
    budget = smallest(path, **options) if is_tight else budget_below(path, **options)
    with GraphLoader(path, NODES, **SMALL) as memory, from_disk(path, budget, **options) as disk:
        for one, other in zip(memory.epoch(2), disk.epoch(2), strict=True):
            assert np.array_equal(one.sample.input_nodes, other.sample.input_nodes)
            assert all(np.array_equal(a.indices, b.indices) for a, b in zip(one.mfgs, other.mfgs, strict=True))
            assert other.x.shape == (len(other.input_nodes), 0)


@pytest.mark.parametrize("is_tight", [False, True])
def test_checked_rows_are_those_of_the_store(stores: Path, *, is_tight: bool) -> None:
    """From the device tier, the host cache and the spill file."""
    path = stores / "rows.h5"
    options: dict[str, Any] = {"device_budget": 400_000, "profile_epochs": 1, "check": True}
    budget = smallest(path, **options) if is_tight else budget_below(path, **options)
    with GraphLoader(path, NODES, **SMALL) as memory, from_disk(path, budget, **options) as disk:
        for one, other in zip(memory.epoch(0), disk.epoch(0), strict=True):
            assert torch.equal(one.rows, other.rows)


@pytest.mark.parametrize(("tier", "name"), list(enumerate(["device tier", "host cache", "spill file"])))
def test_a_wrong_row_is_found_and_its_tier_named(
    stores: Path, monkeypatch: pytest.MonkeyPatch, tier: int, name: str
) -> None:
    path, rows = stores / "rows.h5", Group.rows
    options: dict[str, Any] = {"device_budget": 400_000, "profile_epochs": 1, "check": True}
    budget = smallest(path, **options) + 400_000

    def wrong(group: Group, number: int) -> Any:
        found = rows(group, number)
        found.tiers[tier][:] += 1
        return found

    monkeypatch.setattr(Group, "rows", wrong)
    message = rf"row \d+ of a mini-batch, node \d+, read from the {name}"
    with from_disk(path, budget, **options) as disk, pytest.raises(TierMismatchError, match=message):
        list(disk.epoch(0))


def test_a_closed_loader_holds_no_descriptor(stores: Path) -> None:
    path = stores / "rows.h5"
    loader = from_disk(path, budget_below(path), check=True)
    next(iter(loader.epoch(0)))
    assert store_descriptors(path)
    loader.close()
    assert not store_descriptors(path), "though it is still referred to"


def store_descriptors(path: Path) -> list[Path]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [link for link in links if link.readlink() == path]


def test_two_epochs_at_once_are_refused(stores: Path) -> None:
    path = stores / "rows.h5"
    with from_disk(path, budget_below(path)) as disk:
        first = iter(disk.epoch(0))
        next(first)
        with pytest.raises(RuntimeError, match="epoch 0 of this loader is still open, and from disk one at a time"):
            next(iter(disk.epoch(1)))
        assert len(list(first)) == len(disk) - 1, "the open one goes on"
        assert len(list(disk.epoch(1))) == len(disk)
        for _ in disk.epoch(2):
            break
        assert len(list(disk.epoch(3))) == len(disk)


def test_nothing_is_left_beside_the_store_and_a_folder_that_cannot_be_written_to_is_named(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = stores / "rows.h5", open_spills()
    budget, names = smallest(path), sorted(stores.iterdir())
    with from_disk(path, budget) as disk:
        batches = iter(disk.epoch(0))
        next(batches)
        assert open_spills() > before
        assert sorted(stores.iterdir()) == names, "not even while it works"
    assert open_spills() == before
    opened = os.open

    def refused(where: Any, flags: int, *rest: Any, **more: Any) -> int:
        if Path(where) == stores and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(where, flags, *rest, **more)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(MachineError, match=r"cannot be written to \(Permission denied\).*give another folder"):
        from_disk(path, budget)
    with from_disk(path, budget, scratch=tmp_path) as disk:
        assert len(list(disk.epoch(0))) == len(disk)


def test_the_smallest_disk_budget_is_named_does_and_is_kept(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, meter = stores / "rows.h5", SpillMeter(monkeypatch)
    budget = smallest(path, disk_budget=10_000)
    with pytest.raises(BudgetError, match="disk_budget leaves") as caught:
        from_disk(path, budget, disk_budget=10_000)
    assert not meter.peak_bytes
    found = re.search(r"set disk_budget to at least (\d+)", str(caught.value))
    assert found
    with from_disk(path, budget, disk_budget=int(found[1])) as disk, GraphLoader(path, NODES, **SMALL) as memory:
        for one, other in zip(memory.epoch(0), disk.epoch(0), strict=True):
            assert torch.equal(one.rows, other.rows)
    assert 0 < meter.peak_bytes <= int(found[1])


@pytest.mark.parametrize("fault", ["full", "read", "flipped"])
def test_faults_end_an_epoch_with_the_place_and_leave_no_file(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path, before = tmp_path / "rows.h5", open_spills()
    path.write_bytes((stores / "rows.h5").read_bytes())
    budget = smallest(path)
    messages = {"full": "the disk is full: no room to spill", "read": "Input/output error", "flipped": "features/x"}
    with from_disk(path, budget) as disk:
        if fault == "full":

            def full(*_: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(os, "posix_fallocate", full)
        elif fault == "read":

            def fails(*_: object) -> int:
                raise OSError(errno.EIO, "Input/output error")

            monkeypatch.setattr(os, "preadv", fails)
        else:
            with GraphStore.open(path) as store, path.open("r+b") as file:
                extent = store.extent(FEATURES)
                for block in range(extent.num_blocks):
                    file.seek(extent.offset + block * extent.block_bytes + 100)
                    file.write(b"?")
        expected = ChecksumMismatchError if fault == "flipped" else MachineError
        with pytest.raises(expected, match=messages[fault]):
            list(disk.epoch(0))
        monkeypatch.undo()
        assert open_spills() == before
        if fault != "flipped":
            assert len(list(disk.epoch(0))) == len(disk), "once the disk is right again it goes on"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("wide") / "graph.h5"
    nbytes = write_graph(path, 100_000, 1_000_000, 480)
    np.save(path.with_suffix(".npy"), [100_000])
    return path, nbytes


def peaks(path: Path, group: str, budgets: Sequence[int]) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.tasks.loader_peak", str(path), group, *map(str, budgets)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_loader_keeps_a_quarter_and_a_tenth_of_the_data(wide: tuple[Path, int]) -> None:
    """And moves so much that the budget matters."""
    path, nbytes = wide
    budgets = (nbytes // 10, nbytes // 4)
    found = peaks(path, "-", budgets)
    over = {budget: found[str(budget)] / budget for budget in budgets}
    assert all(0.2 < share <= 1.1 for share in over.values()), over
    assert nbytes // 10 > SEEDS * 4 * 480


@pytest.mark.parametrize("share", [4, 10])
def test_the_page_cache_is_not_needed(wide: tuple[Path, int], share: int) -> None:
    path, nbytes = wide
    budget = nbytes // share
    try:
        with memory_group("garden-loader") as group:
            group.limit(int(1.1 * budget))
            assert peaks(path, str(group.folder), [budget])[str(budget)] <= 1.1 * budget
            assert group.peak_bytes > budget / 4
    except NoControlGroupsError as reason:
        pytest.skip(f"NOT TESTED: {reason}")
