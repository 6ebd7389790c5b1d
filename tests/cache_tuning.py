"""The settings of a dynamic cache that serve a trace best: every combination is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.cpu.top import top_ids
from storage.cache.hotset import DynamicLayout, DynamicOptions
from storage.cache.laboratory import Ids, run_dynamic, serve_rows
from storage.cache.policies import rows_for
from storage.cache.trace import AccessTrace


@dataclass(frozen=True, slots=True)
class Tuned:
    """Settings of a dynamic cache, chosen on a part of a trace."""

    options: DynamicOptions
    """The best ones tried."""
    hit_rate: float
    """Of that part, both caches together."""
    static_hit_rate: float
    """Of the static cache alone, with all bytes."""


GAMMAS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
INTERVALS = (1, 5, 20)
SHARES = (0.25, 0.5, 0.75, 1.0)
PREMIUM = 0.01


def tune_dynamic(
    budget_bytes: int,
    row_bytes: int,
    trace: AccessTrace,
    *,
    intervals: Sequence[int] = INTERVALS,
    gammas: Sequence[float] = GAMMAS,
    shares: Sequence[float] = SHARES,
    premium: float = PREMIUM,
) -> Tuned:
    """Choose interval, gamma and share of a dynamic cache of rows on a trace: every combination is replayed.

    All are judged on the second half, after the first has warmed the scores up, and ranked the static cache's rows.

    Parameters
    ----------
    budget_bytes, row_bytes : int
    trace : AccessTrace
        What to choose on: the first part of what will be run.
    intervals, gammas, shares
        What to try.
    premium : float
        Hit rate that may be given up, on what is seen, to be ready for what is not: of the settings within it of the
        best, the one with the largest dynamic share is taken, and of those the best.

    Returns
    -------
    Tuned
        Share 0 where every dynamic cache costs more than the premium.
    """
    half = trace.num_batches // 2
    score_N = trace.part(0, half).feature_counts()
    second = trace.part(half, trace.num_batches)
    static = serve_rows(second, static_part(score_N, budget_bytes, row_bytes, 0.0)[0])
    tried = [Tuned(DynamicOptions(), static, static)]
    for share in shares:
        ids, layout = static_part(score_N, budget_bytes, row_bytes, share)
        for interval in intervals:
            for gamma in gammas:
                options = DynamicOptions(share, gamma, interval)
                rate = run_dynamic(ids, layout, options, trace, half).feature_hit_rate
                tried.append(Tuned(options, rate, static))
    best = max(setting.hit_rate for setting in tried)
    near = [setting for setting in tried if setting.hit_rate >= best - premium]
    return max(near, key=lambda setting: (setting.options.share, setting.hit_rate))


def static_part(
    score_N: npt.NDArray[np.integer], budget_bytes: int, row_bytes: int, share: float
) -> tuple[Ids, DynamicLayout]:
    """Rows of the static cache, and the dynamic one, when a share of the bytes goes to the latter."""
    layout = DynamicLayout.within(int(share * budget_bytes), row_bytes, len(score_N))
    return top_ids(score_N, rows_for(budget_bytes - layout.nbytes, row_bytes, len(score_N))), layout
