"""Settings of Prefect and MLflow for one state directory; to be set before either is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

OUR_LOGGERS = ("flows", "tasks", "storage", "kernels")
"""Top-level loggers of this project."""

STATE_DIR_VARIABLE = "GARDEN_STATE_DIR"
"""Names the state directory of the servers: what runs started from the UI use unless they are told otherwise."""


def prefect_settings(state_dir: Path) -> dict[str, str]:
    """Return the settings that hold for every Prefect process of a state directory, server or client.

    Notes
    -----
    Without `PREFECT_HOME`, importing Prefect writes to the home directory. Leases kept in memory would leak a
    concurrency slot at each restart of the server. Task run records are written in batches, since SQLite answers
    single ones with lock errors under load.
    """
    return {
        "PREFECT_HOME": str(state_dir.absolute() / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "true",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        "PREFECT_RUNNER_POLL_FREQUENCY": "2",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_LOGGING_EXTRA_LOGGERS": ",".join(OUR_LOGGERS),
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",  # loader threads log outside of any run
        "DGLBACKEND": "pytorch",
    }


def set_defaults(settings: Mapping[str, str]) -> None:
    """Put settings into this process's environment; what the user has set there stays."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)
