"""`garden gc` and `garden doctor`: a tidy state directory, and a machine that can do the work."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.values import AsJson, StateDir, seconds

GC_EXAMPLES = """
[bold]Examples[/bold]

[green]garden gc --dry-run[/green]: what would be removed, and how many bytes that gives back

[green]garden gc[/green]: remove it

[green]garden gc --older-than 7d --state-dir /data/garden[/green]: keep a week
"""
DOCTOR_EXAMPLES = """
[bold]Examples[/bold]

[green]garden doctor[/green]: look at this machine

[green]garden doctor --state-dir /data/garden[/green]: at another disk

[green]garden doctor --json | jq '.[] | select(.status != "ok")'[/green]: what is not as it should be
"""
_NOT_WORKING = 3


def collect(
    state_dir: StateDir = Path(".garden"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed; remove nothing.")] = False,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Only what is older: 30m, 12h, 7d, 2w.")] = "0s",
    as_json: AsJson = False,
) -> None:
    """Remove artifacts that no run needs, leftovers of processes that died, and outdated compiled kernels.

    What the newest run of any name used is kept, with all it was made of; so is what a live process uses or builds.
    Of trainings that died, the checkpoint is kept that the newest run of any name goes on from when it is run again.
    Registered models, figures and summaries stay.
    """
    with exit_codes():
        from tasks.budgets import format_bytes
        from tasks.collect import collect_garbage

        removals = collect_garbage(state_dir, older_than_s=seconds(older_than), dry_run=dry_run)
        total = sum(removal.nbytes for removal in removals)
        if as_json:
            items = [dataclasses.asdict(removal) | {"path": str(removal.path)} for removal in removals]
            typer.echo(json.dumps({"removed": items, "bytes": total, "dry_run": dry_run}))
            return
        for removal in removals:
            typer.echo(f"{format_bytes(removal.nbytes):>10}  {removal.path}  ({removal.why})")
        verb = "would be removed" if dry_run else "removed"
        typer.echo(f"{len(removals)} {verb}, {format_bytes(total)}")


def doctor(
    state_dir: StateDir = Path(".garden"),
    prefect_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")] = 5000,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: packages, cores, memory, disk, compiled kernels, GPU, ports; and say what to do.

    Reading is measured for a second with a temporary file of 32 MiB. What keeps runs from working is exit code 3.
    """
    with exit_codes():
        from tasks.doctor import examine

        ports = {"--prefect-port": prefect_port, "--mlflow-port": mlflow_port}
        findings = examine(state_dir, ports)
        if as_json:
            typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings]))
        for finding in [] if as_json else findings:
            advice = f"\n        to do: {finding.advice}" if finding.advice else ""
            typer.echo(f"{finding.status:<5} {finding.topic}: {finding.found}{advice}")
        if any(finding.status == "fail" for finding in findings):
            sys.exit(_NOT_WORKING)
