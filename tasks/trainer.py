"""The training loop: plain arguments, no orchestration; its outcome is a pure function of data and options."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

import torch

from kernels.cpu.heap import kept_memory
from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import build_model
from kernels.rng import Purpose
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from tasks.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tasks.compute_threads import compute_threads
from tasks.data_source import DataSource
from tasks.history import History, HistoryMark
from tasks.in_memory import InMemory
from tasks.metrics import METRICS, Metric
from tasks.objective import Labels
from tasks.peers import Alone, Peers
from tasks.score_rows import ScoreRows
from tasks.training_epoch import EpochCosts, EpochTrainer, diverged
from tasks.training_reports import EpochReport, Score, StateDict, TrainResult
from tasks.training_types import Splits, TrainData, TrainOptions
from tasks.validation import ExactValidator, NoValidator, SampledValidator, Validator

logger = logging.getLogger(__name__)

STOP = -1
"""What rank 0 announces in place of an epoch when training is over."""


def train(
    topology: Topology,
    features: FeatureTiers,
    labels: Labels,
    splits: Splits,
    degrees: NodeDegrees | None,
    options: TrainOptions,
    *,
    num_classes: int,
    data_digest: str = "",
    on_epoch: Callable[[EpochReport], None] | None = None,
    peers: Peers | None = None,
) -> TrainResult:
    """Train a network, choose the epoch by validation, and test it exactly.

    The weights depend on data, options and the number of compute threads alone: sampling threads, super-batches and
    caches do not change a bit, and a run resumed from its checkpoint ends as if it had never stopped. W workers take
    the steps that one process takes which accumulates W mini-batches a step.

    Parameters
    ----------
    topology : Topology
    features : FeatureTiers
    labels : (N,) int64 or (N, num_classes) int8
        Class of each node, negative being unlabelled and never trained on; or its labels as rows of 0 and 1, -1 being
        unknown.
    splits : Splits
    degrees : NodeDegrees or None
        Whole-graph degrees of all nodes; only GCN needs them.
    options : TrainOptions
    num_classes : int
    data_digest : str
        Identifies the data in the checkpoint, so that a checkpoint of other data is refused.
    on_epoch : callable, optional
        Called with the report of each new epoch, after its checkpoint is safe.
    peers : Peers, optional
        The processes that train along, each in `train_along` with equal data and options; this one has rank 0.

    Returns
    -------
    TrainResult

    Raises
    ------
    InputError
        If there is nothing to train on, labels or degrees do not fit, training diverges, a metric is undefined on the
        validation nodes, or the checkpoint belongs to another run.
    StorageError
        If the checkpoint is damaged.
    MachineError
        If loading stalls, or a worker has died.
    """
    source = InMemory(topology, features)
    return train_from(
        source,
        labels,
        splits,
        degrees,
        options,
        num_classes=num_classes,
        data_digest=data_digest,
        on_epoch=on_epoch,
        peers=peers,
    )


def train_from(
    source: DataSource,
    labels: Labels,
    splits: Splits,
    degrees: NodeDegrees | None,
    options: TrainOptions,
    *,
    num_classes: int,
    data_digest: str = "",
    on_epoch: Callable[[EpochReport], None] | None = None,
    peers: Peers | None = None,
) -> TrainResult:
    """As `train`, wherever graph and features lie; losses and weights are those of `train`."""
    data = TrainData(source, labels, splits.labelled(labels), degrees, num_classes, data_digest)
    peers = _checked(peers, options)
    with ExitStack() as stack:
        stack.enter_context(compute_threads(options))
        if source.reused_bytes is None:
            stack.enter_context(kept_memory())
        training = _Training(data, options, peers, stack)
        resumed_epochs = training.resume()
        while not training.is_finished:
            report = training.run_epoch()
            if on_epoch is not None:
                on_epoch(report)
        peers.exchange(torch.tensor([STOP]))
        return training.result(resumed_epochs)


def train_along(
    topology: Topology,
    features: FeatureTiers,
    labels: Labels,
    splits: Splits,
    degrees: NodeDegrees | None,
    options: TrainOptions,
    peers: Peers,
    *,
    num_classes: int,
    data_digest: str = "",
) -> None:
    """Take this worker's share of each step until rank 0 says that training is over; `train` explains the rest."""
    data = TrainData(InMemory(topology, features), labels, splits.labelled(labels), degrees, num_classes, data_digest)
    peers = _checked(peers, options)
    with compute_threads(options), kept_memory(), EpochTrainer(data, options, peers) as epochs:
        path = options.checkpoint_path
        if path is not None and path.exists():
            epochs.restore(load_checkpoint(path, options.digest(epochs.spec, data.fingerprint())))
        while (epoch := int(peers.exchange(torch.tensor([STOP]))[0])) != STOP:
            epochs.run(epoch)


