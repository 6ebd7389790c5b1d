"""Experiments of a tracking store: found by name, or made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import InputError

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_experiment(client: MlflowClient, name: str, home: Path, uri: str) -> str:
    """Return the id of an experiment, which is made where it is not there yet.

    Parameters
    ----------
    client : MlflowClient
    name : str
    home : Path
        Below it lie the artifacts of a store that is a database.
    uri : str
        The client's store.

    Raises
    ------
    InputError
        If the experiment was deleted.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        # A server decides by itself where artifacts go; a bare database has to be told.
        if uri.startswith("sqlite:"):
            _drop_default(client, name)
        folder = home / "artifacts" / re.sub(r"[^A-Za-z0-9_-]", "_", name)
        return str(client.create_experiment(name, None if uri.startswith("http") else folder.as_uri()))
    if experiment.lifecycle_stage != "active":
        raise InputError(f"experiment {name!r} was deleted in MLflow at {uri}: restore it or set another name")
    return str(experiment.experiment_id)


def _drop_default(client: MlflowClient, name: str) -> None:
    """Remove the empty experiment that MLflow puts into a new store."""
    default = client.get_experiment_by_name("Default")
    if name == "Default" or default is None or default.lifecycle_stage != "active":
        return
    if not client.search_runs([default.experiment_id], max_results=1):
        client.delete_experiment(default.experiment_id)
