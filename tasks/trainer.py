"""The training loop: plain arguments, no orchestration; its outcome is a pure function of data and options."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from kernels.cpu.heap import kept_memory
from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from tasks.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from tasks.inference import ExactInference
from tasks.loader import LoadStats, MiniBatch, MiniBatchLoader
from tasks.training_types import EpochReport, Score, Splits, StateDict, TrainData, TrainOptions, TrainResult
from tasks.validation import ExactValidator, NoValidator, SampledValidator, Validator

logger = logging.getLogger(__name__)


def train(
    topology: Topology,
    features: FeatureTiers,
    labels_N: npt.NDArray[np.int64],
    splits: Splits,
    degrees: NodeDegrees | None,
    options: TrainOptions,
    *,
    num_classes: int,
    data_digest: str = "",
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Train a network, choose the epoch by validation, and test it exactly.

    The weights depend on data, options and the number of compute threads alone: sampling threads, super-batches and
    caches do not change a bit, and a run resumed from its checkpoint ends as if it had never stopped.

    Parameters
    ----------
    topology : Topology
    features : FeatureTiers
    labels_N : (N,) int64
        Class of each node; negative is unlabelled and never trained on.
    splits : Splits
    degrees : NodeDegrees or None
        Whole-graph degrees of all nodes; only GCN needs them.
    options : TrainOptions
    num_classes : int
    data_digest : str
        Identifies the data in the checkpoint, so that a checkpoint of other data is refused.
    on_epoch : callable, optional
        Called with the report of each new epoch, after its checkpoint is safe.

    Returns
    -------
    TrainResult

    Raises
    ------
    InputError
        If there is nothing to train on, labels or degrees do not fit, training diverges, or the checkpoint belongs to
        another run.
    StorageError
        If the checkpoint is damaged.
    MachineError
        If loading stalls.
    """
    data = TrainData(topology, features, labels_N, splits.labelled(labels_N), degrees, num_classes, data_digest)
    with ExitStack() as stack:
        stack.enter_context(_compute_threads(options.compute_threads))
        stack.enter_context(kept_memory())
        training = _Training(data, options, stack)
        resumed_epochs = training.resume()
        while not training.is_finished:
            report = training.run_epoch()
            if on_epoch is not None:
                on_epoch(report)
        return training.result(resumed_epochs)


