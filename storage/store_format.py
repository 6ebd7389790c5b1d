"""The file format of a store: names of its datasets, its attributes, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt

from storage.blocks.extent import Extent
from storage.blocks.writer import CRC_GROUP, ArrayStream
from storage.errors import FormatVersionError, StorageError
from storage.hdf5_checks import check_contiguous, check_stored

FORMAT_NAME = "garden-graph"
FORMAT_VERSION = 1
MULTI_LABEL_VERSION = 2
"""Version of a store with multi-label rows, which older releases do not know."""
DEFAULT_BLOCK_BYTES = 1 << 20

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

INDPTR, INDICES, OUT_DEGREE = "topology/indptr", "topology/indices", "topology/out_degree"
FEATURES, LABELS, LABEL_NAMES = "features/x", "labels/y", "labels/names"
MULTI_LABELS = "labels/multi"
ORIGINAL_ID, NEW_TO_OLD = "nodes/original_id", "nodes/new_to_old"
RELATION, RELATION_NAMES = "topology/relation", "topology/relation_names"
LINKS = "links"
GRAPH_ID, GRAPH_LABELS = "nodes/graph_id", "graphs/y"
BLOCK_NODES = "blocks/nodes/topology/indices"

_BLOCK_BYTES = range(1 << 12, (1 << 30) + 1, 1 << 12)
# name -> (dimensions, kinds of values)
_ROW_A_NODE = {
    OUT_DEGREE: (1, "i"),
    FEATURES: (2, "fu"),
    LABELS: (1, "i"),
    MULTI_LABELS: (2, "i"),
    ORIGINAL_ID: (1, "iS"),
    NEW_TO_OLD: (1, "i"),
    GRAPH_ID: (1, "i"),
}
_ROW_AN_EDGE = {INDICES: (1, "i"), RELATION: (1, "i")}
_OTHERS = {INDPTR: (1, "i"), GRAPH_LABELS: (2, "f")} | {f"splits/{split}": (1, "i") for split in SPLITS}
_SHAPES = _ROW_A_NODE | _ROW_AN_EDGE | _OTHERS


@dataclass(frozen=True)
class StoreInfo:
    """What a store holds, from its attributes alone."""

    num_nodes: int
    """N."""
    num_edges: int
    """E, as stored (multi-edges and self loops count)."""
    feature_dim: int
    """Features a node; 0 where there are none."""
    feature_dtype: np.dtype[Any]
    """Type they are stored in: float32, float16, or uint8 for 0/1 features."""
    num_classes: int
    """Number of classes (of labels, where a node may have several); 0 where there are no labels."""
    label_names: tuple[str, ...]
    """Name of each class."""
    order: str
    """Node order: `ingest`, or the kind that `node_order` made."""
    block_bytes: int
    """Bytes a block."""
    format_version: int
    """Version of the file format."""
    split_sizes: Mapping[str, int]
    """Nodes in `train`, `valid` and `test`."""
    relation_names: tuple[str, ...] = ()
    """Name of each relation, in a knowledge graph."""
    link_sizes: Mapping[str, int] = field(default_factory=dict)
    """Edges held out for link prediction, by split."""
    is_union: bool = False
    """Whether the nodes are those of several graphs, each with the number of its own."""
    is_multi_label: bool = False
    """Whether a node may have several labels."""

    @property
    def feature_row_bytes(self) -> int:
        """Bytes of one node's features."""
        return self.feature_dim * self.feature_dtype.itemsize

    @property
    def has_integer_features(self) -> bool:
        """Whether features are stored as integers, which layers turn into floats."""
        return self.feature_dtype.kind != "f"


def check_format(path: Path, file: h5py.File) -> None:
    """Refuse what is no store, or one of another version."""
    if file.attrs.get("format") != FORMAT_NAME:
        raise StorageError(f"{path} is an HDF5 file, but no graph store: ingest the graph first")
    version = int(file.attrs["format_version"])
    if version not in (FORMAT_VERSION, MULTI_LABEL_VERSION):
        raise FormatVersionError(
            f"{path} has format version {version}, this release reads {FORMAT_VERSION} and {MULTI_LABEL_VERSION}: "
            "delete it and run again"
        )


def read_info(path: Path, file: h5py.File) -> StoreInfo:
    """Read a store's sizes, after checking that its arrays fit together and into the file.

    Raises
    ------
    StorageError
        They do not.
    """
    check_arrays(path, file)
    features = file.get(FEATURES)
    names = read_names(path, file, LABEL_NAMES)
    return StoreInfo(
        num_nodes=len(file[INDPTR]) - 1,
        num_edges=len(file[INDICES]),
        feature_dim=features.shape[1] if features is not None else 0,
        feature_dtype=features.dtype if features is not None else np.dtype(np.float32),
        num_classes=len(names),
        label_names=names,
        order=str(file.attrs["order"]),
        block_bytes=int(file.attrs["block_bytes"]),
        format_version=int(file.attrs["format_version"]),
        split_sizes={split: len(file[f"splits/{split}"]) for split in SPLITS},
        relation_names=read_names(path, file, RELATION_NAMES),
        link_sizes={split: len(file[f"{LINKS}/{split}/edges"]) for split in file.get(LINKS, ())},
        is_union=GRAPH_ID in file,
        is_multi_label=MULTI_LABELS in file,
    )


