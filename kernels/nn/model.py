"""Whole networks: a frozen description (`ModelSpec`), and the module it stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from kernels.mfg import Mfg
from kernels.nn.dropout import dropout
from kernels.nn.gat import GatLayer, Merge
from kernels.nn.gcn import GcnLayer
from kernels.nn.layers import Layer, NodeDegrees, Rows, as_float, in_memory
from kernels.nn.mlp import DenseLayer
from kernels.nn.norm import BatchNorm, Norm, build_norm
from kernels.nn.sage import SageLayer
from kernels.rng import Purpose, stream_key

Kind = Literal["sage", "gcn", "gat", "mlp"]
DropoutIdentity = tuple[int, int, int]
"""(seed, epoch, batch index): what a dropout mask belongs to."""

DEFAULT_HEADS = 8
_ATTENTION = 1
"""Tells the dropout of a layer's attention from that of its rows."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that is needed to build a network, weights apart."""

    kind: Kind
    """Which layer."""
    in_dim: int
    """Features a node."""
    hidden: int
    """Width of the hidden layers."""
    num_classes: int
    """Width of the output."""
    num_layers: int
    """Layers, one a hop (the MLP looks at no hop)."""
    dropout: float = 0.0
    """Dropout between layers."""
    input_dropout: float = 0.0
    """Dropout of the input features."""
    heads: int | None = None
    """Attention heads of a GAT layer; None stands for 8."""
    attention_dropout: float = 0.0
    """Dropout of a GAT layer's attention weights."""
    norm: Norm = "none"
    """Normalisation between layers, before the ReLU."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))} (got {self.kind!r})")
        if self.norm not in get_args(Norm):
            raise ValueError(f"norm must be one of {', '.join(get_args(Norm))} (got {self.norm!r})")
        for name in ("in_dim", "hidden", "num_classes", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1 (got {getattr(self, name)})")
        for name in ("dropout", "input_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must lie in [0, 1) (got {getattr(self, name)})")
        if self.kind != "gat" and (self.heads is not None or self.attention_dropout):
            raise ValueError(f"heads and attention_dropout belong to a gat model (got kind {self.kind!r})")
        if self.kind == "gat" and (self.num_heads < 1 or self.hidden % self.num_heads):
            raise ValueError(f"heads must divide hidden (got {self.num_heads} heads, hidden {self.hidden})")

    @property
    def num_heads(self) -> int:
        """Attention heads a layer."""
        return DEFAULT_HEADS if self.heads is None else self.heads

    @property
    def needs_graph(self) -> bool:
        """Whether the layers read neighbors."""
        return self.kind != "mlp"

    @property
    def needs_degrees(self) -> bool:
        """Whether the layers read whole-graph degrees."""
        return self.kind == "gcn"

    def to_dict(self) -> dict[str, Any]:
        """Fields as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSpec:
        """Inverse of `to_dict`.

        Raises
        ------
        ValueError
            If a field is unknown or out of range, or one without a default is missing.
        """
        names = {field.name for field in fields(cls)}
        required = {field.name for field in fields(cls) if field.default is MISSING}
        if not required <= set(values) <= names:
            raise ValueError(f"a model description has the fields {sorted(names)} (got {sorted(values)})")
        return cls(**values)


