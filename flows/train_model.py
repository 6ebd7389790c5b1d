"""Flow `train_model`: training alone, on a graph that is prepared and a cache plan that is made."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.forms import CONFIG, ToTrain
from flows.run import open_run
from flows.stages import run_stages


@flow(name="train_model")
def train_model(config: ToTrain = CONFIG) -> dict[str, Any]:
    """Train on finished artifacts and register the model; a run that was killed goes on from its last epoch.

    Parameters
    ----------
    config
        What to do; `profile_and_cache` must have run with the same `data`, `layout`, `sampling`, `profile` and `cache`.
    """
    with open_run(config, may_build=("train",)) as run:
        run_stages(run, "train")
    return run.summary
