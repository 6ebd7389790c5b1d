"""How hyperbatches are loaded, and how many are held at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.mfg import IdArray, Sample
from kernels.tiered_rows import TieredRows
from storage.blocks.gathering import GatherOptions
from storage.blocks.hyperbatch import SamplingMemory
from storage.blocks.spill_room import SpillRoom

GENERATIONS = 2
"""Hyperbatches whose ids, and whose rows, are held at once: one is made while the one before it is used."""


@dataclass(frozen=True, slots=True)
class HyperbatchOptions:
    """How hyperbatches are loaded; nothing here changes a mini-batch."""

    hyperbatch: int
    """H: mini-batches sampled and gathered together."""
    gather: GatherOptions
    """Memory for the rows of all hyperbatches that are held at once."""
    memory: SamplingMemory | None = None
    """What sampling keeps to: a hyperbatch ends early where its mini-batches are larger than expected."""
    spills_samples: bool = False
    """Keep samples on disk, beside spilled rows, until they are used."""
    sample_room: SpillRoom | None = None
    """Room on disk for the samples of all hyperbatches: one ends early where its share is full; None has no end."""
    check_bytes: Callable[[Sample], None] = lambda _: None
    """Called with each sampled mini-batch before any of its rows takes memory; raises where they are too many."""
    check_rows: Callable[[IdArray, TieredRows], None] | None = None
    """Called with the input nodes and rows of each mini-batch; raises where one is not the store's."""
    in_place: bool = True
    """Give the rows where they lie instead of a copy."""
    stall_timeout_s: float = 600.0
    """Give up when nothing has arrived for so long."""
