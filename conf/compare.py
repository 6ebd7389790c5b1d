"""What `compare_policies` tries on one graph, as a section of its own beside the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from conf.section import Section

Share = Annotated[float, Field(gt=0, le=1)]


class CompareConfig(Section):
    """Which policies, budgets and seeds to compare, and on what workload."""

    budgets: tuple[Share, ...] = Field((0.01, 0.02, 0.05, 0.1, 0.2, 0.4), min_length=1)
    """Budgets to try beside `cache.device_budget`, as shares of the bytes of all feature rows and adjacency lists."""
    seeds: int = Field(2, ge=1, le=100)
    """Seeds; each draws a profile and training epochs of its own."""
    policies: tuple[str, ...] = ()
    """Policies to compare (docs/cache-laboratory.md lists them); empty: all."""
    heldout_epochs: int = Field(20, ge=1)
    """Epochs whose counts rank the static oracle; 100 leave no noise to speak of."""
    profile_epochs: tuple[Annotated[int, Field(ge=1)], ...] = (1, 2, 4, 8)
    """Numbers of profiling epochs to compare."""
    trained_epochs: int = Field(2, ge=1)
    """Training epochs that are recorded and replayed; fewer mini-batches where memory does not hold them."""
    workload: Literal["shuffled", "time_order", "moving_community"] = "shuffled"
    """Order of the seeds: `shuffled` as training has it; once by node id of the input (`time_order`); or from classes
    that take turns (`moving_community`)."""
