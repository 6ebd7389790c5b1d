"""`garden up`, `down` and `status`: the servers and the flows."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.ending import exit_codes, interrupt
from flows.commands.values import AsJson, StateDir

if TYPE_CHECKING:
    from flows.servers import Addresses

UP_EXAMPLES = """
[bold]Examples[/bold]

[green]garden up[/green]: Prefect at http://127.0.0.1:4200, MLflow at http://127.0.0.1:5000, until Ctrl-C

[green]garden up --detach[/green]: the same in the background; garden down stops it

[green]garden up --state-dir /data/garden --prefect-port 4201 --mlflow-port 5001[/green]: a second set of servers
"""
DOWN_EXAMPLES = """
[bold]Examples[/bold]

[green]garden down[/green]: stop the servers of .garden

[green]garden down --state-dir /data/garden[/green]: those of another state directory
"""
STATUS_EXAMPLES = """
[bold]Examples[/bold]

[green]garden status[/green]: addresses, and whether they answer

[green]garden status --json | jq -r .prefect[/green]: the address of Prefect
"""
_NOT_RUNNING = 3


def up(
    state_dir: Annotated[Path, typer.Option(help="Directory of the databases, artifacts and logs.")] = Path(".garden"),
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background once all is ready.")] = False,
) -> None:
    """Start the Prefect and MLflow servers and serve the flows, on this machine only. Ctrl-C stops everything.

    What a crash left open is closed first. A server that dies is started again. Runs that `garden run` makes meanwhile
    with the same state directory appear there as they go.
    """
    with exit_codes():
        from flows.servers import Addresses

        state_dir = state_dir.absolute()
        start = time.perf_counter()
        if detach:
            addresses = _start_in_background(state_dir, prefect_port, mlflow_port)
            _say_ready(addresses, state_dir, f"ready after {time.perf_counter() - start:.0f} s; garden down stops it")
            return
        from flows.servers import local_servers
        from flows.terminal import say

        signal.signal(signal.SIGTERM, interrupt)
        with (
            local_servers(state_dir, prefect_port, mlflow_port, say) as check,
            contextlib.suppress(KeyboardInterrupt),
        ):
            took = f"ready after {time.perf_counter() - start:.0f} s; Ctrl-C stops everything"
            _say_ready(Addresses.of_ports(prefect_port, mlflow_port), state_dir, took)
            while True:
                check()
                time.sleep(0.5)
        say("stopped")


def down(state_dir: StateDir = Path(".garden")) -> None:
    """Stop the servers that `garden up` started, in order; runs at work are cancelled.

    A cancelled training goes on from its last epoch when it is run again.
    """
    with exit_codes():
        from flows.servers import stop_servers
        from flows.terminal import say

        say("stopped" if stop_servers(state_dir.absolute()) else f"no servers run for {state_dir}")


def status(state_dir: StateDir = Path(".garden"), as_json: AsJson = False) -> None:
    """Say whether the servers of a state directory run, and where; exit code 3 if not all of them answer."""
    with exit_codes():
        from flows.answering import answers
        from flows.servers import read_record
        from flows.terminal import say

        record = read_record(state_dir.absolute())
        healthy = record is not None and {
            "prefect": answers(f"{record.prefect}/api/health", 5),
            "mlflow": answers(f"{record.mlflow}/health", 5),
            "flows": record.ready,
        }
        if as_json:
            where = {} if record is None else {"prefect": record.prefect, "mlflow": record.mlflow, "pid": record.pid}
            typer.echo(json.dumps({"running": record is not None, **where, "answers": healthy or {}}))
        elif record is None:
            say(f"no servers run for {state_dir}; garden up starts them")
        else:
            say(f"process {record.pid} " + ("runs the servers" if record.ready else "is starting the servers"))
            for name, page in record.addresses.pages().items():
                say(f"  {name:<8} {page}" + ("" if healthy and healthy[name.lower()] else "  does not answer"))
            say(f"  logs     {state_dir / 'logs'}")
        if not healthy or not all(healthy.values()):
            sys.exit(_NOT_RUNNING)


def _start_in_background(state_dir: Path, prefect_port: int, mlflow_port: int) -> Addresses:
    """Start this command again, on its own, and wait until all is ready.

    Raises
    ------
    MachineError
        With its own words, if it does not get there.
    """
    from flows.servers import wait_until_ready
    from storage.errors import MachineError

    ports = ["--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]
    command = [sys.executable, "-m", "flows.cli", "up", "--state-dir", str(state_dir), *ports]
    log = state_dir / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    addresses = wait_until_ready(state_dir, child)
    if addresses is None:
        lines = log.read_text(encoding="utf-8").splitlines() or [f"it ended with code {child.returncode}"]
        raise MachineError(lines[-1].removeprefix("error: "))
    return addresses


def _say_ready(addresses: Addresses, state_dir: Path, took: str) -> None:
    from flows.terminal import say

    say(took)
    for name, page in addresses.pages().items():
        say(f"  {name:<8} {page}")
    say(f"  logs     {state_dir / 'logs'}")
