"""The card of a trained model: of what data, how, how good, and how to load it. Plain Markdown beside the weights."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from storage.manifest import Manifest
from tasks.run_context import RunContext
from tasks.specs import INGEST, REORDER

CARD_FILE = "README.md"
"""Name of the card in the model's folder."""
_PACKAGES = ("torch", "numpy", "h5py")


def model_card(run: RunContext, trained: Manifest) -> str:
    """Write the card of a model.

    Parameters
    ----------
    run
        The run that trained it, its earlier stages finished.
    trained
        What training left.
    """
    return "\n".join(_lines(run, trained)) + "\n"


def _lines(run: RunContext, trained: Manifest) -> Iterator[str]:
    config, ingested, store = run.config, run.manifest(INGEST), run.manifest(REORDER)
    yield f"# {config.name}"
    yield f"\n{config.model.kind} for node classification, trained {trained.created} in MLflow run `{run.parent.key}`."
    yield "\n## Data\n"
    counts = {name: ingested.counts[name] for name in ("num_nodes", "num_edges") if name in ingested.counts}
    digests = {"data digest": ingested.digest, "store digest": store.digest}
    files = {f"sha256 of {name}": digest for name, digest in ingested.inputs.items()}
    yield from _table({"format": config.data.format, **counts, **digests, **files})
    yield "\n## Metrics\n"
    yield from _table({name: value for name, value in trained.counts.items() if isinstance(value, int | float)})
    yield "\n## How to load\n"
    yield from _how_to_load(config.name, trained.digest)
    yield "\n## Configuration\n"
    tree = config.model_dump(mode="json", exclude={"state_dir"})
    yield f"```yaml\n{yaml.safe_dump(tree, sort_keys=False, width=100).rstrip()}\n```"
    yield "\n## Made with\n"
    yield from _table({name: importlib.metadata.version(name) for name in _PACKAGES})


def _how_to_load(name: str, digest: str) -> Iterator[str]:
    command = f"garden predict {name}@champion -o classes.parquet"
    yield f"Classes of all nodes: `{command}`, or `{name}@VERSION` for this one."
    yield "In Python, from a downloaded copy of this folder (weights are read with `weights_only=True`):"
    yield "\n```python\nfrom pathlib import Path\n\nfrom tasks.checkpoint import load_model\n"
    yield 'model = load_model(Path("model"))\n```'
    yield f"\nThe training's artifact is `train/{digest}`."


def _table(rows: Mapping[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "| --- | --- |"
    for name, value in rows.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else f"`{value}`"
        yield f"| {name.replace('_', ' ')} | {text} |"
