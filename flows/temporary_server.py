"""A Prefect server without a UI, for as long as one run of `garden run` takes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flows.answering import HOST, free_port
from flows.children import Children
from flows.environment import prefect_settings
from flows.servers import prefect_command
from storage.locks import locked

_PATIENCE_S = 10.0

# What Prefect itself sets for the server of its ephemeral mode.
_TEMPORARY = {"PREFECT_UI_ENABLED": "false", "PREFECT__SERVER_EPHEMERAL": "1"}


@contextlib.contextmanager
def temporary_prefect(state_dir: Path) -> Iterator[Callable[[], None]]:
    """Start a Prefect server without a UI for one run, on a free port, and point this process at it.

    It takes seconds to start: import what is heavy meanwhile. Its database stays, so that `garden up` shows the run.

    Yields
    ------
    callable
        Waits until the server is ready; raises MachineError if it does not start.
    """
    port = free_port()
    url = f"http://{HOST}:{port}"
    environment = os.environ | prefect_settings(state_dir) | _TEMPORARY
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as starting:
        # One at a time: two servers that create one database at once would trip over each other.
        starting.enter_context(locked(state_dir / ".locks" / "temporary-prefect"))
        children = Children(state_dir, environment, stack)
        children.start("temporary-prefect", prefect_command(port), _PATIENCE_S)
        stack.callback(_send_what_is_left)
        os.environ["PREFECT_API_URL"] = f"{url}/api"

        def wait_until_ready() -> None:
            children.wait_for("temporary-prefect", f"{url}/api/health")
            starting.close()

        yield wait_until_ready


def _send_what_is_left() -> None:
    """Let Prefect send its last events and log lines; at exit it would knock at a closed door for a minute."""
    if "prefect" in sys.modules:
        from prefect.events.worker import EventsWorker
        from prefect.logging.handlers import APILogWorker

        EventsWorker.drain_all(timeout=_PATIENCE_S)
        APILogWorker.drain_all(timeout=_PATIENCE_S)
