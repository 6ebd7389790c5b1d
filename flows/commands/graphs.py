"""`garden inspect` and `garden verify`: what is there, and whether it is whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands.ending import exit_codes
from flows.commands.values import AsJson, StateDir

INSPECT_EXAMPLES = """
[bold]Examples[/bold]

[green]garden inspect demo[/green]: which stages of a configuration are finished, and where their artifacts lie

[green]garden inspect mine[/green]: what the newest run of that name used, and its configuration

[green]garden inspect 5905fde8[/green]: an artifact of the state directory, by the first digits of its digest

[green]garden inspect graph.h5 --json[/green]: counts, types, degrees, splits and bytes of a store

[green]garden inspect edges.csv.gz[/green]: delimiter, rows and range of ids of an input file
"""
VERIFY_EXAMPLES = """
[bold]Examples[/bold]

[green]garden verify .garden[/green]: all artifacts of a state directory

[green]garden verify graph.h5[/green]: one store

[green]garden verify .garden --json[/green]: the damage as a list; exit code 2 if there is any
"""
_MOST_ITEMS = 12
_SHARE = re.compile(r"(^|_)(rate|accuracy|macro_f1|share|fraction)$")


def inspect(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PATH|DIGEST|NAME|CONFIG",
            help="Store, artifact, input file; digest; name of a run; or configuration.",
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting of a configuration.")
    ] = None,
    state_dir: StateDir = Path(".garden"),
    as_json: AsJson = False,
) -> None:
    """Describe a store, an artifact, an input file, the newest run of a name, or the stages of a configuration.

    Reads metadata; degrees and text files are read block by block, so that size does not matter.
    """
    with exit_codes():
        facts = _facts(what, overrides or [], state_dir)
        typer.echo(json.dumps(facts) if as_json else "\n".join(_lines(facts)))


def verify(
    path: Annotated[Path, typer.Argument(help="Store, artifact or state directory.")],
    as_json: AsJson = False,
) -> None:
    """Read every block and compare it with its checksum; compare every artifact with its manifest.

    Each damaged block is named with its dataset; any damage is exit code 2.
    """
    with exit_codes():
        from flows.terminal import set_up_logging, use_progress_bars
        from storage.errors import StorageError
        from tasks.progress import progress
        from tasks.verify import verify_path

        set_up_logging()
        use_progress_bars()
        with progress("verify", "blocks") as advance:
            found = verify_path(path, advance)
        if as_json:
            typer.echo(json.dumps(vars(found)))
        for line in [] if as_json else found.damage:
            typer.echo(f"damaged: {line}", err=True)
        if found.damage:
            raise StorageError(f"{path}: {len(found.damage)} damaged, the first: {found.damage[0]}")
        if not as_json:
            typer.echo(_what_is_whole(vars(found)))


def _facts(what: str, overrides: list[str], state_dir: Path) -> Mapping[str, Any]:
    """A path comes first, then a digest, then a preset; a YAML file is a configuration."""
    from conf.load import load_config, preset_names
    from storage.errors import InputError
    from tasks.describe import describe_config, describe_digest, describe_path, describe_run

    path = Path(what)
    is_config = path.suffix in (".yaml", ".yml") or (what in preset_names() and not path.exists())
    if not is_config:
        if path.exists():
            return describe_path(path)
        facts = describe_digest(what, state_dir) or describe_run(what, state_dir)
        if facts is not None:
            return facts
        raise InputError(
            f"{what} is neither a file nor a preset, nor in {state_dir} (--state-dir) a digest or the name of a run; "
            f"presets are {', '.join(preset_names())}"
        )
    config = load_config(what, overrides)
    in_state = {} if any(item.startswith("state_dir=") for item in overrides) else {"state_dir": state_dir}
    return describe_config(config.model_copy(update=in_state if state_dir != Path(".garden") else {}))


def _what_is_whole(found: Mapping[str, Any]) -> str:
    parts = [f"{found['blocks']:,} blocks in {found['stores']} stores"]
    removed = f" ({found['removed']} of them intermediates, removed when they had served)" if found["removed"] else ""
    parts += [f"{found['artifacts']} artifacts{removed}"] if found["artifacts"] else []
    return f"ok: {', '.join(parts)}"


def _lines(facts: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Write nested facts as aligned lines; what is empty is left out."""
    shown = {key: value for key, value in facts.items() if value not in (None, {}, [], "")}
    width = max((len(key) for key in shown), default=0)
    for key, value in shown.items():
        if isinstance(value, Mapping) and (_is_nested(value) or len(value) > _MOST_ITEMS):
            yield f"{indent}{key}"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key:<{width}}  {_text(key, value)}"


def _is_nested(value: Mapping[str, Any]) -> bool:
    return any(isinstance(item, Mapping) for item in value.values())


def _text(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(name, item)}" for name, item in value.items())
    if isinstance(value, list):
        shown = ", ".join(str(item) for item in value[:_MOST_ITEMS])
        return shown + (f" and {len(value) - _MOST_ITEMS:,} more" if len(value) > _MOST_ITEMS else "")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1%}" if _SHARE.search(key) else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
