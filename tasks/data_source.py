"""Where training takes its data from: the contracts of what loads mini-batches and of what infers exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.mfg import IdArray, TierReads
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, ModelSpec
from kernels.rng import Purpose
from tasks.epoch_stream import LoadStats, MiniBatch
from tasks.score_rows import ScoreRows

if TYPE_CHECKING:
    from tasks.training_types import TrainOptions


class Graph(Protocol):
    """What training asks of a topology, wherever it lies."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""

    @property
    def num_edges(self) -> int:
        """Number of edges."""


class Features(Protocol):
    """What training asks of features, wherever they lie."""

    @property
    def reads(self) -> TierReads:
        """What was read since construction."""

    def watched_epoch(self, epoch: int) -> AbstractContextManager[dict[str, float]]:
        """Let a dynamic cache, where there is one, learn from an epoch; its figures come at the end."""

    def gather(self, ids: IdArray) -> npt.NDArray[Any]:
        """Rows of some nodes."""


class Stream(Protocol):
    """The mini-batches of one epoch, in order."""

    @property
    def stats(self) -> LoadStats:
        """Costs; complete once the stream has ended."""

    def __iter__(self) -> Iterator[MiniBatch]:
        """Mini-batches."""


class Loader(Protocol):
    """Loads epochs; use it as a context manager."""

    @property
    def features(self) -> Features:
        """Whose rows it gathers."""

    def epoch(
        self, batches: Sequence[IdArray], *, epoch: int, first_batch: int = 0, batch_step: int = 1
    ) -> AbstractContextManager[Stream]:
        """Start loading one epoch."""

    def close(self) -> None:
        """Stop its threads."""

    def __enter__(self) -> Loader:
        """Enter."""

    def __exit__(self, *exception: Any) -> None:
        """Close."""


class Inference(Protocol):
    """Predicts fixed nodes exactly."""

    def stream(self, model: GnnModel) -> Iterator[Tensor]:
        """Logits of one model for the nodes, in their order, some at a time; they may be kept."""

    @property
    def reads(self) -> tuple[TierReads, TierReads]:
        """Feature rows and adjacency lists read by the last stream, once it has ended."""


class DataSource(Protocol):
    """Makes loaders and inferences of one graph."""

    @property
    def graph(self) -> Graph:
        """Sizes of the graph."""

    @property
    def features(self) -> Features:
        """Its features."""

    @property
    def reused_bytes(self) -> int | None:
        """Bytes of freed memory that steps may keep for each other; None: all of it, from epoch to epoch."""

    def loader(self, options: TrainOptions, purpose: Purpose) -> Loader:
        """Make a loader; its user closes it."""

    def inference(
        self, nodes: IdArray, spec: ModelSpec, degrees: NodeDegrees | None, options: TrainOptions
    ) -> Inference:
        """Prepare exact inference of nodes that ascend strictly."""

    def score_rows(self, num_rows: int, options: TrainOptions) -> ScoreRows:
        """Make what keeps the scores of so many nodes until they are ranked, after mini-batches and inference."""


def width_of(features: Features) -> int:
    """Features a node."""
    return int(features.gather(np.empty(0, np.int64)).shape[1])
