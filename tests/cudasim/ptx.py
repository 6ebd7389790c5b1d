"""Reads the compiler's PTX into blocks of instructions; `ptx_grid.py` runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"\.entry (\w+)\((.*?)\)\s*(?:\.\w+[^{]*)?\{(.*?)\n\}", re.DOTALL)
_SHARED = re.compile(r"\.shared \.align \d+ \.b8 ([\w$]+)\[(\d+)\];")
_INSTRUCTION = re.compile(r"^(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);$")
_FREE = ("ld.param", "cvta")
"""Operands in the constant bank, and nothing at all in machine code."""


class PtxError(RuntimeError):
    """The interpreter cannot run this, or it did what no kernel may."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction."""

    line: int
    """Its line in the file, from 1."""
    predicate: str
    """Register that turns lanes off; empty for none."""
    negated: bool
    """Whether the predicate counts the other way."""
    parts: tuple[str, ...]
    """Opcode and its suffixes."""
    operands: tuple[str, ...]
    """As written, the destination first."""

    @property
    def is_free(self) -> bool:
        """Whether it is nothing at all in machine code, or an operand."""
        return ".".join(self.parts[:2]).startswith(_FREE) or self.parts[0] == "cvta"


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel."""

    name: str
    """Mangled name."""
    line: int
    """Line of its opening brace: what the compiler sets up before the first instruction stands under it."""
    parameters: tuple[str, ...]
    """Names of its parameters."""
    blocks: tuple[tuple[Instruction, ...], ...]
    """Instructions between labels and jumps."""
    labels: dict[str, int]
    """Block that each label begins."""
    shared: dict[str, int]
    """Where each array lies in shared memory."""


def parse(text: str) -> list[Entry]:
    """Kernels of a PTX file, in its order."""
    text = re.sub(r"//[^\n]*", "", text)
    return [_entry(match, text.count("\n", 0, match.start(3)) + 1) for match in _ENTRY.finditer(text)]


def _entry(match: re.Match[str], first_line: int) -> Entry:
    parameters = tuple(re.findall(r"\.param \.(?:align \d+ \.)?\w+ (\w+)", match[2]))
    shared, offset = {}, 0
    for name, size in _SHARED.findall(match[3]):
        shared[name] = offset
        offset += -(-int(size) // 1024) * 1024
    blocks: list[list[Instruction]] = [[]]
    labels = {}
    for line, raw in enumerate(match[3].split("\n"), first_line):
        text = raw.strip()
        if text.endswith(":"):
            if blocks[-1]:
                blocks.append([])
            labels[text[:-1]] = len(blocks) - 1
        elif found := _INSTRUCTION.match(text):
            operands = re.findall(r"\[[^\]]*\]|\{[^}]*\}|[^,\s]+", found[4])
            parts = tuple(found[3].split("."))
            blocks[-1].append(Instruction(line, found[2] or "", found[1] == "!", parts, tuple(operands)))
            if parts[0] in ("bra", "ret"):
                blocks.append([])
    return Entry(match[1], first_line, parameters, tuple(map(tuple, blocks)), labels, shared)
