"""Machine instructions that numba does not offer by name, and the scalar twins of `kernels.rng`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import core as numba_core
from numba import extending, njit, types
from numba.np import arrayobj

from kernels.rng import GOLDEN, MIX_1, MIX_2

_GOLDEN = np.uint64(GOLDEN)
_MIX_1 = np.uint64(MIX_1)
_MIX_2 = np.uint64(MIX_2)
_ONE = np.uint64(1)

# Untyped on purpose: numba binds the typing context, which callers never pass, and its code generators have no types.
intrinsic: Any = extending.intrinsic
c_pointer: Any = types.CPointer
cgutils: Any = numba_core.cgutils
make_array: Any = arrayobj.make_array


@intrinsic
def popcount(_typing: Any, word: Any) -> Any:
    """Set bits of a uint64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def multiply_high(_typing: Any, a: Any, b: Any) -> Any:
    """High word of the 128-bit product of two uint64."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), codegen


def _emit_prefetch(builder: Any, address: Any) -> None:
    i32 = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
    name = f"llvm.prefetch.{cgutils.voidptr_t.intrinsic_name}"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    read, keep, data = ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)
    builder.call(function, [address, read, keep, data])


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of `array[index]`: no effect but speed, safe for any index."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, args[0]).data
        _emit_prefetch(builder, builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def prefetch_address(_typing: Any, address: Any) -> Any:
    """Ask for the cache line of a uint64 address: no effect but speed, safe for any address."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _emit_prefetch(builder, builder.inttoptr(args[0], cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.uint64), codegen


@intrinsic
def element(_typing: Any, address: Any, index: Any, like: Any) -> Any:
    """Address of element `index` of a list at a uint64 address, in the dtype of the array `like`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_data_type(signature.args[2].dtype).as_pointer())
        return builder.ptrtoint(builder.gep(pointer, [args[1]]), ir.IntType(64))

    return types.uint64(types.uint64, types.int64, like), codegen


@intrinsic
def load(_typing: Any, address: Any, like: Any) -> Any:
    """Element at a uint64 address, in the dtype of the array `like` (checks nothing)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = context.get_data_type(signature.return_type).as_pointer()
        return builder.load(builder.inttoptr(args[0], pointer))

    return like.dtype(types.uint64, like), codegen


@intrinsic
def row_at(_typing: Any, address: Any, like: Any) -> Any:
    """Pointer to the row at a uint64 address, for `feature`: elements are stored as in the array `like`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return c_pointer(like.dtype)(types.uint64, like), codegen


@intrinsic
def feature(_typing: Any, row: Any, column: Any, like: Any) -> Any:
    """Element of a row in the dtype of the array `like` (checks nothing): uint8 counts, uint16 is a float16's bits."""
    stored, wanted = row.dtype, like.dtype

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind, pointer = context.get_value_type(wanted), args[0]
        if stored == types.uint16:
            half = builder.bitcast(pointer, ir.HalfType().as_pointer())
            return builder.fpext(builder.load(builder.gep(half, [args[1]])), kind)
        value = builder.load(builder.gep(pointer, [args[1]]))
        if isinstance(stored, types.Integer):
            return builder.uitofp(value, kind)
        return value if stored == wanted else builder.fpext(value, kind)

    return wanted(row, types.uint64, like), codegen


@intrinsic
def power_of_two(_typing: Any, exponent: Any) -> Any:
    """Float32 `2 ** exponent` of an int32 in [-126, 127]."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        biased = builder.add(args[0], ir.Constant(i32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(i32, 23)), ir.FloatType())

    return types.float32(types.int32), codegen


@intrinsic
def copy_bytes(_typing: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy between two uint64 addresses that do not overlap (checks nothing)."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target, source = (builder.inttoptr(address, cgutils.voidptr_t) for address in args[:2])
        cgutils.raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.int64), codegen


@njit(nogil=True, cache=True, inline="always")
def child(key: np.uint64, index: np.uint64) -> np.uint64:
    """One word of `kernels.rng.child`."""
    x = key + (index + _ONE) * _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(nogil=True, cache=True)
def slot_of(bits: npt.NDArray[np.uint64], rank: npt.NDArray[np.uint32], v: int) -> np.int64:
    """Slot of id `v` in a rank map, or -1."""
    word = bits[v >> 6]
    bit = _ONE << np.uint64(v & 63)
    if word & bit == np.uint64(0):
        return np.int64(-1)
    return np.int64(rank[v >> 6]) + np.int64(popcount(word & (bit - _ONE)))


@intrinsic
def bits_of(_typing: Any, number: Any) -> Any:
    """Bits of a float64 as a uint64: of numbers that are not negative they ascend with the value."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(types.float64), codegen
