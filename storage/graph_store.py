"""The graph store: one HDF5 file of topology, features, labels and splits that is read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from storage.blocks.extent import Extent
from storage.blocks.reader import BlockReader
from storage.blocks.verify import damaged_blocks
from storage.content_checks import check_adjacency, check_range
from storage.errors import StorageError
from storage.extras import check_links, read_links
from storage.formats.base import IdArray, Links, rows_per_chunk
from storage.hdf5_checks import check_stored
from storage.store_format import (
    BLOCK_NODES,
    DEFAULT_BLOCK_BYTES,
    FEATURES,
    FORMAT_VERSION,
    GRAPH_ID,
    GRAPH_LABELS,
    INDICES,
    INDPTR,
    LABELS,
    MULTI_LABELS,
    NEW_TO_OLD,
    ORIGINAL_ID,
    OUT_DEGREE,
    RELATION,
    SPLITS,
    Split,
    StoreInfo,
    check_format,
    read_extents,
    read_info,
)
from storage.store_writer import write_store

__all__ = [
    "DEFAULT_BLOCK_BYTES",
    "FEATURES",
    "FORMAT_VERSION",
    "INDICES",
    "INDPTR",
    "LABELS",
    "ORIGINAL_ID",
    "OUT_DEGREE",
    "SPLITS",
    "GraphStore",
    "Split",
    "StoreInfo",
    "row_chunks",
    "write_store",
]


class GraphStore:
    """A store opened for reading; the file never changes once it is published.

    Reads are direct and each block is checked against its CRC-32 the first time it is read. Arrays come back owned
    by the caller. Close the store, or use it in a `with` statement, to give its descriptors back early.
    """

    def __init__(self, path: Path, info: StoreInfo, extents: Mapping[str, Extent], num_file_bytes: int) -> None:
        self.path = path
        self.info = info
        self.num_file_bytes = num_file_bytes
        self._extents = extents
        self._readers: dict[str, BlockReader] = {}

    @classmethod
    def open(cls, path: Path) -> GraphStore:
        """Open a store; reads its metadata only.

        Raises
        ------
        StorageError
            There is no such file, it is cut short, or it is no graph store.
        FormatVersionError
            It was written by another, incompatible version.
        """
        path = Path(path)
        if not path.is_file():
            raise StorageError(f"there is no graph store at {path}: ingest the graph first")
        try:
            with h5py.File(path, "r", locking=False) as file:
                check_format(path, file)
                info = read_info(path, file)
                extents = dict(read_extents(path, file, info.block_bytes))
        except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise StorageError(f"{path} is damaged or no graph store ({error}): delete it and run again") from error
        return cls(path, info, extents, path.stat().st_size)

    def __enter__(self) -> GraphStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptors; later reads open them again."""
        for reader in self._readers.values():
            reader.close()

    def read_indptr(self) -> npt.NDArray[np.int64]:
        """(N + 1,) offsets into `indices`."""
        return self._read(INDPTR)

    def read_indices(self) -> IdArray:
        """(E,) source ids, row by row: int32 where N < 2**31, else int64."""
        return self._read(INDICES)

    def read_adjacency(self) -> tuple[npt.NDArray[np.int64], IdArray]:
        """`indptr` and `indices`, checked: code that checks nothing may follow them.

        Raises
        ------
        StorageError
            Offsets do not ascend from 0 to E, or an id is outside [0, N).
        """
        indptr, indices = self.read_indptr(), self.read_indices()
        check_adjacency(self.path, indptr, indices)
        return indptr, indices

    def read_features(self) -> npt.NDArray[Any]:
        """(N, F) features in their stored type; (N, 0) float32 where there are none."""
        if FEATURES not in self._extents:
            return np.empty((self.info.num_nodes, 0), np.float32)
        return self._read(FEATURES)

    def read_labels(self) -> npt.NDArray[np.int64]:
        """(N,) class of each node, -1 where it has none; checked against the number of classes."""
        if LABELS not in self._extents:
            return np.full(self.info.num_nodes, -1, np.int64)
        labels_N = self._read(LABELS).astype(np.int64)
        check_range(self.path, "labels", labels_N, -1, self.info.num_classes)
        return labels_N

    def read_multi_labels(self) -> npt.NDArray[np.int8]:
        """(N, C) 1 where a node has a label, 0 where it has not, -1 where that is unknown; where `is_multi_label`."""
        rows_NC: npt.NDArray[np.int8] = self._read(MULTI_LABELS)
        check_range(self.path, "labels", rows_NC.reshape(-1), -1, 2)
        return rows_NC

    def read_split(self, split: Split) -> npt.NDArray[np.int64]:
        """Nodes of a split in ascending order; checked to be nodes."""
        nodes = self._read(f"splits/{split}").astype(np.int64, copy=False)
        check_range(self.path, f"{split} nodes", nodes, 0, self.info.num_nodes)
        return nodes

    def read_out_degree(self) -> npt.NDArray[np.int64]:
        """(N,) how many adjacency lists name each node (repeats within a list count)."""
        return self._read(OUT_DEGREE)

    def read_new_to_old(self) -> npt.NDArray[np.int64]:
        """(N,) id that each node had before it was reordered."""
        if NEW_TO_OLD not in self._extents:
            return np.arange(self.info.num_nodes)
        return self._read(NEW_TO_OLD)

    def read_original_ids(self) -> npt.NDArray[np.int64] | npt.NDArray[np.str_]:
        """(N,) id of each node in the files that were ingested: int64 or strings."""
        if ORIGINAL_ID not in self._extents:
            return self.read_new_to_old()
        ids = self._read(ORIGINAL_ID)
        return np.strings.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids.astype(np.int64, copy=False)

    def read_original_ids_of(self, nodes: IdArray) -> npt.NDArray[np.int64] | npt.NDArray[np.str_]:
        """(n,) as `read_original_ids`, of some nodes: only the blocks that hold them are read."""
        name = next((name for name in (ORIGINAL_ID, NEW_TO_OLD) if name in self._extents), None)
        if name is None:
            return nodes.astype(np.int64)
        reader, order = self.reader(name), np.argsort(nodes, kind="stable")
        ids = np.empty(len(nodes), reader.extent.dtype)
        block = nodes[order].astype(np.int64) * reader.extent.row_bytes // self.info.block_bytes
        for place in np.split(order, np.flatnonzero(np.diff(block)) + 1):
            if len(place):
                first, last = int(nodes[place[0]]), int(nodes[place[-1]])
                ids[place] = reader.read_rows(first, last + 1)[nodes[place] - first]
        return np.strings.decode(ids, "utf-8") if ids.dtype.kind == "S" else ids.astype(np.int64, copy=False)

    def read_relations(self) -> npt.NDArray[np.int32]:
        """(E,) relation of each entry of `indices`, in a knowledge graph; checked to have a name."""
        relations: npt.NDArray[np.int32] = self._read(RELATION)
        check_range(self.path, "the relations", relations, 0, len(self.info.relation_names))
        return relations

    def read_links(self, split: Split) -> Links:
        """Edges held out for link prediction, checked to join nodes; none where the data set has no such split."""
        links = read_links(split, self.has, self._read)
        check_links(self.path, split, links, self.info.num_nodes, len(self.info.relation_names))
        return links

    def read_graph_ids(self) -> npt.NDArray[np.int32]:
        """(N,) graph that each node belongs to, checked to be one: 0 where the store holds one graph."""
        if not self.has(GRAPH_ID):
            return np.zeros(self.info.num_nodes, np.int32)
        graph_ids: npt.NDArray[np.int32] = self._read(GRAPH_ID)
        # A graph without nodes has labels all the same; without labels, the last node's graph is the last.
        num_graphs = self.extent(GRAPH_LABELS).shape[0] if self.has(GRAPH_LABELS) else self.info.num_nodes
        check_range(self.path, "the graph ids", graph_ids, 0, num_graphs)
        return graph_ids

    def read_graph_labels(self) -> npt.NDArray[np.float32]:
        """(G, tasks) labels of the graphs, NaN where there is none; (0, 0) where the store has no such labels."""
        return self._read(GRAPH_LABELS) if self.has(GRAPH_LABELS) else np.empty((0, 0), np.float32)

    def reader(self, name: str) -> BlockReader:
        """Block reader of a dataset, by its name in the file."""
        if name not in self._readers:
            self._readers[name] = BlockReader(self.path, self.extent(name))
        return self._readers[name]

    def extent(self, name: str) -> Extent:
        """Where a dataset lies in the file."""
        if name not in self._extents:
            raise StorageError(f"{self.path} has no {name}; it holds {', '.join(sorted(self._extents))}")
        return self._extents[name]

    def block_nodes(self) -> npt.NDArray[np.int64]:
        """Object index table: (num_blocks, 2) first and last node that each block of `indices` holds."""
        with h5py.File(self.path, "r", locking=False) as file:
            check_stored(self.path, file[BLOCK_NODES])
            return np.asarray(file[BLOCK_NODES][:], np.int64)

    def has(self, name: str) -> bool:
        """Whether the store holds a dataset."""
        return name in self._extents

    def nbytes(self, name: str) -> int:
        """Bytes of a dataset; 0 where the store has none of that name."""
        return self._extents[name].nbytes if name in self._extents else 0

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of all datasets that are read block by block."""
        return tuple(self._extents)

    def verify(self) -> None:
        """Read every block, however often it was read before, and raise for the first that `damage` finds."""
        for damage in self.damage(lambda _: None):
            raise damage

    def damage(self, on_blocks: Callable[[int], None]) -> Iterator[StorageError]:
        """Find every damaged block, as `storage.blocks.verify` does for one dataset."""
        for extent in self._extents.values():
            yield from damaged_blocks(self.path, extent, on_blocks)

    def _read(self, name: str) -> npt.NDArray[Any]:
        return self.reader(name).read_all()


def row_chunks(store: GraphStore, name: str) -> Iterator[npt.NDArray[Any]]:
    """Read a dataset from its first block to its last, a few MiB of rows at a time."""
    reader = store.reader(name)
    rows = rows_per_chunk(reader.extent.row_bytes)
    for start in range(0, reader.extent.shape[0], rows):
        yield reader.read_rows(start, min(start + rows, reader.extent.shape[0]))
