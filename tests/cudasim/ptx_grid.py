"""Runs the compiler's own PTX, all warps of a grid in step, and counts what a GPU would issue and move.

Lanes of a warp that stand at different blocks of code take turns, the lowest block first, as reconvergence makes a GPU
do. Counted are warp instructions, the lanes at work in each, and for every request to global memory the lanes, 32-byte
sectors and bytes. Reads and writes hit the arrays themselves, so results can be compared; an address outside every
known array is an error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.rng import bounded
from tests.cudasim.ptx import Entry, Instruction, PtxError
from tests.cudasim.ptx_memory import LANES, SHARED_BASE, Memory, Requests

_NUMPY = {
    "u8": np.uint8, "u16": np.uint16, "b16": np.uint16, "s16": np.int16, "u32": np.uint32, "b32": np.uint32,
    "s32": np.int32, "u64": np.uint64, "b64": np.uint64, "s64": np.int64, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_ATOMIC: dict[str, Any] = {"add": np.add, "max": np.maximum, "min": np.minimum}
_REDUCE: dict[str, Any] = {"add": np.add, "or": np.bitwise_or}


@dataclass(slots=True)
class Counts:
    """What running some kernels came to."""

    warp_instructions: int = 0
    """Instructions issued, each for a warp."""
    lane_instructions: int = 0
    """Lanes that executed them: active, and not turned off by a predicate."""
    machine_instructions: int = 0
    """Machine instructions issued, each for a warp: those made of a line of PTX as often as that line was."""
    requests: dict[str, Requests] = field(default_factory=dict)
    """By kind: "load" and "store" of what kernels are given, "lists" for loads of adjacency, "atomic"."""

    @property
    def lane_efficiency(self) -> float:
        """Share of the lanes at work, over all instructions."""
        return self.lane_instructions / max(1, LANES * self.warp_instructions)

    def add(self, other: Counts) -> None:
        """Add another kernel's."""
        self.warp_instructions += other.warp_instructions
        self.lane_instructions += other.lane_instructions
        self.machine_instructions += other.machine_instructions
        for kind, requests in other.requests.items():
            self.requests.setdefault(kind, Requests()).add(requests)


def _names(operand: str) -> list[str]:
    """Registers of an operand: several in the braces of a vector."""
    return re.findall(r"[^\s,{}]+", operand)


def _shifted(index: Any, by: int) -> Any:
    """Places `by` elements on."""
    return (*index[:-1], index[-1] + by) if isinstance(index, tuple) else index + by


def _space(instruction: Instruction, kind: str) -> str:
    return "shared" if "shared" in instruction.parts else kind


