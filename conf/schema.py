"""The whole configuration as frozen, strict models; each field's description becomes the form in the Prefect UI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from conf.byte_size import Bytes
from conf.data import DataConfig, Fraction, Seed
from conf.section import Section
from conf.training import ModelConfig, TrainingConfig


class LayoutConfig(Section):
    """How nodes are ordered and bytes are laid out."""

    order: Literal["degree", "hotness", "locality", "none"] = "degree"
    """`degree`: by how many adjacency lists name a node; `hotness`: by sampled access counts; `locality`: reverse
    Cuthill-McKee; `none`: as ingested."""
    block_bytes: Bytes = Field(Bytes(1 << 20), ge=4096, le=1 << 26)
    """Size of a block, the unit of storage I/O; a multiple of 4 KiB."""
    keep_ingest: bool = False
    """Keep the intermediate store in ingest order once the laid-out one is published."""

    @model_validator(mode="after")
    def _block_is_aligned(self) -> LayoutConfig:
        if self.block_bytes % 4096:
            raise ValueError(f"layout.block_bytes must be a multiple of 4096 (got {int(self.block_bytes)})")
        return self


class SamplingConfig(Section):
    """How mini-batches are drawn."""

    fanouts: tuple[Annotated[int, Field(ge=-1)], ...] = (10, 10)
    """Neighbors a node, from the input layer to the seed layer as DGL writes them; -1 takes all. One layer each."""
    batch_size: int = Field(1000, ge=1)
    """Seed nodes a mini-batch."""
    superbatch: int = Field(4, ge=1, le=1024)
    """Mini-batches sampled, classified and fetched as one (K); changes speed and memory, never a sample."""
    replace: bool = False
    """Draw neighbors with replacement."""
    threads: int = Field(2, ge=1, le=256)
    """Sampling threads; changes speed, never a sample."""
    in_flight_bytes: Bytes | None = Field(None, gt=0)
    """Most bytes of mini-batches that are loaded ahead of the model, their features too (one super-batch is the
    least); empty means a quarter of `host_budget`, where all else leaves that much, or 1 GiB without one."""

    @model_validator(mode="after")
    def _fanouts_are_positive(self) -> SamplingConfig:
        if 0 in self.fanouts:
            raise ValueError(f"a fanout must be >= 1, or -1 for all neighbors (got {list(self.fanouts)})")
        return self


class ProfileConfig(Section):
    """Pre-sampling: how accesses are counted before anything is cached."""

    epochs: int = Field(4, ge=1)
    """Epochs of real sampling whose counts choose what is cached."""
    heldout_epochs: int = Field(20, ge=1)
    """Further epochs that choose nothing: they predict the hit rates and rank the static oracle."""
    counting: Literal["smoothed", "input", "full_link"] = "smoothed"
    """`input` counts a node once a batch that needs its features; `smoothed` draws those counts toward the analytic
    inclusion probabilities, as far as the graph bears them out; `full_link` adds every hop's sources and destinations
    (GARDEN Eq. 4)."""


class DynamicConfig(Section):
    """The dynamic cache: rows that the static cache misses, kept up while training goes on (GARDEN Eq. 5, 6)."""

    share: Fraction = 0.0
    """Share of `device_budget` for it, spare rows and maps included; 0: none. Pays where what is read moves with time:
    `garden compare` says whether it does."""
    gamma: float = Field(0.999, gt=0, le=1)
    """What is left of a node's score after one mini-batch."""
    interval_batches: int | None = Field(None, ge=1)
    """Mini-batches from one update to the next; empty: at the end of each epoch."""
    epochs: int = Field(10, ge=1)
    """Epochs after which updates stop; they stop earlier where they gain less than they cost."""


class CacheConfig(Section):
    """What is kept in the device tier."""

    device_budget: Bytes | Literal["auto"] = "auto"
    """Bytes for all caches on the device (on a CPU, a host array of that size), maps included; 0 caches nothing.
    `auto`: what the GPU has free, less what training takes beside the caches and a reserve; 6 MiB on a CPU."""
    use_spare: bool = False
    """Fill what the access counts leave of the budget: further rows, then lists, in the order of the nodes."""
    miss_costs: Literal["bytes", "measured", "given"] = "bytes"
    """What a miss costs when rows and adjacency lists compete for bytes: `bytes` that cross, in whole 64-byte lines;
    the times `measured` on this machine at several cache sizes (on a CPU all tiers are host memory, and misses cost
    next to nothing: bytes are taken then); or those `given` below."""
    feature_miss_ns: float | None = Field(None, ge=0)
    """Nanoseconds that a missed feature row takes longer than a cached one (miss_costs: given)."""
    adjacency_miss_ns: float | None = Field(None, ge=0)
    """Nanoseconds that a missed adjacency list takes longer than a cached one (miss_costs: given)."""
    dynamic: DynamicConfig = DynamicConfig()
    """Dynamic cache."""
    pinned: Literal["auto", "on", "off"] = "auto"
    """How a GPU reads what it does not hold: from pinned host memory in place, or, with `off`, as the CPU collects it
    and copies it over. `auto` pins, and goes on without where the system refuses; `on` is an error then."""

    @model_validator(mode="after")
    def _times_go_with_given_costs(self) -> CacheConfig:
        for field in ("feature_miss_ns", "adjacency_miss_ns"):
            if (getattr(self, field) is not None) != (self.miss_costs == "given"):
                state = "is missing" if self.miss_costs == "given" else f"has no effect for {self.miss_costs!r}"
                raise ValueError(f"cache.{field} {state}: it goes with cache.miss_costs=given")
        return self

    @model_validator(mode="after")
    def _dynamic_has_a_share(self) -> CacheConfig:
        if not self.dynamic.share and self.dynamic != DynamicConfig():
            raise ValueError("cache.dynamic has no effect while cache.dynamic.share is 0: set it above 0")
        return self


