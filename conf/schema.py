"""The whole configuration as frozen, strict models; each field's description becomes the form in the Prefect UI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ByteSize, Field, model_validator

from conf.section import Section
from conf.training import ModelConfig, TrainingConfig

Seed = Annotated[int, Field(ge=0, lt=2**64)]
Fraction = Annotated[float, Field(ge=0, le=1)]


# format -> (required, optional) fields that name files or say how to read them
_TABLES = ("features", "labels")
_COLUMNS = ("num_nodes", "id_column", "source_column", "target_column", "edge_weights")
_DOWNLOAD = ("url", "checksum")
_FILE_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "demo": ((), ()),
    "rmat": ((), ()),
    "planetoid": (("path", "name"), ()),
    "musae": (("path", "name"), ()),
    "edge_list": (("edges",), (*_TABLES, *_COLUMNS, "delimiter")),
    "parquet": (("edges",), (*_TABLES, *_COLUMNS)),
    "matrix_market": (("edges",), (*_TABLES, "edge_weights")),
    "npz": (("edges",), (*_TABLES, "edge_weights")),
    "dgl": (("edges",), ("edge_weights",)),
    "ogb": (("path",), ("split_scheme", "edge_weights", *_DOWNLOAD)),
    "igb": (("path",), ("label_set", *_DOWNLOAD)),
    "triples": (("path",), ("delimiter", *_DOWNLOAD)),
}
_ALL_FILE_FIELDS = sorted({field for required, optional in _FILE_FIELDS.values() for field in (*required, *optional)})
_BRING_SPLITS = ("demo", "rmat", "planetoid", "dgl", "ogb", "igb", "triples")


class DemoConfig(Section):
    """The generated demo graph: power-law degrees, planted communities, noisy features."""

    nodes: int = Field(200_000, ge=2)
    """Number of nodes."""
    edges: int = Field(3_000_000, ge=0)
    """Number of directed edges."""
    classes: int = Field(16, ge=2, le=1024)
    """Number of planted communities, which are the labels."""
    feature_dim: int = Field(64, ge=1)
    """Features a node."""
    exponent: float = Field(2.3, gt=1.5, le=10)
    """Exponent of the power law of degrees (smaller is more skewed)."""
    homophily: Fraction = 0.7
    """Share of edges that stay within a community."""
    noise: float = Field(1.0, ge=0)
    """Standard deviation of each feature's noise around a community's unit-norm centre."""
    train_fraction: Fraction = 0.1
    """Share of nodes to train on."""
    valid_fraction: Fraction = 0.05
    """Share of nodes to validate on; twice as many are tested on."""
    seed: Seed = 0
    """Seed of the generator (training has its own)."""

    @model_validator(mode="after")
    def _split_is_possible(self) -> DemoConfig:
        if self.train_fraction + 3 * self.valid_fraction > 1:
            total = f"{self.train_fraction} + 3 * {self.valid_fraction}"
            raise ValueError(f"train_fraction + 3 * valid_fraction must be at most 1, with the test set (got {total})")
        return self


class RmatConfig(Section):
    """The generated R-MAT graph (Graph500's parameters): of any size, never held in memory."""

    scale: int = Field(20, ge=1, le=36)
    """There are 2^scale nodes."""
    edges: int = Field(16 << 20, ge=0)
    """Number of directed edges."""
    classes: int = Field(16, ge=2, le=1024)
    """Number of classes, drawn independently of the edges."""
    feature_dim: int = Field(64, ge=1)
    """Features a node, float16."""
    noise: float = Field(1.0, ge=0)
    """Standard deviation of each feature around its class's unit-norm centre."""
    train_fraction: Fraction = 0.01
    """Share of nodes to train on, about."""
    valid_fraction: Fraction = 0.001
    """Share of nodes to validate on, about; as many are tested on."""
    seed: Seed = 0
    """Seed of the generator (training has its own)."""

    @model_validator(mode="after")
    def _split_is_possible(self) -> RmatConfig:
        if self.train_fraction + 2 * self.valid_fraction > 1:
            total = f"{self.train_fraction} + 2 * {self.valid_fraction}"
            raise ValueError(f"train_fraction + 2 * valid_fraction must be at most 1, with the test set (got {total})")
        return self


class DataConfig(Section):
    """What to read, and what to do about its quirks."""

    format: Literal[
        "demo",
        "rmat",
        "planetoid",
        "edge_list",
        "parquet",
        "musae",
        "matrix_market",
        "npz",
        "dgl",
        "ogb",
        "igb",
        "triples",
    ] = "demo"
    """Format of the graph (docs/formats.md); `edge_list` reads CSV, TSV and SNAP text (gzip too)."""
    path: Path | None = None
    """Directory of the data set (planetoid, musae, ogb, igb, triples)."""
    name: str | None = None
    """Base name of the files in `path`, as `cora` in `ind.cora.graph` (planetoid) or `facebook` in
    `facebook_edges.csv` (musae)."""
    edges: Path | None = None
    """Edge file (edge_list, parquet), matrix (matrix_market, npz) or saved graph (dgl)."""
    features: Path | None = None
    """Node features, one row a node: `.npy` (N, F) or Parquet, every column one feature; with `id_column` CSV or TSV
    too (edge_list, parquet, matrix_market, npz)."""
    labels: Path | None = None
    """Node labels, one row a node: `.npy` (N,), a one-column Parquet file, or `.npy` (N, C) rows of 0 and 1; negative
    or NaN is unlabelled; with `id_column` CSV or TSV too (edge_list, parquet, matrix_market, npz)."""
    id_column: str | None = None
    """Column of `features` and `labels` with ids as the edges have them, integers or strings, in any order; without it,
    ids are row numbers. An id without features is an error, one without a label is unlabelled (edge_list, parquet)."""
    task: Literal["auto", "single", "multi"] = "auto"
    """Whether a node has one class (`single`) or may have several labels (`multi`, rows of 0 and 1); `auto`: multi
    where a row has two ones or unknown entries."""
    num_nodes: int | None = Field(None, ge=1)
    """Number of nodes; ids must lie in [0, num_nodes). Left empty, ids are taken as they come: gaps are closed and the
    map is kept (edge_list, parquet)."""
    source_column: str | None = None
    """Name of the column of edge sources; empty means the first column."""
    target_column: str | None = None
    """Name of the column of edge targets; empty means the second column."""
    delimiter: str | None = Field(None, pattern=r"^[\t !$-/:-@\[-`{-~]$")
    """Delimiter of a text edge list, empty meaning: found from the first lines; of triples, empty meaning: a tab."""
    edge_weights: Literal["refuse", "drop"] = "refuse"
    """What to do with edge weights, types, features and further columns, which no model uses; `drop` leaves them
    out (edge_list, parquet, matrix_market, npz, dgl, ogb)."""
    split_scheme: str | None = None
    """Folder below `split` (ogb); empty means the only one."""
    label_set: Literal["19", "2K"] = "19"
    """Which labels to take (igb)."""
    url: str | None = Field(None, pattern=r"^https?://")
    """Archive (zip or tar) to fetch where `path` does not exist (ogb, igb, triples)."""
    checksum: str | None = Field(None, pattern=r"^(sha256|sha1|md5):[0-9a-f]{32,64}$")
    """Checksum of the archive at `url`, as `sha256:...`; left empty, the one found is logged."""
    symmetrize: bool = False
    """Add the reverse of every edge (and merge duplicates)."""
    deduplicate: bool = False
    """Merge repeated edges; otherwise multi-edges are kept as stored."""
    self_loops: Literal["keep", "remove"] = "keep"
    """What to do with self loops."""
    nan_policy: Literal["refuse", "zero"] = "refuse"
    """What to do with features that are NaN or infinite."""
    normalize_features: Literal["none", "row"] = "none"
    """`row` divides each feature row by its sum (rows that sum to zero stay)."""
    split: Literal["provided", "full", "random"] = "provided"
    """`provided`: the data set's own; `full`: its validation and test nodes, all other labelled nodes train; `random`:
    by the fractions below."""
    train_fraction: Fraction = 0.6
    """Share of labelled nodes to train on (split: random)."""
    valid_fraction: Fraction = 0.2
    """Share of labelled nodes to validate on (split: random); the rest is the test set."""
    split_seed: Seed = 0
    """Seed of the random split."""
    demo: DemoConfig = DemoConfig()
    """The generated graph (format: demo)."""
    rmat: RmatConfig = RmatConfig()
    """The generated graph (format: rmat)."""

    @model_validator(mode="after")
    def _files_belong_to_format(self) -> DataConfig:
        required, optional = _FILE_FIELDS[self.format]
        for field in required:
            if getattr(self, field) is None:
                raise ValueError(f"format {self.format!r} needs data.{field}: set it with --set data.{field}=...")
        for field in _ALL_FILE_FIELDS:
            # Compared with the default, not with what was set: a form sends every field.
            if field not in (*required, *optional) and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"data.{field} has no effect for format {self.format!r}: remove it")
        for name in ("demo", "rmat"):
            if self.format != name and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"data.{name} has no effect for format {self.format!r}: remove it")
        if self.checksum is not None and self.url is None:
            raise ValueError("data.checksum has no effect without data.url: remove it")
        if self.id_column is not None and self.num_nodes is not None:
            raise ValueError("data.num_nodes has no effect with data.id_column, which names every node: remove it")
        if self.id_column is not None and self.features is None and self.labels is None:
            raise ValueError("data.id_column has no effect without data.features or data.labels: remove it")
        return self

    @model_validator(mode="after")
    def _relations_are_kept(self) -> DataConfig:
        for field in ("symmetrize", "deduplicate"):
            if self.format == "triples" and getattr(self, field):
                raise ValueError(f"data.{field} would lose the relations of triples: remove it")
        return self

    @model_validator(mode="after")
    def _split_is_possible(self) -> DataConfig:
        if self.train_fraction + self.valid_fraction > 1:
            total = f"{self.train_fraction} + {self.valid_fraction}"
            raise ValueError(f"train_fraction + valid_fraction must be at most 1 (got {total})")
        if self.split == "random":
            return self
        if self.format not in _BRING_SPLITS:
            raise ValueError(f"format {self.format!r} brings no split of its own: set data.split=random")
        for field in ("train_fraction", "valid_fraction", "split_seed"):
            if getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"data.{field} has no effect for split {self.split!r}: set data.split=random")
        return self

    def reading_fields(self) -> dict[str, Any]:
        """Return the fields that say what the format reads and how, those for fetching it aside."""
        required, optional = _FILE_FIELDS[self.format]
        return {field: getattr(self, field) for field in (*required, *optional) if field not in _DOWNLOAD}


