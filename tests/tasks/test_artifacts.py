"""Open-or-build: equal specs share an artifact, changed ones do not, one process builds, the dead leave nothing."""

from __future__ import annotations

import dataclasses
import logging
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage.errors import BudgetError, InputError, MachineError
from storage.manifest import MANIFEST_NAME
from tasks.artifacts import ArtifactStore, StageSpec
from tasks.budgets import Budgets, Estimate, available_memory, format_bytes

SPEC = StageSpec("stage", {"graph": "abc"}, {"order": "degree"}, algorithm_version=1, format_version=1)

STAT = "anon 400\ninactive_file 300\nactive_file 200\nworkingset_refault_anon 0\n"


def small() -> Estimate:
    return Estimate(memory_bytes=10, disk_bytes=20)


class Builder:
    """Writes one file and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, directory: Path) -> Mapping[str, Any]:
        self.calls += 1
        (directory / "data").write_text("content")
        return {"nodes": 3}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path, Budgets())


def test_the_second_run_reuses(store: ArtifactStore) -> None:
    build = Builder()
    first = store.open_or_build(SPEC, build, small)
    second = store.open_or_build(SPEC, build, small)
    assert (first.reused, second.reused, build.calls) == (False, True, 1)
    assert first.manifest == second.manifest
    assert first.manifest.counts == {"nodes": 3}
    assert first.manifest.path("data").read_text() == "content"
    assert first.manifest.directory == store.directory(SPEC)


@pytest.mark.parametrize(
    "change",
    [
        {"stage": "other"},
        {"inputs": {"graph": "abd"}},
        {"inputs": {"graph2": "abc"}},
        {"config": {"order": "none"}},
        {"config": {}},
        {"algorithm_version": 2},
        {"format_version": 2},
    ],
)
def test_whatever_decides_the_content_changes_the_digest(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC, **change).digest != SPEC.digest


def test_the_digest_does_not_depend_on_key_order() -> None:
    specs = [dataclasses.replace(SPEC, config=config) for config in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]
    assert specs[0].digest == specs[1].digest


def test_a_failed_build_leaves_nothing(store: ArtifactStore) -> None:
    def fail(directory: Path) -> Mapping[str, Any]:
        (directory / "data").write_text("half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.open_or_build(SPEC, fail, small)
    assert store.open(SPEC) is None
    assert [p for p in store.root.rglob("*") if p.is_file() and ".locks" not in p.parts] == []


@pytest.mark.parametrize("damage", [lambda p: (p / "data").unlink(), lambda p: (p / MANIFEST_NAME).write_text("[")])
def test_a_damaged_artifact_is_built_anew(store: ArtifactStore, damage: Callable[[Path], Any]) -> None:
    build = Builder()
    damage(store.open_or_build(SPEC, build, small).manifest.directory)
    again = store.open_or_build(SPEC, build, small)
    assert (again.reused, build.calls) == (False, 2)
    assert again.manifest.missing_files() == []


def test_collecting_keeps_the_manifest_and_frees_the_data(store: ArtifactStore) -> None:
    manifest = store.open_or_build(SPEC, Builder(), small).manifest
    assert store.collect(manifest) == len("content")
    assert store.collect(manifest) == 0
    assert store.find(SPEC) == manifest
    assert store.open(SPEC) is None


def test_require_names_what_to_run(store: ArtifactStore) -> None:
    with pytest.raises(InputError, match="--until stage"):
        store.require(SPEC)
    store.open_or_build(SPEC, Builder(), small)
    assert store.require(SPEC).reused


@pytest.mark.parametrize(
    ("budgets", "error", "message"),
    [
        (Budgets(host_bytes=9), BudgetError, "set host_budget to at least 10"),
        (Budgets(disk_bytes=19), BudgetError, "set disk_budget to at least 20"),
    ],
)
def test_a_budget_is_checked_before_building(
    tmp_path: Path, budgets: Budgets, error: type[Exception], message: str
) -> None:
    build = Builder()
    with pytest.raises(error, match=message):
        ArtifactStore(tmp_path, budgets).open_or_build(SPEC, build, small)
    assert build.calls == 0
    ArtifactStore(tmp_path, Budgets(10, 20)).open_or_build(SPEC, build, small)
    assert build.calls == 1


@pytest.mark.parametrize("estimate", [Estimate(1 << 60, 0), Estimate(0, 1 << 60)])
def test_more_than_the_machine_has_is_a_machine_error(store: ArtifactStore, estimate: Estimate) -> None:
    with pytest.raises(MachineError, match=r"are free: free some") as caught:
        store.open_or_build(SPEC, Builder(), lambda: estimate)
    assert caught.value.exit_code == 3


def test_the_estimate_is_logged(store: ArtifactStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        store.open_or_build(SPEC, Builder(), lambda: Estimate(2_500_000, 40_000))
    assert "stage: needs up to 2.5 MB of memory" in caplog.text
    assert "40.0 kB of disk" in caplog.text


def test_available_memory_is_positive() -> None:
    assert 0 < available_memory() < 1 << 60


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1000\n", "memory.current": "900\n", "memory.stat": STAT}, 1000 - 900 + 300 + 200),
        ({"memory.max": "1000\n", "memory.current": "1600\n", "memory.stat": STAT}, 0),
        ({"memory.max": "max\n", "memory.current": "900\n", "memory.stat": STAT}, 1 << 40),
        ({"memory.max": "1000\n"}, 1 << 40),
        ({"memory.max": "lots\n", "memory.current": "900\n", "memory.stat": STAT}, 1 << 40),
        ({}, 1 << 40),
    ],
)
def test_page_cache_of_a_control_group_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("tasks.budgets._CGROUP", tmp_path)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1 << 40))
    assert available_memory() == expected


def test_control_groups_of_version_1_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "memory" / "jobs" / "mine"
    own.mkdir(parents=True)
    (tmp_path / "own").write_text("4:cpu,memory:/jobs/mine\n0::/\n")
    for folder, limit, used in ((own, 5000, 900), (own.parent, 2000, 1500), (tmp_path / "memory", 1 << 62, 3000)):
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("total_inactive_file 30\ntotal_active_file 20\n")
    monkeypatch.setattr("tasks.budgets._CGROUP", tmp_path)
    monkeypatch.setattr("tasks.budgets._OWN_CGROUPS", tmp_path / "own")
    assert available_memory() == 2000 - 1500 + 50, "the group above the own one leaves less"


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB"), (3e13, "30.0 TB")]
)
def test_bytes_for_people(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


SLOW_BUILD = """
    import sys, time
    from pathlib import Path
    from tasks.artifacts import ArtifactStore, StageSpec
    from tasks.budgets import Budgets, Estimate
    def build(directory):
        (directory / "data").write_text("half")
        print("building", flush=True)
        time.sleep(float(sys.argv[2]))
        return {}
    spec = StageSpec("stage", {"graph": "abc"}, {"order": "degree"}, algorithm_version=1, format_version=1)
    store = ArtifactStore(Path(sys.argv[1]), Budgets())
    print("reused" if store.open_or_build(spec, build, lambda: Estimate(1, 1)).reused else "built")
"""


def start_slow_build(state: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(SLOW_BUILD), str(state), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "building\n"
    return process


def test_a_killed_build_leaves_nothing_that_the_next_trusts(store: ArtifactStore, tmp_path: Path) -> None:
    process = start_slow_build(tmp_path, 60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert store.open(SPEC) is None
    build = Builder()
    assert not store.open_or_build(SPEC, build, small).reused
    assert sorted(path.name for path in (store.root / "stage").iterdir()) == [".locks", SPEC.digest]


def test_two_processes_build_once(store: ArtifactStore, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = start_slow_build(tmp_path, 0.5)
    build = Builder()
    with caplog.at_level(logging.INFO):
        outcome = store.open_or_build(SPEC, build, small)
    assert process.communicate()[0] == "built\n"
    assert (outcome.reused, build.calls) == (True, 0)
    assert "another process is building" in caplog.text
