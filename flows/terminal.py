"""What people see in the terminal: quiet log lines and progress bars on standard error, the final table on output."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flows.environment import OUR_LOGGERS
from tasks.progress import Advance, set_display

# Standard output is for results alone; both end up interleaved in a terminal all the same.
_err = Console(stderr=True, highlight=False, soft_wrap=True)
_out = Console(highlight=False, soft_wrap=True)
_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class LineHandler(logging.Handler):
    """One line a record, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
            _err.print(_printable(self.format(record).replace("%LEVEL%", level)), markup=False)
        except Exception:
            self.handleError(record)


def _is_for_people(record: logging.LogRecord) -> bool:
    """Let our own lines through, and warnings of others; failures that Prefect repeats are reported once, by us."""
    ours = record.name.partition(".")[0] in OUR_LOGGERS
    reported = record.name.startswith(_RUN_LOGGERS)
    return ours or (record.levelno >= logging.WARNING and not reported)


def set_up_logging() -> None:
    """Send log lines to standard error; before Prefect is imported, which then leaves the console alone."""
    handler = LineHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %%LEVEL%%%(message)s", "%H:%M:%S"))
    handler.addFilter(_is_for_people)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.captureWarnings(capture=True)


def use_progress_bars() -> None:
    """Show progress as bars, if there is a terminal to show them on."""
    if _err.is_terminal:
        set_display(_bar)


def say(text: str) -> None:
    """Write a line of results."""
    _out.print(_printable(text), markup=False)


def say_error(text: str) -> None:
    """Write what went wrong."""
    _err.print(Text("error: ", style="bold red").append(_printable(" ".join(text.split())), style="not bold default"))


def _printable(text: str) -> str:
    """Show the bytes of file names that are no UTF-8 as question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def note(text: str) -> None:
    """Write a line about what is going on, before there is any logging."""
    _err.print(_printable(f"{time.strftime('%H:%M:%S')} {text}"), markup=False)


@contextlib.contextmanager
def waiting(text: str, every_s: float = 5.0) -> Iterator[None]:
    """Write a line now and then, before there is any progress to show, until the block ends."""
    done, start = threading.Event(), time.monotonic()

    def say_so() -> None:
        while not done.wait(every_s):
            note(f"{text}, {time.monotonic() - start:.0f} s so far")

    thread = threading.Thread(target=say_so, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def show_summary(summary: Mapping[str, Any], process_s: float, where_to_look: Mapping[str, str]) -> None:
    """Write the table that a run ends with, how long the whole process took, and where to look next."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, justify in (("stage", "left"), ("seconds", "right"), ("MB", "right"), ("", "left"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name, stage in summary["stages"].items():
        how = Text("reused", "green") if stage["reused"] else Text("built")
        seconds, megabytes = f"{stage['seconds']:.1f}", f"{stage['bytes'] / 1e6:.1f}"
        table.add_row(name, seconds, megabytes, how, Text(summary["figures"][name], "dim"))
    _out.print()
    _out.print(table)
    _out.print()
    _out.print(f"  {process_s:.1f} s from the start of this process", markup=False)
    for line in summary["headline"]:
        _out.print(f"  {line}", markup=False)
    _out.print()
    for what, where in where_to_look.items():
        _out.print(Text(f"  {what}: ", "bold").append(where, "not bold"))


class _RateColumn(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        speed = task.speed or task.finished_speed
        return Text("" if speed is None else f"{speed:,.4g} {task.fields['unit']}/s", style="dim")


@contextlib.contextmanager
def _bar(description: str, unit: str) -> Iterator[Advance]:
    columns = (
        TextColumn("         {task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=_err, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(description, total=None, unit=unit)
        yield lambda done, total: progress.update(task, completed=done, total=total)
