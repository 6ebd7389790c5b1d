"""Grids of settings: `a.b=v,w` texts become the configurations of a sweep, each validated before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from conf.load import ConfigError, validate_config
from conf.schema import PipelineConfig

Grid = Mapping[str, Sequence[Any]]
"""Values to try, by dotted key."""

MOST_POINTS = 1000


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read `a.b=v,w` texts; values are YAML, so `sampling.fanouts=[5,5],[10,10]` works.

    Raises
    ------
    ConfigError
        If a text is no such thing, or a key comes twice.
    """
    grid: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        try:
            parsed = yaml.safe_load(f"[{values}]")
        except yaml.YAMLError as error:
            raise ConfigError(
                f"--grid {text}: the values are not valid YAML ({' '.join(str(error).split())})"
            ) from error
        if not equals or not key or not parsed:
            raise ConfigError(f"--grid {text}: expected a.b=v,w, for example --grid model.hidden=64,128")
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice: list all its values in one")
        grid[key] = parsed
    return grid


def grid_points(config: PipelineConfig, grid: Grid) -> list[tuple[dict[str, Any], PipelineConfig]]:
    """Every combination of the values: what differs, and the whole configuration.

    Raises
    ------
    ConfigError
        If the grid is empty or too large, a key is unknown, or a combination is not allowed.
    """
    num_points = 1
    for values in grid.values():
        num_points *= len(values)
    if not grid or not 0 < num_points <= MOST_POINTS:
        raise ConfigError(f"a grid needs 1 to {MOST_POINTS} points (got {num_points if grid else 'no key'})")
    combinations = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return [(point, _with(config, point)) for point in combinations]


def _with(config: PipelineConfig, point: Mapping[str, Any]) -> PipelineConfig:
    tree = config.model_dump(mode="json")
    for key, value in point.items():
        *parents, leaf = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(f"--grid {key}: {parent} is no section")
        section[leaf] = value
    return validate_config(tree, ", ".join(f"{key}={value}" for key, value in point.items()))
