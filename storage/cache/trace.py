"""Access traces: which rows and lists every mini-batch asked for, recorded once and replayed against any policy.

The destinations of each hop are the first of a mini-batch's input nodes, so one list of nodes and a number a hop say
everything: 4 bytes a feature access, and nothing more for the accesses to adjacency lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
import numpy.typing as npt

from kernels.mfg import IdArray, Sample
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from storage.cache.drift import Segment
from storage.errors import FormatVersionError, InputError, StorageError
from storage.hdf5_checks import check_stored

KIND, VERSION = "access trace", 1
CHUNK_ACCESSES = 1 << 20
"""Accesses of one HDF5 chunk; each chunk carries a checksum."""


@dataclass(frozen=True, slots=True, eq=False)
class AccessTrace:
    """Accesses of consecutive mini-batches, in memory."""

    nodes: IdArray
    """(A,) input nodes of all mini-batches, one after another."""
    batch_ptr: npt.NDArray[np.int64]
    """(B + 1,) where each mini-batch begins in `nodes`."""
    num_dst_BH: npt.NDArray[np.int64]
    """(B, H) destinations of each hop, from the seeds outward: the first so many nodes of the mini-batch."""
    num_nodes: int
    """Ids lie in [0, num_nodes)."""

    @property
    def num_batches(self) -> int:
        """Mini-batches."""
        return len(self.batch_ptr) - 1

    def batch(self, number: int) -> IdArray:
        """Input nodes of one mini-batch."""
        nodes: IdArray = self.nodes[self.batch_ptr[number] : self.batch_ptr[number + 1]]
        return nodes

    def part(self, first: int, end: int) -> AccessTrace:
        """The mini-batches [first, end); shares memory."""
        begin_at, end_at = self.batch_ptr[first], self.batch_ptr[end]
        return AccessTrace(
            self.nodes[begin_at:end_at],
            self.batch_ptr[first : end + 1] - begin_at,
            self.num_dst_BH[first:end],
            self.num_nodes,
        )

    def feature_counts(self) -> npt.NDArray[np.int64]:
        """(N,) mini-batches that asked for each node's features."""
        return np.bincount(self.nodes, minlength=self.num_nodes)

    def adjacency_counts(self) -> npt.NDArray[np.int64]:
        """(N,) reads of each node's list, one a mini-batch and hop."""
        counts_N = np.zeros(self.num_nodes, np.int64)
        for b in range(self.num_batches):
            for num_dst in self.num_dst_BH[b]:
                counts_N[self.batch(b)[:num_dst]] += 1  # no node twice within a mini-batch
        return counts_N


class TraceWriter:
    """Writes a trace mini-batch by mini-batch, a chunk of accesses in memory; use it as a context manager.

    Parameters
    ----------
    path : Path
        File to write; publishing it atomically is the caller's part.
    num_nodes : int
    num_hops : int
    """

    def __init__(self, path: Path, num_nodes: int, num_hops: int) -> None:
        self._file = h5py.File(path, "w")
        self._file.attrs.update({"kind": KIND, "format_version": VERSION, "num_nodes": num_nodes})
        dtype = np.int32 if num_nodes < 2**31 else np.int64
        # No compression: ids of a sampled frontier hold little that repeats, and replays read at memory speed.
        self._nodes = self._file.create_dataset(
            "nodes", (0,), dtype, maxshape=(None,), chunks=(CHUNK_ACCESSES,), fletcher32=True
        )
        self._pending: list[IdArray] = []
        self._num_pending, self._batch_ptr, self._num_dst = 0, [0], list[list[int]]()
        self._num_hops = num_hops

    def add(self, sample: Sample) -> None:
        """Append one mini-batch."""
        self._pending.append(sample.input_nodes.astype(self._nodes.dtype, copy=False))
        self._num_pending += len(sample.input_nodes)
        self._batch_ptr.append(self._batch_ptr[-1] + len(sample.input_nodes))
        self._num_dst.append([hop.num_dst for hop in sample.hops])
        if self._num_pending >= CHUNK_ACCESSES:
            self._flush()

    def _flush(self) -> None:
        if not self._num_pending:
            return
        begin = self._nodes.shape[0]
        self._nodes.resize((begin + self._num_pending,))
        self._nodes[begin:] = np.concatenate(self._pending)
        self._pending, self._num_pending = [], 0

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if error is None:
                self._flush()
                self._file.create_dataset("batch_ptr", data=np.array(self._batch_ptr, np.int64), fletcher32=True)
                shape = (len(self._num_dst), self._num_hops)
                num_dst = np.array(self._num_dst, np.int64).reshape(shape)
                checked = bool(num_dst.size)  # HDF5 checks chunks, of which nothing has none
                chunks = shape if checked else None
                self._file.create_dataset("num_dst", data=num_dst, chunks=chunks, fletcher32=checked)


