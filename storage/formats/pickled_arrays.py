"""Pickles of NumPy arrays, dicts, lists and numbers, read by an unpickler that admits nothing else."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FAULTS = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""What reading a crafted or truncated pickle may raise, having run no foreign code."""

_PLAIN_TYPE = re.compile(r"[biuf][1248]")
_NO_FIELDS = (None, None, None, -1, -1, 0)


class _PickledType:
    """Stands in for `numpy.dtype`: a plain numeric type, and nothing that NumPy's own state could make of it."""

    def __init__(self, code: str, *_: object) -> None:
        if not isinstance(code, str) or not _PLAIN_TYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it holds values of type {code!r}: only plain numbers are read")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *fields = state
        if order not in ("<", ">", "|", "=") or tuple(fields[:6]) != _NO_FIELDS:
            raise pickle.UnpicklingError("it holds structured values: only plain numbers are read")
        self.dtype = self.dtype.newbyteorder(order)


class _PickledArray(np.ndarray):
    """Takes an array's pickled state, once it has been checked."""

    def __setstate__(self, state: Any) -> None:
        version, shape, kind, column_order, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(kind, _PickledType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it holds an array of objects: only plain numbers are read")
        if not all(isinstance(length, int) and length >= 0 for length in shape):
            raise pickle.UnpicklingError(f"it holds an array of shape {shape}")
        size = kind.dtype.itemsize
        for length in shape:
            size *= length
        if size != len(raw):
            raise pickle.UnpicklingError(f"an array of shape {shape} holds {len(raw)} bytes, not {size}")
        checked: Any = (version, tuple(shape), kind.dtype, bool(column_order), raw)
        super().__setstate__(checked)


def _reconstruct(kind: object, shape: tuple[int, ...], code: object) -> npt.NDArray[Any]:
    """The empty array that NumPy pickles start from; its state follows."""
    return np.ndarray.__new__(_PickledArray, (0,), np.int8)


def _encode(text: str, encoding: str) -> bytes:
    """What Python 3 pickles bytes of protocol 2 with."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """What Python 3 pickles the empty bytes of protocol 2 with."""
    return b""


def _scalar(kind: _PickledType, data: bytes | str) -> Any:
    raw = data.encode("latin1") if isinstance(data, str) else data
    return np.frombuffer(raw, kind.dtype, 1)[0]


_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_ADMITTED: dict[tuple[str, str], Any] = {
    **{(module, "_reconstruct"): _reconstruct for module in _MODULES},
    **{(module, "scalar"): _scalar for module in _MODULES},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _PickledType,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays of plain numbers, dicts, lists, strings and numbers.

    Formats that hold more add to `admitted`, by module and name.
    """

    admitted: dict[tuple[str, str], Any] = {}  # noqa: RUF012 - subclasses replace it, nobody changes it

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Give what a pickle asks for by name, if it is admitted."""
        found: Callable[..., Any] | None = self.admitted.get((module, name), _ADMITTED.get((module, name)))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no file of this format holds")
        return found
