"""Flow `compare_policies`: every cache policy at several budgets on one graph, and what to make of it."""

from __future__ import annotations

from typing import Any

from prefect import flow

from conf.compare import CompareConfig
from flows.forms import CONFIG, VERIFY_INPUTS, ToCache, shown
from flows.run import open_run
from flows.stages import run_stages
from tasks.compare import compare_on_graph

_DEFAULT = CompareConfig()


@flow(name="compare_policies")
def compare_policies(
    config: ToCache = CONFIG,
    compare: CompareConfig = shown("What to try", "Policies, budgets and seeds.", _DEFAULT),
    verify_inputs: bool = VERIFY_INPUTS,
) -> dict[str, Any]:
    """Replay recorded training accesses against published cache policies and their bounds; recommend a configuration.

    Parameters
    ----------
    config
        The graph, what is sampled on it, and the budget that matters.
    compare
        What to try.
    verify_inputs
        Hash the input files anew instead of trusting their size, time and inode.
    """
    with open_run(config, verify_inputs=verify_inputs) as run:
        run_stages(run, "reorder")
        run.facts["compare"] = compare_on_graph(run, compare)
    return run.summary
