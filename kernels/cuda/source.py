"""The `.cu` sources as the compilers take them, and what their kernels' parameters are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

SOURCES = Path(__file__).parent / "src"

_INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?__global__\s+void\s+(?:__launch_bounds__\((?P<cta>\d+)(?:, \d+)?\)\s+)?"
    r"(?P<name>\w+)\s*\((?P<parameters>[^)]*)\)"
)
_PARAMETER = re.compile(r"^(?P<const>const\s+)?(?P<kind>\w+)\s*(?P<star>\*?)\s*(?:__restrict__\s+)?\w+$")
_DTYPES: dict[str, Any] = {
    "u8": np.uint8,
    "u16": np.uint16,
    "i32": np.int32,
    "int": np.int32,
    "u32": np.uint32,
    "i64": np.int64,
    "u64": np.uint64,
    "float": np.float32,
    "double": np.float64,
}
_ANY = {"uint4": 16}
"""Types that stand for bytes of any dtype, and their sizes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of one source, its template arguments chosen."""

    source: str
    """Name of the file under `src/`, without its suffix."""
    name: str
    """Name of the function."""
    template: tuple[str, ...] = ()
    """Template arguments as C++ writes them."""

    @property
    def expression(self) -> str:
        """What C++ calls it."""
        return f"{self.name}<{', '.join(self.template)}>" if self.template else self.name


@dataclass(frozen=True, slots=True)
class Parameter:
    """What one argument of a kernel must be."""

    is_array: bool
    """Whether the kernel takes a pointer."""
    dtype: np.dtype[Any] | None
    """Dtype of the scalar or of the array; None takes an array of any dtype, as bytes."""
    is_written: bool = False
    """Whether the kernel may write to the array."""


def c_type(dtype: np.dtype[Any]) -> str:
    """Name of a dtype in the sources, for template arguments.

    Raises
    ------
    ValueError
        If the sources have no name for it.
    """
    for name, known in _DTYPES.items():
        if np.dtype(known) == dtype:
            return name
    raise ValueError(f"no kernel takes {dtype}")


@cache
def source_text(source: str) -> str:
    """Text of `src/SOURCE.cu` with its headers in place, each once: one text to compile, and to remember builds by."""
    seen: set[str] = set()

    def expanded(path: Path) -> str:
        def header(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return expanded(SOURCES / match[1])

        return _INCLUDE.sub(header, path.read_text(encoding="utf-8")).replace("#pragma once\n", "")

    return expanded(SOURCES / f"{source}.cu")


@cache
def cta_size(source: str, name: str) -> int:
    """Threads a CTA that a kernel is compiled for (its `__launch_bounds__`)."""
    return int(_declaration(source, name)["cta"])


@cache
def parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """Parameters of a kernel, read from its declaration.

    Raises
    ------
    ValueError
        If the source has no such kernel, or it is not told all its template arguments.
    """
    declared = _declaration(kernel.source, kernel.name)
    names = [part.split()[-1] for part in (declared["template"] or "").split(",") if part.strip()]
    if len(names) != len(kernel.template):
        raise ValueError(f"{kernel.name} takes {len(names)} template arguments (got {len(kernel.template)})")
    chosen = dict(zip(names, kernel.template, strict=True))
    parts = (" ".join(part.split()) for part in declared["parameters"].split(","))
    return tuple(_parameter(part, chosen) for part in parts)


def _declaration(source: str, name: str) -> re.Match[str]:
    for match in _KERNEL.finditer(source_text(source)):
        if match["name"] == name:
            return match
    raise ValueError(f"{source}.cu has no kernel {name}")


def _parameter(declaration: str, chosen: dict[str, str]) -> Parameter:
    match = _PARAMETER.match(declaration)
    if match is None:
        raise ValueError(f"parameter {declaration!r} is not of a form that launches can check")
    kind, is_array = chosen.get(match["kind"], match["kind"]), bool(match["star"])
    dtype = None if kind in _ANY and is_array else np.dtype(_DTYPES[kind])
    return Parameter(is_array, dtype, is_array and not match["const"])
