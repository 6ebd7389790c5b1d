"""What a traced launch touched, by line of the source: lanes, sectors and lines a request; races in shared memory."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KINDS = ("global load", "global store", "shared load", "shared store", "global atomic", "shared atomic")


@dataclass(frozen=True, slots=True)
class Site:
    """Requests of one kind and width that a line of a source made."""

    at: str
    """File and line."""
    kind: str
    """One of KINDS."""
    bytes: int
    """Bytes a lane."""
    requests: int
    """Warp instructions."""
    lanes: int
    """Lanes that took part, all together."""
    sectors: int
    """Sectors of 32 bytes, all together."""
    lines: int
    """Lines of 128 bytes, all together."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One launch, or several of the same source."""

    sites: tuple[Site, ...]
    """By line."""
    findings: tuple[tuple[str, str], ...]
    """Line, and what is wrong there."""


def read_trace(library: ctypes.CDLL, path: Path) -> Trace:
    """Take the trace of a library, which begins anew."""
    library.sim_trace_report.restype = ctypes.c_char_p
    rows = [row.split(" ", 2) for row in library.sim_trace_report().decode().splitlines()]
    lines = _lines(path, sorted({row[1] for row in rows}))
    found: dict[tuple[str, str, int], list[int]] = {}
    for kind_of_row, offset, rest in rows:
        if kind_of_row == "S":
            kind, size, *counts = map(int, rest.split())
            total = found.setdefault((lines[offset], KINDS[kind], size), [0] * 4)
            total[:] = [a + b for a, b in zip(total, counts, strict=True)]
    sites = tuple(Site(at, kind, size, *counts) for (at, kind, size), counts in sorted(found.items()))
    findings = sorted({(lines[row[1]], row[2]) for row in rows if row[0] == "F"})
    return Trace(sites, tuple(findings))


def _lines(path: Path, offsets: Iterable[str]) -> dict[str, str]:
    """Line of the kernel's source for each offset of code: the innermost that is not the shim's."""
    offsets = list(offsets)
    if not offsets:
        return {}
    command = ["addr2line", "-e", str(path), "-i", "-a", *offsets]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for part in re.split(r"^0x", text, flags=re.MULTILINE)[1:]:
        address, *places = part.splitlines()
        names = [Path(place.split(" (")[0]).name for place in places]
        own = [name for name in names if not name.startswith(("cudasim.h", "?"))]
        found[f"{int(address, 16):x}"] = own[0] if own else "?"
    return found
