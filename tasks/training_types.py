"""What training is asked and what it answers: plain frozen values without any machinery."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.mfg import TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import Kind, ModelSpec
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from tasks.inference import DEFAULT_CHUNK_BYTES

Validation = Literal["exact", "sampled"]
StateDict = dict[str, Tensor]

_MLP_LAYERS = 2
_CHANGES_NOTHING = ("superbatch", "threads", "compute_threads", "checkpoint_path", "chunk_bytes", "stall_timeout_s")


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
    epochs: int = 10
    """Most epochs to train."""
    learning_rate: float = 0.01
    """Learning rate of Adam."""
    weight_decay: float = 0.0
    """L2 penalty on the weight matrices."""
    patience: int | None = None
    """Stop after so many epochs without a better validation accuracy; None never stops early."""
    validation: Validation = "exact"
    """Validate over all neighbors, or over sampled ones."""
    batch_size: int = 1000
    """Seed nodes a mini-batch."""
    replace: bool = False
    """Draw neighbors with replacement."""
    superbatch: int = 4
    """Mini-batches sampled and fetched as one."""
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
    stall_timeout_s: float = 600.0
    """Give up when no mini-batch has arrived for so long."""

    def __post_init__(self) -> None:
        if self.validation not in get_args(Validation):
            raise InputError(f"validation must be 'exact' or 'sampled' (got {self.validation!r})")
        for name in ("epochs", "batch_size", "superbatch", "threads", "chunk_bytes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1 (got {getattr(self, name)})")
        for name in ("patience", "compute_threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"{name} must be >= 1, or None (got {getattr(self, name)})")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            rates = f"{self.learning_rate} and {self.weight_decay}"
            raise InputError(f"learning_rate must be > 0 and weight_decay >= 0 (got {rates})")
        if (self.kind == "mlp") != (not self.fanouts):
            raise InputError(
                f"the MLP goes with no fanouts, other models with some (got {self.kind!r}, {self.fanouts})"
            )

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

    def labelled(self, labels_N: npt.NDArray[np.int64]) -> Splits:
        """The splits without duplicates and without nodes whose label is negative, ascending.

        Raises
        ------
        InputError
            If an id lies outside [0, N).
        """
        parts = [np.unique(np.asarray(part, np.int64)) for part in (self.train, self.valid, self.test)]
        for name, part in zip(("train", "valid", "test"), parts, strict=True):
            if len(part) and (part[0] < 0 or part[-1] >= len(labels_N)):
                wrong = part[0] if part[0] < 0 else part[-1]
                raise InputError(f"node {wrong} of the {name} split is outside [0, {len(labels_N)})")
        return Splits(*(part[labels_N[part] >= 0] for part in parts))


@dataclass(frozen=True, slots=True)
class TrainData:
    """What to train on, checked."""

    topology: Topology
    """Adjacency of all nodes."""
    features: FeatureTiers
    """Features of all nodes."""
    labels: npt.NDArray[np.int64]
    """(N,) classes, negative where unlabelled."""
    splits: Splits
    """Labelled nodes."""
    degrees: NodeDegrees | None
    """Whole-graph degrees of all nodes, where the network reads them."""
    num_classes: int
    """Classes."""
    digest: str
    """Identifies the data beyond what `fingerprint` sees."""

    def __post_init__(self) -> None:
        num_nodes = self.topology.num_nodes
        if self.labels.shape != (num_nodes,):
            raise InputError(f"there must be {num_nodes} labels, one a node (got shape {self.labels.shape})")
        if not len(self.splits.train):
            raise InputError("no labelled node to train on: check the training split and the labels")
        if self.degrees is not None and len(self.degrees.in_degree) != num_nodes:
            raise InputError(f"there must be {num_nodes} degrees, one a node (got {len(self.degrees.in_degree)})")
        if int(self.labels.max()) >= self.num_classes:
            raise InputError(f"labels must lie below {self.num_classes} (got {int(self.labels.max())})")

    def fingerprint(self) -> dict[str, str | int]:
        """What tells these data from others at little cost."""
        parts = (self.splits.train, self.splits.valid, self.splits.test, self.labels)
        checksums = "-".join(str(zlib.crc32(part.tobytes())) for part in parts)
        sizes = {"nodes": self.topology.num_nodes, "edges": self.topology.num_edges}
        return {**sizes, "digest": self.digest, "checksums": checksums}


@dataclass(frozen=True, slots=True)
class Score:
    """Quality on a set of nodes, and what it took to find out."""

    accuracy: float | None
    """Share of right classes; None where the set is empty."""
    loss: float | None
    """Mean cross-entropy; None where the set is empty."""
    seconds: float
    """Wall seconds."""
    feature_reads: TierReads
    """Feature rows read."""
    adjacency_reads: TierReads
    """Adjacency lists read."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch, counted from 0."""

    epoch: int
    """Number of the epoch."""
    loss: float
    """Mean training loss."""
    valid_accuracy: float | None
    """None where there is nothing to validate on."""
    valid_loss: float | None
    """Mean cross-entropy on the validation nodes."""
    is_best: bool
    """Whether no earlier epoch was as good (accuracy first, then loss)."""
    seconds: Mapping[str, float]
    """`train` (steps), `wait` (for mini-batches) and `validate` are wall time and add up; `sample` and `gather` are the
    work of the threads behind it."""
    feature_reads: TierReads
    """Feature rows read by training."""
    adjacency_reads: TierReads
    """Adjacency lists read by training."""
    valid_feature_reads: TierReads
    """Feature rows read by validation."""
    valid_adjacency_reads: TierReads
    """Adjacency lists read by validation."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint or JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EpochReport:
        """Inverse of `to_dict`."""
        reads = {field.name: TierReads(**values[field.name]) for field in fields(cls) if field.name.endswith("_reads")}
        return cls(**{**values, **reads})


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The outcome, judged at the epoch of the best validation."""

    spec: ModelSpec
    """Network of `state_dict`."""
    state_dict: StateDict
    """Weights of the best epoch."""
    best_epoch: int
    """Epoch of the best validation accuracy; ties by loss, then the earlier."""
    valid_accuracy: float | None
    """Validation accuracy of that epoch."""
    test_accuracy: float | None
    """Exact test accuracy of its weights."""
    history: tuple[EpochReport, ...]
    """All epochs, those before a resume too."""
    resumed_epochs: int
    """How many of them came from a checkpoint."""
    seconds: Mapping[str, float]
    """The parts of `EpochReport.seconds` added up, and `evaluate` (the test)."""
    feature_reads: TierReads
    """Feature rows read by training."""
    adjacency_reads: TierReads
    """Adjacency lists read by training."""
    evaluation_feature_reads: TierReads
    """Feature rows read by validation and test."""
    evaluation_adjacency_reads: TierReads
    """Adjacency lists read by validation and test."""
