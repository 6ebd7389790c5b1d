"""What was predicted of a run before it started, kept for the run to be compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.schema import PipelineConfig
from storage.atomic import write_text

_PREDICTED = ("epoch_s", "epoch_read_bytes", "evaluation_s", "evaluation_read_bytes", "hyperbatch")
_DEPENDS_ON = {"data", "sampling", "model", "layout", "storage", "host_budget", "backend"}


def prediction_file(config: PipelineConfig) -> Path:
    """Where the prediction for a run of that name is kept."""
    return config.state_dir / "advice" / f"{config.name}.json"


def keep_prediction(config: PipelineConfig, settings: Mapping[str, str], prediction: Mapping[str, float]) -> None:
    """Write down what was predicted, for the run to be compared with.

    Parameters
    ----------
    config
        Of the run that was asked about.
    settings
        What the prediction is for in place of the configuration's own, as `--set` takes them.
    prediction
        `epoch_s`, and from disk `epoch_read_bytes`; `evaluation_s` and `evaluation_read_bytes` of validation after an
        epoch; `hyperbatch`.
    """
    key = _key(config, settings)
    write_text(prediction_file(config), json.dumps({**prediction, "key": key}, indent=1) + "\n")


def prediction_errors(config: PipelineConfig, measured: Mapping[str, float]) -> dict[str, float]:
    """Compare a run with the prediction kept for it, if there is one: measured over predicted, less 1.

    Parameters
    ----------
    config
        Of the run.
    measured
        The same as far as it was counted.

    Returns
    -------
    dict
        `advice/epoch_s`, `advice/epoch_s_error` and so on; empty without a prediction for these settings.
    """
    try:
        kept: dict[str, Any] = json.loads(prediction_file(config).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if kept.get("key") != _key(config):
        return {}
    figures: dict[str, float] = {}
    for name in _PREDICTED:
        if name in measured and kept.get(name):
            figures |= {f"advice/{name}": kept[name], f"advice/{name}_error": measured[name] / kept[name] - 1}
    return figures


def _key(config: PipelineConfig, settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a prediction depends on; a run with other settings is not compared with it."""
    plain = config.model_dump(mode="json", include=_DEPENDS_ON)
    for name, value in (settings or {}).items():
        *sections, field = name.split(".")
        if not sections and field not in _DEPENDS_ON:
            continue
        part = plain
        for section in sections:
            part = part[section]
        part[field] = int(value) if value.isdecimal() else value
    if plain["storage"]["mode"] == "memory":  # neither blocks nor budget bear on an epoch from memory
        plain |= {"storage": {"mode": "memory"}, "layout": {}, "host_budget": None}
    return plain
