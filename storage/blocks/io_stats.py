"""What reading and writing came to: bytes, sizes of requests, and for how long the disk had something to do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True, slots=True)
class IoCounts:
    """A moment's counts, or the difference of two."""

    read_bytes: int = 0
    """Bytes read."""
    write_bytes: int = 0
    """Bytes written."""
    reads: int = 0
    """Read requests."""
    writes: int = 0
    """Write requests."""
    hit_blocks: int = 0
    """Blocks served from memory."""
    read_blocks: int = 0
    """Blocks that had to be read."""
    busy_s: float = 0.0
    """Seconds during which at least one request was outstanding."""
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Read requests by size, each rounded up to a power of two bytes."""

    def since(self, before: IoCounts) -> IoCounts:
        """What came after an earlier count."""
        sizes = {size: count - before.sizes.get(size, 0) for size, count in self.sizes.items()}
        return IoCounts(
            self.read_bytes - before.read_bytes,
            self.write_bytes - before.write_bytes,
            self.reads - before.reads,
            self.writes - before.writes,
            self.hit_blocks - before.hit_blocks,
            self.read_blocks - before.read_blocks,
            self.busy_s - before.busy_s,
            {size: count for size, count in sorted(sizes.items()) if count},
        )

    @property
    def bytes_per_s(self) -> float:
        """Bytes moved a second while requests were outstanding; 0 where there were none."""
        return (self.read_bytes + self.write_bytes) / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def hit_rate(self) -> float:
        """Share of blocks served from memory; 0 where none was asked for."""
        total = self.hit_blocks + self.read_blocks
        return self.hit_blocks / total if total else 0.0


class IoStats:
    """Counts of all requests of some readers and writers; any number of threads may share one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._outstanding, self._since, self._busy_s = 0, 0.0, 0.0
        self._bytes, self._requests = [0, 0], [0, 0]
        self._hit_blocks, self._read_blocks = 0, 0
        self._sizes: Counter[int] = Counter()

    @contextmanager
    def reading(self, nbytes: int, requests: int = 1) -> Iterator[None]:
        """Count a read, or `requests` of them of `nbytes` together, for as long as the block lasts."""
        with self._outstanding_request():
            yield
        with self._lock:
            self._bytes[0] += nbytes
            self._requests[0] += requests
            self._sizes[1 << max(0, (nbytes // requests - 1).bit_length())] += requests

    @contextmanager
    def writing(self, nbytes: int) -> Iterator[None]:
        """Count a write of so many bytes."""
        with self._outstanding_request():
            yield
        with self._lock:
            self._bytes[1] += nbytes
            self._requests[1] += 1

    def served(self, hit_blocks: int, read_blocks: int) -> None:
        """Count blocks that a buffer was asked for."""
        with self._lock:
            self._hit_blocks += hit_blocks
            self._read_blocks += read_blocks

    def counts(self) -> IoCounts:
        """What it came to so far."""
        with self._lock:
            running_s = time.perf_counter() - self._since if self._outstanding else 0.0
            return IoCounts(
                self._bytes[0],
                self._bytes[1],
                self._requests[0],
                self._requests[1],
                self._hit_blocks,
                self._read_blocks,
                self._busy_s + running_s,
                dict(self._sizes),
            )

    @contextmanager
    def _outstanding_request(self) -> Iterator[None]:
        with self._lock:
            if not self._outstanding:
                self._since = time.perf_counter()
            self._outstanding += 1
        try:
            yield
        finally:
            with self._lock:
                self._outstanding -= 1
                if not self._outstanding:
                    self._busy_s += time.perf_counter() - self._since
