"""What training answers: the report of an epoch and the outcome of a run, plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from kernels.mfg import TierReads
from kernels.nn.model import ModelSpec
from tasks.metrics import Metric

StateDict = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Score:
    """Quality on a set of nodes, and what it took to find out."""

    metrics: Mapping[str, float | None]
    """The metrics asked for; none where the set is empty."""
    loss: float | None
    """Mean loss without class weights; None where the set is empty."""
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
    valid_metric: float | None
    """The metric that chooses the best epoch; None where there is nothing to validate on."""
    valid_loss: float | None
    """Mean loss on the validation nodes, class weights left out."""
    is_best: bool
    """Whether no earlier epoch was as good (the metric first, then the loss)."""
    learning_rate: float
    """Of the last step."""
    seconds: Mapping[str, float]
    """`train` (steps), `wait` (for mini-batches) and `validate` are wall time and add up; `sample` and `gather` are the
    work of the threads behind it."""
    feature_reads: TierReads
    """Feature rows read by training, all workers together."""
    adjacency_reads: TierReads
    """Adjacency lists read by training, all workers together."""
    valid_feature_reads: TierReads
    """Feature rows read by validation."""
    valid_adjacency_reads: TierReads
    """Adjacency lists read by validation."""
    dynamic: Mapping[str, float] = field(default_factory=dict)
    """Counters and overhead of the dynamic cache of the process of rank 0; empty where there is none."""

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
    """Epoch of the best validation metric; ties by loss, then the earlier."""
    valid_accuracy: float | None
    """Validation accuracy of that epoch."""
    test_accuracy: float | None
    """Exact test accuracy of its weights."""
    metric: Metric
    """What chose the epoch."""
    valid_metric: float | None
    """It on the validation nodes in that epoch."""
    test_metrics: Mapping[str, float | None]
    """All metrics of its weights on the test nodes; empty without test nodes."""
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
