"""Fetches registered models: the part of MLflow that `predict` and `embed` need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import InputError
from tasks.tracking import check_store, needing, tracking_uri
from tasks.tracking_calls import CHAMPION, is_refusal

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


def download_model(state_dir: Path, name: str, version: str, directory: Path) -> Path:
    """Copy a registered model's files to a directory.

    Parameters
    ----------
    state_dir
        State directory of the store, unless MLFLOW_TRACKING_URI names another.
    name
        Name of the registered model.
    version
        Number of the version, or an alias such as `champion`.
    directory
        Where to copy to.

    Raises
    ------
    InputError
        If there is no such version.
    MachineError
        If the store cannot be used.
    """
    uri = tracking_uri(state_dir)
    if not _is_there(uri):
        raise InputError(f"no models are registered in {state_dir}: name the state directory with --state-dir")
    client = check_store(state_dir)
    from mlflow.exceptions import MlflowException

    with needing(uri):
        try:
            found = (
                client.get_model_version(name, version)
                if version.isdecimal()
                else client.get_model_version_by_alias(name, version)
            )
            assert found.run_id is not None, "every version is registered from a run"
            return Path(client.download_artifacts(found.run_id, "model", str(directory)))
        except MlflowException as error:
            if not is_refusal(error):
                raise
            raise InputError(f"no model {name}@{version} is registered at {uri}: {_known(client, name)}") from error


def registered_version(state_dir: Path, name: str, train_digest: str) -> tuple[str, str | None] | None:
    """Return the newest version that a training registered, and the champion's; None where there is none.

    Raises
    ------
    MachineError
        If the store cannot be used.
    """
    uri = tracking_uri(state_dir)
    if not _is_there(uri):
        return None
    client = check_store(state_dir)
    with needing(uri):
        versions = [v for v in _versions(client, name) if v.tags.get("train_digest") == train_digest]
        if not versions:
            return None
        champion = client.get_registered_model(name).aliases.get(CHAMPION)
        return str(versions[-1].version), None if champion is None else str(champion)


def champion_digests(state_dir: Path) -> dict[str, dict[str, str]]:
    """Return the digests that the champion of each name was registered with: `store_digest`, `train_digest`.

    Raises
    ------
    MachineError
        If the registry cannot be used: what its champions need is not known then.
    """
    uri = tracking_uri(state_dir)
    if not _is_there(uri):
        return {}
    client = check_store(state_dir)
    with needing(uri):
        models = client.search_registered_models()
        champions = {model.name: model.aliases[CHAMPION] for model in models if CHAMPION in model.aliases}
        return {name: dict(client.get_model_version(name, str(version)).tags) for name, version in champions.items()}


def _is_there(uri: str) -> bool:
    """Whether a store can hold models: a local one is a file."""
    return not uri.startswith("sqlite:") or Path(uri.removeprefix("sqlite:///")).is_file()


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """All versions of a model, the newest last."""
    found = client.search_model_versions(f"name = '{name}'")
    return sorted(found, key=lambda version: int(version.version))


def _known(client: MlflowClient, name: str) -> str:
    versions = _versions(client, name)
    if versions:
        champion = client.get_registered_model(name).aliases.get(CHAMPION)
        names = [f"{v.version} ({CHAMPION})" if str(champion) == str(v.version) else str(v.version) for v in versions]
        return f"versions are {', '.join(names)}"
    models = ", ".join(sorted(model.name for model in client.search_registered_models()))
    return f"models are {models}" if models else "there are none"
