"""The check of a GPU before it is used: on the shim, with sources that were tampered with, and what is remembered."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.cuda import verdict
from kernels.cuda.launch import PinnedMemoryError
from kernels.cuda.probe import Device, Probe
from kernels.cuda.selfcheck import _is_close, differences, refusal
from kernels.cuda.source import source_text
from tests.cudasim.build import GXX
from tests.cudasim.launcher import SimLauncher

needs_shim = pytest.mark.skipif(GXX is None, reason="g++ is not installed: the check of GPUs is NOT tested here")
devices = list[str]()
"""What each check was let see."""
FOUND = Probe((Device("NVIDIA H200", (9, 0), 139 << 30),), "", "", (13, 0))


class _Unpinned(SimLauncher):
    def reach(self, array: Any) -> Any:
        raise PinnedMemoryError("refused")


@needs_shim
@pytest.mark.parametrize("launcher", [SimLauncher(), _Unpinned()], ids=["pinned", "not pinned"])
def test_the_shim_agrees_with_the_cpu(launcher: SimLauncher) -> None:
    assert differences(launcher) == []


@needs_shim
@pytest.mark.parametrize(
    ("source", "right", "wrong", "differs"),
    [
        # Faults that stay within their arrays.
        ("plan", ", (u64)v);", ", (u64)v + 1);", "sampling"),
        ("unique", "position = rank -", "position = 1 + rank -", "sampling"),
        ("gather", "word += LANES) target[word]", "word += LANES) if (row % 7) target[word]", "gathering"),
        ("aggregate", "total += weighted", "total -= weighted", "training (sage)"),
        ("attention", "*= 1.0f / total", "*= 2.0f / total", "training (gat)"),
    ],
)
def test_tampered_kernels_are_found(source: str, right: str, wrong: str, differs: str) -> None:
    text = source_text(source)
    assert right in text
    found = differences(SimLauncher(texts={source: text.replace(right, wrong)}))
    assert found == [differs]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Answers of the process, the next one last; each is taken once."""
    answers: list[Any] = []
    devices.clear()

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        assert command[-1] == "kernels.cuda.selfcheck"
        devices.append(env["CUDA_VISIBLE_DEVICES"])
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("kernels.cuda.verdict.subprocess.run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return answers


def _said(fault: str = "") -> Any:
    return SimpleNamespace(returncode=0, stdout=f"noise\n{json.dumps({'fault': fault})}\n", stderr="")


def test_every_gpu_is_checked_by_a_process_that_sees_no_other(runs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    two = Probe(FOUND.devices * 2, "", "", (13, 0))
    runs[:] = [_said("sampling"), _said()]
    assert verdict.fault_of(two) == "GPU 1: sampling (CUDA_VISIBLE_DEVICES leaves it out)"
    assert devices == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8fa")
    runs[:] = [_said(), _said()]
    assert verdict.fault_of(two) == verdict.fault_of(two) == ""
    assert devices[2:] == ["3", "GPU-8fa"]


def test_pinning_is_asked_of_the_driver() -> None:
    assert "refused" in refusal(_Unpinned())
    assert refusal(SimLauncher()) == ""


def test_a_relu_that_rounding_turns_is_no_fault() -> None:
    """One element of a thousand off by all of its size is; so is every element by a hundredth."""
    expected = torch.ones(10**7)
    turned = expected.clone()
    turned[0] = 0
    assert _is_close(turned, expected)
    assert not _is_close(1.01 * expected, expected)
    assert not _is_close(torch.full_like(expected, torch.nan), expected)
    turned[:10_000] = 0
    assert not _is_close(turned, expected)


def test_the_check_takes_no_module_from_where_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert "not this one" not in verdict._examined("0")


def test_agreement_is_remembered_for_this_driver_and_these_sources(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs[:] = [_said(), _said()]
    assert verdict.fault_of(FOUND) == verdict.fault_of(FOUND) == ""
    assert len(runs) == 1
    newer = Probe(FOUND.devices, "", "", (13, 1))
    assert verdict.fault_of(newer) == ""
    assert runs == []
    assert len(list((tmp_path / "garden").iterdir())) == 2
    monkeypatch.setattr(verdict, "_version", lambda name: "9.9")
    runs[:] = [_said("sampling")]
    assert verdict.fault_of(FOUND) == "sampling"


def test_a_fault_is_looked_into_again_each_time(runs: list[Any], tmp_path: Path) -> None:
    runs[:] = [
        _said(),
        SimpleNamespace(returncode=1, stdout="", stderr="Traceback\ncudaErrorIllegalAddress\n"),
        SimpleNamespace(returncode=-11, stdout="", stderr=""),
        subprocess.TimeoutExpired("check", 300),
    ]
    assert "had not ended after 300 s" in verdict.fault_of(FOUND)
    assert verdict.fault_of(FOUND) == "its check failed (code -11)"
    assert verdict.fault_of(FOUND) == "its check failed (cudaErrorIllegalAddress)"
    assert verdict.fault_of(FOUND) == ""
    assert runs == []


def test_a_home_that_cannot_be_written_to_costs_the_memory_alone(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runs[:] = [_said(), _said()]
    assert verdict.fault_of(FOUND) == verdict.fault_of(FOUND) == ""
    assert runs == []


def test_the_check_is_a_program_that_says_what_it_found() -> None:
    """Without a GPU it fails, and that is a fault."""
    fault = verdict._examined("0")
    assert not fault or fault.startswith("its check failed (")
