"""Directories appear whole or not at all; the dead's leftovers go, the living's stay; a full disk leaves nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from storage.atomic import building, write_text
from storage.errors import MachineError
from storage.leftovers import remove_leftovers, scratch_directory
from storage.locks import lock_file, locked

BUILD_AND_WAIT = """
    import sys, time
    from pathlib import Path
    from storage.atomic import building
    from storage.locks import lock_file, locked
    target = Path(sys.argv[1])
    with locked(lock_file(target)), building(target) as partial:
        (partial / "half").write_text("written")
        print("building", flush=True)
        time.sleep(60)
"""


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def start_builder(target: Path) -> subprocess.Popen[str]:
    builder = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(BUILD_AND_WAIT), str(target)], stdout=subprocess.PIPE, text=True
    )
    assert builder.stdout is not None
    assert builder.stdout.readline() == "building\n"
    return builder


def kill(builder: subprocess.Popen[str]) -> None:
    builder.send_signal(signal.SIGKILL)
    builder.communicate()


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "stage" / "digest"
    with building(target) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "data").write_text("x")
        assert not target.exists()
    assert (target / "sub" / "data").read_text() == "x"
    assert names_in(target.parent) == ["digest"]


def test_a_failed_build_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    target = tmp_path / "digest"
    target.mkdir()
    (target / "data").write_text("old")
    with pytest.raises(ZeroDivisionError), building(target) as partial:
        (partial / "data").write_text("new")
        raise ZeroDivisionError
    assert (target / "data").read_text() == "old"
    assert names_in(tmp_path) == ["digest"]


def test_a_build_replaces_what_stood_there(tmp_path: Path) -> None:
    target = tmp_path / "digest"
    target.mkdir()
    (target / "old").write_text("old")
    with building(target) as partial:
        (partial / "new").write_text("new")
    assert names_in(target) == ["new"]
    assert names_in(tmp_path) == ["digest"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
    ],
)
def test_a_full_disk_is_a_machine_error_and_leaves_nothing(tmp_path: Path, error: OSError) -> None:
    with pytest.raises(MachineError, match=r"the disk is full.*bytes free; free some"), building(tmp_path / "digest"):
        raise error
    assert names_in(tmp_path) == []


def test_another_os_error_passes_through(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), building(tmp_path / "digest"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_leftovers_of_the_living_stay_and_of_the_dead_go(tmp_path: Path) -> None:
    target = tmp_path / "digest"
    builder = start_builder(target)
    try:
        assert remove_leftovers(tmp_path) == []
        assert (tmp_path / "digest.partial" / "half").exists()
    finally:
        kill(builder)
    assert remove_leftovers(tmp_path) == [tmp_path / "digest.partial"]
    assert not target.exists()
    assert not (tmp_path / "digest.partial").exists()


def test_a_lock_dies_with_its_holder(tmp_path: Path) -> None:
    builder = start_builder(tmp_path / "digest")
    try:
        with locked(lock_file(tmp_path / "digest"), wait=False) as held:
            assert not held
    finally:
        kill(builder)
    with locked(lock_file(tmp_path / "digest"), wait=False) as held:
        assert held


def test_shared_locks_share_and_exclude_exclusive_ones(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, shared=True), locked(path, shared=True, wait=False) as second:
        assert second
        with locked(path, wait=False) as exclusive:
            assert not exclusive


def test_text_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_text(path, "one")
    (tmp_path / "folder" / "file.partial").write_text("left by the dead")
    write_text(path, "two")
    assert path.read_text() == "two"
    assert names_in(path.parent) == ["file"]


REPLACE_AND_DIE = """
    import os, sys
    from pathlib import Path
    from storage.atomic import building
    from storage.locks import lock_file, locked
    target = Path(sys.argv[1])
    rename, renames = Path.rename, []
    def rename_once(path, new):
        if renames:
            os.kill(os.getpid(), 9)
        renames.append(new)
        return rename(path, new)
    Path.rename = rename_once
    with locked(lock_file(target)), building(target) as partial:
        (partial / "new").write_text("new")
"""


@pytest.fixture
def killed_between_renames(tmp_path: Path) -> Path:
    """A directory whose replacement died when the old one was set aside and the new one not yet in its place."""
    target = tmp_path / "digest"
    target.mkdir()
    (target / "old").write_text("old")
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(REPLACE_AND_DIE), str(target)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert names_in(tmp_path) == [".locks", "digest.old.partial", "digest.partial"]
    return target


def test_what_a_dead_builder_set_aside_goes_back(killed_between_renames: Path) -> None:
    target = killed_between_renames
    assert remove_leftovers(target.parent) == [target.with_name("digest.partial")]
    assert names_in(target) == ["old"]


def test_a_failed_build_after_a_dead_one_keeps_the_old(killed_between_renames: Path) -> None:
    target = killed_between_renames
    with pytest.raises(ZeroDivisionError), building(target):
        raise ZeroDivisionError
    assert names_in(target) == ["old"]


def test_what_a_live_builder_set_aside_is_left_to_it(killed_between_renames: Path) -> None:
    target = killed_between_renames
    with locked(lock_file(target)):
        assert remove_leftovers(target.parent) == []
    assert names_in(target.parent) == [".locks", "digest.old.partial", "digest.partial"]


def test_the_old_comes_back_when_the_new_cannot_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "digest"
    target.mkdir()
    (target / "old").write_text("old")
    rename = Path.rename

    def refuse_new(path: Path, new: Path) -> Path:
        if path.name == "digest.partial":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(OSError, match="Input/output"), building(target):
        pass
    assert names_in(target) == ["old"]
    assert names_in(tmp_path) == ["digest"]


def test_scratch_directories_go_and_those_of_the_dead_go_with_the_next(tmp_path: Path) -> None:
    dead, young = tmp_path / ".try-dead", tmp_path / ".try-young"
    for folder in (dead, young):
        folder.mkdir()
    os.utime(dead, (0, 0))
    with scratch_directory(tmp_path, ".try-") as mine:
        (mine / "file").write_text("x")
        os.utime(mine, (0, 0))
        with scratch_directory(tmp_path, ".try-") as other:
            assert names_in(tmp_path) == sorted([".try-young", mine.name, other.name])
    assert names_in(tmp_path) == [".try-young"]
