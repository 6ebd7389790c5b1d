"""One test body for every launcher: the host shim in three schedules, and a GPU where there is one."""

from __future__ import annotations

import pytest

from kernels.cuda.launch import Launcher
from tests.cudasim.build import GXX
from tests.cudasim.launcher import Schedule, SimLauncher

_BY_SCHEDULE = {schedule: SimLauncher(schedule) for schedule in Schedule}


@pytest.fixture(params=list(Schedule), ids=lambda schedule: f"shim-{schedule.name.lower()}")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    if GXX is None:
        pytest.skip("g++ is not installed: the CUDA kernels are NOT tested here")
    return _BY_SCHEDULE[request.param]
