from __future__ import annotations

from pathlib import Path
from typing import Any

from kernels.cpu import CACHE_FOLDER, intrinsics, sample, sources_digest


def test_compiled_code_is_kept_by_the_digest_of_all_sources() -> None:
    assert len(CACHE_FOLDER.name) == len("numba-") + 16
    functions: tuple[Any, ...] = (sample._plan_rows, intrinsics.child)
    for function in functions:
        assert CACHE_FOLDER in Path(function._cache.cache_path).parents


def test_the_digest_follows_names_and_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a.py", tmp_path / "b.py"
    one.write_text("x = 1")
    other.write_text("y = 2")
    before = sources_digest([one, other])
    assert before == sources_digest([other, one])
    other.write_text("y = 3")
    assert before != sources_digest([one, other])