class _Training:
    """State of one run, in the process of rank 0."""

    def __init__(self, data: TrainData, options: TrainOptions, peers: Peers, stack: ExitStack) -> None:
        self._data, self._options, self._peers = data, options, peers
        self._epochs = stack.enter_context(EpochTrainer(data, options, peers))
        self._digest = options.digest(self._epochs.spec, data.fingerprint())
        self._history = History(options.checkpoint_path)
        self._best_model: StateDict = {}
        self._validator = self._new_validator(stack)

    def resume(self) -> int:
        """Take up the checkpoint where there is one; return the number of epochs that it brings."""
        path = self._options.checkpoint_path
        if path is None or not path.exists():
            return 0
        checkpoint = load_checkpoint(path, self._digest)
        self._epochs.restore(checkpoint)
        self._best_model = checkpoint.best_model
        self._history.read(HistoryMark(checkpoint.history_bytes, checkpoint.history_crc32))
        logger.info("resumed from %s after %d epochs", path, len(self._history))
        return len(self._history)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done or patience has run out."""
        done, patience = len(self._history), self._options.patience
        return done >= self._options.epochs or (
            patience is not None and done > 0 and done - 1 - self._history.best.epoch >= patience
        )

    def run_epoch(self) -> EpochReport:
        """Train, validate, keep the best weights, and save the checkpoint."""
        epoch = len(self._history)
        self._peers.exchange(torch.tensor([epoch]))
        costs = self._epochs.run(epoch)
        score = self._validator.score(self._epochs.host_model(), self._watched())
        if score.loss is not None and not math.isfinite(score.loss):
            raise diverged(f"the validation loss after epoch {epoch}", self._options)
        report = self._report(epoch, costs, score)
        self._record(report)
        return report

    def result(self, resumed_epochs: int) -> TrainResult:
        """Test the best weights and sum up."""
        model = build_model(self._epochs.spec, seed=self._options.seed)
        model.load_state_dict(self._best_model)
        self._validator = NoValidator()  # what it prepared makes room
        test = self._exact_validator(self._data.splits.test).score(model, METRICS)
        history, best, total = self._history.reports, self._history.best, TierReads.total
        seconds = Counter({"evaluate": test.seconds})
        for report in history:
            seconds.update(report.seconds)
        return TrainResult(
            spec=self._epochs.spec,
            state_dict=self._best_model,
            best_epoch=best.epoch,
            valid_accuracy=best.valid_accuracy,
            test_accuracy=test.metrics.get("accuracy"),
            metric=self._options.metric,
            valid_metric=best.valid_metric,
            test_metrics=test.metrics,
            history=history,
            resumed_epochs=resumed_epochs,
            seconds=dict(seconds),
            feature_reads=total(report.feature_reads for report in history),
            adjacency_reads=total(report.adjacency_reads for report in history),
            evaluation_feature_reads=total([test.feature_reads, *(r.valid_feature_reads for r in history)]),
            evaluation_adjacency_reads=total([test.adjacency_reads, *(r.valid_adjacency_reads for r in history)]),
        )

    def _watched(self) -> tuple[Metric, ...]:
        return ("accuracy",) if self._options.metric == "accuracy" else ("accuracy", self._options.metric)

    def _report(self, epoch: int, costs: EpochCosts, score: Score) -> EpochReport:
        metric = score.metrics.get(self._options.metric)
        if score.loss is not None and metric is None:
            raise InputError(
                f"training.metric {self._options.metric!r} is undefined on the validation nodes: "
                "they lack positives or negatives of every class; choose another metric or split"
            )
        return EpochReport(
            epoch=epoch,
            loss=costs.loss,
            valid_accuracy=score.metrics.get("accuracy"),
            valid_metric=metric,
            valid_loss=score.loss,
            is_best=self._history.would_be_best(metric, score.loss),
            learning_rate=costs.learning_rate,
            seconds=costs.seconds | {"validate": score.seconds},
            feature_reads=costs.feature_reads,
            adjacency_reads=costs.adjacency_reads,
            valid_feature_reads=score.feature_reads,
            valid_adjacency_reads=score.adjacency_reads,
            dynamic=costs.dynamic,
        )

    def _record(self, report: EpochReport) -> None:
        self._history.add(report)
        weights = self._epochs.weights()
        if report.is_best:
            self._best_model = {name: tensor.clone() for name, tensor in weights.items()}
        path = self._options.checkpoint_path
        if path is not None:
            optimizer, mark = self._epochs.optimizer_state(), self._history.mark
            parts = (weights, optimizer, self._best_model, mark.nbytes, mark.crc32)
            save_checkpoint(path, Checkpoint(self._digest, *parts))

    def _new_validator(self, stack: ExitStack) -> Validator:
        nodes = self._data.splits.valid
        if self._options.validation == "exact" or not len(nodes):
            return self._exact_validator(nodes)
        loader = stack.enter_context(self._epochs.host_loader(Purpose.VALIDATE))
        batch_size, degrees = self._options.batch_size, self._epochs.degrees
        return SampledValidator(
            loader,
            nodes,
            self._epochs.objective,
            batch_size=batch_size,
            degrees=degrees,
            new_score_rows=self._score_rows,
        )

    def _exact_validator(self, nodes: IdArray) -> Validator:
        if not len(nodes):
            return NoValidator()
        inference = self._data.source.inference(nodes, self._epochs.spec, self._epochs.degrees, self._options)
        return ExactValidator(inference, self._epochs.objective, nodes, self._score_rows)

    def _score_rows(self, num_rows: int) -> ScoreRows:
        return self._data.source.score_rows(num_rows, self._options)


def _checked(peers: Peers | None, options: TrainOptions) -> Peers:
    peers = peers or Alone()
    if peers.size != options.workers:
        raise InputError(f"workers is {options.workers}, but {peers.size} processes train together")
    return peers
