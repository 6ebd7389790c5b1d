"""Forms of the Prefect UI: a data set and the settings people change most, flat; each other setting as `a.b=value`.

A form's fields take title, description, choices and bounds from the configuration's own. One that is left empty stays
as the preset has it.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from conf.byte_size import PATTERN, Bytes
from conf.files import config_from_files
from conf.load import ConfigError, load_config, preset_names
from conf.schema import PipelineConfig

FILES, YAML = "files", "yaml"
_PRESETS = tuple(name for name in preset_names() if name != "edge_list")  # `files` says the same in plain fields

# Kinds of values that a browser's form has no good widget for, as texts.
_TEXTS: dict[Any, tuple[str, str]] = {
    Bytes: (PATTERN, "Such as 6MiB."),
    tuple: (r"^-?[0-9]+( *, *-?[0-9]+)*$", "Such as 10, 10."),
}


class Form(BaseModel):
    """Where the data comes from; subclasses add settings. Empty fields stay as the preset has them."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    dataset: Literal[(*_PRESETS, FILES, YAML)] = Field("demo", title="Data set")  # type: ignore[valid-type]
    """demo, cora and so on: a preset with its settings. files: your own edges, features and labels, named below. yaml:
    your own configuration file, named in Path."""
    path: str | None = Field(None, title="Path")
    """Directory of the preset's data set, where it is not in data/NAME; for yaml the configuration file. Relative
    paths count from where `garden up` was started."""
    edges: str | None = Field(None, title="Edges")
    """For files: text, Parquet, .mtx, .npz or .bin (DGL)."""
    features: str | None = Field(None, title="Features")
    """For files: .npy or Parquet, one row a node; with an id column CSV too."""
    labels: str | None = Field(None, title="Labels")
    """For files: .npy or Parquet, one row a node; with an id column CSV too."""
    id_column: str | None = Field(None, title="Id column")
    """For files: column of features and labels with the ids that edges use. Empty: ids are row numbers."""
    settings: list[Annotated[str, Field(pattern=r"^\s*[a-z_.]+\s*=")]] = Field([], title="Further settings")
    """Any other setting, one a line as a.b=value, such as training.patience=5. docs/configuration.md lists all."""


# field of the form -> (key of the configuration, title)
_NAME = {"name": ("name", "Name")}
_LAYOUT = {
    "order": ("layout.order", "Node order"),
    "host_budget": ("host_budget", "Memory budget"),
    "disk_budget": ("disk_budget", "Disk budget"),
}
_CACHE = {
    "device_budget": ("cache.device_budget", "Device budget"),
    "fanouts": ("sampling.fanouts", "Fanouts"),
    "batch_size": ("sampling.batch_size", "Batch size"),
    "seed": ("seed", "Seed"),
}
_TRAIN = {
    "model": ("model.kind", "Model"),
    "hidden": ("model.hidden", "Hidden width"),
    "epochs": ("training.epochs", "Epochs"),
    "learning_rate": ("training.learning_rate", "Learning rate"),
    "metric": ("training.metric", "Metric"),
}


def _form(name: str, settings: Mapping[str, tuple[str, str]]) -> type[Form]:
    fields: dict[str, Any] = {field: _as_field(*of) for field, of in settings.items()}
    return create_model(name, __base__=Form, __doc__=Form.__doc__, **fields)


def _as_field(key: str, title: str) -> tuple[Any, Any]:
    """Type and field of a setting in a form: as in the configuration, but empty unless filled in."""
    setting = _setting(key)
    kind, text = _without_none(setting.annotation), setting.description or ""
    origin = typing.get_origin(kind) or kind
    if origin in _TEXTS:
        pattern, hint = _TEXTS[origin]
        pattern += "|^auto$" if "auto" in str(setting.annotation) else ""
        kind, text = Annotated[str, Field(pattern=pattern)], f"{text} {hint}"
    elif setting.metadata:
        kind = Annotated[(kind, *setting.metadata)]
    return kind | None, Field(None, title=title, description=text)