class LayoutConfig(Section):
    """How nodes are ordered and bytes are laid out."""

    order: Literal["degree", "hotness", "locality", "none"] = "degree"
    """`degree`: by how many adjacency lists name a node; `hotness`: by sampled access counts; `locality`: reverse
    Cuthill-McKee; `none`: as ingested."""
    block_bytes: ByteSize = Field(ByteSize(1 << 20), ge=4096, le=1 << 26)
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
    in_flight_bytes: ByteSize | None = Field(None, gt=0)
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

    device_budget: ByteSize = ByteSize(6 << 20)
    """Bytes for all caches on the device (on a CPU, a host array of that size), maps included; 0 caches nothing."""
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
    empty takes as many as `host_budget` holds, at most 1024."""
    keep: Literal["top", "mean"] = "top"
    """Feature rows that stay in memory for a hyperbatch: the most accessed ones that fit, or those with at least the
    mean count; the others go through a spill file (mode: storage)."""

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
    host_budget: ByteSize | None = None
    """Most bytes of memory a stage may use above its libraries; empty means what the machine has free."""
    disk_budget: ByteSize | None = None
    """Most bytes a stage may write; empty means what the disk has free."""
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
        if self.storage.mode == "storage" and self.training.workers > 1:
            raise ValueError(
                f"storage.mode 'storage' trains in one process (got training.workers={self.training.workers}): "
                "set training.workers=1, and training.accumulate to train alike"
            )
        if (self.model.kind == "mlp") != (not self.sampling.fanouts):
            got = f"{self.model.kind!r} with {list(self.sampling.fanouts)}"
            raise ValueError(f"model.kind 'mlp' goes with sampling.fanouts=[], and only it does (got {got})")
        return self
