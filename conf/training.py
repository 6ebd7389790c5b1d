"""The network and its optimisation, as sections of the configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.section import Section


class ModelConfig(Section):
    """The network."""

    kind: Literal["sage", "gcn", "gat", "mlp"] = "sage"
    """GraphSAGE (mean), GCN, GAT, or an MLP that ignores the graph (a baseline: set sampling.fanouts to [])."""
    hidden: int = Field(64, ge=1)
    """Width of the hidden layers; there are as many layers as fanouts (two for the MLP)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Dropout between layers."""
    input_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of the input features."""
    heads: int | None = Field(None, ge=1)
    """Attention heads of a GAT layer, which share `hidden`; empty stands for 8. The output layer averages its heads."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of a GAT layer's attention weights."""
    norm: Literal["none", "batch", "layer"] = "none"
    """Normalisation between layers, before the ReLU. `batch` takes mean and variance of the mini-batch in training."""

    @model_validator(mode="after")
    def _attention_is_gats(self) -> ModelConfig:
        heads = 8 if self.heads is None else self.heads
        if self.kind != "gat" and (self.heads is not None or self.attention_dropout):
            raise ValueError(f"model.heads and model.attention_dropout go with model.kind 'gat' (got {self.kind!r})")
        if self.kind == "gat" and self.hidden % heads:
            raise ValueError(f"model.heads must divide model.hidden (got {heads} heads, hidden {self.hidden})")
        return self


class TrainingConfig(Section):
    """The optimisation."""

    epochs: int = Field(10, ge=1)
    """Most epochs to train."""
    learning_rate: float = Field(0.01, gt=0)
    """Learning rate of Adam, which the schedule lowers."""
    schedule: Literal["constant", "cosine", "step"] = "constant"
    """How the learning rate falls: not at all; along half a cosine to 0 after `epochs`; or by `step_factor` every
    `step_epochs` epochs."""
    warmup_steps: int = Field(0, ge=0)
    """Steps during which the learning rate rises linearly to its full height."""
    step_epochs: int = Field(10, ge=1)
    """Epochs from one fall of the learning rate to the next (schedule: step)."""
    step_factor: float = Field(0.1, gt=0, le=1)
    """What the learning rate is multiplied by then (schedule: step)."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty of Adam."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest Euclidean norm of a step's gradient, all weights together; empty clips nothing."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the matrix products in training. With `bfloat16` their inputs, weights and results are rounded to it; stored
    weights, aggregation, normalisation, loss, gradients, optimizer and evaluation stay float32. Faster where the CPU
    has AVX512-BF16 or AMX."""
    class_weights: Literal["none", "balanced"] | tuple[Annotated[float, Field(gt=0)], ...] = "none"
    """Factor of each class's loss: `balanced` makes classes count alike; or a list, one number a class. Multi-label:
    the factor of the loss where a label is present, `balanced` being absent over present."""
    accumulate: int = Field(1, ge=1)
    """Mini-batches whose gradients add up to one step, each weighted by its seed nodes."""
    workers: int = Field(1, ge=1, le=64)
    """Processes on this machine that train together: step s takes mini-batches s*W to s*W+W-1, one a worker (times
    `accumulate`). Each opens the store itself; features and topology are shared through the page cache (for
    GPUs, in memory that all map), a device tier is held by each."""
    metric: Literal["accuracy", "macro_f1", "roc_auc"] = "accuracy"
    """What chooses the best epoch on the validation nodes and ends training early."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many epochs without a better validation `metric`; empty never stops early."""
    validation: Literal["exact", "sampled"] = "exact"
    """Validate over all neighbors, or over sampled ones (cheaper on huge graphs); the test is always exact."""

    @model_validator(mode="after")
    def _step_goes_with_its_schedule(self) -> TrainingConfig:
        for field in ("step_epochs", "step_factor"):
            # Compared with the default, not with what was set: a form sends every field.
            if self.schedule != "step" and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(
                    f"training.{field} has no effect for schedule {self.schedule!r}: set training.schedule=step"
                )
        return self
