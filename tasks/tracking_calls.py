"""Makes the calls that `tracking` puts into its outbox: each verb is one method, run in the sending thread."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.outbox import Call

if TYPE_CHECKING:
    from mlflow import MlflowClient

_logger = logging.getLogger(__name__)

PROCESS_TAG = "garden.process"
"""Tag that tells which process drives a run."""
PARENT_TAG = "mlflow.parentRunId"
"""Tag that puts a run below another."""
CHAMPION = "champion"
"""Alias of the best registered version, by the validation metric that chose it."""
DATA_TAG = "data_digest"
"""Tag of a registered version that tells on which data it was trained."""
_PARAMS_A_CALL, _METRICS_A_CALL = 100, 1000  # MLflow's limits
_METRIC_TAG, _SCORE_TAG = "metric", "valid_score"


def now_ms() -> int:
    """Return the time as MLflow counts it: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def is_refusal(error: Exception) -> bool:
    """Whether the store understood a call and said no, so that trying again is no use."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        status = int(error.get_http_status_code())  # type: ignore[no-untyped-call]
        return 400 <= status < 500 and error.error_code != "REQUEST_LIMIT_EXCEEDED"
    return isinstance(error, LookupError | TypeError | FileNotFoundError)


def merged(last: Call, new: Call) -> Call | None:
    """Make one call of two that log metrics of the same run, unless that is too many for one."""
    if (last.verb, new.verb) != ("metrics", "metrics") or last.arguments["run"] != new.arguments["run"]:
        return None
    points = [*last.arguments["points"], *new.arguments["points"]]
    return Call("metrics", {"run": new.arguments["run"], "points": points}) if len(points) <= _METRICS_A_CALL else None


class CallSender:
    """Callable that makes one call; remembers the ids of the runs it created."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self._client, self._experiment_id = client, experiment_id
        self._run_ids: dict[str, str] = {}

    def __call__(self, call: Call) -> None:
        """Make one call.

        Raises
        ------
        Exception
            Whatever the client raises.
        """
        getattr(self, f"_{call.verb}")(**call.arguments)

    def _id(self, run: str) -> str:
        """Return the id of a run: parents are named by it, children by a key until they are created."""
        return self._run_ids[run] if "/" in run else run

    def _create(self, run: str, name: str, tags: dict[str, str], time_ms: int) -> None:
        parent = tags.get(PARENT_TAG)
        tags = tags if parent is None else {**tags, PARENT_TAG: self._id(parent)}
        created = self._client.create_run(self._experiment_id, run_name=name, tags=tags, start_time=time_ms)
        self._run_ids[run] = created.info.run_id

    def _params(self, run: str, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        entities = [Param(name, "none" if value is None else str(value)) for name, value in params.items()]
        for first in range(0, len(entities), _PARAMS_A_CALL):
            self._client.log_batch(self._id(run), params=entities[first : first + _PARAMS_A_CALL])

    def _metrics(self, run: str, points: Sequence[Sequence[Any]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, time_ms, step) for name, value, step, time_ms in points]
        for first in range(0, len(metrics), _METRICS_A_CALL):
            self._client.log_batch(self._id(run), metrics[first : first + _METRICS_A_CALL])

    def _tags(self, run: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(self._id(run), tags=[RunTag(name, value) for name, value in tags.items()])

    def _artifact(self, run: str, path: str, folder: str | None) -> None:
        if Path(path).is_dir():
            self._client.log_artifacts(self._id(run), path, folder)
        else:
            self._client.log_artifact(self._id(run), path, folder)

    def _text(self, run: str, text: str, name: str) -> None:
        self._client.log_text(self._id(run), text, name)

    def _dataset(self, run: str, name: str, digest: str, counts: Mapping[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput

        profile = json.dumps({key: value for key, value in counts.items() if isinstance(value, int)})
        dataset = Dataset(name, digest, source_type="garden", source=json.dumps({"stage": "ingest"}), profile=profile)
        self._client.log_inputs(self._id(run), datasets=[DatasetInput(dataset, tags=[])])

    def _end(self, run: str, status: str, time_ms: int) -> None:
        self._client.set_terminated(self._id(run), status, end_time=time_ms)

    def _register(self, run: str, name: str, folder: str, metric: str, score: float, tags: Mapping[str, str]) -> None:
        from mlflow.exceptions import MlflowException

        run_id = self._id(run)
        try:
            self._client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        if not self._client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'"):
            source = f"{self._client.get_run(run_id).info.artifact_uri}/{folder}"
            scored = {**tags, _METRIC_TAG: metric, _SCORE_TAG: repr(score)}
            self._client.create_model_version(name, source, run_id, tags=scored)
        self._crown(name, run_id, metric, score, tags.get(DATA_TAG))

    def _crown(self, name: str, run_id: str, metric: str, score: float, data: str | None) -> None:
        """Move the alias to the version of this run if it beats the present champion by the same metric.

        Scores on other data say nothing: a version trained on data that the champion was not takes its place.
        """
        version = self._client.search_model_versions(f"name = '{name}' and run_id = '{run_id}'")[0]
        champion = self._client.get_registered_model(name).aliases.get(CHAMPION)
        known = {} if champion is None else self._client.get_model_version(name, str(champion)).tags
        if known.get(_METRIC_TAG, metric) != metric:
            _logger.warning(
                "%s@%s stays version %s: %s chose it and %s the new version %s; move the alias to judge by that",
                *(name, CHAMPION, champion, known[_METRIC_TAG], metric, version.version),
            )
        elif champion is not None and data is not None and known.get(DATA_TAG, data) != data:
            _logger.info(
                "%s@%s is version %s now: version %s is of other data", *(name, CHAMPION, version.version, champion)
            )
            self._client.set_registered_model_alias(name, CHAMPION, version.version)
        elif score > float(known.get(_SCORE_TAG, "-inf")):  # false for NaN
            self._client.set_registered_model_alias(name, CHAMPION, version.version)
