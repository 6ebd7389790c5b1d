"""Checkpoints and models on disk: round trips, damage, strangers."""

from __future__ import annotations

import errno
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.nn.model import ModelSpec, build_model
from storage.errors import FormatVersionError, InputError, MachineError, StorageError
from tasks.checkpoint import Checkpoint, load_checkpoint, load_model, save_checkpoint, save_model

SPEC = ModelSpec("sage", in_dim=4, hidden=8, num_classes=3, num_layers=2)


def made_checkpoint() -> Checkpoint:
    model = build_model(SPEC, seed=0)
    optimizer = torch.optim.Adam(model.parameters())
    return Checkpoint("abc", model.state_dict(), optimizer.state_dict(), model.state_dict(), 120, 0xDEADBEEF)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    saved = tmp_path / "run" / "checkpoint.pt"
    save_checkpoint(saved, made_checkpoint())
    return saved


def test_comes_back_as_it_was(path: Path) -> None:
    loaded, saved = load_checkpoint(path, "abc"), made_checkpoint()
    assert (loaded.history_bytes, loaded.history_crc32) == (saved.history_bytes, saved.history_crc32)
    assert loaded.model.keys() == saved.model.keys()
    assert all(torch.equal(loaded.model[name], saved.model[name]) for name in saved.model)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_refuses_a_checkpoint_of_another_run(path: Path) -> None:
    with pytest.raises(InputError, match="other options or data"):
        load_checkpoint(path, "abd")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_truncated_file_is_refused(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(StorageError, match=r"checkpoint\.pt is damaged"):
        load_checkpoint(path, "abc")


def test_one_flipped_bit_is_found(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weights = made_checkpoint().model["layers.0.weight_self"].numpy().tobytes()
    content[content.index(weights) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match="checksum"):
        load_checkpoint(path, "abc")


@pytest.mark.parametrize("values", [[1, 2], {"weights": torch.ones(2)}, {"format_version": 1, "digest": "abc"}])
def test_other_torch_files_are_refused(path: Path, values: Any) -> None:
    torch.save(values, path)
    with pytest.raises(StorageError, match=r"checkpoint\.pt"):
        load_checkpoint(path, "abc")


def test_other_format_is_refused(path: Path) -> None:
    torch.save({"format_version": 1}, path)
    with pytest.raises(FormatVersionError, match="format 1"):
        load_checkpoint(path, "abc")


class Malicious:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('code ran')",))


def test_code_in_a_checkpoint_never_runs(path: Path) -> None:
    torch.save({"format_version": 1, "digest": Malicious()}, path, pickle_module=pickle)
    with pytest.raises(StorageError):
        load_checkpoint(path, "abc")


def test_a_failed_write_leaves_the_old_checkpoint(path: Path) -> None:
    unsavable = replace(made_checkpoint(), optimizer={"lambda": lambda: None})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save_checkpoint(path, unsavable)
    assert load_checkpoint(path, "abc").digest == "abc"


def test_a_full_disk_leaves_the_old_checkpoint_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(MachineError, match="disk is full"):
        save_checkpoint(path, replace(made_checkpoint(), digest="new"))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert load_checkpoint(path, "abc").digest == "abc"


def test_model_survives_a_round_trip(tmp_path: Path) -> None:
    model = build_model(SPEC, seed=3)
    save_model(tmp_path, SPEC, model.state_dict())
    loaded = load_model(tmp_path)
    assert loaded.spec == SPEC
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.parameters(), strict=True))


def test_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, replace(SPEC, hidden=9), build_model(SPEC, seed=3).state_dict())
    with pytest.raises(StorageError, match="size mismatch"):
        load_model(tmp_path)


def test_model_with_a_broken_description_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, SPEC, build_model(SPEC, seed=3).state_dict())
    (tmp_path / "arch.json").write_text(json.dumps({"kind": "sage"}))
    with pytest.raises(StorageError, match="has the fields"):
        load_model(tmp_path)
    with pytest.raises(StorageError, match="holds no model"):
        load_model(tmp_path / "nowhere")
