"""Access profiles: how often epochs of the real sampler read each node's features and adjacency list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from storage.cache.files import ArrayRecord, read_arrays
from storage.cache.inclusion import SMOOTHED_UNIT

CountArray = npt.NDArray[np.integer]
Counting = Literal["smoothed", "input", "full_link"]


@dataclass(frozen=True, slots=True, eq=False)
class AccessProfile(ArrayRecord):
    """Access counts a node: some epochs choose what is cached, further ones (held out) judge the choice."""

    KIND: ClassVar[str] = "access profile"
    VERSION: ClassVar[int] = 2

    feature_count_N: CountArray
    """(N,) batches that needed the node's features."""
    full_link_count_N: CountArray
    """(N,) GARDEN Eq. 4 with hop weights of 1."""
    adjacency_count_N: CountArray
    """(N,) reads of the node's adjacency list: one a batch and hop that has it as a destination."""
    smoothed_feature_N: CountArray
    """(N,) `feature_count_N` drawn toward the inclusion probabilities, in parts of 1/256."""
    smoothed_adjacency_N: CountArray
    """(N,) `adjacency_count_N` likewise."""
    heldout_feature_count_N: CountArray
    """(N,) as `feature_count_N`, over the held-out epochs."""
    heldout_adjacency_count_N: CountArray
    """(N,) as `adjacency_count_N`, over the held-out epochs."""
    epochs: int
    """Epochs behind the counts that choose."""
    heldout_epochs: int
    """Epochs behind the held-out counts."""
    num_batches: int
    """Mini-batches an epoch."""

    def counts(self, counting: Counting) -> tuple[CountArray, CountArray]:
        """Counts that rank feature rows and adjacency lists under a counting rule, both in one unit.

        Raises
        ------
        ValueError
            If the rule is unknown.
        """
        feature, adjacency = names_of_counts(counting)
        return getattr(self, feature), getattr(self, adjacency)

    def heldout_counts(self) -> tuple[CountArray, CountArray]:
        """Counts of the held-out epochs: of feature rows, and of adjacency lists."""
        return self.heldout_feature_count_N, self.heldout_adjacency_count_N


class StoredProfile:
    """A profile that stays in its file: counts are read when they are asked for, and are the caller's.

    Parameters
    ----------
    path : Path
        What `AccessProfile.save` or `write_profile` wrote.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def counts(self, counting: Counting) -> tuple[CountArray, CountArray]:
        """As `AccessProfile.counts`."""
        return self._read(*names_of_counts(counting))

    def heldout_counts(self) -> tuple[CountArray, CountArray]:
        """As `AccessProfile.heldout_counts`."""
        return self._read("heldout_feature_count_N", "heldout_adjacency_count_N")

    def _read(self, *names: str) -> tuple[CountArray, CountArray]:
        kind, version = AccessProfile.KIND, AccessProfile.VERSION
        arrays, _ = read_arrays(self._path, kind=kind, version=version, arrays=names, scalars=())
        return arrays[names[0]], arrays[names[1]]


def names_of_counts(counting: Counting) -> tuple[str, str]:
    """Fields of the counts that a rule ranks by.

    Raises
    ------
    ValueError
        If the rule is unknown.
    """
    if counting == "smoothed":
        return "smoothed_feature_N", "smoothed_adjacency_N"
    if counting not in ("input", "full_link"):
        raise ValueError(f"counting must be 'smoothed', 'input' or 'full_link' (got {counting!r})")
    return ("feature_count_N" if counting == "input" else "full_link_count_N"), "adjacency_count_N"


def count_dtype(num_batches: int, epochs: int, heldout_epochs: int, num_hops: int) -> np.dtype[Any]:
    """Type of counts: int32 where no count of so many mini-batches an epoch can exceed it, in parts and sums too."""
    most_count = num_batches * (1 + num_hops) * max(2 * SMOOTHED_UNIT * epochs, heldout_epochs)
    return np.dtype(np.int32 if most_count < 2**31 else np.int64)
