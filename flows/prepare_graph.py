"""Flow `prepare_graph`: ingest and block layout, the heavy part that a schedule can repeat at night."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.forms import CONFIG, VERIFY_INPUTS, ToPrepare
from flows.run import open_run
from flows.stages import run_stages


@flow(name="prepare_graph")
def prepare_graph(config: ToPrepare = CONFIG, verify_inputs: bool = VERIFY_INPUTS) -> dict[str, Any]:
    """Read the graph's files and lay its store out on disk. Nothing is done where nothing has changed.

    Parameters
    ----------
    config
        What to do; `data` and `layout` matter here.
    verify_inputs
        Hash the input files anew instead of trusting their size, time and inode.
    """
    with open_run(config, verify_inputs=verify_inputs, may_build=("ingest", "reorder")) as run:
        run_stages(run, "reorder")
    return run.summary
