"""What a saved model has to know of its training data: names of the classes, and how a new graph is to be read."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from storage.atomic import write_text
from storage.errors import StorageError
from storage.graph_store import StoreInfo
from storage.ingest import IngestOptions

MODEL_FOLDER = "model"
"""Folder of the model in the artifact of a training."""
DATA_FILE = "data.json"
_READING = ("symmetrize", "deduplicate", "self_loops", "nan_policy", "normalize_features")


@dataclass(frozen=True)
class ModelData:
    """Stands beside `arch.json` and the weights, in `data.json`."""

    class_names: tuple[str, ...]
    """Name of each class, in the order of the model's outputs."""
    symmetrize: bool
    """Whether the reverse of every edge was added."""
    deduplicate: bool
    """Whether repeated edges were merged."""
    self_loops: str
    """What was done with self loops."""
    nan_policy: str
    """What was done with features that are not finite."""
    normalize_features: str
    """How features were normalized."""
    multi_label: bool = False
    """Whether a node may have several labels, each with a probability of its own."""
    store_digest: str | None = None
    """Artifact of the laid-out store that was trained on; None in models of older versions."""

    @classmethod
    def of(cls, info: StoreInfo, options: IngestOptions, store_digest: str | None = None) -> ModelData:
        """Describe the data of a training."""
        reading = {name: getattr(options, name) for name in _READING}
        return cls(info.label_names, multi_label=info.is_multi_label, store_digest=store_digest, **reading)

    def reading_options(self) -> IngestOptions:
        """Return how to ingest a new graph for the model: as the training graph was; its split serves nobody."""
        return IngestOptions(split="random", **{name: getattr(self, name) for name in _READING})

    def save(self, directory: Path) -> None:
        """Write `data.json`."""
        write_text(directory / DATA_FILE, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> ModelData | None:
        """Read what `save` wrote; None where a model comes without.

        Raises
        ------
        StorageError
            If the file is damaged.
        """
        path = directory / DATA_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(**values | {"class_names": tuple(map(str, values["class_names"]))})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(f"{path} does not describe a model's data ({error}): train the model again") from error
