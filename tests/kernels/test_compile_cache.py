from __future__ import annotations

from pathlib import Path

from kernels import cpu, rng
from kernels.cpu import intrinsics, sample, sources_digest


def test_compiled_code_is_kept_by_the_digest_of_all_sources() -> None:
    sources = [*Path(cpu.__file__).parent.glob("*.py"), Path(rng.__file__)]
    folder = f"numba-{sources_digest(sources)}"
    for function in (sample._plan_rows, intrinsics.child):
        assert folder in Path(function._cache.cache_path).parts


def test_the_digest_follows_names_and_bytes(tmp_path: Path) -> None:
    one, other = tmp_path / "a.py", tmp_path / "b.py"
    one.write_text("x = 1")
    other.write_text("y = 2")
    before = sources_digest([one, other])
    assert before == sources_digest([other, one])
    other.write_text("y = 3")
    assert before != sources_digest([one, other])
