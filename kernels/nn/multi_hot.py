"""The linear map of multi-hot rows: adds up a few columns of the matrix instead of multiplying by zeros."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.aligned import aligned
from kernels.cpu.multi_hot import list_ones
from kernels.cuda.current import launcher_for
from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate

DENSE_SHARE = 0.05
"""Share of ones above which a matrix product is faster."""


def linear_rows(rows_SF: Tensor, weight_OF: Tensor) -> Tensor:
    """`rows @ weight.T`, fast for sparse uint8 rows of zeros and ones on the CPU.

    Parameters
    ----------
    rows_SF : (num_rows, F) tensor of any numeric dtype
    weight_OF : (out_dim, F) float32 tensor

    Returns
    -------
    (num_rows, out_dim) float32 tensor
        Also where autocast lets the product itself run in bfloat16.
    """
    is_sparse = rows_SF.dtype == torch.uint8 and launcher_for(rows_SF) is None
    ones = _ones_of(rows_SF) if is_sparse else None
    if ones is None:
        return functional.linear(rows_SF.to(weight_OF.dtype), weight_OF).to(weight_OF.dtype)
    return aggregate(ones, weight_OF.T.contiguous())


def _ones_of(rows_SF: Tensor) -> Mfg | None:
    """The rows as destinations of the columns where they hold a one; None where a matrix product does better."""
    flat = aligned(rows_SF.numpy()).reshape(-1)
    num_ones = int(np.count_nonzero(flat))
    if num_ones > DENSE_SHARE * flat.size or int(flat.max(initial=0)) > 1:
        return None
    indptr, indices = np.empty(len(rows_SF) + 1, np.int64), np.empty(num_ones, np.int32)
    words = flat[: flat.size // 8 * 8].view(np.uint64)
    list_ones(flat, words, rows_SF.shape[1], indptr, indices)
    return Mfg(indptr, indices, rows_SF.shape[1])
