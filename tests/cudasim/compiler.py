"""NVIDIA's compiler without a GPU, nvcc or else NVRTC by pip: PTX, machine code, and what it takes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.source import source_text

NVCC = shutil.which("nvcc")
OPTIONS = ("-std=c++17", "--fmad=false")
BUILDS = Path(__file__).parents[2] / "build" / "cuda"


class CompileError(Exception):
    """The compiler refused a source."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes of a multiprocessor."""

    name: str
    """Mangled name."""
    registers: int
    """Registers a thread."""
    spilled_bytes: int
    """Bytes of registers stored to and loaded from local memory."""
    stack_bytes: int
    """Local memory a thread."""


def find_nvrtc() -> Path | None:
    """The library of the package `nvidia-cuda-nvrtc`."""
    found = importlib.util.find_spec("nvidia")
    for folder in (found.submodule_search_locations or ()) if found else ():
        libraries = sorted(Path(folder).glob("*/lib/libnvrtc.so.*"))
        if libraries:
            return libraries[0]
    return None


NVRTC = find_nvrtc()
COMPILER = "nvcc" if NVCC else "NVRTC" if NVRTC else None
"""Which of them is here."""


def instantiations(source: str, expressions: Sequence[str]) -> str:
    """A source, and below it a reference to each kernel, so that nvcc instantiates it."""
    lines = (f"const void* const keep_{i} = (const void*)&{expression};\n" for i, expression in enumerate(expressions))
    return source_text(source) + "".join(lines)


def compile_cubin(source: str, expressions: Sequence[str], arch: int) -> bytes:
    """Machine code of some kernels of a source, with line information; built once."""
    key = hashlib.blake2b(repr((source_text(source), expressions, arch, COMPILER)).encode(), digest_size=12).hexdigest()
    target = BUILDS / f"{source}-{key}.cubin"
    if not target.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        if NVCC:
            code = _by_nvcc(source, expressions, arch, "-lineinfo")[0]
        else:
            code = by_nvrtc(source, expressions, arch, "-lineinfo", to="CUBIN")[0]
        with tempfile.NamedTemporaryFile(dir=BUILDS, delete=False) as out:
            out.write(code)
        Path(out.name).replace(target)
    return target.read_bytes()


def resources(source: str, expressions: Sequence[str], arch: int) -> list[Resources]:
    """Compile to machine code; what each kernel takes, as ptxas reports it."""
    if NVCC:
        report = _by_nvcc(source, expressions, arch, "-Xptxas=-v")[1]
    else:
        report = by_nvrtc(source, expressions, arch, "--ptxas-options=-v", to="CUBIN")[1]
    return _parse(report)


def by_nvrtc(source: str, expressions: Sequence[str], arch: int, *more: str, to: str) -> tuple[bytes, str]:
    """Compile as CuPy does, by name expressions, with `more` options; returns the code (PTX or CUBIN) and the log."""
    library = _nvrtc()
    program = ctypes.c_void_p()
    text = source_text(source).encode()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), text, f"{source}.cu".encode(), 0, None, None))
    for expression in expressions:
        _check(library.nvrtcAddNameExpression(program, expression.encode()))
    target = f"--gpu-architecture={'sm' if to == 'CUBIN' else 'compute'}_{arch}"
    options = [*OPTIONS, target, *more]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    code = library.nvrtcCompileProgram(program, len(options), array)
    log = _text_of(library, program, "ProgramLog")
    if code:
        raise CompileError(log.decode())
    return _text_of(library, program, to), log.decode()


def _text_of(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw.rstrip(b"\0")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    assert NVRTC is not None
    for builtins in NVRTC.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))  # NVRTC asks for it by name alone, and it is in no search path
    return ctypes.CDLL(str(NVRTC))


def _check(code: int) -> None:
    if code:
        raise CompileError(f"NVRTC answers with error {code}")


def _by_nvcc(source: str, expressions: Sequence[str], arch: int, *more: str) -> tuple[bytes, str]:
    """Compile to machine code with `more` options; returns it and what the compiler says."""
    assert NVCC is not None
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / f"{source}.cu", Path(folder) / "out.cubin"
        path.write_text(instantiations(source, expressions))
        command = [NVCC, *OPTIONS, f"-arch=sm_{arch}", "-cubin", "-diag-suppress=177", *more, str(path), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(done.stderr[:6000])
        return out.read_bytes(), done.stderr


def _parse(report: str) -> list[Resources]:
    found = []
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.findall(r"Used (\d+) registers", report)
    names = re.findall(r"Compiling entry function '(\w+)'", report)
    for name, (stack, stores, loads), count in zip(names, frames, registers, strict=True):
        found.append(Resources(name, int(count), int(stores) + int(loads), int(stack)))
    return found
