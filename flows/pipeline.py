"""Flow `pipeline`: all five stages, from files to a registered model."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.forms import CONFIG, VERIFY_INPUTS, ToTrain, shown
from flows.run import open_run
from flows.stages import Stage, run_stages


@flow(name="pipeline")
def pipeline(
    config: ToTrain = CONFIG,
    until: Stage = shown("Last stage", "What comes before it is run or reused.", "train"),
    verify_inputs: bool = VERIFY_INPUTS,
) -> dict[str, Any]:
    """Prepare the graph, profile accesses, plan the caches and train; what is finished is reused, training always runs.

    Parameters
    ----------
    config
        What to do.
    until
        Last stage to run.
    verify_inputs
        Hash the input files anew instead of trusting their size, time and inode.
    """
    with open_run(config, verify_inputs=verify_inputs) as run:
        run_stages(run, until)
    return run.summary
