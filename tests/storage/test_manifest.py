"""A manifest round-trips, notices missing data, and refuses what it cannot trust."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.manifest import MANIFEST_NAME, Manifest, files_in


def make(directory: Path) -> Manifest:
    (directory / "graph.h5").write_bytes(b"12345")
    (directory / "extra").mkdir()
    (directory / "extra" / "order.npy").write_bytes(b"123")
    manifest = Manifest(
        stage="reorder",
        digest="abc",
        inputs={"graph": "def"},
        config={"order": "degree", "block_bytes": 4096},
        algorithm_version=1,
        format_version=2,
        counts={"nodes": 7},
        files=files_in(directory),
        seconds=1.5,
        created="2026-01-01T00:00:00+00:00",
        directory=directory,
    )
    manifest.write()
    return manifest


def test_round_trip(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    read = Manifest.read(tmp_path)
    assert read == manifest
    assert read is not None
    assert read.directory == tmp_path
    assert read.files == {"graph.h5": 5, "extra/order.npy": 3}
    assert read.nbytes == 8
    assert read.path("graph.h5").read_bytes() == b"12345"
    assert files_in(tmp_path) == read.files


def test_it_can_be_moved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    make(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    moved = Manifest.read(tmp_path / "b")
    assert moved is not None
    assert moved.missing_files() == []


def test_no_manifest_is_no_artifact(tmp_path: Path) -> None:
    assert Manifest.read(tmp_path) is None
    assert Manifest.read(tmp_path / "absent") is None


def test_missing_and_resized_files_are_noticed(tmp_path: Path) -> None:
    manifest = make(tmp_path)
    assert manifest.missing_files() == []
    (tmp_path / "graph.h5").write_bytes(b"1234")
    (tmp_path / "extra" / "order.npy").unlink()
    assert sorted(manifest.missing_files()) == ["extra/order.npy", "graph.h5"]


def test_an_unlisted_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="has no file 'other'"):
        make(tmp_path).path("other")


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 99},
        {"surprise": 1},
        {"files": {"../../etc/passwd": 1}},
        {"files": {"/etc/passwd": 1}},
        {"files": ["graph.h5"]},
        {"stage": None, "digest": None, "extra": 1},
    ],
)
def test_what_cannot_be_trusted_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    make(tmp_path)
    path = tmp_path / MANIFEST_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StorageError, match="to build it anew"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[", "[]", '"text"', "\x00"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    make(tmp_path)
    (tmp_path / MANIFEST_NAME).write_text(text)
    with pytest.raises(StorageError, match="manifest"):
        Manifest.read(tmp_path)


def test_it_is_frozen(tmp_path: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(tmp_path).stage = "other"  # type: ignore[misc]
