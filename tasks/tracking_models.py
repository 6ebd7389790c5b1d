"""Fetches registered models: the part of MLflow that `predict` and `embed` need."""

from __future__ import annotations

from pathlib import Path

from storage.errors import InputError
from tasks.tracking import check_store, tracking_uri


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
    local = Path(uri.removeprefix("sqlite:///"))
    if uri.startswith("sqlite:") and not local.is_file():
        raise InputError(f"no models are registered in {state_dir}: name the state directory with --state-dir")
    client = check_store(state_dir)
    from mlflow.exceptions import MlflowException

    try:
        found = (
            client.get_model_version(name, version)
            if version.isdecimal()
            else client.get_model_version_by_alias(name, version)
        )
        assert found.run_id is not None, "every version is registered from a run"
        return Path(client.download_artifacts(found.run_id, "model", str(directory)))
    except MlflowException as error:
        known = ", ".join(sorted(model.name for model in client.search_registered_models())) or "none"
        raise InputError(f"no model {name}@{version} is registered at {uri} (there are: {known})") from error