def record_trace(
    path: Path,
    segments: Sequence[Segment],
    fanouts: Sequence[int],
    *,
    seed: int,
    superbatch: int = 4,
    threads: int = 2,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Sample mini-batches as training would, and write down what each one asks for.

    Parameters
    ----------
    path : Path
        HDF5 file to write.
    segments : sequence of Segment
        Graphs and seeds, one after another; each is an epoch of its own to the sampler.
    fanouts, seed, replace
        As training samples.
    superbatch, threads : int
        Change speed and memory, never the trace.
    progress : callable, optional
        Called with the mini-batches done and in all.
    """
    num_nodes = segments[0].topology.num_nodes
    if any(segment.topology.num_nodes != num_nodes for segment in segments):
        raise InputError("all segments of a trace must have the same nodes")
    total, done = sum(len(segment.batches) for segment in segments), 0
    with TraceWriter(path, num_nodes, len(fanouts)) as writer, ThreadPoolExecutor(threads, "trace") as pool:
        for epoch, segment in enumerate(segments):
            sampler = NeighborSampler(segment.topology, fanouts, seed=seed, purpose=Purpose.TRAIN, replace=replace)
            for sample in _samples(sampler, segment, epoch, superbatch, threads, pool):
                writer.add(sample)
                done += 1
                if progress is not None:
                    progress(done, total)


def _samples(
    sampler: NeighborSampler, segment: Segment, epoch: int, superbatch: int, threads: int, pool: ThreadPoolExecutor
) -> Iterator[Sample]:
    """All samples in order, at most `threads` + 1 super-batches ahead."""
    pending: deque[Future[Iterable[Sample]]] = deque()

    def sample(first: int) -> Iterable[Sample]:
        group = segment.batches[first : first + superbatch]
        return sampler.sample(group, epoch=epoch, first_batch=first).samples

    for first in range(0, len(segment.batches), superbatch):
        pending.append(pool.submit(sample, first))
        if len(pending) > threads:
            yield from pending.popleft().result()
    while pending:
        yield from pending.popleft().result()


class TraceFile:
    """A recorded trace on disk; use it as a context manager.

    Raises
    ------
    FileNotFoundError
        If there is no file.
    StorageError
        If the file is not a trace, is cut short or contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _opened(path)
        try:
            self._check_header()
            self.num_nodes = int(self._file.attrs["num_nodes"])
            self.batch_ptr: npt.NDArray[np.int64] = self._read("batch_ptr")
            self.num_dst_BH: npt.NDArray[np.int64] = self._read("num_dst")
            self._check_shape()
        except BaseException as error:
            self._file.close()
            if isinstance(error, KeyError | OSError | RuntimeError) and not isinstance(error, StorageError):
                raise StorageError(f"{path}: not a readable {KIND} ({error}); record it again") from error
            raise

    @property
    def num_batches(self) -> int:
        """Mini-batches."""
        return len(self.batch_ptr) - 1

    def read(self, first: int = 0, end: int | None = None) -> AccessTrace:
        """Read the mini-batches [first, end) into memory.

        Raises
        ------
        StorageError
            If a chunk's checksum is wrong or an id is not a node.
        """
        end = self.num_batches if end is None else end
        begin_at, end_at = int(self.batch_ptr[first]), int(self.batch_ptr[end])
        try:
            nodes: IdArray = self._file["nodes"][begin_at:end_at]
        except OSError as error:
            raise StorageError(f"{self.path}: accesses {begin_at} to {end_at} are damaged; record it again") from error
        if len(nodes) and (int(nodes.min()) < 0 or int(nodes.max()) >= self.num_nodes):
            raise StorageError(f"{self.path}: a node of the trace lies outside [0, {self.num_nodes}); record it again")
        return AccessTrace(
            nodes, self.batch_ptr[first : end + 1] - begin_at, self.num_dst_BH[first:end], self.num_nodes
        )

    def parts(self, most_accesses: int) -> Iterator[AccessTrace]:
        """The whole trace in pieces of at most so many accesses (one mini-batch is the least)."""
        first = 0
        while first < self.num_batches:
            within = np.searchsorted(self.batch_ptr, self.batch_ptr[first] + most_accesses, side="right") - 1
            end = max(first + 1, int(within))
            yield self.read(first, end)
            first = end

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _check_header(self) -> None:
        if self._file.attrs.get("kind") != KIND:
            raise StorageError(f"{self.path}: expected an {KIND} (got {self._file.attrs.get('kind')!r})")
        if (found := self._file.attrs.get("format_version")) != VERSION:
            raise FormatVersionError(f"{self.path}: format version {found}, this program reads {VERSION}; record again")

    def _read(self, name: str) -> npt.NDArray[np.int64]:
        check_stored(self.path, self._file[name])
        values: npt.NDArray[np.int64] = self._file[name][:]
        return values

    def _check_shape(self) -> None:
        check_stored(self.path, self._file["nodes"])
        sizes = np.diff(self.batch_ptr)
        whole = len(self.batch_ptr) and self.batch_ptr[0] == 0 and self.batch_ptr[-1] == self._file["nodes"].shape[0]
        fits = self.num_dst_BH.ndim == 2 and len(self.num_dst_BH) == len(sizes)
        if not whole or not fits or (sizes < 0).any() or (self.num_dst_BH > sizes[:, None]).any():
            raise StorageError(f"{self.path}: the mini-batches of the trace contradict each other; record it again")
        if self._file["nodes"].shape[0] and (self.num_dst_BH < 0).any():
            raise StorageError(f"{self.path}: a hop of the trace has fewer than no destinations; record it again")


def _opened(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: not a readable {KIND} ({error}); record it again") from error
