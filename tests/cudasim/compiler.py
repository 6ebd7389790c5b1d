"""NVIDIA's compiler without a GPU, nvcc or else NVRTC by pip: PTX, machine code, and what it takes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.source import source_text

NVCC = shutil.which("nvcc")
OPTIONS = ("-std=c++17", "--fmad=false")
_NOP = 0x918
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


def compile_ptx(source: str, expressions: Sequence[str], arch: int) -> str:
    """PTX of some kernels of a source; built once."""
    key = hashlib.blake2b(repr((source_text(source), expressions, arch, COMPILER)).encode(), digest_size=12).hexdigest()
    target = BUILDS / f"{source}-{key}.ptx"
    if not target.exists():
        BUILDS.mkdir(parents=True, exist_ok=True)
        if NVCC:
            text = _by_nvcc(source, expressions, arch)
        else:
            text = by_nvrtc(source, expressions, arch, to="PTX")[0].decode()
        with tempfile.NamedTemporaryFile("w", dir=BUILDS, delete=False) as out:
            out.write(text)
        Path(out.name).replace(target)
    return target.read_text()


def resources(source: str, expressions: Sequence[str], arch: int) -> list[Resources]:
    """Compile to machine code; what each kernel takes, as ptxas reports it."""
    if NVCC:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{source}.cu"
            path.write_text(instantiations(source, expressions))
            options = (*OPTIONS, f"-arch=sm_{arch}", "-cubin", "-Xptxas=-v", "-diag-suppress=177")
            report = _run([NVCC, *options, str(path), "-o", str(Path(folder) / "out.cubin")])
    else:
        report = by_nvrtc(source, expressions, arch, to="CUBIN")[1]
    return _parse(report)


def machine_instructions(source: str, expressions: Sequence[str], arch: int) -> dict[str, int]:
    """Instructions of each kernel's machine code, by its mangled name, without what fills up the last lines."""
    with tempfile.TemporaryDirectory() as folder:
        if NVCC:
            path, out = Path(folder) / f"{source}.cu", Path(folder) / "out.cubin"
            path.write_text(instantiations(source, expressions))
            _run([NVCC, *OPTIONS, f"-arch=sm_{arch}", "-cubin", "-diag-suppress=177", str(path), "-o", str(out)])
            code = out.read_bytes()
        else:
            code = by_nvrtc(source, expressions, arch, to="CUBIN")[0]
    return {name: _length(text) for name, text in _text_sections(code)}


def _text_sections(code: bytes) -> list[tuple[str, bytes]]:
    """Sections `.text.NAME` of a 64-bit ELF file."""
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count, names = struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, start + size * k) for k in range(count)]
    strings = headers[names][4]
    found = []
    for name_at, _, _, _, offset, length in headers:
        name = code[strings + name_at : code.index(b"\0", strings + name_at)].decode()
        if name.startswith(".text."):
            found.append((name.removeprefix(".text."), code[offset : offset + length]))
    return found


def _length(text: bytes) -> int:
    """Instructions of 16 bytes up to the jump to itself that ends a kernel, behind which only NOPs stand."""
    opcodes = [struct.unpack_from("<H", text, at)[0] & 0xFFF for at in range(0, len(text), 16)]
    while opcodes and opcodes[-1] == _NOP:
        opcodes.pop()
    return len(opcodes) - 1


def by_nvrtc(source: str, expressions: Sequence[str], arch: int, *, to: str) -> tuple[bytes, str]:
    """Compile as CuPy does, by name expressions; returns the code and the log."""
    library = _nvrtc()
    program = ctypes.c_void_p()
    text = source_text(source).encode()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), text, f"{source}.cu".encode(), 0, None, None))
    for expression in expressions:
        _check(library.nvrtcAddNameExpression(program, expression.encode()))
    target = f"--gpu-architecture={'sm' if to == 'CUBIN' else 'compute'}_{arch}"
    options = [*OPTIONS, target, *(["--ptxas-options=-v"] if to == "CUBIN" else [])]
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


def _by_nvcc(source: str, expressions: Sequence[str], arch: int) -> str:
    assert NVCC is not None
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / f"{source}.cu", Path(folder) / "out.ptx"
        path.write_text(instantiations(source, expressions))
        _run([NVCC, *OPTIONS, f"-arch=compute_{arch}", "-ptx", "-diag-suppress=177", str(path), "-o", str(out)])
        return out.read_text()


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(done.stderr[:6000])
    return done.stderr


def _parse(report: str) -> list[Resources]:
    found = []
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.findall(r"Used (\d+) registers", report)
    names = re.findall(r"Compiling entry function '(\w+)'", report)
    for name, (stack, stores, loads), count in zip(names, frames, registers, strict=True):
        found.append(Resources(name, int(count), int(stores) + int(loads), int(stack)))
    return found