def check_arrays(path: Path, file: h5py.File) -> None:
    """Refuse a store whose arrays do not fit together, or not into the file; allocates nothing of their size.

    Raises
    ------
    StorageError
        The first one that does not fit.
    """
    block_bytes = int(file.attrs["block_bytes"])
    if block_bytes not in _BLOCK_BYTES:
        raise StorageError(f"{path} is damaged: blocks of {block_bytes} bytes; delete it and run again")
    arrays = {name: file[name] for name in _dataset_names(file[CRC_GROUP])}
    for dataset in arrays.values():
        check_contiguous(path, dataset)
        check_stored(path, dataset)
    num_nodes, num_edges = file[INDPTR].size - 1, file[INDICES].size
    for name, dataset in arrays.items():
        dimensions, kinds = _SHAPES.get(name, (dataset.ndim, "iufS"))
        rows = num_nodes if name in _ROW_A_NODE else num_edges if name in _ROW_AN_EDGE else len(dataset)
        if num_nodes < 0 or dataset.ndim != dimensions or dataset.dtype.kind not in kinds or len(dataset) != rows:
            raise StorageError(
                f"{path} is damaged: {name} holds {dataset.dtype} of shape {dataset.shape}, but there are {num_nodes} "
                f"nodes and {num_edges} edges; delete it and run again"
            )


def read_names(path: Path, file: h5py.File, name: str) -> tuple[str, ...]:
    """Read a list of strings; none where there is no such dataset."""
    if name not in file:
        return ()
    check_stored(path, file[name])
    return tuple(file[name].asstr()[:])


def read_extents(path: Path, file: h5py.File, block_bytes: int) -> Iterator[tuple[str, Extent]]:
    """Find the byte range and the checksums of every dataset written block by block."""
    size = path.stat().st_size
    for name in _dataset_names(file[CRC_GROUP]):
        dataset, checksums = file[name], file[CRC_GROUP][name]
        check_stored(path, checksums)
        offset = dataset.id.get_offset() or 0
        extent = Extent(name, dataset.shape, dataset.dtype, offset, block_bytes, checksums[:])
        if extent.offset + extent.nbytes > size:
            raise StorageError(f"{path} is cut short inside {name}: delete it and run again")
        if extent.crc_B.dtype != np.uint32 or extent.crc_B.shape != (extent.num_blocks,):
            raise StorageError(f"{path} is damaged: {name} has not one CRC-32 a block; delete it and run again")
        yield name, extent


def _dataset_names(group: h5py.Group) -> list[str]:
    """Names of all datasets below a group."""
    names: list[str] = []
    group.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def storable_ids(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Ids as HDF5 stores them: int64, or fixed-length UTF-8."""
    if ids.dtype.kind in "iu":
        return ids.astype(np.int64, copy=False)
    return ids if ids.dtype.kind == "S" else np.strings.encode(ids.astype(np.str_), "utf-8")


class BlockTable:
    """Object index table of the adjacency (AGNES), filled while the offsets pass by.

    Parameters
    ----------
    num_edges : int
    ids_per_block : int
    """

    def __init__(self, num_edges: int, ids_per_block: int) -> None:
        first_edge = np.arange(0, num_edges, ids_per_block)
        self._edges_B2 = np.stack([first_edge, np.minimum(first_edge + ids_per_block, num_edges) - 1], axis=1)
        self.nodes_B2 = np.zeros_like(self._edges_B2)
        """(num_blocks, 2) first and last node with a neighbor in each block; a node larger than a block is in several
        rows."""
        self._node, self._start = 0, np.zeros(1, np.int64)

    def watch(self, indptr: ArrayStream) -> ArrayStream:
        """Pass the offsets on, and fill the table meanwhile."""

        def chunks() -> Iterator[npt.NDArray[np.int64]]:
            for offsets in indptr.chunks:
                self._take(offsets)
                yield offsets

        return ArrayStream(indptr.shape, indptr.dtype, chunks())

    def _take(self, offsets: npt.NDArray[np.int64]) -> None:
        """Note the nodes of the edges between the last offset and the last of these."""
        known = np.concatenate([self._start, offsets])
        for side in (0, 1):
            edges = self._edges_B2[:, side]
            low, high = np.searchsorted(edges, [known[0], known[-1]])
            place = np.searchsorted(known, edges[low:high], side="right") - 1
            self.nodes_B2[low:high, side] = self._node + place - 1  # `known` begins one offset before
        self._node, self._start = self._node + len(offsets), offsets[-1:].copy()
