"""What this process read and wrote, as the kernel counts it: all files, whoever asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_COUNTERS = Path("/proc/self/io")


def process_io() -> dict[str, int]:
    """Read the kernel's counters of this process; empty where it keeps none."""
    try:
        lines = _COUNTERS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}


def io_metrics(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Turn two readings of `process_io` into metrics.

    Parameters
    ----------
    before, after
        Readings; none if either is empty.
    seconds
        Wall time between them.

    Returns
    -------
    dict
        `io/read_bytes` and `io/written_bytes` reached the disk (the page cache served the rest), `io/read_calls` and
        `io/mean_read_bytes` are requests of the process, `io/read_bytes_per_s` and `io/written_bytes_per_s` throughput.
    """
    if not before or not after:
        return {}
    grown = {name: after[name] - before[name] for name in before}
    return {
        "io/read_bytes": grown["read_bytes"],
        "io/written_bytes": grown["write_bytes"],
        "io/read_calls": grown["syscr"],
        "io/mean_read_bytes": grown["rchar"] / max(1, grown["syscr"]),
        "io/read_bytes_per_s": grown["read_bytes"] / max(seconds, 1e-9),
        "io/written_bytes_per_s": grown["write_bytes"] / max(seconds, 1e-9),
    }