class GnnModel(nn.Module):
    """Layers with normalisation and ReLU between them; `build_model` makes one."""

    def __init__(self, spec: ModelSpec, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.spec = spec
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([build_norm(spec.norm, layer.out_dim) for layer in layers[:-1]])
        for layer in layers[:-1]:
            # A batch normalisation takes any bias away again: what gradient it has is rounding, which Adam blows up.
            layer.bias.requires_grad_(spec.norm != "batch")

    def ordered_layers(self) -> list[Layer]:
        """The layers from the input to the output."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def forward(
        self,
        hops: Sequence[Mfg],
        x_SF: Rows,
        degrees_S: NodeDegrees | None = None,
        *,
        dropout_identity: DropoutIdentity | None = None,
    ) -> Tensor:
        """Logits of the seeds of a sample.

        Parameters
        ----------
        hops : sequence of Mfg
            As in `Sample.hops`, from the seeds outward; empty for the MLP.
        x_SF : (num_inputs, in_dim) tensor, or TieredRows
            Features of the input nodes in any numeric dtype, computed with as float32.
        degrees_S : NodeDegrees, optional
            Whole-graph degrees of the input nodes (GCN).
        dropout_identity : (seed, epoch, batch index), optional
            Turns dropout on; the masks depend on it and on the layer alone.

        Returns
        -------
        (num_seed_rows, num_classes) float32 tensor
        """
        h = x_SF
        for index, (layer, mfg) in enumerate(zip(self.ordered_layers(), self._mfgs(hops, len(h)), strict=True)):
            if dropout_identity is None:
                h = self.activate(index, layer(mfg, h, degrees_S))
                continue
            probability = self.spec.dropout if index else self.spec.input_dropout
            if probability > 0:
                h = dropout(in_memory(h), probability, stream_key(Purpose.DROPOUT, *dropout_identity, index))
            key = stream_key(Purpose.DROPOUT, *dropout_identity, index, _ATTENTION)
            h = self.activate(index, layer(mfg, h, degrees_S, dropout_key=key))
        return in_memory(h)

    def activate(self, index: int, h: Tensor) -> Tensor:
        """What follows layer `index`: normalisation and ReLU in place, but nothing after the last."""
        return h if index == len(self.layers) - 1 else torch.relu_(self.norms[index](as_float(h)))

    def observed_statistics(self) -> Tensor:
        """What the batch normalisations saw of the last mini-batch, flat; empty without any."""
        return torch.cat([self._nothing(), *(norm.observed.reshape(-1) for norm in self._batch_norms())])

    def apply_statistics(self, observed: Tensor) -> None:
        """Move the running statistics towards what `observed_statistics` saw, here or in another process."""
        norms = self._batch_norms()
        parts = torch.split(observed, [norm.observed.numel() for norm in norms])
        for norm, part in zip(norms, parts, strict=True):
            norm.apply_observed(part.view(2, -1))

    def _nothing(self) -> Tensor:
        return next(self.parameters()).new_empty(0)

    def _batch_norms(self) -> list[BatchNorm]:
        return [norm for norm in self.norms if isinstance(norm, BatchNorm)]

    def _mfgs(self, hops: Sequence[Mfg], num_rows: int) -> list[Mfg]:
        if self.spec.needs_graph:
            return list(reversed(hops))
        return [edgeless_mfg(num_rows)] * len(self.layers)


def edgeless_mfg(num_nodes: int) -> Mfg:
    """Hop of nodes that look at none but themselves."""
    return Mfg(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32), num_nodes)


def build_model(spec: ModelSpec, *, seed: int) -> GnnModel:
    """Build a network whose initial weights depend on the seed alone; torch's global generator is left as it is.

    Parameters
    ----------
    spec : ModelSpec
    seed : int
        Any integer; its low 64 bits count.

    Returns
    -------
    GnnModel
    """
    generator = torch.Generator().manual_seed(int(stream_key(Purpose.INIT, seed)))
    widths = [spec.in_dim, *[spec.hidden] * (spec.num_layers - 1), spec.num_classes]
    last = spec.num_layers - 1
    layers = [
        _layer(spec, in_dim, out_dim, generator, is_last=index == last)
        for index, (in_dim, out_dim) in enumerate(pairwise(widths))
    ]
    return GnnModel(spec, layers)


def _layer(spec: ModelSpec, in_dim: int, out_dim: int, generator: torch.Generator, *, is_last: bool) -> Layer:
    if spec.kind == "gat":
        # The heads of the last layer are averaged, as in the paper's eq. 6.
        merge: Merge = "mean" if is_last else "concat"
        sizes = {"heads": spec.num_heads, "merge": merge, "dropout": spec.attention_dropout}
        return GatLayer(in_dim, out_dim, generator=generator, **sizes)  # type: ignore[arg-type]
    plain: Mapping[str, type[SageLayer] | type[GcnLayer] | type[DenseLayer]] = {
        "sage": SageLayer,
        "gcn": GcnLayer,
        "mlp": DenseLayer,
    }
    return plain[spec.kind](in_dim, out_dim, generator=generator)
