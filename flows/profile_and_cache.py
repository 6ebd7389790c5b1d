"""Flow `profile_and_cache`: access profile and cache plan of a graph that is prepared already."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.forms import CONFIG, ToCache
from flows.run import open_run
from flows.stages import run_stages


@flow(name="profile_and_cache")
def profile_and_cache(config: ToCache = CONFIG) -> dict[str, Any]:
    """Count accesses on a prepared graph and decide what the device budget holds.

    Parameters
    ----------
    config
        What to do; `prepare_graph` must have run with the same `data` and `layout`.
    """
    with open_run(config, may_build=("profile", "cache")) as run:
        run_stages(run, "cache")
    return run.summary
