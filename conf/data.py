"""What is read: generated graphs, files, their quirks and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from conf.section import Section

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
