"""Renders `docs/configuration.md` from the models: `python -m conf.reference docs/configuration.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import BaseModel

from conf.schema import PipelineConfig

HEADER = """# Configuration reference

Made from the models in `conf` by `python -m conf.reference docs/configuration.md`; a test keeps the two equal.
A configuration is a YAML file with these keys; `--set a.b=value` overrides one. Unknown keys are errors.
Byte sizes are numbers or texts such as `6MiB`. Relative paths count from the working directory, not from the file.
"""


def _default(value: object) -> str:
    plain = (
        value
        if isinstance(value, int | float | bool | str | None)
        else list(value)
        if isinstance(value, tuple)
        else str(value)
    )
    return f"`{'' if plain is None else plain}`" if plain is not None else "empty"


def _rows(model: type[BaseModel], prefix: str) -> list[str]:
    rows: list[str] = []
    nested: list[str] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            nested += _rows(field.annotation, f"{prefix}{name}.")
        else:
            text = " ".join((field.description or "").split()).replace("|", "\\|")
            rows.append(f"| `{prefix}{name}` | {_default(field.default)} | {text} |")
    title = f"\n## {prefix.rstrip('.') or 'Top level'}\n\n{' '.join((model.__doc__ or '').split())}\n"
    return [title, "| key | default | meaning |", "| --- | --- | --- |", *rows, *nested]


def render() -> str:
    """Return the whole reference as Markdown."""
    return HEADER + "\n".join(_rows(PipelineConfig, "")) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
