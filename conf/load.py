"""Reads a configuration: a preset's name or a YAML file, then `--set a.b=value`, then strict validation."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from conf.compare import CompareConfig
from conf.schema import PipelineConfig

_PRESETS = resources.files("conf.presets")
_MOST_PROBLEMS_SHOWN = 3
_NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)  # the loader lets pass what dates and deep nesting raise


class ConfigError(ValueError):
    """The configuration is wrong (exit code 2); the message is one line: what, where, what to do."""

    exit_code = 2


def preset_names() -> list[str]:
    """Return the names that `load_config` accepts without a file, in alphabetical order."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _PRESETS.iterdir() if entry.name.endswith(".yaml"))


def load_config(name_or_path: str | Path, overrides: Sequence[str] = ()) -> PipelineConfig:
    """Read and validate one configuration.

    Parameters
    ----------
    name_or_path
        Name of a preset, or path of a YAML file with the keys of `PipelineConfig`. Relative paths in it count from
        the working directory.
    overrides
        `a.b=value` each, applied in order; the value is YAML, so `sampling.fanouts=[5, 5]` and `training.patience=`
        (empty) work.

    Raises
    ------
    ConfigError
        If the file is missing or not YAML, a key is unknown, or a value is not allowed.
    """
    source = str(name_or_path)
    tree = _parse_yaml(_read_text(source), source)
    apply_overrides(tree, overrides)
    return validate_config(tree, source)


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str]) -> None:
    """Put `a.b=value` settings into a tree of plain values, in order.

    Raises
    ------
    ConfigError
        If one is not of that form.
    """
    for override in overrides:
        _apply_override(tree, override)


def validate_config(tree: dict[str, Any], source: str) -> PipelineConfig:
    """Turn a tree of plain values into a configuration.

    Raises
    ------
    ConfigError
        If a key is unknown or a value is not allowed; the message opens with `source`.
    """
    try:
        _refuse_undecodable(tree, source)
    except RecursionError:  # YAML can name a list within itself
        raise ConfigError(f"{source}: values are nested without end") from None
    try:
        return PipelineConfig.model_validate(tree)
    except ValidationError as error:
        told = [problem for problem in error.errors(include_url=False) if not _is_other_form(problem)]
        unknown_keys_first = sorted(told, key=lambda p: p["type"] != "extra_forbidden")
        problems = [_describe(problem) for problem in unknown_keys_first]
    rest = len(problems) - _MOST_PROBLEMS_SHOWN
    more = f"; and {rest} more" if rest > 0 else ""
    raise ConfigError(f"{source}: {'; '.join(problems[:_MOST_PROBLEMS_SHOWN])}{more}")


def validate_comparison(tree: dict[str, Any]) -> CompareConfig:
    """Turn plain values into what a comparison tries.

    Raises
    ------
    ConfigError
        If a key is unknown or a value is not allowed.
    """
    try:
        return CompareConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_describe(error.errors(include_url=False)[0])) from error


def _refuse_undecodable(tree: Any, source: str) -> None:
    """Refuse texts that hold bytes of a file name that is not UTF-8: neither Prefect nor MLflow could keep them."""
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            _refuse_undecodable(value, source)
    elif isinstance(tree, str) and not tree.isascii():
        try:
            tree.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(f"{source}: {tree!r} is not UTF-8: rename the file or the folder") from None


def to_yaml(config: PipelineConfig) -> str:
    """Write every setting, as YAML that `load_config` reads."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120, allow_unicode=True)


def _read_text(name_or_path: str) -> str:
    preset = _PRESETS.joinpath(f"{name_or_path}.yaml")
    path = Path(name_or_path)
    if "/" not in name_or_path and preset.is_file() and not path.is_file():
        return preset.read_text(encoding="utf-8")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = difflib.get_close_matches(name_or_path, preset_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{name_or_path}: neither a file nor a preset; {hint}presets are {', '.join(preset_names())}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name_or_path}: cannot be read as text ({error})") from error


def _parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except _NOT_YAML as error:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise ConfigError(f"{source}: a configuration is a mapping of names to values (got {type(tree).__name__})")
    return tree


def _apply_override(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *parents, leaf = [part.strip() for part in key.split(".")]
    if not equals or not leaf or not all(parents):
        raise ConfigError(f"--set {override}: expected a.b=value, for example --set training.epochs=5")
    for parent in parents:
        if not isinstance(tree.get(parent), dict):
            tree[parent] = {}
        tree = tree[parent]
    _refuse_undecodable(text, f"--set {key}")
    try:
        tree[leaf] = yaml.safe_load(text)
    except _NOT_YAML as error:
        raise ConfigError(f"--set {override}: the value is not valid YAML ({' '.join(str(error).split())})") from error


def _describe(problem: Any) -> str:
    """Put one Pydantic problem into words; an unknown key comes with the closest known one."""
    location = [str(part) for part in problem["loc"] if "[" not in str(part)]  # a value of several forms names them
    where = ".".join(location)
    if problem["type"] == "extra_forbidden":
        near = _keys_that_end_in(location[-1]) or difflib.get_close_matches(where, _known_keys(), n=1)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "docs/configuration.md lists all keys"
        return f"unknown key {where!r}: {hint}"
    if problem["type"].startswith("byte_size"):
        other = "" if len(location) == len(problem["loc"]) else ", or auto"
        return f"{where}: {problem['input']!r} is no byte size: write 500MB or 2GiB{other}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where}: {message} (got {reprlib.repr(problem['input'])})"


def _is_other_form(problem: Any) -> bool:
    """Whether it says of a byte size that the word that may stand for one is not it."""
    return problem["type"] == "literal_error" and str(problem["loc"][-1]).startswith("literal[")


def _known_keys(model: type[BaseModel] = PipelineConfig, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _known_keys(field.annotation, f"{prefix}{name}.")
    return keys


def _keys_that_end_in(leaf: str) -> list[str]:
    """Find keys that were put in the wrong section (`epochs` for `training.epochs`)."""
    return [key for key in _known_keys() if key.rpartition(".")[2] == leaf]
