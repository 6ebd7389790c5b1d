"""How good predictions are that come some at a time: their loss and metrics, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType

from torch import Tensor

from kernels.mfg import IdArray
from tasks.metrics import Accuracy, MacroF1, Measure, Metric
from tasks.objective import Objective
from tasks.roc_auc import RocAuc
from tasks.score_rows import ScoreRows
from tasks.scoring_memory import slices


@dataclass(frozen=True, slots=True)
class Quality:
    """How good some predictions are."""

    loss: float
    """Mean loss, class weights left out; 0 of nothing."""
    metrics: Mapping[str, float | None]
    """The metrics asked for; None where one is undefined."""


class QualityMeter:
    """Judges predictions as they come; use it as a context manager.

    Counts are exact, and losses are added up in double precision, so it does not matter how predictions are cut.

    Parameters
    ----------
    objective : Objective
    metrics : collection of Metric
    score_rows : callable
        Makes what keeps scores until they are ranked; called for `roc_auc` alone, which the others do without.
    """

    def __init__(self, objective: Objective, metrics: Collection[Metric], score_rows: Callable[[], ScoreRows]) -> None:
        self._objective = objective
        self._rows = score_rows() if "roc_auc" in metrics else None
        self._measures = {metric: self._measure(metric) for metric in metrics}
        self._loss_sum, self._num_losses = 0.0, 0

    def _measure(self, metric: Metric) -> Measure:
        if self._rows is not None and metric == "roc_auc":
            return RocAuc(self._rows)
        return Accuracy() if metric == "accuracy" else MacroF1()

    def add(self, logits_nC: Tensor, nodes: IdArray) -> None:
        """Judge some nodes' predictions, which may be kept and must not change.

        Parameters
        ----------
        logits_nC : (n, C) float32
        nodes : (n,) integer
        """
        for part in slices(len(nodes), logits_nC.shape[1], many_labels=self._objective.many_labels):
            targets, logits = self._objective.targets(nodes[part]), logits_nC[part].detach()
            loss_sum, num_losses = self._objective.losses(logits, targets)
            self._loss_sum, self._num_losses = self._loss_sum + loss_sum, self._num_losses + num_losses
            for measure in self._measures.values():
                measure.add(logits.numpy(), targets.numpy())

    def quality(self) -> Quality:
        """Loss and metrics of all that came."""
        metrics: dict[str, float | None] = {metric: measure.value() for metric, measure in self._measures.items()}
        return Quality(self._loss_sum / max(1, self._num_losses), metrics)

    def __enter__(self) -> QualityMeter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rows is not None:
            self._rows.close()
