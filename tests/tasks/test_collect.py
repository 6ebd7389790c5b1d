"""Garbage collection: what the newest runs need stays, with all it was made of; so does what a live process holds."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.locks import in_use, lock_file, locked, locked_directory
from tasks.artifacts import SCRATCH_FOLDER, USED_FILE, ArtifactStore, StageSpec
from tasks.budgets import Budgets, Estimate
from tasks.collect import _kernel_caches, collect_garbage

DAY_S = 86400.0


class State:
    """A state directory with artifacts of two stages."""

    def __init__(self, path: Path) -> None:
        self.path, self._store = path, ArtifactStore(path, Budgets())
        self._runs = 0

    def build(self, stage: str, seed: int, **inputs: str) -> str:
        spec = StageSpec(stage, inputs, {"seed": seed}, 1, 1)

        def build(directory: Path) -> dict[str, int]:
            (directory / "data").write_bytes(b"x" * 100)
            return {}

        self._store.open_or_build(spec, build, lambda: Estimate(0, 0))
        return spec.digest

    def run(self, name: str, training: str | None = None, **stages: str) -> None:
        self._runs += 1
        path = self.path / "runs" / str(self._runs) / USED_FILE
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"name": name, "stages": stages, "training": training}))
        os.utime(path, ns=(self._runs * 10**9,) * 2)

    def directory(self, stage: str, digest: str) -> Path:
        return self.path / "artifacts" / stage / digest

    def collect(self, *, older_than_s: float = 0.0, dry_run: bool = False) -> set[str]:
        removals = collect_garbage(self.path, older_than_s=older_than_s, dry_run=dry_run)
        assert all(removal.nbytes > 0 for removal in removals)
        return {removal.path.name for removal in removals if "__pycache__" not in removal.path.parts}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr("tasks.collect._kernel_caches", lambda *_, **__: iter(()))
    return State(tmp_path / "state")


def test_only_what_the_newest_run_of_each_name_needs_stays(state: State) -> None:
    old_store, store = state.build("reorder", 0), state.build("reorder", 1)
    old_plan, plan = state.build("cache", 0, reorder=old_store), state.build("cache", 1, reorder=store)
    other = state.build("reorder", 2)
    state.run("a", reorder=old_store, cache=old_plan)
    state.run("a", reorder=store, cache=plan)
    state.run("b", reorder=other)
    assert state.collect(dry_run=True) == {old_store, old_plan}
    assert state.directory("reorder", old_store).exists()
    assert state.collect() == {old_store, old_plan}
    assert not state.directory("reorder", old_store).exists()
    for stage, digest in (("reorder", store), ("cache", plan), ("reorder", other)):
        assert state.directory(stage, digest).exists()
    assert state.collect() == set()


def test_scratch_files_of_the_dead_go(state: State) -> None:
    dead, live = (state.path / SCRATCH_FOLDER / name for name in (".garden-predict-dead", ".garden-predict-live"))
    for folder in (dead, live):
        folder.mkdir(parents=True)
        (folder / "rows").write_bytes(b"x")
        os.utime(folder, (1, 1))
    with locked_directory(live):
        assert state.collect(dry_run=True) == {dead.name}
        assert dead.exists()
        assert state.collect() == {dead.name}
        assert (live.exists(), dead.exists()) == (True, False)


def test_what_a_needed_artifact_was_made_of_stays(state: State) -> None:
    store = state.build("reorder", 0, raw="not-an-artifact")
    plan = state.build("cache", 0, reorder=store)
    state.run("a", cache=plan)
    assert state.collect() == set()


def test_a_newest_run_that_stopped_early_does_not_lose_the_later_stages(state: State) -> None:
    store, newer = state.build("reorder", 0), state.build("reorder", 1)
    plan = state.build("cache", 0, reorder=store)
    state.run("a", reorder=store, cache=plan)
    state.run("a", reorder=newer)
    assert state.collect() == set()


def test_what_a_live_process_holds_stays(state: State) -> None:
    used, built, free = (state.build("reorder", seed) for seed in range(3))
    with in_use(state.directory("reorder", used)), locked(lock_file(state.directory("reorder", built))):
        assert state.collect(dry_run=True) == {free}
        assert state.collect() == {free}
    assert state.collect() == {used, built}


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(state: State) -> None:
    state.run("a", reorder=state.build("reorder", 0))
    for name in ("dead", "alive"):
        partial = state.directory("reorder", f"{name}.partial")
        partial.mkdir()
        (partial / "data").write_bytes(b"x")
    with locked(lock_file(state.directory("reorder", "alive"))):
        assert state.collect(dry_run=True) == {"dead.partial"}
        assert state.collect() == {"dead.partial"}
        assert state.directory("reorder", "alive.partial").exists()


def test_an_age_keeps_what_is_young(state: State) -> None:
    old, young = state.build("reorder", 0), state.build("reorder", 1)
    os.utime(state.directory("reorder", old), (time.time() - 2 * DAY_S,) * 2)
    assert state.collect(older_than_s=DAY_S) == {old}
    assert state.directory("reorder", young).exists()


def test_the_checkpoint_stays_that_the_newest_run_of_a_name_goes_on_from(state: State) -> None:
    for digest in ("first", "second", "other", "nobodys"):
        path = state.path / "checkpoints" / digest / "checkpoint.pt"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    state.run("a", training="first")
    state.run("a", training="second")
    state.run("a", reorder=state.build("reorder", 0))  # came to no training
    state.run("b", training="other")
    with locked(lock_file(state.directory("train", "nobodys"))):
        assert state.collect() == {"first"}
    assert state.collect(older_than_s=DAY_S) == set()
    assert state.collect(dry_run=True) == {"nobodys"}
    assert state.collect() == {"nobodys"}
    assert {path.name for path in (state.path / "checkpoints").iterdir()} == {"second", "other"}


@pytest.mark.parametrize("note", ["", "[]", '{"name": "a"}', '{"name": "a", "stages": []}', "\udcff"])
def test_a_damaged_note_is_refused_before_anything_goes(state: State, note: str) -> None:
    kept = state.build("reorder", 0)
    state.run("a")
    (state.path / "runs" / "1" / USED_FILE).write_bytes(note.encode(errors="surrogateescape"))
    with pytest.raises(StorageError, match=r"used\.json does not say what its run needs: remove"):
        state.collect()
    assert state.directory("reorder", kept).exists()


def test_compiled_kernels_of_changed_sources_go(tmp_path: Path) -> None:
    cache = tmp_path / "cpu" / "__pycache__"
    cache.mkdir(parents=True)
    (tmp_path / "cpu" / "fresh.py").touch()
    (tmp_path / "cpu" / "changed.py").touch()
    for name in ("fresh.f-3.py311.nbi", "changed.f-3.py311.1.nbc", "removed.f-3.py311.nbi"):
        (cache / name).write_bytes(b"x")
    for name, seconds in (("changed.f-3.py311.1.nbc", -100.0), ("fresh.f-3.py311.nbi", 100.0)):
        os.utime(cache / name, (time.time() + seconds,) * 2)
    gone = {removal.path.name for removal in _kernel_caches(tmp_path, dry_run=False)}
    assert gone == {"changed.f-3.py311.1.nbc", "removed.f-3.py311.nbi"}
    assert [path.name for path in cache.iterdir()] == ["fresh.f-3.py311.nbi"]
