"""Randomness from identity: every draw is a hash of what it is for, never of who computes it.

A draw is one chain of `child` steps over (purpose, seed, epoch, batch index, hop, node, draw), so the same integers
come out of any thread count, super-batch size, cache or backend.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

U64Array = npt.NDArray[np.uint64]

# splitmix64: Weyl increment and the finaliser of Stafford's variant 13 (Steele, Lea and Flood, OOPSLA 2014).
# Chosen over Philox4x32-10 by measurement (tests/benchmarks/results/bench_rng.json): on a graph of 2M nodes and 30M
# edges Philox takes 15-22 % of sampling, over the tenth that it was allowed, this chain 4-9 %. Its price is that the
# law of the draws has to be tested: tests/kernels/test_draw.py does.
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
_MASK_64 = 2**64 - 1
_MASK_32 = np.uint64(2**32 - 1)
_32 = np.uint64(32)


class Purpose(IntEnum):
    """What a stream of draws is for; two purposes never share a draw.

    Every use of one purpose keys its streams by identities of one length, so no stream is the parent of another.
    """

    TRAIN = 1
    PROFILE = 2
    HELDOUT = 3
    VALIDATE = 4
    SHUFFLE = 5
    SPLIT = 6
    DEMO = 7
    DROPOUT = 8
    INIT = 9
    POLICY = 10


def mix64(x: U64Array) -> U64Array:
    """Mix each word so that every input bit reaches every output bit (a bijection of 64-bit words).

    Parameters
    ----------
    x : uint64 array, any shape

    Returns
    -------
    uint64 array of the same shape
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MIX_2)
    return x ^ (x >> np.uint64(31))


def child(key: U64Array, index: U64Array) -> U64Array:
    """One step of the hash chain: the words of `index` under each `key` (arrays that broadcast, uint64).

    For one key it is splitmix64 from that state, so different indices never collide under it.
    """
    return mix64(key + (index + np.uint64(1)) * np.uint64(GOLDEN))


def stream_key(purpose: Purpose, seed: int, *identity: int) -> np.uint64:
    """Key of one stream of draws.

    Parameters
    ----------
    purpose : Purpose
    seed : int
        Any integer; its low 64 bits count.
    identity : int
        What the stream belongs to, outermost first, as (epoch, batch index, hop).

    Returns
    -------
    np.uint64
    """
    key = np.zeros(1, np.uint64)
    for value in (int(purpose), seed, *identity):
        key = child(key, np.array([value & _MASK_64], np.uint64))
    return np.uint64(key[0])


def uniform_u64(key: np.uint64, ids: npt.NDArray[np.integer], draw: int = 0) -> U64Array:
    """64 uniform bits for each id: draw number `draw` of the id's own row of the stream.

    Parameters
    ----------
    key : np.uint64
        A `stream_key`.
    ids : integer array, any shape
    draw : int
        Which draw of each row.

    Returns
    -------
    uint64 array, shape of `ids`
    """
    row_keys = child(np.asarray(key, np.uint64)[None], ids.astype(np.uint64, copy=False).reshape(-1))
    bits: U64Array = child(row_keys, np.array([draw], np.uint64)).reshape(ids.shape)
    return bits


def bounded(bits: U64Array, bound: U64Array) -> U64Array:
    """Map 64 uniform bits to [0, bound): the high word of the 128-bit product (Lemire, 2019, without rejection).

    The bias is below `bound` / 2**64. The arrays broadcast.
    """
    bits_hi, bits_lo = bits >> _32, bits & _MASK_32
    bound_hi, bound_lo = bound >> _32, bound & _MASK_32
    middle = bits_hi * bound_lo + (bits_lo * bound_lo >> _32)
    carry = (bits_lo * bound_hi + (middle & _MASK_32)) >> _32
    high: U64Array = bits_hi * bound_hi + (middle >> _32) + carry
    return high


def permutation(key: np.uint64, n: int) -> npt.NDArray[np.int64]:
    """Random order of 0..n-1: positions sorted by their keyed hashes (equal hashes by position).

    Returns
    -------
    (n,) int64
    """
    order: npt.NDArray[np.int64] = np.argsort(uniform_u64(key, np.arange(n, dtype=np.uint64)), kind="stable")
    return order