class Grid:
    """All warps of one launch."""

    def __init__(
        self, entry: Entry, grid: int, cta: int, arguments: Sequence[int], arrays: dict[str, list[Any]]
    ) -> None:
        self._entry, self._cta = entry, cta
        self._num_warps = grid * cta // LANES
        self._registers: dict[str, Any] = {}
        thread = np.arange(self._num_warps * LANES, dtype=np.uint32).reshape(-1, LANES)
        self._special = {
            "%tid.x": thread % np.uint32(cta), "%ctaid.x": thread // np.uint32(cta),
            "%ntid.x": np.full_like(thread, cta), "%laneid": thread % np.uint32(LANES),
        }  # fmt: skip
        self._parameters = dict(zip(entry.parameters, arguments, strict=True))
        self._memory = Memory(arrays, grid, cta // LANES)
        self.counts = Counts(requests=self._memory.requests)
        self.issued = Counter({entry.line: self._num_warps})
        """Warps that came by, by line of the PTX; all of them enter."""

    def run(self) -> Counts:
        """Run to the end."""
        end, blocks = len(self._entry.blocks), self._entry.blocks
        at = np.zeros((self._num_warps, LANES), np.int64)
        while (block := int(at.min())) < end:
            self._mask = at == block
            self._next = np.where(self._mask, block + 1, at)
            self._end = end
            for instruction in blocks[block]:
                self._step(instruction)
            at = self._next
        return self.counts

    def _step(self, instruction: Instruction) -> None:
        mask = self._mask
        if instruction.predicate:
            chosen = self._registers[instruction.predicate]
            mask = mask & (~chosen if instruction.negated else chosen)
        num_warps = int(self._mask.any(axis=1).sum())
        self.issued[instruction.line] += num_warps
        if not instruction.is_free:
            self.counts.warp_instructions += num_warps
            self.counts.lane_instructions += int(mask.sum())
        name = instruction.parts[0]
        body = getattr(self, f"_op_{name}", None)
        if body is None:
            raise PtxError(f"no meaning for {'.'.join(instruction.parts)}")
        body(instruction, mask)

    # ---- operands
    def _value(self, operand: str, kind: str) -> Any:
        dtype = _NUMPY.get(kind, np.uint64)
        if operand in self._special:
            return self._special[operand].astype(dtype)
        if operand.startswith("%"):
            held = self._registers[operand]
            if kind == "pred":
                return held
            if held.dtype == dtype:
                return held
            size = np.dtype(dtype).itemsize
            return held.view(dtype) if held.dtype.itemsize == size else held.astype(dtype)
        if kind == "pred":
            return np.bool_(int(operand))
        if operand.startswith("0f"):
            return np.uint32(int(operand[2:], 16)).view(np.float32)
        if operand in self._entry.shared or operand == "smem":
            return dtype(self._entry.shared.get(operand, 0))
        return np.array(int(operand, 0) % 2 ** (8 * np.dtype(dtype).itemsize), np.uint64).astype(dtype)[()]

    def _write(self, operand: str, value: Any, mask: Any) -> None:
        value = np.asarray(value)
        if value.dtype.kind == "i":
            value = value.view(value.dtype.str.replace("i", "u")) if value.ndim else value.astype(
                value.dtype.str.replace("i", "u")
            )  # fmt: skip
        old = self._registers.get(operand)
        if old is None:
            old = np.zeros(mask.shape, value.dtype)
        if value.dtype != old.dtype:
            value = value.astype(old.dtype)
        self._registers[operand] = np.where(mask, value, old)

    # ---- arithmetic
    def _binary(self, instruction: Instruction, mask: Any, body: Callable[[Any, Any], Any]) -> None:
        kind = instruction.parts[-1]
        a, b = (self._value(operand, kind) for operand in instruction.operands[1:3])
        with np.errstate(over="ignore"):
            self._write(instruction.operands[0], body(a, b), mask)

    def _op_mov(self, i: Instruction, mask: Any) -> None:
        self._write(i.operands[0], self._value(i.operands[1], i.parts[-1]), mask)

    def _op_cvta(self, i: Instruction, mask: Any) -> None:
        """Shared memory lies in a window of its own among all addresses."""
        value = self._value(i.operands[1], i.parts[-1])
        self._write(i.operands[0], value + np.uint64(SHARED_BASE) if i.parts[1] == "shared" else value, mask)

    def _op_add(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.add)

    def _op_sub(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.subtract)

    def _op_min(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.minimum)

    def _op_max(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.maximum)

    def _op_and(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.bitwise_and)

    def _op_or(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.bitwise_or)

    def _op_xor(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, np.bitwise_xor)

    def _op_not(self, i: Instruction, mask: Any) -> None:
        self._write(i.operands[0], np.invert(self._value(i.operands[1], i.parts[-1])), mask)

    def _op_neg(self, i: Instruction, mask: Any) -> None:
        self._write(i.operands[0], np.negative(self._value(i.operands[1], i.parts[-1])), mask)

    def _op_popc(self, i: Instruction, mask: Any) -> None:
        self._write(i.operands[0], np.bitwise_count(self._value(i.operands[1], i.parts[-1])).astype(np.uint32), mask)

    def _op_mul(self, i: Instruction, mask: Any) -> None:
        self._write(i.operands[0], self._product(i), mask)

    def _op_mad(self, i: Instruction, mask: Any) -> None:
        kind = _WIDER[i.parts[-1]] if i.parts[1] == "wide" else i.parts[-1]
        with np.errstate(over="ignore"):
            self._write(i.operands[0], self._product(i) + self._value(i.operands[3], kind), mask)

    def _product(self, i: Instruction) -> Any:
        form, kind = i.parts[1], i.parts[-1]
        a, b = (self._value(operand, kind) for operand in i.operands[1:3])
        with np.errstate(over="ignore"):
            if form == "wide":
                wide = _NUMPY[_WIDER[kind]]
                return np.asarray(a).astype(wide) * np.asarray(b).astype(wide)
            if form == "lo":
                return a * b
            if kind in ("u32", "s32"):
                wide = _NUMPY[_WIDER[kind]]
                return (np.asarray(a).astype(wide) * np.asarray(b).astype(wide) >> wide(32)).astype(_NUMPY[kind])
            return bounded(np.atleast_1d(a), np.atleast_1d(b))

    def _op_shl(self, i: Instruction, mask: Any) -> None:
        self._shift(i, mask, np.left_shift)

    def _op_shr(self, i: Instruction, mask: Any) -> None:
        self._shift(i, mask, np.right_shift)

    def _shift(self, i: Instruction, mask: Any, body: Callable[[Any, Any], Any]) -> None:
        kind = i.parts[-1]
        a, count = self._value(i.operands[1], kind), self._value(i.operands[2], "u32")
        self._write(i.operands[0], body(a, np.asarray(count).astype(np.asarray(a).dtype)), mask)

    def _op_cvt(self, i: Instruction, mask: Any) -> None:
        to, source = i.parts[-2], i.parts[-1]
        self._write(i.operands[0], np.asarray(self._value(i.operands[1], source)).astype(_NUMPY[to]), mask)

    def _op_setp(self, i: Instruction, mask: Any) -> None:
        self._binary(i, mask, _COMPARE[i.parts[1]])

    def _op_selp(self, i: Instruction, mask: Any) -> None:
        a, b = (self._value(operand, i.parts[-1]) for operand in i.operands[1:3])
        self._write(i.operands[0], np.where(self._value(i.operands[3], "pred"), a, b), mask)

    # ---- control
    def _op_bra(self, i: Instruction, mask: Any) -> None:
        self._next = np.where(mask, self._entry.labels[i.operands[-1]], self._next)

    def _op_ret(self, i: Instruction, mask: Any) -> None:
        self._next = np.where(mask, self._end, self._next)

    def _op_bar(self, i: Instruction, mask: Any) -> None:
        """In step, everything before has happened."""

    # ---- lanes
    def _op_shfl(self, i: Instruction, mask: Any) -> None:
        target, _, _ = i.operands[0].partition("|")
        value, lane = self._value(i.operands[1], "u32"), np.arange(LANES)
        other = np.broadcast_to(np.asarray(self._value(i.operands[2], "u32")).astype(np.int64), mask.shape)
        source = {"idx": other % LANES, "bfly": lane ^ other}[i.parts[2]]
        if not np.take_along_axis(mask, source, axis=1)[mask].all():
            raise PtxError("a shuffle reads a lane that does not take part")
        self._write(target, np.take_along_axis(value, source, axis=1), mask)

    def _op_redux(self, i: Instruction, mask: Any) -> None:
        value, body = self._value(i.operands[1], "u32"), _REDUCE[i.parts[2]]
        together = body.reduce(np.where(mask, value, np.uint32(0)), axis=1, keepdims=True, dtype=np.uint32)
        self._write(i.operands[0], np.broadcast_to(together, mask.shape), mask)

    def _op_vote(self, i: Instruction, mask: Any) -> None:
        chosen = self._value(i.operands[1], "pred") & mask
        if i.parts[2] == "ballot":
            bits = (chosen.astype(np.uint32) << np.arange(LANES, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
            self._write(i.operands[0], np.broadcast_to(bits[:, None], mask.shape), mask)
        else:
            self._write(i.operands[0], np.broadcast_to(chosen.any(axis=1)[:, None], mask.shape), mask)

    # ---- memory
    def _op_ld(self, i: Instruction, mask: Any) -> None:
        if i.parts[1] == "param":
            value = self._parameters[i.operands[1].strip("[]")]
            self._write(i.operands[0], np.asarray(value, np.uint64).astype(_NUMPY[i.parts[-1]]), mask)
            return
        dtype, names = np.dtype(_NUMPY[i.parts[-1]]), _names(i.operands[0])
        out = np.zeros((len(names), *mask.shape), dtype)
        for where, part, index in self._places(i.operands[1], dtype, mask, _space(i, "load"), len(names)):
            for k in range(len(names)):
                out[k][where] = part[_shifted(index, k)]
        for name, value in zip(names, out, strict=True):
            self._write(name, value, mask)

    def _op_st(self, i: Instruction, mask: Any) -> None:
        dtype, names = np.dtype(_NUMPY[i.parts[-1]]), _names(i.operands[1])
        values = [np.broadcast_to(self._value(name, i.parts[-1]), mask.shape) for name in names]
        for where, part, index in self._places(i.operands[0], dtype, mask, _space(i, "store"), len(names)):
            for k, value in enumerate(values):
                part[_shifted(index, k)] = value[where]

    def _op_atom(self, i: Instruction, mask: Any) -> None:
        self._atomic(i, i.operands[1], i.operands[2], mask)

    def _op_red(self, i: Instruction, mask: Any) -> None:
        self._atomic(i, i.operands[0], i.operands[1], mask)

    def _atomic(self, i: Instruction, address: str, operand: str, mask: Any) -> None:
        """Without the old value: the kernels that are run here do not look at it."""
        dtype = np.dtype(_NUMPY[i.parts[-1]])
        value = np.broadcast_to(self._value(operand, i.parts[-1]), mask.shape)
        body = next(_ATOMIC[part] for part in i.parts if part in _ATOMIC)
        for where, part, index in self._places(address, dtype, mask, "atomic"):
            body.at(part, index, value[where])

    def _places(self, operand: str, dtype: np.dtype[Any], mask: Any, kind: str, length: int = 1) -> Any:
        name, _, offset = operand.strip("[]").partition("+")
        address = np.broadcast_to(self._value(name, "u64"), mask.shape)
        if kind == "shared":
            address = address + np.uint64(SHARED_BASE)
        if offset:
            address = address + np.uint64(int(offset) % 2**64)
        return self._memory.places(address, dtype, mask, kind, length)
