"""What a cubin with line information says of its kernels: their PTX, and which line of it each instruction is from."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_INSTRUCTION_BYTES = 16
_NOP = 0x918
_SYMBOL_BYTES, _RELOCATION_BYTES = 24, 24
_PTX, _LINES = ".nv_debug_ptx_txt", ".nv_debug_line_sass"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Some kernels."""

    ptx: str
    """Their PTX."""
    lines: dict[str, list[int]]
    """By mangled name: for each machine instruction the line of the PTX, from 1, that it was made of."""


def read_machine_code(cubin: bytes) -> MachineCode:
    """Read a cubin that was compiled with `-lineinfo`.

    Parameters
    ----------
    cubin : bytes
        A 64-bit ELF file.

    Raises
    ------
    ValueError
        If it has no line information.
    """
    sections = _sections(cubin)
    if _PTX not in sections or _LINES not in sections:
        raise ValueError("the cubin was compiled without -lineinfo")
    ptx = sections[_PTX].rstrip(b"\0").replace(b"\0", b"\n").decode()
    lines = {}
    for name, rows in zip(_functions(sections), _line_table(sections[_LINES]), strict=True):
        lines[name] = _expanded(rows, _length(sections[f".text.{name}"]))
    return MachineCode(ptx, lines)


def _sections(elf: bytes) -> dict[str, bytes]:
    (start,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + size * k) for k in range(count)]
    strings = headers[names][4]
    found = {}
    for name_at, _, _, _, offset, length in headers:
        name = elf[strings + name_at : elf.index(b"\0", strings + name_at)].decode()
        found[name] = elf[offset : offset + length]
    return found


def _functions(sections: dict[str, bytes]) -> list[str]:
    """Functions in the order of the line table: the symbols that its addresses are relocated by."""
    symbols, strings, found = sections[".symtab"], sections[".strtab"], []
    for _, info, _ in struct.iter_unpack("<QQq", sections[f".rela{_LINES}"]):
        (name_at,) = struct.unpack_from("<I", symbols, (info >> 32) * _SYMBOL_BYTES)
        found.append(strings[name_at : strings.index(b"\0", name_at)].decode())
    return found


def _expanded(rows: list[tuple[int, int]], length: int) -> list[int]:
    """Line of each instruction, from (address, line) at which a line begins."""
    lines = []
    for (address, line), (following, _) in zip(rows, [*rows[1:], (length * _INSTRUCTION_BYTES, 0)], strict=True):
        lines += [line] * ((following - address) // _INSTRUCTION_BYTES)
    return lines[:length]


def _length(text: bytes) -> int:
    """Instructions up to the jump to itself that ends a kernel, behind which only NOPs stand."""
    opcodes = [struct.unpack_from("<H", text, at)[0] & 0xFFF for at in range(0, len(text), _INSTRUCTION_BYTES)]
    while opcodes and opcodes[-1] == _NOP:
        opcodes.pop()
    return len(opcodes) - 1


def _line_table(data: bytes) -> Iterator[list[tuple[int, int]]]:
    """Rows (address, line) of each function: the line-number programs of DWARF 2, section 6.2."""
    at = 0
    while at < len(data):
        unit_length, _, header_length, step = struct.unpack_from("<IHIB", data, at)
        line_base, line_range, opcode_base = struct.unpack_from("<bBB", data, at + 12)
        lengths = data[at + 15 : at + 14 + opcode_base]
        program = _Program(data[at + 10 + header_length : at + 4 + unit_length])
        yield from program.rows(step, line_base, line_range, lengths)
        at += 4 + unit_length


class _Program:
    """One line-number program."""

    def __init__(self, code: bytes) -> None:
        self._code, self._at = code, 0

    def rows(self, step: int, line_base: int, line_range: int, lengths: bytes) -> Iterator[list[tuple[int, int]]]:
        """Rows of each sequence. `lengths` are the numbers of operands of the standard opcodes."""
        address, line, rows = 0, 1, list[tuple[int, int]]()
        special = len(lengths) + 1
        while self._at < len(self._code):
            opcode = self._byte()
            if opcode >= special:
                address += (opcode - special) // line_range * step
                line += line_base + (opcode - special) % line_range
                rows.append((address, line))
            elif opcode == 0:
                size = self._number()
                if self._code[self._at] == 1:  # end of sequence
                    yield rows
                    address, line, rows = 0, 1, []
                self._at += size
            elif opcode == 1:  # copy
                rows.append((address, line))
            elif opcode == 2:  # advance pc
                address += self._number() * step
            elif opcode == 3:  # advance line
                line += self._number(signed=True)
            elif opcode == 8:  # const add pc
                address += (255 - special) // line_range * step
            elif opcode == 9:  # fixed advance pc
                address += self._byte() + 256 * self._byte()
            else:
                for _ in range(lengths[opcode - 1]):
                    self._number()

    def _byte(self) -> int:
        self._at += 1
        return self._code[self._at - 1]

    def _number(self, *, signed: bool = False) -> int:
        """A LEB128 integer."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << shift) if signed and byte & 64 else value
