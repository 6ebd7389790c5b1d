"""What a training step takes of this machine, layer by layer: memory for outputs that backward needs, and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from kernels.nn.gat import GatLayer
from kernels.nn.layers import PRODUCT_NS, READ_NS, Layer
from kernels.nn.model import ModelSpec, build_model
from kernels.nn.project import piece_rows

_FLOAT_BYTES, _FACTOR_BYTES, _OFFSET_BYTES, _ADDRESS_BYTES, _PLACE_BYTES = 4, 8, 8, 8, 4
_WEIGHT_COPIES = 6
"""The weights, their gradient, two moments of Adam, and the best and the saved weights."""


@dataclass(frozen=True, slots=True)
class HopShape:
    """Sizes of one hop of a mini-batch."""

    num_dst: int
    """Nodes that are expanded."""
    num_src: int
    """Those, and the neighbors drawn."""
    num_edges: int
    """Edges drawn."""


class _Dims(NamedTuple):
    """Widths of one layer."""

    in_dim: int
    out_dim: int
    wide: int
    """Of the rows between projection and output."""
    read: int
    """Of the rows that edges read."""
    product: int
    """Elements of its matrices."""
    transform_first: bool


class _Bytes(NamedTuple):
    """What one layer takes."""

    saved: int
    """From its forward to its backward pass."""
    forward: int
    """Beside that while it runs."""
    backward: int
    """While its backward pass runs."""

    def beside(self, nbytes: int) -> _Bytes:
        """With so much more in either pass."""
        return _Bytes(self.saved, self.forward + nbytes, self.backward + nbytes)

    def or_else(self, other: _Bytes) -> _Bytes:
        """As much as the one of both that takes more."""
        saved = max(self.saved, other.saved)
        forward, backward = (max(self.saved + self[i], other.saved + other[i]) - saved for i in (1, 2))
        return _Bytes(saved, forward, backward)


def step_bytes(spec: ModelSpec, shapes: Sequence[HopShape], num_inputs: int, *, are_integers: bool = False) -> int:
    """Bound what a training step on a mini-batch takes: rows of all layers, their gradients, weights.

    Feature rows as they were loaded are not counted.

    Parameters
    ----------
    spec : ModelSpec
    shapes : sequence of HopShape
        Hops of the mini-batch, that of the seeds first; empty for the MLP.
    num_inputs : int
        Input nodes.
    are_integers : bool
        Whether features are stored as integers, which a projection turns into floats first.
    """
    layers, num_weights = _layers(spec)
    hops = [*reversed(shapes)] or [HopShape(num_inputs, num_inputs, 0)] * len(layers)
    held = most = 0
    for index, (dims, hop) in enumerate(zip(layers, hops, strict=True)):
        needed = _with_dropout(spec, dims, hop, _layer_bytes(spec, dims, hop, is_input=index == 0), index)
        if index == 0 and are_integers and dims.transform_first:
            needed = needed.beside(hop.num_src * dims.in_dim * _FLOAT_BYTES)
        out = _FLOAT_BYTES * hop.num_dst * dims.out_dim
        # What is normalised stays; behind the last layer comes the loss, which keeps the probabilities.
        extra = out if spec.norm != "none" or index == len(layers) - 1 else 0
        held += needed.saved + extra
        most = max(most, held + max(needed.forward, needed.backward))
    return most + _FLOAT_BYTES * _WEIGHT_COPIES * num_weights


def step_us(spec: ModelSpec, shapes: Sequence[HopShape]) -> int:
    """Estimate a training step on a mini-batch, on one core: products forward, and back but for the input; reads."""
    time_ns = 0.0
    for index, (dims, hop) in enumerate(zip(_layers(spec)[0], reversed(shapes), strict=bool(shapes))):
        passes, rows = 3 if index else 2, hop.num_src if index and dims.transform_first else hop.num_dst
        time_ns += passes * (rows * dims.product * PRODUCT_NS + hop.num_edges * dims.read * READ_NS)
    return int(time_ns / 1000)


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of a model's weights."""
    return _FLOAT_BYTES * _layers(spec)[1]


@lru_cache(maxsize=32)
def _layers(spec: ModelSpec) -> tuple[tuple[_Dims, ...], int]:
    """Widths from the input to the output, and the number of weights."""
    layers = build_model(spec, seed=0).ordered_layers()
    weights = sum(parameter.numel() for layer in layers for parameter in layer.parameters())
    return tuple(_dims(layer) for layer in layers), weights


