"""Sizes of mini-batches to expect from the degrees of a graph alone, if any list is as likely to name a node as its
out-degree says: the configuration model, hop by hop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.degree_sample import DegreeSample
from tasks.step_costs import HopShape

F64Array = npt.NDArray[np.float64]
_LUCK = 0.05
"""Longer lists than those expected of the longest are drawn so often."""


@dataclass(frozen=True)
class ExpectedBatch:
    """A mini-batch of mean size."""

    shapes: tuple[HopShape, ...]
    """Its hops, that of the seeds first."""
    num_inputs: int
    """Input nodes."""
    shared_nodes: int
    """Input nodes that two of them have in common."""


def expected_batch(
    degrees: DegreeSample,
    fanouts: Sequence[int],
    num_seeds: float,
    *,
    replace: bool = False,
    longest: int = 0,
    all_seeds: float = 0,
) -> ExpectedBatch:
    """Expect a mini-batch of seeds drawn from all nodes alike.

    Parameters
    ----------
    degrees : DegreeSample
    fanouts : sequence of int
        From the input layer to the seed layer; -1 takes all neighbors.
    num_seeds : float
    replace : bool
        Whether neighbors are drawn with replacement.
    longest : int
        So many of its seeds are those with the longest lists of an epoch's, as long as they get in one of twenty draws.
    all_seeds : float
        Seeds of an epoch.

    Notes
    -----
    A node that was expanded before draws from the same list again, and finds in part what it found before: `found` is
    the share of its list by then, of the nodes that came with each hop.
    """
    in_degree, shapes, named = degrees.in_degree, list[HopShape](), float(degrees.nodes @ degrees.out_degree)
    chosen = min(longest, num_seeds)
    reached = np.full(len(in_degree), min(1.0, (num_seeds - chosen) / max(1, degrees.num_nodes)))
    reached = np.maximum(reached, _longest(degrees, chosen, all_seeds / max(1, degrees.num_nodes)))
    came, found = [reached], [np.zeros(len(in_degree))]
    for fanout in reversed(fanouts):
        drawn = in_degree if fanout < 0 else np.minimum(fanout, in_degree)
        distinct = in_degree * -np.expm1(-fanout / np.maximum(1, in_degree)) if replace and fanout > 0 else drawn
        share = distinct / np.maximum(1e-9, in_degree)
        entries = np.where(in_degree > 0, fanout, 0) if replace and fanout > 0 else drawn
        fresh = degrees.nodes @ sum(chance * distinct * (1 - old) for chance, old in zip(came, found, strict=True))
        found = [old + (1 - old) * share for old in found]
        missed = np.exp(-degrees.out_degree * fresh / max(1.0, named))
        new = (1 - reached) * (1 - missed)
        shapes.append(_shape(degrees.nodes, reached, new, entries))
        reached = reached + new
        came, found = [*came, new], [*found, np.zeros(len(in_degree))]
    return ExpectedBatch(tuple(shapes), round(float(degrees.nodes @ reached)), round(float(degrees.nodes @ reached**2)))


def _longest(degrees: DegreeSample, count: float, share: float) -> F64Array:
    """Chance of each node to be one of `count` seeds with the longest lists, if a share of all nodes are seeds."""
    order = np.argsort(-degrees.in_degree, kind="stable")
    named = np.cumsum(degrees.nodes[order])
    before = np.maximum(0.0, named - _LUCK / max(1e-9, share))  # nodes from the first that is likely to be a seed on
    taken = np.diff(np.minimum(before, count), prepend=0.0)
    chance = np.zeros(len(order))
    chance[order] = taken / np.maximum(1e-9, degrees.nodes[order])
    return chance


def _shape(nodes: F64Array, reached: F64Array, new: F64Array, entries: F64Array) -> HopShape:
    num_dst = float(nodes @ reached)
    return HopShape(round(num_dst), round(num_dst + float(nodes @ new)), round(float(nodes @ (reached * entries))))