class StorageConfig(Section):
    """Where topology and features are while a model trains; changes speed and memory, never a sample or a loss."""

    mode: Literal["memory", "storage"] = "memory"
    """`memory` loads the laid-out store; `storage` leaves it on disk and reads it in blocks (`layout.block_bytes`),
    within `host_budget`: for graphs larger than memory."""
    hyperbatch: int | None = Field(None, ge=1, le=65535)
    """Mini-batches that are sampled and gathered together, each block read once for all of them (mode: storage);
    empty takes as many as make an epoch short within `host_budget`, at most 1024."""
    keep: Literal["top", "mean"] = "top"
    """Feature rows that stay in memory: the most accessed ones of a hyperbatch that fit, or those with at least the
    mean count; the others go through a spill file. Without a `disk_budget` hyperbatches may keep the same rows for the
    epoch (mode: storage)."""

    @model_validator(mode="after")
    def _fields_go_with_the_mode(self) -> StorageConfig:
        for field in ("hyperbatch", "keep"):
            # Compared with the default, not with what was set: a form sends every field.
            if self.mode == "memory" and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"storage.{field} has no effect for mode 'memory': set storage.mode=storage")
        return self


class PipelineConfig(Section):
    """One run of the pipeline, whole."""

    name: str = Field("demo", min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of the model it registers."""
    experiment: str = Field("garden", min_length=1)
    """MLflow experiment."""
    seed: Seed = 0
    """Seed of sampling, initial weights and dropout."""
    backend: Literal["auto", "cpu", "cuda"] = "auto"
    """What samples, gathers and trains: `cuda` is an error where no GPU can be used; `auto` takes a GPU where one can,
    else the CPU. Profiling and evaluation are the CPU's."""
    state_dir: Path = Path(".garden")
    """Directory of everything this run writes, but for a data set that is fetched (to `data.path`): artifacts,
    checkpoints, tracking database."""
    host_budget: Bytes | None = None
    """Most bytes of memory a stage may use above its libraries; empty means what the machine has free."""
    disk_budget: Bytes | None = None
    """Most bytes of disk that a run takes at any time, scratch files included; input does not count, but what
    `data.url` fetches keeps to it by itself; empty means what the disk has free."""
    data: DataConfig = DataConfig()
    """Input."""
    layout: LayoutConfig = LayoutConfig()
    """Node order and block layout."""
    sampling: SamplingConfig = SamplingConfig()
    """Neighbor sampling."""
    profile: ProfileConfig = ProfileConfig()
    """Access profile."""
    cache: CacheConfig = CacheConfig()
    """Device tier."""
    storage: StorageConfig = StorageConfig()
    """Training from memory or from disk."""
    model: ModelConfig = ModelConfig()
    """Network."""
    training: TrainingConfig = TrainingConfig()
    """Optimisation."""

    @model_validator(mode="after")
    def _model_matches_fanouts(self) -> PipelineConfig:
        if self.storage.mode == "storage" and self.cache.dynamic.share:
            raise ValueError("storage.mode 'storage' keeps no dynamic cache: set cache.dynamic.share=0")
        if self.storage.mode == "storage" and self.backend == "cuda":
            raise ValueError("storage.mode 'storage' computes on the CPU: remove backend=cuda, or set backend=cpu")
        if self.cache.pinned != "auto" and (self.backend == "cpu" or self.storage.mode == "storage"):
            raise ValueError(
                f"cache.pinned={self.cache.pinned} has no effect on the CPU, where all memory is in reach: leave it out"
            )
        if self.storage.mode == "storage" and self.training.workers > 1:
            raise ValueError(
                f"storage.mode 'storage' trains in one process (got training.workers={self.training.workers}): "
                "set training.workers=1, and training.accumulate to train alike"
            )
        if (self.model.kind == "mlp") != (not self.sampling.fanouts):
            got = f"{self.model.kind!r} with {list(self.sampling.fanouts)}"
            raise ValueError(f"model.kind 'mlp' goes with sampling.fanouts=[], and only it does (got {got})")
        return self