def _dims(layer: Layer) -> _Dims:
    wide = layer.heads * (layer.head_dim + 2) if isinstance(layer, GatLayer) else layer.out_dim
    product = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() > 1)
    read = min(layer.in_dim, layer.projected_dim)
    return _Dims(layer.in_dim, layer.out_dim, wide, read, product, layer.transform_first)


def _with_dropout(spec: ModelSpec, dims: _Dims, hop: HopShape, layer: _Bytes, index: int) -> _Bytes:
    """The input as floats and what dropout leaves of it; a projection keeps the latter for the weights' gradient."""
    if not (spec.dropout if index else spec.input_dropout):
        return layer
    inputs = _FLOAT_BYTES * hop.num_src * dims.in_dim
    kept = inputs if dims.transform_first else 0
    before = 2 * inputs if index == 0 else inputs
    forward = max(before - layer.saved - kept, layer.forward + inputs - kept)
    return _Bytes(layer.saved + kept, forward, layer.backward + (inputs if index else 0))


def _layer_bytes(spec: ModelSpec, dims: _Dims, hop: HopShape, *, is_input: bool) -> _Bytes:
    if spec.kind == "gat":
        return _attended(spec.num_heads, dims, hop, is_input=is_input)
    if spec.kind == "mlp":
        return _projected(dims, hop, is_input=is_input)
    width = dims.in_dim if spec.kind == "gcn" else 2 * dims.in_dim
    mixed, projected = _mixed(dims, hop, width, is_input=is_input), _projected(dims, hop, is_input=is_input)
    found = projected if dims.transform_first else mixed
    if is_input and dims.in_dim > 2 * dims.out_dim:
        found = mixed.or_else(projected)  # `Layer.projects_first` goes by the edges
    factors = _FACTOR_BYTES * 2 * (hop.num_src + 2 * hop.num_dst) if spec.kind == "gcn" else 0
    return found._replace(saved=found.saved + factors)


def _mixed(dims: _Dims, hop: HopShape, width: int, *, is_input: bool) -> _Bytes:
    """Rows are aggregated, then projected: `width` floats a destination are kept for the weights' gradient."""
    sums, out = _FLOAT_BYTES * hop.num_dst * width, _FLOAT_BYTES * hop.num_dst * dims.out_dim
    if is_input:
        return _Bytes(sums + out + _ADDRESS_BYTES * hop.num_src, 0, 2 * out)
    turned = _turned(hop) + _FLOAT_BYTES * hop.num_src * dims.in_dim
    return _Bytes(sums + out, 0, sums + max(2 * out, turned))


def _projected(dims: _Dims, hop: HopShape, *, is_input: bool) -> _Bytes:
    """Rows are projected first: their gradient is as wide as the input."""
    out, rows = _FLOAT_BYTES * hop.num_dst * dims.out_dim, _FLOAT_BYTES * hop.num_src * dims.out_dim
    if not hop.num_edges:
        rows = 0
    inputs, piece = _input_bytes(dims, hop, dims.out_dim, is_input=is_input)
    backward = max(2 * out + rows + _turned(hop), out + rows + 3 * inputs) + piece
    return _Bytes(out, rows + 2 * out + piece, backward)


def _attended(heads: int, dims: _Dims, hop: HopShape, *, is_input: bool) -> _Bytes:
    """Projected rows and the attention of all edges are kept."""
    rows, scores = _FLOAT_BYTES * hop.num_src * dims.wide, _FLOAT_BYTES * heads * hop.num_edges
    out, turned = _FLOAT_BYTES * hop.num_dst * dims.wide, _turned(hop) + _ADDRESS_BYTES * hop.num_edges
    inputs, piece = _input_bytes(dims, hop, dims.wide, is_input=is_input)
    backward = max(2 * out + scores + turned + rows, rows + 2 * inputs) + piece
    return _Bytes(rows + scores + out, out + piece, backward)


def _input_bytes(dims: _Dims, hop: HopShape, width: int, *, is_input: bool) -> tuple[int, int]:
    """Bytes of the rows that take a gradient, and of a piece of those that do not."""
    if is_input:
        return 0, _FLOAT_BYTES * min(piece_rows(dims.in_dim), hop.num_src) * (dims.in_dim + width)
    return _FLOAT_BYTES * hop.num_src * dims.in_dim, 0


def _turned(hop: HopShape) -> int:
    """A hop turned round."""
    return 2 * _OFFSET_BYTES * hop.num_src + _PLACE_BYTES * hop.num_edges
