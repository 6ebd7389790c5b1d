"""`garden up`: the servers and the flows, until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.ending import exit_codes, interrupt

EXAMPLES = """
[bold]Examples[/bold]

[green]garden up[/green]: Prefect at http://127.0.0.1:4200, MLflow at http://127.0.0.1:5000

[green]garden up --state-dir /data/garden --prefect-port 4201 --mlflow-port 5001[/green]: a second set of servers
"""


def up(
    state_dir: Annotated[Path, typer.Option(help="Directory of the databases, artifacts and logs.")] = Path(".garden"),
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
) -> None:
    """Start the Prefect and MLflow servers and serve the flows, on this machine only. Ctrl-C stops everything.

    Runs that `garden run` makes meanwhile with the same state directory appear there as they go.
    """
    with exit_codes():
        from flows.servers import local_servers
        from flows.terminal import say

        signal.signal(signal.SIGTERM, interrupt)
        start = time.perf_counter()
        with (
            local_servers(state_dir.absolute(), prefect_port, mlflow_port, say) as check,
            contextlib.suppress(KeyboardInterrupt),
        ):
            say(f"ready after {time.perf_counter() - start:.0f} s; Ctrl-C stops everything")
            say(f"  Prefect  http://127.0.0.1:{prefect_port}/v2/deployments")
            say(f"  MLflow   http://127.0.0.1:{mlflow_port}/#/experiments?workflowType=machine_learning")
            say(f"  logs     {state_dir / 'logs'}")
            while True:
                check()
                time.sleep(0.5)
        say("stopped")
