"""Scoring a model on labelled nodes: over all neighbors, or over sampled ones."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Protocol

import numpy as np
import torch

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel
from tasks.data_source import Inference, Loader
from tasks.metrics import Metric
from tasks.objective import Objective
from tasks.training_reports import Score

_CLASS_BYTES = 8
"""An output and its logarithmic softmax."""
_LABEL_BYTES = 32
"""An output, its target, both as numbers, its loss with two halves, what is known and right."""
_SCORED_NODE_BYTES = 160
"""A node's id, place and target; one class's scores while they are ranked."""


class Validator(Protocol):
    """Scores models on one set of nodes."""

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model by its loss and some metrics."""


def scoring_bytes(num_nodes: int, num_outputs: int, *, many_labels: bool) -> int:
    """Bytes of the outputs of so many nodes while they are collected and scored, with all copies.

    Parameters
    ----------
    num_nodes : int
    num_outputs : int
        Classes or labels.
    many_labels : bool
        Whether a node has many labels: then targets, known entries and losses are tables too.
    """
    return num_nodes * (num_outputs * (_LABEL_BYTES if many_labels else _CLASS_BYTES) + _SCORED_NODE_BYTES)


class ExactValidator:
    """Scores over complete neighborhoods."""

    def __init__(self, inference: Inference, objective: Objective, nodes: IdArray) -> None:
        self._inference, self._objective, self._nodes = inference, objective, nodes

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model."""
        start = time.perf_counter()
        model.eval()
        predicted = self._inference.run(model)
        quality = self._objective.quality(predicted.logits, self._nodes, metrics)
        seconds = time.perf_counter() - start
        return Score(quality.metrics, quality.loss, seconds, predicted.feature_reads, predicted.adjacency_reads)


class SampledValidator:
    """Scores over sampled neighbors, the same sample each time, so that epochs are compared on equal terms."""

    def __init__(
        self,
        loader: Loader,
        nodes: IdArray,
        objective: Objective,
        *,
        batch_size: int,
        degrees: NodeDegrees | None,
    ) -> None:
        self._loader = loader
        self._batches = [nodes[begin : begin + batch_size] for begin in range(0, len(nodes), batch_size)]
        self._objective = objective
        self._degrees = degrees

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model."""
        start, before = time.perf_counter(), self._loader.features.reads
        logits, nodes = [], []
        model.eval()
        with self._loader.epoch(self._batches, epoch=0) as stream, torch.no_grad():
            for batch in stream:
                sample = batch.sample
                degrees_S = self._degrees.take(sample.input_nodes) if self._degrees is not None else None
                logits.append(model(sample.hops, batch.rows, degrees_S))
                nodes.append(sample.seed_nodes)
                del batch, sample  # else its rows stay in memory until the next one has come
        all_nodes = np.concatenate(nodes).astype(np.int64, copy=False)
        all_logits = torch.cat(logits)
        logits.clear()  # the metrics need the room
        quality = self._objective.quality(all_logits, all_nodes, metrics)
        feature_reads, seconds = self._loader.features.reads.since(before), time.perf_counter() - start
        return Score(quality.metrics, quality.loss, seconds, feature_reads, stream.stats.adjacency_reads)


class NoValidator:
    """Stands for an empty set of nodes."""

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score nothing."""
        return Score({}, None, 0.0, TierReads(), TierReads())