class _Training:
    """State of one run."""

    def __init__(self, data: TrainData, options: TrainOptions, stack: ExitStack) -> None:
        self._data, self._options = data, options
        self._spec = options.model_spec(data.features.gather(np.empty(0, np.int64)).shape[1], data.num_classes)
        if self._spec.needs_degrees and data.degrees is None:
            raise InputError(f"a {self._spec.kind} model needs the degrees of all nodes")
        self._degrees = data.degrees if self._spec.needs_degrees else None
        self._digest = options.digest(self._spec, data.fingerprint())
        self._model = build_model(self._spec, seed=options.seed)
        self._optimizer = _optimizer(self._model, options)
        self._history: list[EpochReport] = []
        self._best_model: StateDict = {}
        self._loader = stack.enter_context(self._new_loader(Purpose.TRAIN))
        self._validator = self._new_validator(stack)

    def resume(self) -> int:
        """Take up the checkpoint where there is one; return the number of epochs that it brings."""
        path = self._options.checkpoint_path
        if path is None or not path.exists():
            return 0
        checkpoint = load_checkpoint(path, self._digest)
        self._model.load_state_dict(checkpoint.model)
        self._optimizer.load_state_dict(checkpoint.optimizer)
        self._best_model = checkpoint.best_model
        self._history = [EpochReport.from_dict(report) for report in checkpoint.history]
        logger.info("resumed from %s after %d epochs", path, len(self._history))
        return len(self._history)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done or patience has run out."""
        done, patience = len(self._history), self._options.patience
        return done >= self._options.epochs or (
            patience is not None and done > 0 and done - 1 - self._best.epoch >= patience
        )

    def run_epoch(self) -> EpochReport:
        """Train, validate, keep the best weights, and save the checkpoint."""
        epoch, before = len(self._history), self._data.features.reads
        loss, train_s, stats = self._train(epoch)
        feature_reads = self._data.features.reads.since(before)
        score = self._validator.score(self._model)
        if score.loss is not None and not math.isfinite(score.loss):
            raise _diverged(f"the validation loss after epoch {epoch}", self._options)
        seconds = {
            "train": train_s,
            "wait": stats.wait_s,
            "validate": score.seconds,
            "sample": stats.sample_s,
            "gather": stats.gather_s,
        }
        report = EpochReport(
            epoch=epoch,
            loss=loss,
            valid_accuracy=score.accuracy,
            valid_loss=score.loss,
            is_best=self._is_best(score),
            seconds=seconds,
            feature_reads=feature_reads,
            adjacency_reads=stats.adjacency_reads,
            valid_feature_reads=score.feature_reads,
            valid_adjacency_reads=score.adjacency_reads,
        )
        self._record(report)
        return report

    def result(self, resumed_epochs: int) -> TrainResult:
        """Test the best weights and sum up."""
        model = build_model(self._spec, seed=self._options.seed)
        model.load_state_dict(self._best_model)
        test = self._exact_validator(self._data.splits.test).score(model)
        seconds = Counter({"evaluate": test.seconds})
        for report in self._history:
            seconds.update(report.seconds)
        history = self._history
        return TrainResult(
            spec=self._spec,
            state_dict=self._best_model,
            best_epoch=self._best.epoch,
            valid_accuracy=self._best.valid_accuracy,
            test_accuracy=test.accuracy,
            history=tuple(history),
            resumed_epochs=resumed_epochs,
            seconds=dict(seconds),
            feature_reads=_sum(report.feature_reads for report in history),
            adjacency_reads=_sum(report.adjacency_reads for report in history),
            evaluation_feature_reads=_sum([test.feature_reads, *(r.valid_feature_reads for r in history)]),
            evaluation_adjacency_reads=_sum([test.adjacency_reads, *(r.valid_adjacency_reads for r in history)]),
        )

    def _train(self, epoch: int) -> tuple[float, float, LoadStats]:
        """One pass over the training nodes: mean loss, seconds of the steps, costs of loading."""
        options, nodes = self._options, self._data.splits.train
        batches = shuffled_batches(nodes, options.batch_size, seed=options.seed, epoch=epoch)
        loss_sum, train_s = 0.0, 0.0
        with self._loader.epoch(batches, epoch=epoch) as stream:
            for batch in stream:
                start = time.perf_counter()
                loss_sum += self._step(batch, epoch) * batch.sample.num_seed_rows
                train_s += time.perf_counter() - start
        return loss_sum / len(nodes), train_s, stream.stats

    def _step(self, batch: MiniBatch, epoch: int) -> float:
        sample = batch.sample
        degrees_S = self._degrees.take(sample.input_nodes) if self._degrees is not None else None
        identity = (self._options.seed, epoch, sample.batch_index)
        logits = self._model(sample.hops, batch.rows, degrees_S, dropout_identity=identity)
        loss = functional.cross_entropy(logits, torch.from_numpy(self._data.labels[sample.seed_nodes]))
        loss_value = float(loss.detach())
        if not math.isfinite(loss_value):
            raise _diverged(f"the loss in epoch {epoch}, batch {sample.batch_index}", self._options)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss_value

    def _record(self, report: EpochReport) -> None:
        self._history.append(report)
        if report.is_best:
            self._best_model = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        path = self._options.checkpoint_path
        if path is not None:
            history = [past.to_dict() for past in self._history]
            model, optimizer = self._model.state_dict(), self._optimizer.state_dict()
            save_checkpoint(path, Checkpoint(self._digest, model, optimizer, self._best_model, history))

    @property
    def _best(self) -> EpochReport:
        return next(report for report in reversed(self._history) if report.is_best)

    def _is_best(self, score: Score) -> bool:
        if not self._history or score.accuracy is None or score.loss is None:
            return True
        best = self._best
        assert best.valid_accuracy is not None
        assert best.valid_loss is not None
        return (score.accuracy, -score.loss) > (best.valid_accuracy, -best.valid_loss)

    def _new_loader(self, purpose: Purpose) -> MiniBatchLoader:
        options = self._options
        sampler = NeighborSampler(
            self._data.topology, options.fanouts, seed=options.seed, purpose=purpose, replace=options.replace
        )
        return MiniBatchLoader(
            sampler,
            self._data.features,
            superbatch=options.superbatch,
            threads=options.threads,
            stall_timeout_s=options.stall_timeout_s,
            # Dropout of the input copies the rows anyway.
            in_place=self._data.features.is_readable_in_place and options.input_dropout == 0,
        )

    def _new_validator(self, stack: ExitStack) -> Validator:
        nodes = self._data.splits.valid
        if self._options.validation == "exact" or not len(nodes):
            return self._exact_validator(nodes)
        loader = stack.enter_context(self._new_loader(Purpose.VALIDATE))
        batch_size, labels_N = self._options.batch_size, self._data.labels
        return SampledValidator(loader, nodes, labels_N, batch_size=batch_size, degrees=self._degrees)

    def _exact_validator(self, nodes: IdArray) -> Validator:
        if not len(nodes):
            return NoValidator()
        chunk_bytes, topology = self._options.chunk_bytes, self._data.topology
        inference = ExactInference(topology, nodes, self._spec, degrees=self._degrees, chunk_bytes=chunk_bytes)
        return ExactValidator(inference, self._data.features, self._data.labels[nodes])


@contextmanager
def _compute_threads(threads: int | None) -> Iterator[None]:
    """Set torch's thread count for a while.

    With as many compute threads as cores, each parallel operation waits for a thread that sampling has displaced:
    measured on two busy cores, steps took five times as long.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or max(1, len(os.sched_getaffinity(0)) - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _optimizer(model: GnnModel, options: TrainOptions) -> torch.optim.Adam:
    """Adam, with weight decay on the matrices."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.Adam(groups, lr=options.learning_rate)


def _diverged(what: str, options: TrainOptions) -> InputError:
    return InputError(
        f"training diverged: {what} is not finite; try a learning rate below {options.learning_rate:g}, "
        "and check the features for extreme values"
    )


def _sum(parts: Iterable[TierReads]) -> TierReads:
    total = TierReads()
    for part in parts:
        total.add(part)
    return total
