"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help names no type beside a flag, which takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return without_types(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands, likewise."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, `--help` too."""
        return without_types(super().get_params(ctx))


def without_types(parameters: list[Any]) -> list[Any]:
    """Show nothing where a flag's type would stand."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


StateDir = Annotated[Path, typer.Option(help="State directory of the runs (`state_dir` of the configuration).")]
VerifyInputs = Annotated[
    bool, typer.Option("--verify-inputs", help="Hash input files anew instead of trusting size, time and inode.")
]
EndWithJson = Annotated[bool, typer.Option("--json", help="End with the results as one line of JSON.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, for a script.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)([smhdw])$")


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Keep the garbage collector from going again and again through what is imported: a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def seconds(text: str) -> float:
    """Read a duration such as `12h` or `7d`.

    Raises
    ------
    ConfigError
        If it is none.
    """
    match = _DURATION.match(text.strip())
    if match is None:
        from conf.load import ConfigError

        raise ConfigError(f"{text!r} is no duration: write 30m, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def nbytes(text: str | None, option: str) -> int | None:
    """Read a byte size such as `2GiB`; None stays None.

    Raises
    ------
    ConfigError
        If it is none.
    """
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    from conf.byte_size import Bytes
    from conf.load import ConfigError

    try:
        return int(TypeAdapter(Bytes).validate_python(text))
    except ValidationError as error:
        raise ConfigError(f"{option} {text!r} is no byte size: write 500MB or 2GiB") from error