def _setting(key: str) -> FieldInfo:
    model: type[BaseModel] = PipelineConfig
    *sections, leaf = key.split(".")
    for section in sections:
        nested = model.model_fields[section].annotation
        assert isinstance(nested, type) and issubclass(nested, BaseModel), key
        model = nested
    return model.model_fields[leaf]


def _without_none(annotation: Any) -> Any:
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = typing.get_args(annotation)
        kept = [part for part in parts if part is not type(None) and typing.get_origin(part) is not Literal]
        return kept[0] if len(kept) == 1 else annotation
    return annotation


PREPARE_SETTINGS = _NAME | _LAYOUT
CACHE_SETTINGS = PREPARE_SETTINGS | _CACHE
TRAIN_SETTINGS = _NAME | _TRAIN | _CACHE | _LAYOUT
_ALL_SETTINGS = TRAIN_SETTINGS
PrepareForm = _form("PrepareForm", PREPARE_SETTINGS)
"""What ingest and block layout depend on."""
CacheForm = _form("CacheForm", CACHE_SETTINGS)
"""And what the profile and the cache plan depend on."""
TrainForm = _form("TrainForm", TRAIN_SETTINGS)
"""And what training depends on."""


def form_schema(form: type[Form]) -> dict[str, Any]:
    """Return the JSON schema of a form, simple enough for a browser: a field that may be empty has one plain type."""
    schema = form.model_json_schema()
    last = schema["properties"].pop("settings")
    schema["properties"]["settings"] = last
    for position, field in enumerate(schema["properties"].values()):
        (kind,) = [kind for kind in field.pop("anyOf", [{}]) if kind != {"type": "null"}]
        text = " ".join(field["description"].split()).replace("`", "")  # a form shows Markdown as it is written
        field.update(kind, position=position, description=text)
        if field.get("default", "") is None:
            del field["default"]
    return schema


def filled_in(form: Form, fixed: Sequence[str] = ()) -> PipelineConfig:
    """Return the whole configuration that a form stands for.

    Parameters
    ----------
    form
        What was filled in.
    fixed
        `a.b=value` settings that hold unless the form's further settings say otherwise.

    Raises
    ------
    ConfigError
        If the form names no data, fields have no effect together, or a value is not allowed.
    """
    _check_files(form)
    overrides = [*fixed, *_overrides(form), *form.settings]
    if form.dataset == FILES:
        edges, features, labels = (
            None if name is None else Path(name) for name in (form.edges, form.features, form.labels)
        )
        return config_from_files(
            edges,
            features,
            labels,
            name=getattr(form, "name", None),
            id_column=form.id_column,
            file_format=None,
            symmetrize=True,
            overrides=overrides,
        )
    if form.dataset == YAML:
        assert form.path is not None, "checked above"
        return load_config(form.path, overrides)
    at = [] if form.path is None else [f"data.path={json.dumps(form.path)}"]
    return load_config(form.dataset, [*at, *overrides])


def _check_files(form: Form) -> None:
    """Refuse fields that would have no effect, and a choice without what it needs."""
    named = {"Edges": form.edges, "Features": form.features, "Labels": form.labels, "Id column": form.id_column}
    given = [title for title, value in named.items() if value is not None]
    if given and form.dataset != FILES:
        raise ConfigError(
            f"{given[0]} goes with data set {FILES!r} (got {form.dataset!r}): choose that, or empty the field"
        )
    if form.dataset == FILES and form.path is not None:
        raise ConfigError(f"Path has no effect with data set {FILES!r}: name the files in Edges, Features and Labels")
    if form.dataset == FILES and not form.edges:
        raise ConfigError(f"data set {FILES!r} needs Edges: fill it in")
    if form.dataset == YAML and form.path is None:
        raise ConfigError(f"data set {YAML!r} needs Path: name your configuration file there")


def _overrides(form: Form) -> list[str]:
    """Put what was filled in as `a.b=value`; JSON is YAML."""
    values = {key: getattr(form, field, None) for field, (key, _) in _ALL_SETTINGS.items()}
    lists = {key for key in values if typing.get_origin(_without_none(_setting(key).annotation)) is tuple}
    return [
        f"{key}=[{value}]" if key in lists else f"{key}={json.dumps(value)}"
        for key, value in values.items()
        if value is not None
    ]
