from __future__ import annotations

import logging

import pytest

from kernels.backend import NoDeviceError, resolve_backend
from kernels.cuda.probe import Device, Probe, probe

GPU = Device("NVIDIA H200", (9, 0), 139 << 30)
USABLE = Probe((GPU,), "", "")
NO_CUPY = Probe((GPU,), "CuPy is not installed", "pip install 'garden-gnn[cuda]'")


@pytest.mark.parametrize(
    ("asked", "found", "backend"),
    [("cpu", USABLE, "cpu"), ("auto", USABLE, "cuda"), ("cuda", USABLE, "cuda"), ("auto", NO_CUPY, "cpu")],
)
def test_the_choice_is_made_and_said(asked: str, found: Probe, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kernels.backend"):
        assert resolve_backend(asked, found).backend == backend
    assert f"backend: {backend}" in caplog.text


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
