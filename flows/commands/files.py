"""Where a graph comes from, as several commands take it: a configuration, or files alone."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from conf.schema import PipelineConfig

_PANEL = "Without CONFIG"


class EdgeFormat(enum.StrEnum):
    """Formats that `--edges` reads."""

    EDGE_LIST = "edge_list"
    PARQUET = "parquet"
    MATRIX_MARKET = "matrix_market"
    NPZ = "npz"
    DGL = "dgl"


_CONFIG = Annotated[str | None, typer.Argument(help="Name of a preset, or a YAML file (docs/configuration.md).")]
_OVERRIDES = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=c", help="Override one setting; repeat for more.")
]
_FILES: dict[str, Any] = {
    "edges": Annotated[
        Path | None, typer.Option(rich_help_panel=_PANEL, help="Edges: text, Parquet, .mtx, .npz or .bin (DGL).")
    ],
    "features": Annotated[
        Path | None,
        typer.Option(rich_help_panel=_PANEL, help="Features: .npy or Parquet, one row a node; or see --id-column."),
    ],
    "labels": Annotated[
        Path | None,
        typer.Option(rich_help_panel=_PANEL, help="Labels: .npy or Parquet, one row a node; or see --id-column."),
    ],
    "id_column": Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            rich_help_panel=_PANEL,
            help="Column of features and labels (CSV, TSV, Parquet) with the ids that edges use, integers or strings; "
            "without it, ids are row numbers.",
        ),
    ],
    "edge_format": Annotated[
        EdgeFormat | None,
        typer.Option("--format", rich_help_panel=_PANEL, help="Format of the edges; default: by suffix."),
    ],
    "name": Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="Name of the run and of the model it registers; default: that of the edge file.",
        ),
    ],
    "symmetrize": Annotated[
        bool | None,
        typer.Option(
            "--symmetrize/--directed",
            rich_help_panel=_PANEL,
            show_default="symmetrize",
            help="Add the reverse of every edge, or keep edges as they are.",
        ),
    ],
}
Load = Callable[[], "PipelineConfig"]
"""Loads the configuration that a command was given; what is wrong with it is raised then."""


def takes_graph(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command CONFIG and `--set`, or files in their place; what they stand for reaches it as `load`.

    Parameters
    ----------
    command
        Has a parameter `load: Load`.

    Returns
    -------
    callable
        For Typer: with the options of a graph in place of `load`.
    """

    @functools.wraps(command)
    def called(config: str | None, overrides: list[str] | None, **options: Any) -> None:
        files = {name: options.pop(name) for name in _FILES}
        command(load=lambda: _configuration(config, overrides, **files), **options)

    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "load"]
    first, last = {"config": _CONFIG, "overrides": _OVERRIDES}, _FILES
    given = [
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in of]
        for of in (first.items(), last.items())
    ]
    parameters = [*given[0], *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *given[1]]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


def _configuration(
    config: str | None,
    overrides: list[str] | None,
    *,
    edges: Path | None,
    features: Path | None,
    labels: Path | None,
    id_column: str | None,
    edge_format: str | None,
    name: str | None,
    symmetrize: bool | None,
) -> PipelineConfig:
    """Load the configuration that is named, or make the one that files stand for.

    Raises
    ------
    ConfigError
        If both are given or neither is, or the configuration is wrong.
    """
    from conf.files import config_from_files
    from conf.load import load_config

    if config is not None:
        _refuse_both(
            config,
            {
                "--edges": ("data.edges", edges),
                "--features": ("data.features", features),
                "--labels": ("data.labels", labels),
                "--id-column": ("data.id_column", id_column),
                "--format": ("data.format", edge_format),
                "--name": ("name", name),
                "--symmetrize/--directed": (
                    "data.symmetrize",
                    None if symmetrize is None else str(symmetrize).lower(),
                ),
            },
        )
        return load_config(config, overrides or ())
    return config_from_files(
        edges,
        features,
        labels,
        name=name,
        id_column=id_column,
        file_format=edge_format,
        symmetrize=symmetrize is not False,
        overrides=overrides or (),
    )


def _refuse_both(config: str, options: dict[str, tuple[str, object]]) -> None:
    from conf.load import ConfigError

    if options["--edges"][1] is not None:
        raise ConfigError(f"give a configuration or your files, not both: leave out {config!r}, or --edges")
    for option, (key, value) in options.items():
        if value is not None:
            raise ConfigError(f"{option} goes with --edges; with {config!r} write --set {key}={value} instead")
