"""Flow `sweep`: one run for each point of a grid, compared in MLflow; what the points share is prepared once."""

from __future__ import annotations

import logging
from typing import Any

from prefect import flow

from conf.grid import grid_points
from conf.schema import PipelineConfig
from flows.forms import CONFIG, VERIFY_INPUTS, ToCompare, ToTrain, shown
from flows.run import open_run
from flows.stages import run_stages
from storage.errors import InputError
from tasks.run_context import RunContext

_logger = logging.getLogger(__name__)
Point = dict[str, Any]

DEMO_GRID = ("training.learning_rate=0.01,0.003", "model.hidden=64,128")
"""What a sweep tries where nothing is said."""


@flow(name="sweep")
def sweep(
    config: ToTrain = CONFIG,
    grid: ToCompare = shown("Grid", "One setting a line with the values to try: a.b=v,w.", DEMO_GRID),
    verify_inputs: bool = VERIFY_INPUTS,
) -> dict[str, Any]:
    """Train every combination of some settings' values, and say which scored best on the validation nodes.

    Parameters
    ----------
    config
        What all points have in common.
    grid
        Values to try, by dotted key.
    verify_inputs
        Hash the input files anew instead of trusting their size, time and inode.
    """
    points = grid_points(config, grid)
    with open_run(config, verify_inputs=verify_inputs) as run:
        run.parent.set_tags({"sweep.grid": ", ".join(grid)})
        results = [_try_point(run, number, *point) for number, point in enumerate(points)]
        run.facts |= {"sweep": _comparison(results)}
    return run.summary


def _try_point(run: RunContext, number: int, values: Point, config: PipelineConfig) -> Point:
    """Run one point below the sweep's MLflow run; one whose input is wrong, or that diverges, is told and left out."""
    name = " ".join(f"{key}={value}" for key, value in values.items())
    _logger.info("point %d: %s", number, name)
    result: Point = {"values": values, "metric": config.training.metric}
    try:
        with run.tracking.child_run(run.parent, name, {"sweep.point": str(number)}) as child:
            child.log_params(config.model_dump(mode="json"))
            point = RunContext(config, run.tracking, child, input_digests=run.input_digests, backend=run.backend)
            run_stages(point, "train")
    except InputError as error:
        _logger.warning("point %d failed: %s", number, error)
        return result | {"valid": None, "test": None, "error": str(error)}
    valid, test = (point.facts.get(f"{split}_{result['metric']}") for split in ("valid", "test"))
    if valid is not None:
        run.parent.log_metrics({f"sweep/valid_{result['metric']}": valid}, number)
    return result | {"valid": valid, "test": test, "error": None}


def _comparison(results: list[Point]) -> Point:
    """All points, and the best by the validation metric.

    Raises
    ------
    InputError
        If no point could be trained.
    """
    trained = [result for result in results if result["error"] is None]
    if not trained:
        raise InputError(f"no point of the grid could be trained; the first failed: {results[0]['error']}")
    scored = [result for result in trained if result["valid"] is not None]
    return {"points": results, "best": max(scored, key=lambda result: float(result["valid"]), default=None)}
