"""One test body for every launcher: the host shim in three schedules, and a GPU where there is one."""

from __future__ import annotations

import pytest

from kernels.cuda.current import cuda_launcher
from kernels.cuda.launch import Launcher
from kernels.cuda.probe import probe
from tests.cudasim.build import GXX
from tests.cudasim.launcher import Schedule, SimLauncher

_BY_SCHEDULE = {schedule: SimLauncher(schedule) for schedule in Schedule}
_GPU = "gpu"
_LAUNCHERS: list[Schedule | str] = [*Schedule, *([_GPU] if probe().is_usable else [])]


@pytest.fixture(params=_LAUNCHERS, ids=lambda one: one if one == _GPU else f"shim-{one.name.lower()}")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    if request.param == _GPU:
        return cuda_launcher(0)
    if GXX is None:
        pytest.skip("g++ is not installed: the CUDA kernels are NOT tested here")
    return _BY_SCHEDULE[request.param]
