"""`garden advise`: how to run a graph on this machine, and what to expect."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from flows.commands.ending import exit_codes
from flows.commands.files import Load, takes_graph
from flows.commands.values import AsJson

EXAMPLES = """
[bold]Examples[/bold]

[green]garden advise demo[/green]: mode, block size, memory, time and traffic of an epoch

[green]garden advise mine.yaml --set host_budget=2GB[/green]: what that budget asks for

[green]garden advise --edges e.csv --features x.npy --labels y.npy[/green]: your own files, as `garden run` takes them

[green]garden advise mine.yaml --json | jq .settings[/green]: the settings alone
"""


@takes_graph
def advise(
    load: Load,
    seconds: Annotated[
        float,
        typer.Option(min=0.1, max=60, help="How long to measure the disk; edges are read for up to twice as long."),
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Say which mode, block size and budgets suit a graph on this machine, and what an epoch will take.

    Edges are read for some seconds to learn the degrees, the rest comes from the files' headers; the disk is measured
    with a temporary file of 256 MiB in the state directory, and parts of an epoch are timed. The next run of that name
    with the settings it says logs how far off the prediction was (`advice/epoch_s_error` and so on).
    """
    with exit_codes():
        from tasks.advise import advise as look
        from tasks.budgets import format_bytes
        from tasks.predictions import keep_prediction

        loaded = load()
        advice = look(loaded, seconds=seconds)
        keep_prediction(loaded, advice.settings, advice.prediction)
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(advice)))
            return
        for reason in advice.reasons:
            typer.echo(reason)
        typer.echo("set: " + " ".join(f"{name}={value}" for name, value in advice.settings.items()))
        memory, disk = format_bytes(advice.memory_bytes), format_bytes(advice.disk_bytes)
        typer.echo(
            f"expect: {memory} of memory to train, {disk} of disk ({advice.disk_budget} as disk_budget is sure to do)"
        )
        for what, expected in (("an epoch", advice.epoch), ("its validation", advice.evaluation)):
            typer.echo(f"expect: {what} {expected.seconds:.3g} s, {format_bytes(expected.read_bytes)} read from disk")
