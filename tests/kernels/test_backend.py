from __future__ import annotations

import logging
from typing import Any

import pytest

from kernels import backend
from kernels.backend import NoDeviceError, resolve_backend
from kernels.cuda.probe import Device, Probe, probe


@pytest.fixture(autouse=True)
def _gpu_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "fault_of", lambda _: "")


GPU = Device("NVIDIA H200", (9, 0), 139 << 30)
USABLE = Probe((GPU,), "", "")
NO_CUPY = Probe((GPU,), "CuPy is not installed", "pip install 'garden-gnn[cuda]'")


@pytest.mark.parametrize(
    ("asked", "found", "chosen"),
    [("cpu", USABLE, "cpu"), ("auto", USABLE, "cuda"), ("cuda", USABLE, "cuda"), ("auto", NO_CUPY, "cpu")],
)
def test_the_choice_is_made_and_said(asked: Any, found: Probe, chosen: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kernels.backend"):
        assert resolve_backend(asked, found).backend == chosen
    assert f"backend: {chosen}" in caplog.text


def test_a_gpu_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backend, "fault_of", lambda _: "it does not compute what the CPU does: sampling")
    choice = resolve_backend("auto", USABLE)
    assert choice.backend == "cpu"
    assert "the GPU is not used: NVIDIA H200: it does not compute what the CPU does: sampling" in caplog.text
    with pytest.raises(NoDeviceError, match=r"backend: cuda cannot be used: NVIDIA H200: it does not compute") as error:
        resolve_backend("cuda", USABLE)
    assert error.value.exit_code == 2


def test_cuda_never_becomes_the_cpu() -> None:
    with pytest.raises(NoDeviceError, match=r"CuPy is not installed: pip install 'garden-gnn\[cuda\]'") as error:
        resolve_backend("cuda", NO_CUPY)
    assert error.value.exit_code == 2


def test_what_a_gpu_cannot_do_is_left_to_the_cpu_or_refused() -> None:
    choice = resolve_backend("auto", USABLE, obstacle="a dynamic cache is kept on the CPU only")
    assert (choice.backend, choice.reason) == ("cpu", "a dynamic cache is kept on the CPU only")
    with pytest.raises(NoDeviceError, match="cannot be used: a dynamic cache is kept on the CPU only"):
        resolve_backend("cuda", USABLE, obstacle="a dynamic cache is kept on the CPU only")


def test_a_machine_is_looked_at_without_a_context() -> None:
    found = probe()
    assert found.is_usable == (not found.missing)
    assert found.sentence
    if not found.devices:
        assert "use backend: cpu" in found.sentence
