"""Mini-batches larger than the first ones, on which memory was planned: refused before they take more than there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from storage.blocks.hyperbatch import SamplingMemory
from storage.errors import BudgetError
from tasks.batch_sizes import BatchSizes
from tasks.hyperbatch_size import GENERATIONS_OF_IDS, held_bytes, work_bytes
from tasks.storage_memory import StoragePlan
from tasks.storage_need import in_hand


def check_bytes(plan: StoragePlan, found: BatchSizes, *, threads: int, row_bytes: int) -> None:
    """Refuse a mini-batch that does not fit the memory planned for it, before its rows take any.

    Parameters
    ----------
    plan : StoragePlan
    found : BatchSizes
        Sizes of the mini-batch.
    threads : int
        Sampling threads.
    row_bytes : int
        Of a feature row.

    Raises
    ------
    BudgetError
        Names a budget at which no mini-batch can be too large.
    """
    waiting = {
        "samples": GENERATIONS_OF_IDS * held_bytes(found, spills=plan.spills_samples),
        "sampling": work_bytes(found),
    }
    # Others may fill what is planned for these two while this one is in hand.
    needed = in_hand(found, threads, row_bytes, plan.rows_at_once) | {
        name: max(plan.parts[name], nbytes) for name, nbytes in waiting.items()
    }
    room = plan.budget - plan.total + sum(plan.parts[name] for name in needed)
    if (asked := sum(needed.values())) > room:
        raise BudgetError(
            f"a mini-batch of {found.nodes} input nodes and {found.edges} edges takes {asked} bytes and "
            f"host_budget leaves {room}: the first ones were smaller; set host_budget to at least {plan.enough}, "
            "which holds the largest possible ones, or use smaller sampling.batch_size or fanouts"
        )


def sampling_memory(plan: StoragePlan, directory: Path, id_bytes: int, threads: int, row_bytes: int) -> SamplingMemory:
    """Memory of sampling, which refuses a mini-batch before it is expanded where that alone would be too much."""

    def check_alone(frontier: int, edges: int) -> None:
        found = BatchSizes(frontier, edges, frontier, id_bytes)
        check_bytes(plan, found, threads=threads, row_bytes=row_bytes)

    return replace(plan.sampling_memory(directory), check_alone=check_alone)
