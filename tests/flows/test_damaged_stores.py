"""Damaged and crafted stores, as the commands meet them: exit code 2, one line, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from kernels.nn.model import build_model
from storage.graph_store import FEATURES, INDICES, GraphStore
from tasks.checkpoint import save_model
from tests.flows.test_commands import garden, refusal
from tests.storage.stores import write_small_store
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS

pytestmark = pytest.mark.usefixtures("process_as_it_is")
Damage = Callable[[Path], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that fits the small store."""
    folder = tmp_path_factory.mktemp("model")
    spec = OPTIONS.model_spec(7, NUM_CLASSES)
    save_model(folder, spec, build_model(spec, seed=0).state_dict())
    return folder


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(100_000))


def flip_a_bit(path: Path) -> None:
    with GraphStore.open(path) as store:
        offset = store.extent(FEATURES).offset
    content = bytearray(path.read_bytes())
    content[offset + 9] ^= 4
    path.write_bytes(content)


def declare_huge_sizes(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file[INDICES]
        file.create_dataset(INDICES, shape=(1 << 44,), dtype=np.int32)


def of_another_version(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 99


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (cut_short, "damaged or no graph store"),
        (empty, "damaged or no graph store"),
        (noise, "damaged or no graph store"),
        (flip_a_bit, "block 0 of features/x"),
        (declare_huge_sizes, "topology/indices declares 70368744177664 bytes and 0 are there"),
        (of_another_version, "has format version 99, this release reads 1 and 2: delete it and run again"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path: Path, model: Path, damage: Damage, problem: str) -> None:
    path, out = tmp_path / "graph.h5", tmp_path / "out.parquet"
    write_small_store(path)
    damage(path)
    commands: list[list[object]] = [["predict", model, path, "-o", out], ["embed", model, path, "-o", out]]
    if damage is not flip_a_bit:  # which looks at metadata alone
        commands.append(["inspect", path])
    for command in commands:
        code, line = refusal(*command)
        assert code == 2, command
        assert problem in line, command
        assert str(path) in line, command
    found = garden("verify", path)
    assert (found.exit_code, found.stdout) == (2, "")
    assert problem in found.stderr.splitlines()[-1]
    assert [item.name for item in tmp_path.iterdir()] == ["graph.h5"]
