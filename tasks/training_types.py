"""What training is asked, and on what data: plain frozen values without any machinery."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from kernels.backend import Backend
from kernels.distinct import distinct
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import Kind, ModelSpec
from kernels.nn.norm import Norm
from storage.errors import InputError
from tasks.data_source import DataSource
from tasks.in_flight import DEFAULT_IN_FLIGHT_BYTES
from tasks.inference import DEFAULT_CHUNK_BYTES
from tasks.metrics import Metric
from tasks.objective import ClassWeights, Labels, labelled

Validation = Literal["exact", "sampled"]
Schedule = Literal["constant", "cosine", "step"]
Precision = Literal["float32", "bfloat16"]
Pinned = Literal["auto", "on", "off"]

_MLP_LAYERS = 2
_CHECKSUM_ROWS = 1 << 16
_CHANGES_NOTHING = (
    "superbatch",
    "threads",
    "compute_threads",
    "checkpoint_path",
    "chunk_bytes",
    "in_flight_bytes",
    "stall_timeout_s",
    "pinned",
)
_AT_LEAST_ONE = (
    "epochs",
    "batch_size",
    "superbatch",
    "threads",
    "chunk_bytes",
    "in_flight_bytes",
    "step_epochs",
    "accumulate",
    "workers",
)
_CHOICES = {"validation": Validation, "schedule": Schedule, "precision": Precision, "metric": Metric, "pinned": Pinned}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train. All fields but `superbatch`, `threads` and those after `seed` decide the outcome (see there)."""

    kind: Kind
    """Which layer."""
    fanouts: tuple[int, ...]
    """Neighbors a node, from the input layer to the seed layer; -1 takes all. Empty for the MLP."""
    hidden: int = 64
    """Width of the hidden layers."""
    dropout: float = 0.5
    """Dropout between layers."""
    input_dropout: float = 0.0
    """Dropout of the input features."""
    heads: int | None = None
    """Attention heads of a GAT layer; None stands for 8."""
    attention_dropout: float = 0.0
    """Dropout of a GAT layer's attention weights."""
    norm: Norm = "none"
    """Normalisation between layers."""
    epochs: int = 10
    """Most epochs to train."""
    learning_rate: float = 0.01
    """Learning rate of Adam, after warm-up."""
    schedule: Schedule = "constant"
    """How the learning rate falls; `cosine` reaches 0 after `epochs`."""
    warmup_steps: int = 0
    """Steps during which the learning rate rises to its full height."""
    step_epochs: int = 10
    """Epochs from one fall of the learning rate to the next (`step`)."""
    step_factor: float = 0.1
    """What it is multiplied by then."""
    clip_norm: float | None = None
    """Largest Euclidean norm of a step's whole gradient; None clips nothing."""
    precision: Precision = "float32"
    """Of the matrix products in training; weights, aggregation, loss, gradients and evaluation stay float32."""
    class_weights: ClassWeights = "none"
    """Factors of the classes' losses, see `build_objective`."""
    accumulate: int = 1
    """Mini-batches of each worker whose gradients add up to one step."""
    workers: int = 1
    """Processes that train together: of each `workers` mini-batches in a row, each takes one."""
    metric: Metric = "accuracy"
    """What chooses the best epoch on the validation nodes."""
    weight_decay: float = 0.0
    """L2 penalty on the weight matrices."""
    patience: int | None = None
    """Stop after so many epochs without a better validation metric; None never stops early."""
    validation: Validation = "exact"
    """Validate over all neighbors, or over sampled ones."""
    batch_size: int = 1000
    """Seed nodes a mini-batch."""
    replace: bool = False
    """Draw neighbors with replacement."""
    superbatch: int = 4
    """Mini-batches sampled and fetched as one."""
    backend: Backend = "cpu"
    """What samples, gathers and trains; evaluation is the CPU's. The mini-batches are the same, rounding is not."""
    pinned: Pinned = "auto"
    """Whether a GPU reads host memory in place: `auto` copies where memory cannot be pinned, `on` refuses then."""
    threads: int = 2
    """Sampling threads."""
    seed: int = 0
    """Seed of sampling, initial weights and dropout; any 64-bit integer."""
    compute_threads: int | None = None
    """Threads of the model's arithmetic; None takes all cores but one, which sampling and gathering keep busy. Another
    number rounds differently."""
    checkpoint_path: Path | None = None
    """File to save after each epoch and to resume from where it exists; None keeps no checkpoint."""
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    """Most bytes of one chunk of exact evaluation."""
    in_flight_bytes: int = DEFAULT_IN_FLIGHT_BYTES
    """Most bytes of mini-batches that are loaded ahead, one super-batch being the least."""
    stall_timeout_s: float = 600.0
    """Give up when no mini-batch has arrived for so long."""

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                allowed = " or ".join(map(repr, get_args(choices)))
                raise InputError(f"{name} must be {allowed} (got {getattr(self, name)!r})")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1 (got {getattr(self, name)})")
        for name in ("patience", "compute_threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, or None (got {getattr(self, name)})")
        self._check_rates()
        if (self.kind == "mlp") != (not self.fanouts):
            raise InputError(
                f"the MLP goes with no fanouts, other models with some (got {self.kind!r}, {self.fanouts})"
            )

    def _check_rates(self) -> None:
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            rates = f"{self.learning_rate} and {self.weight_decay}"
            raise InputError(f"learning_rate must be > 0 and weight_decay >= 0 (got {rates})")
        if self.warmup_steps < 0 or not 0 < self.step_factor <= 1:
            got = f"{self.warmup_steps} and {self.step_factor}"
            raise InputError(f"warmup_steps must be >= 0 and step_factor lie in (0, 1] (got {got})")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InputError(f"clip_norm must be > 0, or None (got {self.clip_norm})")
        weights = self.class_weights
        if weights not in ("none", "balanced") and not (isinstance(weights, tuple) and min(weights, default=0) > 0):
            raise InputError(f"class_weights must be 'none', 'balanced' or positive numbers (got {weights!r})")

    def model_spec(self, in_dim: int, num_classes: int) -> ModelSpec:
        """Network for so many features and classes."""
        try:
            return ModelSpec(
                kind=self.kind,
                in_dim=in_dim,
                hidden=self.hidden,
                num_classes=num_classes,
                num_layers=len(self.fanouts) or _MLP_LAYERS,
                dropout=self.dropout,
                input_dropout=self.input_dropout,
                heads=self.heads,
                attention_dropout=self.attention_dropout,
                norm=self.norm,
            )
        except ValueError as error:
            raise InputError(str(error)) from error

    def digest(self, spec: ModelSpec, data: Mapping[str, Any]) -> str:
        """Hash of everything that decides the outcome: these options, the network and what describes the data."""
        options = {name: value for name, value in asdict(self).items() if name not in _CHANGES_NOTHING}
        text = json.dumps([options, spec.to_dict(), dict(data)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Splits:
    """Node ids to train, validate and test on; unlabelled ones among them are left out."""

    train: npt.NDArray[np.int64]
    """(n,) ids."""
    valid: npt.NDArray[np.int64]
    """(n,) ids, may be empty: then the last epoch counts as the best."""
    test: npt.NDArray[np.int64]
    """(n,) ids, may be empty."""

    def labelled(self, labels: Labels) -> Splits:
        """The splits without duplicates and without unlabelled nodes, ascending; what is so already is not copied.

        Raises
        ------
        InputError
            If an id lies outside [0, N).
        """
        given = [np.asarray(part, np.int64) for part in (self.train, self.valid, self.test)]
        parts = [distinct(part) for part in given]
        for name, part in zip(("train", "valid", "test"), parts, strict=True):
            if len(part) and (part[0] < 0 or part[-1] >= len(labels)):
                wrong = part[0] if part[0] < 0 else part[-1]
                raise InputError(f"node {wrong} of the {name} split is outside [0, {len(labels)})")
        known_N = labelled(labels)
        return Splits(*(part if known_N[part].all() else part[known_N[part]] for part in parts))


@dataclass(frozen=True, slots=True)
class TrainData:
    """What to train on, checked."""

    source: DataSource
    """Graph and features of all nodes."""
    labels: Labels
    """(N,) classes, negative where unlabelled; or (N, num_classes) rows of 0 and 1, -1 where unknown."""
    splits: Splits
    """Labelled nodes."""
    degrees: NodeDegrees | None
    """Whole-graph degrees of all nodes, where the network reads them."""
    num_classes: int
    """Classes."""
    digest: str
    """Identifies the data beyond what `fingerprint` sees."""

    def __post_init__(self) -> None:
        num_nodes = self.source.graph.num_nodes
        if self.labels.shape not in ((num_nodes,), (num_nodes, self.num_classes)):
            raise InputError(
                f"there must be {num_nodes} labels, one a node or one of each class (got shape {self.labels.shape})"
            )
        if not len(self.splits.train):
            raise InputError("no labelled node to train on: check the training split and the labels")
        if self.degrees is not None and len(self.degrees.in_degree) != num_nodes:
            raise InputError(f"there must be {num_nodes} degrees, one a node (got {len(self.degrees.in_degree)})")
        limit = self.num_classes if self.labels.ndim == 1 else 2
        if int(self.labels.max()) >= limit:
            raise InputError(f"labels must lie below {limit} (got {int(self.labels.max())})")

    def fingerprint(self) -> dict[str, str | int]:
        """What tells these data from others at little cost."""
        parts = (self.splits.train, self.splits.valid, self.splits.test, self.labels)
        checksums = "-".join(str(_checksum(part)) for part in parts)
        sizes = {"nodes": self.source.graph.num_nodes, "edges": self.source.graph.num_edges}
        return {**sizes, "digest": self.digest, "checksums": checksums}


def _checksum(array: npt.NDArray[Any]) -> int:
    """CRC-32 of the values, piece by piece: classes have one whatever type holds them."""
    dtype, crc = np.int64 if array.ndim == 1 else array.dtype, 0
    for begin in range(0, len(array), _CHECKSUM_ROWS):
        piece = np.ascontiguousarray(array[begin : begin + _CHECKSUM_ROWS], dtype)
        crc = zlib.crc32(piece.data, crc)
    return crc
