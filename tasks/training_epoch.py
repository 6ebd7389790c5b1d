"""One epoch of steps, the same in every process that trains: load, accumulate, exchange, step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.heap import reused_heap
from kernels.mfg import TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, build_model
from kernels.rng import Purpose
from kernels.sampler import shuffled_batches
from storage.errors import InputError
from tasks.checkpoint import Checkpoint
from tasks.compute import HostCompute, build_compute, on_cpu
from tasks.data_source import Loader, width_of
from tasks.epoch_stream import LoadStats, MiniBatch
from tasks.objective import build_objective
from tasks.optimizer import build_optimizer, learning_rate, set_learning_rate
from tasks.peers import Peers
from tasks.training_reports import StateDict
from tasks.training_types import TrainData, TrainOptions


@dataclass(frozen=True, slots=True)
class EpochCosts:
    """What an epoch of training came to."""

    loss: float
    """Mean loss, class weights counted."""
    learning_rate: float
    """Of the last step."""
    train_s: float
    """Seconds of this process's steps, waiting for other processes included."""
    wait_s: float
    """Seconds that this process waited for mini-batches."""
    sample_s: float
    """Seconds of sampling, all threads and workers together."""
    gather_s: float
    """Seconds of gathering rows, all workers together."""
    feature_reads: TierReads
    """Feature rows read, all workers together."""
    adjacency_reads: TierReads
    """Adjacency lists read, all workers together."""
    dynamic: Mapping[str, float]
    """Counters and overhead of this process's dynamic cache; empty where there is none."""

    @property
    def seconds(self) -> dict[str, float]:
        """As an epoch's report names them."""
        return {"train": self.train_s, "wait": self.wait_s, "sample": self.sample_s, "gather": self.gather_s}


