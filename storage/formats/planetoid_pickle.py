"""The Planetoid data sets' Python 2 pickles, read by an unpickler that admits nothing but the arrays in them."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from storage.errors import InputError
from storage.formats.files import require_file
from storage.formats.pickled_arrays import FAULTS, ArrayUnpickler


class _CsrState:
    """Stands in for `csr_matrix`: takes the pickled attributes and runs none of SciPy's code on them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


class _PlanetoidUnpickler(ArrayUnpickler):
    admitted = {  # noqa: RUF012 - nobody changes it
        ("scipy.sparse.csr", "csr_matrix"): _CsrState,
        ("collections", "defaultdict"): defaultdict,
        ("__builtin__", "list"): list,
    }


def load_pickle(path: Path) -> Any:
    """Read one file: an array, a `csr_array`, or a dict of lists.

    Raises
    ------
    InputError
        The file is missing or damaged, or asks for anything but arrays, dicts and lists.
    """
    with require_file(path).open("rb") as file:
        try:
            loaded = _PlanetoidUnpickler(file, encoding="latin1").load()
            if isinstance(loaded, _CsrState):
                return _to_csr(loaded.state)
            return np.asarray(loaded) if isinstance(loaded, np.ndarray) else loaded
        # A crafted or truncated pickle can fail in any of these ways; none of them has run foreign code.
        except FAULTS as error:
            kind = "is no Planetoid pickle" if isinstance(error, pickle.UnpicklingError) else "is a damaged pickle"
            raise InputError(f"{path} {kind} ({error}): fetch the data set again") from error


def _to_csr(state: dict[str, Any]) -> csr_array:
    parts = tuple(np.asarray(state[part]) for part in ("data", "indices", "indptr"))
    matrix = csr_array(parts, shape=state["_shape"])
    matrix.check_format(full_check=True)
    return matrix
