"""Scoring a model on labelled nodes, as their outputs come: over all neighbors, or over sampled ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

import torch

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel
from tasks.data_source import Inference, Loader
from tasks.metrics import Metric
from tasks.objective import Objective
from tasks.quality import QualityMeter
from tasks.score_rows import ScoreRows
from tasks.training_reports import Score

NewScoreRows = Callable[[int], ScoreRows]
"""Makes what keeps the scores of so many nodes until they are ranked."""


class Validator(Protocol):
    """Scores models on one set of nodes."""

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model by its loss and some metrics."""


class ExactValidator:
    """Scores over complete neighborhoods.

    Parameters
    ----------
    inference : Inference
        Of these nodes.
    objective : Objective
    nodes : (n,) integer array
        Strictly ascending.
    new_score_rows : callable
    """

    def __init__(
        self, inference: Inference, objective: Objective, nodes: IdArray, new_score_rows: NewScoreRows
    ) -> None:
        self._inference, self._objective = inference, objective
        self._new_rows = lambda: new_score_rows(len(nodes))
        self._nodes = nodes

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model."""
        start = time.perf_counter()
        model.eval()
        with QualityMeter(self._objective, metrics, self._new_rows) as meter:
            self._feed(meter, model)
            quality = meter.quality()
        return Score(quality.metrics, quality.loss, time.perf_counter() - start, *self._inference.reads)

    def _feed(self, meter: QualityMeter, model: GnnModel) -> None:
        done = 0
        for logits in self._inference.stream(model):
            part = slice(done, done + len(logits))
            meter.add(logits, self._nodes[part])
            done = part.stop


class SampledValidator:
    """Scores distinct nodes over sampled neighbors, the same sample each time: epochs are compared on equal terms."""

    def __init__(
        self,
        loader: Loader,
        nodes: IdArray,
        objective: Objective,
        *,
        batch_size: int,
        degrees: NodeDegrees | None,
        new_score_rows: NewScoreRows,
    ) -> None:
        self._loader = loader
        self._batches = [nodes[begin : begin + batch_size] for begin in range(0, len(nodes), batch_size)]
        self._objective = objective
        self._degrees = degrees
        self._new_rows = lambda: new_score_rows(len(nodes))

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score one model."""
        start, before = time.perf_counter(), self._loader.features.reads
        model.eval()
        with QualityMeter(self._objective, metrics, self._new_rows) as meter:
            with self._loader.epoch(self._batches, epoch=0) as stream, torch.no_grad():
                for batch in stream:
                    sample = batch.sample
                    degrees_S = self._degrees.take(sample.input_nodes) if self._degrees is not None else None
                    meter.add(model(sample.hops, batch.rows, degrees_S), sample.seed_nodes)
                    del batch, sample  # else its rows stay in memory until the next one has come
            quality = meter.quality()  # once the loader's memory is free
        feature_reads, seconds = self._loader.features.reads.since(before), time.perf_counter() - start
        return Score(quality.metrics, quality.loss, seconds, feature_reads, stream.stats.adjacency_reads)


class NoValidator:
    """Stands for an empty set of nodes."""

    def score(self, model: GnnModel, metrics: Collection[Metric]) -> Score:
        """Score nothing."""
        return Score({}, None, 0.0, TierReads(), TierReads())
