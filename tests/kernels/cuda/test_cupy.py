"""What can be checked of CuPy without a GPU: that it has every name that the launcher and the ops use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kernels.cuda import source

cupy: Any = pytest.importorskip("cupy", reason="CuPy (extra `cuda`) is not installed")

SOURCES = sorted(Path(source.__file__).parent.glob("*.py"))
NAMES = re.compile(r"\b(?:self\.xp|launcher\.xp|xp|cupy)\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|\bruntime\.(\w+)")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_cupy_has_every_name_that_is_used(path: Path) -> None:
    for used, in_runtime in NAMES.findall(path.read_text()):
        found = cupy.cuda.runtime if in_runtime else cupy
        for part in (in_runtime or used).split("."):
            if part == "__name__":
                continue
            assert hasattr(found, part), f"{path.name} uses {used or in_runtime}"
            found = getattr(found, part)
            if not (isinstance(found, type) or type(found).__name__ == "module"):
                break


def test_arrays_of_cupy_are_told_from_those_of_numpy() -> None:
    assert not hasattr(cupy.ndarray, "ctypes")
