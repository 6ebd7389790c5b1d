"""Archives unpack into their folder and nowhere else."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import unpack as module
from storage.errors import BudgetError, InputError, MachineError
from storage.unpack import DiskAllowance, unpack

FILES = {"outer/inner/raw/a.txt": b"A", "outer/inner/split/x/b.txt": b"B" * 100_000}


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path: Path, files: dict[str, bytes], **changes: Any) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in changes.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def unpacked(archive: Path) -> dict[str, bytes]:
    folder = archive.parent / "unpacked"
    folder.mkdir()
    unpack(archive, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_folders_around_the_data_set_are_left_out(tmp_path: Path, write: Any) -> None:
    files = unpacked(write(tmp_path / "archive", FILES))
    assert files == {name.removeprefix("outer/inner/"): content for name, content in FILES.items()}


@pytest.mark.parametrize("write", [write_zip, write_tar])
@pytest.mark.parametrize("name", ["../owned", "a/../../owned", "/tmp/owned", "a/b/../../../owned"])
def test_an_entry_outside_the_folder_is_refused(tmp_path: Path, write: Any, name: str) -> None:
    with pytest.raises(InputError, match="outside its folder: do not trust this archive"):
        unpacked(write(tmp_path / "archive", {name: b"x"}))
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with pytest.raises(InputError, match="'a', which is a link or a device"):
        unpacked(write_tar(tmp_path / "archive", {"a": b""}, type=kind, linkname="/etc/passwd"))


def test_a_link_in_a_zip_file_is_refused(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("a")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match="is a link or a device"):
        unpacked(tmp_path / "archive")


def test_a_file_twice_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(InputError, match="'a' twice"):
        unpacked(tmp_path / "archive")


def test_what_the_disk_cannot_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPARE_BYTES", 1 << 62)
    with pytest.raises(MachineError, match=r"the content of archive has 100001 bytes and \d+ are free"):
        unpacked(write_zip(tmp_path / "archive", FILES))


@pytest.mark.parametrize(("write", "least"), [(write_zip, 100_001), (write_tar, 100_001)])
def test_no_more_is_written_than_may_be(tmp_path: Path, write: Any, least: int) -> None:
    archive = write(tmp_path / "archive", FILES)
    for name, budget in (("less", least - 1), ("enough", least)):
        folder = tmp_path / name
        folder.mkdir()
        if budget < least:
            with pytest.raises(BudgetError, match=f"disk_budget is {budget}: set disk_budget to at least {least}"):
                unpack(archive, folder, DiskAllowance(folder, budget))
        else:
            unpack(archive, folder, DiskAllowance(folder, budget))
    assert sum(path.stat().st_size for path in (tmp_path / "less").rglob("*") if path.is_file()) <= 1


@pytest.mark.parametrize("write", [write_zip, write_tar])
def test_damage_is_noticed(tmp_path: Path, write: Any) -> None:
    archive = write(tmp_path / "archive", FILES)
    archive.write_bytes(archive.read_bytes()[:-60])
    with pytest.raises(InputError, match="archive is no readable zip or tar file"):
        unpacked(archive)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
@pytest.mark.parametrize("place", ["data", "checksum", "end"])
def test_damage_within_a_compressed_stream_is_noticed(tmp_path: Path, kind: Any, place: str) -> None:
    path = tmp_path / "archive"
    content = np.random.default_rng(0).bytes(300_000)
    mode: Any = f"w:{kind}"
    with tarfile.open(path, mode) as archive:
        info = tarfile.TarInfo("a.bin")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    damaged = bytearray(path.read_bytes())
    if place == "end":
        del damaged[-6:]
    else:
        damaged[len(damaged) // 2 if place == "data" else -6] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="archive is no readable zip or tar file"):
        unpacked(path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"<html>not found</html>")
    with pytest.raises(InputError, match=r"no readable zip or tar file .*check the address") as caught:
        unpacked(tmp_path / "archive")
    assert "\n" not in str(caught.value)
