"""What training minimises and evaluation reports: one class a node, or many labels a node."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels.mfg import IdArray
from storage.errors import InputError

Labels = npt.NDArray[np.int64] | npt.NDArray[np.int32] | npt.NDArray[np.int16] | npt.NDArray[np.int8]
"""(N,) classes in any signed type, negative where unlabelled; or (N, C) rows of 0 and 1, -1 where unknown."""
ClassWeights = Literal["none", "balanced"] | tuple[float, ...]


class Objective(Protocol):
    """Loss over nodes. The weighted sum over a step is divided by the weight of all its nodes, whoever had them."""

    many_labels: bool
    """Whether a node has many labels."""

    def loss_sum(self, logits_nC: Tensor, nodes: IdArray) -> Tensor:
        """Weighted sum of the losses of the nodes' predictions, on the device of the predictions."""

    def weight(self, nodes: IdArray) -> float:
        """What to divide the sum by: how many nodes (entries) there are, class weights counted."""

    def targets(self, nodes: IdArray) -> Tensor:
        """(n,) int64 classes, or (n, C) int8 rows of 0 and 1, -1 where unknown."""

    def losses(self, logits_nC: Tensor, targets: Tensor) -> tuple[float, int]:
        """Sum of the losses of predictions, class weights left out, and how many there are: nodes, or known entries."""


class OneClass:
    """Cross-entropy of one class a node."""

    many_labels = False

    def __init__(self, labels_N: npt.NDArray[Any], weight_C: Tensor | None) -> None:
        self._labels_N, self._weight_C = labels_N, weight_C

    def loss_sum(self, logits_nC: Tensor, nodes: IdArray) -> Tensor:
        """Weighted sum of the cross-entropies."""
        weight_C = None if self._weight_C is None else _beside(logits_nC, self._weight_C)
        return functional.cross_entropy(logits_nC, _beside(logits_nC, self.targets(nodes)), weight_C, reduction="sum")

    def weight(self, nodes: IdArray) -> float:
        """Number of nodes, or the sum of their classes' weights."""
        if self._weight_C is None:
            return float(len(nodes))
        return float(self._weight_C[self.targets(nodes)].double().sum())

    def losses(self, logits_nC: Tensor, targets: Tensor) -> tuple[float, int]:
        """As `Objective.losses`."""
        losses_n = functional.cross_entropy(logits_nC, targets, reduction="none")
        return float(losses_n.sum(dtype=torch.float64)), len(targets)

    def targets(self, nodes: IdArray) -> Tensor:
        """(n,) int64 classes."""
        return torch.from_numpy(self._labels_N[nodes].astype(np.int64, copy=False))


class ManyLabels:
    """Binary cross-entropy of each known label of a node."""

    many_labels = True

    def __init__(self, labels_NC: npt.NDArray[np.int8], weight_C: Tensor | None) -> None:
        self._labels_NC, self._weight_C = labels_NC, weight_C

    def loss_sum(self, logits_nC: Tensor, nodes: IdArray) -> Tensor:
        """Sum of the entries' cross-entropies, present labels counting as often as their class weight says."""
        weight_C = None if self._weight_C is None else _beside(logits_nC, self._weight_C)
        targets_nC = _beside(logits_nC, self.targets(nodes))
        return self._entries(logits_nC, targets_nC, weight_C).sum()

    def weight(self, nodes: IdArray) -> float:
        """Number of known entries."""
        return float((self.targets(nodes) >= 0).sum())

    def losses(self, logits_nC: Tensor, targets: Tensor) -> tuple[float, int]:
        """As `Objective.losses`."""
        losses_nC = self._entries(logits_nC, targets, None)
        return float(losses_nC.sum(dtype=torch.float64)), int((targets >= 0).sum())

    def targets(self, nodes: IdArray) -> Tensor:
        """(n, C) int8 rows."""
        return torch.from_numpy(self._labels_NC[nodes])

    def _entries(self, logits_nC: Tensor, targets_nC: Tensor, weight_C: Tensor | None) -> Tensor:
        entries = functional.binary_cross_entropy_with_logits(
            logits_nC, targets_nC.clamp(min=0).to(logits_nC.dtype), pos_weight=weight_C, reduction="none"
        )
        return entries * (targets_nC >= 0)


def build_objective(
    labels: Labels, train_nodes: IdArray, num_classes: int, class_weights: ClassWeights = "none"
) -> Objective:
    """Choose the loss by the shape of the labels.

    Parameters
    ----------
    labels : (N,) int64 or (N, C) int8
    train_nodes : (n,) integer
        Labelled nodes that `balanced` counts.
    num_classes : int
        C.
    class_weights : "none", "balanced" or C positive numbers
        One class a node: factor of each class's loss; balanced is `n / (C * nodes of the class)`. Many labels: factor
        of the loss where a label is present; balanced is `absent / present`.

    Raises
    ------
    InputError
        If there is not one weight a class.
    """
    if isinstance(class_weights, tuple) and len(class_weights) != num_classes:
        raise InputError(f"class_weights must hold {num_classes} numbers, one a class (got {len(class_weights)})")
    known: npt.NDArray[Any] = labels[train_nodes]
    if labels.ndim == 1:
        count_C = np.bincount(known, minlength=num_classes)
        balanced_C = len(known) / (num_classes * np.maximum(count_C, 1))
        return OneClass(labels, _weights(class_weights, balanced_C))
    balanced_C = np.maximum((known == 0).sum(axis=0), 1) / np.maximum((known == 1).sum(axis=0), 1)
    return ManyLabels(labels.astype(np.int8, copy=False), _weights(class_weights, balanced_C))


def labelled(labels: Labels) -> npt.NDArray[np.bool_]:
    """(N,) whether each node has a class, or any known label."""
    known: npt.NDArray[np.bool_] = np.asarray(labels >= 0)
    return known if labels.ndim == 1 else np.asarray(known.any(axis=1))


def _beside(logits: Tensor, values: Tensor) -> Tensor:
    """Values where the logits lie; copied from pinned memory, so that nothing waits for what the GPU has in hand."""
    if logits.device.type == "cpu":
        return values
    return values.pin_memory().to(logits.device, non_blocking=True)


def _weights(class_weights: ClassWeights, balanced_C: npt.NDArray[np.float64]) -> Tensor | None:
    if class_weights == "none":
        return None
    return torch.tensor(balanced_C if class_weights == "balanced" else class_weights, dtype=torch.float32)
