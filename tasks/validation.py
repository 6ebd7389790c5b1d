"""Scoring a model on labelled nodes: over all neighbors, or over sampled ones."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel
from storage.cache.tiers import FeatureTiers
from tasks.inference import ExactInference
from tasks.loader import MiniBatchLoader
from tasks.training_types import Score


class Validator(Protocol):
    """Scores models on one set of nodes."""

    def score(self, model: GnnModel) -> Score:
        """Score one model."""


class ExactValidator:
    """Scores over complete neighborhoods."""

    def __init__(self, inference: ExactInference, features: FeatureTiers, targets: npt.NDArray[np.int64]) -> None:
        self._inference = inference
        self._features = features
        self._targets = torch.from_numpy(targets)

    def score(self, model: GnnModel) -> Score:
        """Score one model."""
        start = time.perf_counter()
        predicted = self._inference.run(model, self._features)
        accuracy, loss = accuracy_and_loss(predicted.logits, self._targets)
        seconds = time.perf_counter() - start
        return Score(accuracy, loss, seconds, predicted.feature_reads, predicted.adjacency_reads)


class SampledValidator:
    """Scores over sampled neighbors, the same sample each time, so that epochs are compared on equal terms."""

    def __init__(
        self,
        loader: MiniBatchLoader,
        nodes: IdArray,
        labels_N: npt.NDArray[np.int64],
        *,
        batch_size: int,
        degrees: NodeDegrees | None,
    ) -> None:
        self._loader = loader
        self._batches = [nodes[begin : begin + batch_size] for begin in range(0, len(nodes), batch_size)]
        self._labels_N = labels_N
        self._degrees = degrees

    def score(self, model: GnnModel) -> Score:
        """Score one model."""
        start, before = time.perf_counter(), self._loader.features.reads
        logits, targets = [], []
        with self._loader.epoch(self._batches, epoch=0) as stream, torch.no_grad():
            for batch in stream:
                sample = batch.sample
                degrees_S = self._degrees.take(sample.input_nodes) if self._degrees is not None else None
                logits.append(model(sample.hops, batch.rows, degrees_S))
                targets.append(torch.from_numpy(self._labels_N[sample.seed_nodes]))
        accuracy, loss = accuracy_and_loss(torch.cat(logits), torch.cat(targets))
        feature_reads = self._loader.features.reads.since(before)
        return Score(accuracy, loss, time.perf_counter() - start, feature_reads, stream.stats.adjacency_reads)


class NoValidator:
    """Stands for an empty set of nodes."""

    def score(self, model: GnnModel) -> Score:
        """Score nothing."""
        return Score(None, None, 0.0, TierReads(), TierReads())


def accuracy_and_loss(logits_nC: Tensor, targets: Tensor) -> tuple[float, float]:
    """Share of right classes and mean cross-entropy."""
    accuracy = float((logits_nC.argmax(dim=1) == targets).double().mean())
    return accuracy, float(functional.cross_entropy(logits_nC, targets))