class EpochTrainer:
    """The network, its optimizer and this process's share of the mini-batches; use it as a context manager."""

    def __init__(self, data: TrainData, options: TrainOptions, peers: Peers) -> None:
        self._data, self._options, self._peers = data, options, peers
        self.spec = options.model_spec(width_of(data.source.features), data.num_classes)
        if self.spec.needs_degrees and data.degrees is None:
            raise InputError(f"a {self.spec.kind} model needs the degrees of all nodes")
        self.degrees: NodeDegrees | None = data.degrees if self.spec.needs_degrees else None
        self.objective = build_objective(data.labels, data.splits.train, data.num_classes, options.class_weights)
        with ExitStack() as opened:
            self._compute = build_compute(data, options, self.degrees, peers.rank)
            opened.callback(self._compute.close)
            with self._compute.stream():
                self.model: GnnModel = build_model(self.spec, seed=options.seed).to(self._compute.device)
            self.optimizer = build_optimizer(self.model, options)
            self._loader = self._compute.new_loader(Purpose.TRAIN)
            opened.callback(self._loader.close)
            self._opened = opened.pop_all()

    def host_loader(self, purpose: Purpose) -> Loader:
        """Make a loader on the CPU, where models are evaluated; its user closes it."""
        return HostCompute(self._data, self._options, self.degrees).new_loader(purpose)

    def host_model(self) -> GnnModel:
        """The network on the CPU: itself, or a copy."""
        if self._compute.device.type == "cpu":
            return self.model
        model = build_model(self.spec, seed=self._options.seed)
        model.load_state_dict(self.weights())
        return model

    def weights(self) -> StateDict:
        """Weights on the CPU; those of a network there are not copied."""
        weights: StateDict = on_cpu(self.model.state_dict())
        return weights

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimizer on the CPU."""
        state: dict[str, Any] = on_cpu(self.optimizer.state_dict())
        return state

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up weights and optimizer as they were."""
        self.model.load_state_dict(checkpoint.model)
        self.optimizer.load_state_dict(checkpoint.optimizer)

    def __enter__(self) -> EpochTrainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def run(self, epoch: int) -> EpochCosts:
        """Pass over the training nodes once.

        Raises
        ------
        InputError
            If the loss is not finite.
        MachineError
            If loading stalls or another process is gone.
        """
        options, peers, before = self._options, self._peers, self._compute.feature_reads
        batches = shuffled_batches(self._data.splits.train, options.batch_size, seed=options.seed, epoch=epoch)
        per_step = peers.size * options.accumulate
        firsts = range(0, len(batches), per_step)
        loss_sum, weight_sum, rate, start = 0.0, 0.0, 0.0, time.perf_counter()
        mine = batches[peers.rank :: peers.size]
        self.model.train()
        with (
            reused_heap(self._data.source.reused_bytes or 0),
            self._compute.watched_epoch(epoch) as dynamic,
            self._loader.epoch(mine, epoch=epoch, first_batch=peers.rank, batch_step=peers.size) as stream,
        ):
            loaded = iter(stream)
            for number, first in enumerate(firsts):
                seeds = np.concatenate(batches[first : first + per_step]).astype(np.int64, copy=False)
                weight = self.objective.weight(seeds)
                num_own = len(range(first + peers.rank, min(first + per_step, len(batches)), peers.size))
                rate = learning_rate(options, epoch * len(firsts) + number, len(firsts))
                with self._compute.stream():
                    loss_sum += weight * self._step(islice(loaded, num_own), epoch, first, weight, rate)
                weight_sum += weight
        train_s = time.perf_counter() - start - stream.stats.wait_s
        costs = self._total(stream.stats, self._compute.feature_reads.since(before))
        return EpochCosts(loss_sum / weight_sum, rate, train_s, stream.stats.wait_s, *costs, dynamic)

    def _step(self, own: Iterable[MiniBatch], epoch: int, first: int, weight: float, rate: float) -> float:
        """One step of all processes over their mini-batches; returns its mean loss."""
        self.optimizer.zero_grad(set_to_none=True)
        taken, observed = [], []
        for batch in own:
            taken.append(self._backward(batch, epoch, weight))
            observed.append(self.model.observed_statistics())
            del batch  # else its rows stay in memory until the next one has come
        losses: list[float] = torch.stack(taken).tolist() if taken else []  # synchronize!
        losses, observed = self._shared(losses, observed)
        for position, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise diverged(f"the loss in epoch {epoch}, batch {first + position}", self._options)
        if self._options.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._options.clip_norm)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        for statistics in observed:
            self.model.apply_statistics(statistics)
        return sum(losses)

    def _backward(self, batch: MiniBatch, epoch: int, weight: float) -> Tensor:
        """Add the gradient of one mini-batch's share of the step's loss; returns the share, which nobody waits for."""
        sample, bfloat16 = batch.sample, self._options.precision == "bfloat16"
        identity, device = (self._options.seed, epoch, sample.batch_index), self._compute.device.type
        degrees_S = self._compute.degrees(sample)
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            logits = self.model(sample.hops, batch.rows, degrees_S, dropout_identity=identity)
        loss: Tensor = self.objective.loss_sum(logits.float(), batch.seed_nodes) / weight
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _shared(self, losses: list[float], observed: list[Tensor]) -> tuple[list[float], list[Tensor]]:
        """Add up the gradients of all processes, by rank; returns the losses and statistics of all, by batch index."""
        parameters = list(self.model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        if self._peers.size == 1:
            return losses, observed
        slots, unseen = self._options.accumulate, torch.full_like(self.model.observed_statistics(), torch.nan)
        padded = [*observed, *[unseen] * (slots - len(observed))]
        tail = [torch.tensor([*losses, *[0.0] * (slots - len(losses))]), *padded]
        # Tensors that lie where processes meet are not copied.
        gradients = [parameter.grad.reshape(-1) for parameter in parameters if parameter.grad is not None]
        given = self._peers.exchange(torch.cat([part.to(self._peers.place) for part in (*gradients, *tail)]))
        sizes = [parameter.numel() for parameter in parameters]
        # One after the other, as accumulation in one process adds them.
        total = given[0][: sum(sizes)].clone()
        for other in given[1:]:
            total += other[: sum(sizes)]
        for parameter, gradient in zip(parameters, torch.split(total, sizes), strict=True):
            parameter.grad = gradient.view_as(parameter).to(parameter.device)
        rests = [part[sum(sizes) :].cpu() for part in given]
        all_losses = [float(rest[slot]) for slot in range(slots) for rest in rests]
        all_observed = [rest[slots:].view(slots, -1)[slot] for slot in range(slots) for rest in rests]
        return all_losses, [seen.to(self._compute.device) for seen in all_observed]

    def _total(self, stats: LoadStats, feature_reads: TierReads) -> tuple[float, float, TierReads, TierReads]:
        """Seconds and reads of all processes together."""
        reads = [count for part in (feature_reads, stats.adjacency_reads) for count in _counts(part)]
        own = torch.tensor([stats.sample_s, stats.gather_s, *reads], dtype=torch.float64)
        sample_s, gather_s, *counts = torch.stack(self._peers.exchange(own)).sum(dim=0).tolist()
        return sample_s, gather_s, TierReads(*map(int, counts[:5])), TierReads(*map(int, counts[5:]))


def diverged(what: str, options: TrainOptions) -> InputError:
    """Make the error of a loss that is not finite."""
    return InputError(
        f"training diverged: {what} is not finite; try a learning rate below {options.learning_rate:g}, "
        "and check the features for extreme values"
    )


def _counts(reads: TierReads) -> tuple[int, ...]:
    return reads.device_rows, reads.host_rows, reads.device_bytes, reads.host_bytes, reads.dynamic_rows
