"""A disk that is full, for real: a small tmpfs. Exit code 3, one line, nothing half-made, the old intact."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from conf.load import load_config
from kernels.nn.model import build_model
from storage.blocks.stored_topology import StoredTopology
from storage.errors import MachineError
from storage.formats.demo import open_demo
from storage.formats.parquet import open_parquet
from storage.formats.results import write_npy, write_table
from storage.graph_store import GraphStore, write_store
from storage.ingest import IngestOptions, ingest
from storage.numbering import Room
from tasks.api import GraphLoader
from tasks.artifacts import ArtifactStore, StageSpec
from tasks.budgets import Budgets, Estimate
from tasks.model_reference import NamedModel
from tasks.on_disk import StorageOptions, open_on_disk
from tasks.predict import write_output
from tasks.trainer import train_from
from tests.flows.conftest import TINY, Garden, bare_environment
from tests.tasks.disk_training_peak import smallest_budget
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, community_data

Disk = Callable[[str], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mounts a tmpfs of a size; skipped where mounting is refused."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"disk-{size}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("NOT TESTED: a full disk (there is no mount command)")
        if done.returncode:
            pytest.skip(f"NOT TESTED: a full disk (mounting a tmpfs is refused: {done.stderr.strip()})")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def build_store(artifacts: ArtifactStore, nodes: int) -> Path:
    """Ingest a graph of so many nodes as a stage would, with an estimate that is far too low."""

    def build(directory: Path) -> dict[str, int]:
        demo = load_config("demo").data.demo.model_copy(update={"nodes": nodes, "edges": 5 * nodes})
        return ingest(open_demo(**demo.model_dump()), IngestOptions(), directory / "graph.h5").as_dict()

    spec = StageSpec("ingest", {}, {"nodes": nodes}, 1, 1)
    return artifacts.open_or_build(spec, build, lambda: Estimate(0, 0)).manifest.path("graph.h5")


def test_a_stage_that_fills_the_disk_leaves_the_old_and_nothing_else(disk: Disk) -> None:
    state = disk("2m")
    artifacts = ArtifactStore(state, Budgets())
    kept = build_store(artifacts, 500)
    before = sorted(path for path in state.rglob("*") if ".locks" not in path.parts)
    with pytest.raises(
        MachineError, match=r"the disk is full: writing .* free some space, or set state_dir to another disk"
    ):
        build_store(artifacts, 20_000)
    assert sorted(path for path in state.rglob("*") if ".locks" not in path.parts) == before
    with GraphStore.open(kept) as store:
        store.verify()


def fill(folder: Path) -> None:
    """Take all the room there is, as another program might at any time."""
    with (folder / "other").open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
            file.flush()


@pytest.mark.parametrize("kind", ["integers", "integers with gaps", "names"])
def test_ingest_whose_scratch_files_fill_the_disk(disk: Disk, tmp_path: Path, kind: str) -> None:
    """While edges are sorted, while integers and names are numbered."""
    folder, ends = disk("3m") / "stage", np.random.default_rng(0).integers(0, 400_000, (600_000, 2))
    folder.mkdir()
    columns = ends * (1 << 40) if kind == "integers with gaps" else ends
    frame = pl.DataFrame({"u": columns[:, 0], "v": columns[:, 1]})
    (frame.cast(pl.String) if kind == "names" else frame).write_parquet(tmp_path / "edges.parquet")
    source = open_parquet(tmp_path / "edges.parquet", num_nodes=400_000 if kind == "integers" else None)
    with pytest.raises(MachineError, match=r"the disk is full: .* free some space"):
        ingest(source, IngestOptions(split="random"), folder / "graph.h5", plan=lambda _: 1, room=Room(1))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("validation", ["exact", "sampled"])
def test_training_whose_spills_meet_a_full_disk(disk: Disk, tmp_path: Path, validation: Any) -> None:
    """The disk was large enough when the budget was shared out; spilled rows, or layers of evaluation, fill it."""
    data, folder, none = community_data(3000), disk("64m"), np.empty(0, np.int64)
    rows = np.resize(data.rows, (3000, 300)).astype(np.float32)
    path = tmp_path / "graph.h5"
    splits = {"train": data.splits.train, "valid": data.splits.valid, "test": data.splits.test}
    topology = data.topology
    write_store(
        path, indptr=topology.indptr, indices=topology.indices, features=rows, labels=data.labels, splits=splits,
        block_bytes=4096,
    )  # fmt: skip
    options = replace(OPTIONS, epochs=1, batch_size=20, validation=validation)
    least = smallest_budget(path, options, folder)
    storage = StorageOptions(host_budget=least, directory=folder)
    with open_on_disk(path, none, none, options, storage) as opened:
        fill(folder)
        arguments = (opened.source, opened.labels, opened.splits, opened.degrees, options)
        with pytest.raises(MachineError, match="the disk is full"):
            train_from(*arguments, num_classes=opened.num_classes)
    assert [item.name for item in folder.iterdir()] == ["other"]
    (folder / "other").unlink()
    assert shutil.disk_usage(folder).used < 1 << 20, "nameless files are closed"
    with open_on_disk(path, none, none, options, storage) as opened:
        train_from(opened.source, opened.labels, opened.splits, opened.degrees, options, num_classes=opened.num_classes)


def test_a_loader_whose_scratch_meets_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    data, folder = community_data(3000), disk("64m")
    rows = np.resize(data.rows, (3000, 2000)).astype(np.float32)
    path, topology = tmp_path / "graph.h5", data.topology
    write_store(path, indptr=topology.indptr, indices=topology.indices, features=rows, block_bytes=4096)
    asked: dict[str, Any] = {"fanouts": [5, 5], "batch_size": 5, "scratch": folder}
    with GraphLoader(path, np.arange(3000), host_budget=15_000_000, **asked) as loader:
        assert isinstance(loader.topology, StoredTopology)
        fill(folder)
        with pytest.raises(MachineError, match="the disk is full"):
            list(loader.epoch(0))
        (folder / "other").unlink()
        assert sum(len(batch.sample.seed_nodes) for batch in loader.epoch(0)) == 3000
    assert list(folder.iterdir()) == []


def test_a_result_that_fills_the_disk_leaves_the_old_one(disk: Disk) -> None:
    folder = disk("1m")
    noise = np.random.default_rng(0).random((1 << 19, 2), np.float32)
    for path, write in ((folder / "x.npy", write_rows), (folder / "x.parquet", write_column)):
        write(path, noise[:10])
        before = path.read_bytes()
        with pytest.raises(MachineError, match="the disk is full"):
            write(path, noise)
        assert path.read_bytes() == before
    assert sorted(item.name for item in folder.iterdir()) == ["x.npy", "x.parquet"]
    np.testing.assert_array_equal(np.load(folder / "x.npy"), noise[:10])


def test_predictions_that_fill_the_disk_name_the_way_out(disk: Disk, tmp_path: Path) -> None:
    data = community_data()
    path, out = tmp_path / "graph.h5", disk("1m") / "c.parquet"
    write_store(path, indptr=data.topology.indptr, indices=data.topology.indices, features=data.rows)
    model = NamedModel(build_model(OPTIONS.model_spec(8, NUM_CLASSES), seed=0), None, "the model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budgets, "check", lambda *_: None)  # as if another program took the space afterwards
        (out.parent / "other").write_bytes(bytes((1 << 20) - 4096))
        with pytest.raises(MachineError, match=r"the disk is full: .* free some space, or choose an output on another"):
            write_output(model, path, out, "classes", Budgets())
    assert [item.name for item in out.parent.iterdir()] == ["other"]


def write_rows(path: Path, rows: npt.NDArray[np.float32]) -> None:
    write_npy(path, (len(rows), 2), np.array_split(rows, 9))


def write_column(path: Path, rows: npt.NDArray[np.float32]) -> None:
    write_table(path, ({"x": part[:, 0]} for part in np.array_split(rows, 9)))


def test_a_read_only_disk_is_exit_code_3(disk: Disk, prefect_url: str) -> None:
    folder = disk("1m")
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    for state in (folder, folder / "state"):
        done = Garden(state, bare_environment() | {"PREFECT_API_URL": prefect_url}).run("demo", overrides=TINY)
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert done.stderr.splitlines()[-1].endswith("; change its permissions, or choose another place")
        assert str(state) in done.stderr
        assert "Traceback" not in done.stderr


def test_a_run_that_will_not_fit_is_exit_code_3_before_it_starts(disk: Disk, prefect_url: str) -> None:
    garden = Garden(disk("12m"), bare_environment() | {"PREFECT_API_URL": prefect_url})
    done = garden.run("demo", "--json", overrides=TINY)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ingest needs ")
    assert str(garden.state) in line
    assert "free some" in line
    artifacts = garden.state / "artifacts"
    assert not [path for path in artifacts.rglob("*") if path.is_file() and ".locks" not in path.parts]
