"""Builds a `.cu` source with g++ against the shim: one shared object for all instances of a source that tests use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernels.cuda.source import source_text

SHIM = Path(__file__).parent / "shim"
GXX = shutil.which("g++")
BUILDS = Path(__file__).parents[2] / "build" / "cudasim"
"""Built objects, by digest of all that they are made of; `make clean` removes them."""

# A shared memory array must stay in the object's own thread-local block, and each shim's symbols its own. Without the
# scalar replacement of aggregates the tracer sees the accesses that the source makes.
_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
    "-fno-tree-sra",
    "-fno-ipa-sra",
    "-Wall",
    "-Wno-unknown-pragmas",
)
_TRACED = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")


class BuildError(Exception):
    """g++ refused a source."""


def build(source: str, expressions: Sequence[str], *, traced: bool = False, text: str | None = None) -> Path:
    """Shared object of `src/SOURCE.cu`, or of `text` in its place, with an entry for each kernel.

    Parameters
    ----------
    source : str
    expressions : sequence of str
        Kernels as C++ calls them; entry i is the i-th.
    traced : bool
        Record every memory access.
    text : str, optional
        A source with a planted mistake.
    """
    text = source_text(source) if text is None else text
    exports = "".join(f"SIM_EXPORT({i}, {expression})\n" for i, expression in enumerate(expressions))
    body = f'#include "cudasim.h"\n#line 1 "{source}.cu"\n{text}\n#line 1 "exports"\n{exports}'
    flags = (*_FLAGS, *(_TRACED if traced else ()))
    digest = hashlib.blake2b(repr((body, flags, _shim_digest())).encode(), digest_size=12).hexdigest()
    target = BUILDS / f"{source}-{digest}.so"
    if not target.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILDS) as name:
            folder = Path(name)
            (folder / "kernels.cpp").write_text(body, encoding="utf-8")
            _compile(["-c", str(folder / "kernels.cpp"), *flags, f"-I{SHIM}", "-o", str(folder / "kernels.o")])
            objects = [str(folder / "kernels.o"), str(_engine(traced))]
            _compile(["-shared", "-Wl,-Bsymbolic", *objects, "-o", str(folder / "out.so")])
            (folder / "out.so").replace(target)
    return target


def load(path: Path) -> ctypes.CDLL:
    """Load a shared object by itself: two of them share no symbol."""
    library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
    library.sim_error.restype = ctypes.c_char_p
    return library


def _engine(traced: bool) -> Path:
    target = BUILDS / f"engine-{_shim_digest()}{'-traced' if traced else ''}.o"
    if not target.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILDS) as name:
            out = Path(name) / "engine.o"
            defines = ["-DCUDASIM_TRACE"] if traced else []
            _compile(["-c", str(SHIM / "engine.cpp"), *_FLAGS, *defines, "-O2", "-o", str(out)])
            out.replace(target)
    return target


def _compile(arguments: list[str]) -> None:
    assert GXX is not None
    done = subprocess.run([GXX, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise BuildError(done.stderr[:6000])


@cache
def _shim_digest() -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(SHIM.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()
