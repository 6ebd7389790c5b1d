"""Whether the cores were free while something was timed: shared ones slow both sides down, and not alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

BUSY_SHARE = 0.1
"""Share of the cores' time that other processes may take while something is timed."""
MAX_DISCARDED = 60

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class SharedCoresError(RuntimeError):
    """The machine is too busy to measure on."""


def own_cpu_s() -> float:
    """CPU seconds of this process and its children, live ones too (DGL's data-loader workers)."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + _live_children_s()


def _live_children_s() -> float:
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text(encoding="ascii").split()
            stats = [Path(f"/proc/{child}/stat").read_text(encoding="ascii") for child in children]
        except OSError:  # ended meanwhile
            continue
        ticks += sum(sum(map(int, stat.rsplit(")", 1)[1].split()[11:13])) for stat in stats)
    return ticks * _TICK_S


def _all_cpu_s() -> float:
    fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]
    ticks = [int(field) for field in fields]
    return (sum(ticks) - ticks[3] - ticks[4]) * _TICK_S  # but idle and waiting for disks


class Stopwatch:
    """Runs from its construction or the last reading."""

    def __init__(self) -> None:
        self._cpu_s, self._everyone_s, self._start = own_cpu_s(), _all_cpu_s(), time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        """Wall seconds, CPU seconds, and the share of the cores' time that other processes took; starts anew."""
        cpu_s, everyone_s, start = self._cpu_s, self._everyone_s, self._start
        self.__init__()  # type: ignore[misc]
        wall_s, cpu_s = self._start - start, self._cpu_s - cpu_s
        others_s = max(0.0, self._everyone_s - everyone_s - cpu_s)
        return wall_s, cpu_s, others_s / (wall_s * (os.cpu_count() or 1))


class Tally:
    """Times that count; those of shared cores are discarded, unless CPU seconds are what is compared."""

    def __init__(self, *, by_cpu: bool) -> None:
        self.by_cpu = by_cpu
        self.seconds: list[float] = []
        self.discarded = 0

    def add(self, reading: tuple[float, float, float]) -> None:
        """Keep or discard one reading.

        Raises
        ------
        SharedCoresError
            If nearly all were discarded.
        """
        wall_s, cpu_s, others_share = reading
        if self.by_cpu or others_share <= BUSY_SHARE:
            self.seconds.append(cpu_s if self.by_cpu else wall_s)
            return
        self.discarded += 1
        if self.discarded > MAX_DISCARDED:
            kept = len(self.seconds)
            raise SharedCoresError(f"other processes use the cores: {self.discarded} runs discarded, {kept} kept")

    def time(self, body: Callable[[], object], count: int) -> float:
        """Run until `count` more readings are kept; their median."""
        first = len(self.seconds)
        while len(self.seconds) < first + count:
            watch = Stopwatch()
            body()
            self.add(watch.read())
        return statistics.median(self.seconds[first:])
