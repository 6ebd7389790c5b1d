"""Rows of zeros and ones as lists of their ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

_WORD = 8


@njit(nogil=True, cache=True)
def list_ones(
    flat: npt.NDArray[np.uint8],
    words: npt.NDArray[np.uint64],
    width: int,
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
) -> None:
    """List the columns of the non-zero bytes of each row, ascending.

    Parameters
    ----------
    flat : (num_rows * width,) uint8
    words : (size of `flat` // 8,) uint64
        The same memory: eight zeros are skipped at once.
    width : int
    indptr : (num_rows + 1,) int64
        Output: offsets into `indices`.
    indices : (number of non-zero bytes,) int32
        Output: columns.
    """
    found, row, row_end = 0, 0, width
    indptr[0] = 0
    for word in range(len(words) + 1):
        if word < len(words) and words[word] == 0:
            continue
        for position in range(word * _WORD, min(word * _WORD + _WORD, flat.size)):
            if flat[position] != 0:
                while position >= row_end:
                    row += 1
                    row_end += width
                    indptr[row] = found
                indices[found] = position - (row_end - width)
                found += 1
    indptr[row + 1 :] = found
