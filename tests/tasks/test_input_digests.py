"""Input files are hashed once, again when they change, and always with `verify`."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import BudgetError, InputError
from storage.locks import lock_file, locked
from tasks import input_digests
from tasks.input_digests import InputDigests
from tasks.progress import Advance

OLD_NS = 1_700_000_000 * 10**9


def write(path: Path, content: bytes, mtime_ns: int = OLD_NS) -> str:
    path.write_bytes(content)
    os.utime(path, ns=(mtime_ns, mtime_ns))
    return hashlib.sha256(content).hexdigest()


def digest(state: Path, path: Path, *, verify: bool = False) -> str:
    """The digest of a file in a run that ends well."""
    digests = InputDigests(state, verify=verify)
    with digests.kept():
        return digests.digest(path)


def test_the_digest_is_that_of_the_content(tmp_path: Path) -> None:
    expected = write(tmp_path / "edges", b"1 2\n")
    assert InputDigests(tmp_path / "state").digest(tmp_path / "edges") == expected


def test_it_is_remembered_by_size_time_and_inode_until_verified(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    before = write(path, b"1 2\n")
    assert digest(state, path) == before
    after = write(path, b"1 3\n")  # same size, time and inode: only hashing anew can tell
    assert digest(state, path) == before
    assert digest(state, path, verify=True) == after
    assert "its content changed though" in caplog.text
    assert digest(state, path) == after


@pytest.mark.parametrize("mtime_ns", [OLD_NS, OLD_NS + 1])
def test_a_change_of_size_or_time_is_noticed(tmp_path: Path, mtime_ns: int) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    write(path, b"1 2\n")
    digest(state, path)
    after = write(path, b"1 2\n3 4\n" if mtime_ns == OLD_NS else b"1 3\n", mtime_ns)
    assert digest(state, path) == after


def test_a_replaced_file_is_noticed_by_its_inode(tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    write(path, b"1 2\n")
    digest(state, path)
    after = write(tmp_path / "new", b"1 3\n")
    (tmp_path / "new").replace(path)
    assert digest(state, path) == after


def test_a_file_just_written_is_not_trusted_yet(tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    path.write_bytes(b"1 2\n")
    stat = path.stat()
    digest(state, path)
    after = write(path, b"1 3\n", stat.st_mtime_ns)
    assert digest(state, path) == after


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    expected = write(path, b"1 2\n")
    digest(state, path)
    for text in ("[", "3", '{"a": 3}'):
        (state / "input_digests.json").write_text(text)
        assert digest(state, path) == expected


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: cannot read the input file .*; check the path"):
        InputDigests(tmp_path).digest(tmp_path / "nowhere")


def test_what_a_dead_writer_left_goes_and_what_a_live_one_writes_stays(tmp_path: Path) -> None:
    partial = tmp_path / "input_digests.json.partial"
    partial.write_text("{")
    with locked(lock_file(tmp_path / "input_digests.json")):
        InputDigests(tmp_path)
        assert partial.exists()
    InputDigests(tmp_path)
    assert not partial.exists()


@pytest.mark.parametrize(("error", "remains"), [(InputError, False), (BudgetError, False), (KeyboardInterrupt, True)])
def test_a_refused_run_leaves_nothing_behind_one_that_breaks_off_what_it_learnt(
    tmp_path: Path, error: type[BaseException], remains: bool
) -> None:
    write(tmp_path / "edges", b"1 2\n")
    digests = InputDigests(tmp_path / "state")
    with pytest.raises(error), digests.kept():
        digests.digest(tmp_path / "edges")
        raise error("no")
    assert (tmp_path / "state" / "input_digests.json").exists() == remains
    assert (tmp_path / "state").exists() == remains


def test_a_refused_run_adds_to_what_is_there(tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "edges"
    write(tmp_path / "other", b"3 4\n")
    digest(state, tmp_path / "other")
    before = write(path, b"1 2\n")
    digests = InputDigests(state)
    with pytest.raises(BudgetError), digests.kept():
        digests.digest(path)
        raise BudgetError("no")
    write(path, b"1 3\n")  # same size, time and inode
    assert digest(state, path) == before


def test_hashing_a_large_file_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, seen = write(tmp_path / "edges", bytes(5 << 20)), list[tuple[int, int]]()

    @contextlib.contextmanager
    def display(description: str, unit: str) -> Iterator[Advance]:
        assert (description, unit) == ("checking whether edges is known", "bytes")
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr(input_digests, "_LARGE_BYTES", 1 << 20)
    monkeypatch.setattr(input_digests, "progress", display)
    assert InputDigests(tmp_path / "state").digest(tmp_path / "edges") == expected
    assert seen == [(done << 20, 5 << 20) for done in range(1, 6)]
