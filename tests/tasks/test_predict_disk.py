"""The disk of a prediction: stated, refused before anything is written, kept, and given back whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from storage.blocks.layout import lay_out
from storage.errors import BudgetError, ChecksumMismatchError, MachineError
from storage.graph_store import FEATURES, GraphStore, write_store
from storage.order import invert_order
from tasks import prediction_rows
from tasks.budgets import Budgets
from tasks.predict import scratch_folder, write_output
from tests.spilling import DiskMeter, SpillMeter
from tests.tasks.test_predict import named
from tests.tasks.training_graphs import community_data

NUM_NODES = 20_000
HOLDER = """
import sys, time
from pathlib import Path
from storage.leftovers import scratch_directory
with scratch_directory(Path(sys.argv[1]), ".garden-predict-") as folder:
    (folder / "rows").write_bytes(bytes(1000))
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same graph in the input's order, and in another."""
    folder, data = tmp_path_factory.mktemp("stores"), community_data(NUM_NODES)
    paths = {name: folder / f"{name}.h5" for name in ("ingested", "reordered")}
    topology = data.topology
    write_store(
        paths["ingested"], indptr=topology.indptr, indices=topology.indices, features=data.rows, block_bytes=65536
    )
    order = np.random.default_rng(3).permutation(NUM_NODES)
    with GraphStore.open(paths["ingested"]) as store:
        lay_out(store, paths["reordered"], old_to_new=invert_order(order), order="locality", block_bytes=65536)
    return paths


@pytest.fixture
def from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)


@pytest.mark.usefixtures("from_disk")
@pytest.mark.parametrize("order", ["ingested", "reordered"])
@pytest.mark.parametrize("out", ["c.parquet", "c.csv", "h.npy"])
def test_the_smallest_disk_budget_is_named_does_and_is_kept(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, out: str
) -> None:
    output: Any = "hidden" if out == "h.npy" else "classes"
    model, path, held = named("gcn"), tmp_path / "out" / out, 12_345
    places: dict[str, Any] = {"scratch": tmp_path / "state" / "scratch", "held_bytes": held}

    def write(disk_bytes: int) -> None:
        budgets = Budgets(None, disk_bytes, disk_option="--disk-budget")
        write_output(model, stores[order], path, output, budgets, **places)

    with pytest.raises(BudgetError, match=r"prediction needs \d+ bytes of disk .* set --disk-budget to") as caught:
        write(1000)
    assert not [item for item in tmp_path.rglob("*") if item.is_file()]
    found = re.search(r"at least (\d+)", str(caught.value))
    assert found
    smallest = int(found[1])
    with pytest.raises(BudgetError):
        write(smallest - 1)
    meter = DiskMeter(tmp_path, SpillMeter(monkeypatch))
    with meter.watching():
        write(smallest)
    assert (smallest - held) / 4 < meter.peak_bytes <= smallest - held
    assert [item.name for item in tmp_path.rglob("*") if item.is_file()] == [out]


@pytest.mark.usefixtures("from_disk")
def test_what_a_killed_one_left_goes(stores: dict[str, Path], tmp_path: Path) -> None:
    scratch = scratch_folder(tmp_path, tmp_path / "c.parquet")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(scratch)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        os.utime(left, (1, 1))  # as old as if it had worked for hours
        write_output(named("sage"), stores["reordered"], tmp_path / "c.csv", "classes", Budgets(), scratch=scratch)
        assert (left / "rows").exists(), "it lives"
        process.send_signal(signal.SIGKILL)
    write_output(named("sage"), stores["reordered"], tmp_path / "c.csv", "classes", Budgets(), scratch=scratch)
    assert list(scratch.iterdir()) == []


def test_without_a_state_directory_scratch_files_lie_beside_the_output(tmp_path: Path) -> None:
    assert scratch_folder(tmp_path / "none", tmp_path / "out" / "c.csv") == tmp_path / "out"


@pytest.mark.usefixtures("from_disk")
@pytest.mark.parametrize("fault", ["flipped", "read", "full"])
def test_faults_leave_the_old_output_and_nothing_else(
    stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path, scratch = tmp_path / "graph.h5", tmp_path / "scratch"
    path.write_bytes(stores["reordered"].read_bytes())
    out = tmp_path / "c.parquet"
    model = named("sage")
    write_output(model, path, out, "classes", Budgets(), scratch=scratch)
    before = out.read_bytes()
    expected: type[Exception] = MachineError
    if fault == "flipped":
        expected = ChecksumMismatchError
        with GraphStore.open(path) as store, path.open("r+b") as file:
            file.seek(store.extent(FEATURES).offset + 100_000)
            file.write(b"?")
    elif fault == "read":

        def fails(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "preadv", fails)
    else:

        def full(*_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(expected):
        write_output(model, path, out, "classes", Budgets(), scratch=scratch)
    assert out.read_bytes() == before
    assert sorted(item.name for item in tmp_path.rglob("*")) == ["c.parquet", "graph.h5", "scratch"]
    monkeypatch.undo()
    assert len(pl.read_parquet(out)) == NUM_NODES
