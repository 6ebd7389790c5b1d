"""The Planetoid data sets' Python 2 pickles, read by an unpickler that admits nothing but the arrays in them."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from storage.errors import InputError
from storage.formats.files import require_file


class _CsrState:
    """Stands in for `csr_matrix`: takes the pickled attributes and runs none of SciPy's code on them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


def _reconstruct(kind: object, shape: tuple[int, ...], code: object) -> npt.NDArray[Any]:
    """The empty array that NumPy pickles start from; its state follows."""
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


_ADMITTED: dict[tuple[str, str], Any] = {
    ("scipy.sparse.csr", "csr_matrix"): _CsrState,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no Planetoid file holds")
        return _ADMITTED[module, name]


def load_pickle(path: Path) -> Any:
    """Read one file: an array, a `csr_array`, or a dict of lists.

    Raises
    ------
    InputError
        The file is missing or damaged, or asks for anything but arrays, dicts and lists.
    """
    with require_file(path).open("rb") as file:
        try:
            loaded = _RestrictedUnpickler(file, encoding="latin1").load()
            return _to_csr(loaded.state) if isinstance(loaded, _CsrState) else loaded
        # A crafted or truncated pickle can fail in any of these ways; none of them has run foreign code.
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise InputError(f"{path} is no Planetoid pickle ({error}): fetch the data set again") from error
        except (MemoryError, OverflowError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is a damaged pickle ({error}): fetch the data set again") from error


def _to_csr(state: dict[str, Any]) -> csr_array:
    matrix = csr_array((state["data"], state["indices"], state["indptr"]), shape=state["_shape"])
    matrix.check_format(full_check=True)
    return matrix
