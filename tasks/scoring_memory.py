"""What scoring takes while it counts: some nodes at a time, however many there are."""

from __future__ import annotations

from collections.abc import Iterator

_AT_ONCE_BYTES = 2 << 20
_CLASS_BYTES = 8
"""An output's logarithmic softmax, or the output as a double while it is ranked."""
_LABEL_BYTES = 32
"""An output, its target, both as numbers, its loss with two halves, what is known and right."""
_NODE_BYTES = 96
"""A node's target, loss and prediction, each with a copy; one class's scores and places while they are ranked."""
_COUNT_BYTES = 64
"""A class's counts."""


def slices(num_nodes: int, num_outputs: int, *, many_labels: bool) -> Iterator[slice]:
    """Cut nodes so that scoring the ones between two cuts takes little memory; one node is the least."""
    step = max(1, _AT_ONCE_BYTES // _node_bytes(num_outputs, many_labels))
    return (slice(first, min(first + step, num_nodes)) for first in range(0, num_nodes, step))


def scoring_bytes(num_nodes: int, num_outputs: int, *, many_labels: bool) -> int:
    """Bytes that it takes to score so many nodes, beside outputs as they come and, for the ROC curve, `ScoreRows`.

    Parameters
    ----------
    num_nodes : int
    num_outputs : int
        Classes or labels.
    many_labels : bool
        Whether a node has many labels: then targets, known entries and losses are tables too.
    """
    node_bytes = _node_bytes(num_outputs, many_labels)
    return min(max(_AT_ONCE_BYTES, node_bytes), num_nodes * node_bytes) + _COUNT_BYTES * num_outputs


def _node_bytes(num_outputs: int, many_labels: bool) -> int:
    return num_outputs * (_LABEL_BYTES if many_labels else _CLASS_BYTES) + _NODE_BYTES
