"""Guards before a launch: raw kernels check nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.cuda.launch import Launcher, launch
from kernels.cuda.source import Kernel

KERNEL = Kernel("gather", "count_accesses", ("i32",))


def _run(launcher: Launcher, **changes: Any) -> None:
    xp = launcher.xp
    ids = xp.zeros(4, np.int32)
    arguments = {"num_ids": 4, "ids": ids, "counts": xp.zeros(3, np.uint64)} | changes
    launch(launcher, KERNEL, 4, list(arguments.values()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": lambda xp: xp.zeros(4, np.int64)}, "argument 1 of count_accesses must be int32"),
        ({"ids": lambda xp: xp.zeros(8, np.int32)[::2]}, "must be contiguous"),
        ({"ids": [0, 0, 0, 0]}, "must be an array"),
        ({"num_ids": 2.0}, "must be an integer"),
        ({"num_ids": 2**63}, "must fit int64"),
        ({"more": 1}, "takes 3 arguments"),
    ],
)
def test_wrong_arguments_never_reach_a_kernel(launcher: Launcher, changes: dict[str, Any], message: str) -> None:
    made = {name: value(launcher.xp) if callable(value) else value for name, value in changes.items()}
    with pytest.raises(ValueError, match=message):
        _run(launcher, **made)


def test_no_thread_is_no_launch(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    grids = list[int]()
    monkeypatch.setattr(launcher, "run", lambda kernel, grid, *_: grids.append(grid))
    arguments = (0, launcher.xp.zeros(0, np.int32), launcher.xp.zeros(0, np.uint64))
    launch(launcher, KERNEL, 0, arguments)
    assert grids == []
    launch(launcher, KERNEL, 1, arguments)
    assert grids == [1]


def test_more_threads_than_a_grid_has_are_refused(launcher: Launcher) -> None:
    xp = launcher.xp
    with pytest.raises(ValueError, match="cannot have"):
        launch(launcher, KERNEL, 2**40, (0, xp.zeros(0, np.int32), xp.zeros(0, np.uint64)))
