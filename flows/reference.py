"""Renders `docs/command-line.md` from the commands' own help: `python -m flows.reference docs/command-line.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from flows.cli import app

HEADER = """# Command line

Made from the help of each command by `python -m flows.reference docs/command-line.md`; a test keeps the two equal.
`garden COMMAND --help` says the same.

Exit codes: 0 done; 2 the input, the configuration or a data file is wrong; 3 this machine cannot do it now (disk full,
port in use, no device, server away at the start); 1 anything else. An error is one line on standard error: what, where,
what to do. Results alone go to standard output.
"""
_EXAMPLE = re.compile(r"\[green\](.*?)\[/green\](?:: *(.*))?")


def render() -> str:
    """Return the whole reference as Markdown."""
    root: Any = typer.main.get_command(app)
    return HEADER + "".join("\n" + "\n".join(_section(root.commands[name], f"garden {name}")) for name in root.commands)


def _section(command: Any, name: str) -> Iterator[str]:
    """One command, or a group of them."""
    yield f"## {name}\n"
    yield from (f"{paragraph.strip()}\n" for paragraph in _paragraphs(command.help or ""))
    if hasattr(command, "commands"):
        for child in command.commands.values():
            yield f"- `{name} {child.name}`: {' '.join((child.help or '').split())}"
        yield ""
    rows = [row for parameter in command.params for row in _parameter(parameter)]
    if rows:
        yield from ("| argument or option | default | meaning |", "| --- | --- | --- |", *rows, "")
    yield "Examples:\n"
    for example, meaning in _EXAMPLE.findall(command.epilog or ""):
        yield f"- `{example}`" + (f": {meaning}" if meaning else "")
    yield ""


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def _parameter(parameter: Any) -> Iterator[str]:
    if parameter.name == "help":
        return
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
    default = parameter.default if parameter.default not in (None, False, ()) else None
    if isinstance(getattr(parameter, "show_default", None), str):
        default = parameter.show_default
    names = [name.replace("|", "\\|") for name in names]
    shown = f"`{getattr(default, 'value', default)}`" if default is not None else ""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    yield f"| {', '.join(f'`{name}`' for name in names)} | {shown} | {text} |".replace("  ", " ")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
