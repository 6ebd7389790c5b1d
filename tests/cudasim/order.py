"""A launcher that follows streams and events on the host shim, and finds what nothing orders.

Each stream has a vector clock (Mattern, 1989): a launch is a tick of its stream, an event carries the clock of its
stream, waiting takes it over, and so does the host where it waits. Two launches of which neither comes before the other
must not touch the same bytes if one of them writes. Seen are the arrays that kernels are given; not the array module's
own operations, nor what kernels reach by address.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cuda.source import Kernel, parameters
from tests.cudasim.launcher import Schedule, SimLauncher

Clock = Counter[str]
_MAIN = "main"


@dataclass(frozen=True)
class _Touch:
    """One launch over one array."""

    kernel: str
    stream: str
    tick: int
    writes: bool
    array: Any


class OrderLauncher(SimLauncher):
    """Notes unordered accesses in `findings`, and counts by thread what the host waits for."""

    def __init__(self, schedule: Schedule = Schedule.ASCENDING) -> None:
        super().__init__(schedule)
        self.findings: list[str] = []
        self.waits: Counter[str] = Counter()
        """Times that threads of a name waited for the device."""
        self.launches: Counter[str] = Counter()
        """Kernels by stream."""
        self._clocks: dict[str, Clock] = {}
        self._touches: list[_Touch] = []
        self._local, self._noting = threading.local(), threading.RLock()

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Work of this thread belongs to a stream."""
        before, self._local.stream = self._stream, name
        try:
            yield
        finally:
            self._local.stream = before

    def record(self) -> Any:
        """The stream's clock of now."""
        with self._noting:
            return self._clock().copy()

    def wait(self, event: Any) -> None:
        """The stream comes after the event."""
        if event is not None:
            with self._noting:
                self._clocks[self._stream] = self._clock() | event

    def finish(self, event: Any) -> None:
        """The host comes after the event, and so does whatever this thread launches from now on."""
        self.waits[threading.current_thread().name] += 1
        self._seen = self._seen | event

    def to_host(self, array: Any) -> Any:
        """Waits for the stream."""
        self.finish(self.record())
        return super().to_host(array)

    def run(self, kernel: Kernel, grid: int, cta: int, arguments: Sequence[Any], shared_bytes: int) -> None:
        """Run, and compare with what may run at the same time."""
        with self._noting:
            clock = self._clock()
            clock[self._stream] += 1
            self.launches[self._stream] += 1
            for parameter, argument in zip(parameters(kernel), arguments, strict=True):
                if parameter.is_array and argument.size:
                    touch = _Touch(kernel.name, self._stream, clock[self._stream], parameter.is_written, argument)
                    self._compare(touch, clock)
        super().run(kernel, grid, cta, arguments, shared_bytes)

    def _compare(self, touch: _Touch, clock: Clock) -> None:
        others = [other for other in self._touches if other.tick > clock[other.stream]]
        for other in others:
            if (touch.writes or other.writes) and np.may_share_memory(touch.array, other.array):
                self.findings.append(f"{touch.kernel} on {touch.stream} and {other.kernel} on {other.stream}")
        self._touches.append(touch)
        if len(self._touches) > 1000:  # what all streams have seen cannot be unordered any more
            known = self._known_by_all()
            self._touches = [one for one in self._touches if one.tick > known[one.stream]]

    def _known_by_all(self) -> Clock:
        clocks = list(self._clocks.values())
        known = clocks[0].copy()
        for clock in clocks[1:]:
            known &= clock
        return known

    @property
    def _stream(self) -> str:
        return getattr(self._local, "stream", _MAIN)

    @property
    def _seen(self) -> Clock:
        """What this thread has waited for: its launches come after it."""
        seen: Any = getattr(self._local, "seen", None)
        return Clock() if seen is None else seen

    @_seen.setter
    def _seen(self, clock: Clock) -> None:
        self._local.seen = clock

    def _clock(self) -> Clock:
        clock = self._clocks[self._stream] = self._clocks.get(self._stream, Clock()) | self._seen
        return clock
