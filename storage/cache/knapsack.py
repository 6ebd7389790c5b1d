"""The greedy choice under a byte budget: exact ranking by value density, and filling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]


def density_order(value: Int64Array, size: Int64Array) -> Int64Array:
    """Rank items by `value / size`, highest first; equal densities keep their order.

    The comparison is exact: two different fractions with denominators below 2**b differ by more
    than 2**-2b, so the quotient followed by 2b fractional bits ranks as the fractions do. The bits
    come by long division in digits that fit 63 bits.

    Parameters
    ----------
    value : (n,) int64
        Gain of each item, >= 0.
    size : (n,) int64
        Bytes each item holds, 1 <= size < 2**56.

    Returns
    -------
    (n,) int64
        Positions of the items in rank order.
    """
    size_bits = int(size.max(initial=1)).bit_length()
    digit_bits = 62 - size_bits
    digit, remainder = np.divmod(value, size)
    digits = [-digit]
    for _ in range(-(-2 * size_bits // digit_bits)):
        digit, remainder = np.divmod(remainder << digit_bits, size)
        digits.append(-digit)
    return np.lexsort(digits[::-1])


def fill(size: Int64Array, budget_bytes: int) -> Int64Array:
    """Take items in the order given, each one that still fits.

    An item that does not fit is skipped and smaller ones after it go on filling, as a loop over
    the items would do. In rank order this makes the value taken monotone in the budget: the first
    item that one more byte admits fills the budget to the last byte at a density that no later
    item reaches.

    Parameters
    ----------
    size : (n,) int64
        Bytes each item holds.
    budget_bytes
        Bytes to fill; nothing fits in less than one.

    Returns
    -------
    (m,) int64
        Positions taken, ascending.
    """
    taken = [np.empty(0, np.int64)]
    candidates = np.flatnonzero(size <= budget_bytes)
    while len(candidates):
        held = np.cumsum(size[candidates])
        num_fits = int(np.searchsorted(held, budget_bytes, side="right"))
        taken.append(candidates[:num_fits])
        budget_bytes -= int(held[num_fits - 1])  # the first candidate always fits
        rest = candidates[num_fits:]
        candidates = rest[size[rest] <= budget_bytes]
    return np.concatenate(taken)
