"""The four pictures of a comparison of cache policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tasks.plots import BLUE, COLOURS, GREEN, GREY, ORANGE, figure

_MEGABYTE = 1e6
_GIGABYTE = 1e9
_SHOWN = 5
Curves = Mapping[str, Sequence[float]]


def plot_policies(budget_bytes: Sequence[int], rates: Curves, bounds: Curves, ours: str, path: Path) -> None:
    """Draw the feature hit rate against bytes: the best policies, ours, and the bounds.

    Parameters
    ----------
    budget_bytes : (P,) ascending
    rates, bounds
        Hit rate at each budget, by policy and by bound.
    ours
        The policy to stress.
    path
        PNG file to write.
    """
    megabytes = np.asarray(budget_bytes) / _MEGABYTE
    others = sorted((name for name in rates if name != ours), key=lambda name: -float(np.mean(rates[name])))
    # The floor is shown however many policies do better.
    shown = [*others[: _SHOWN - 1], *([others[-1]] if len(others) >= _SHOWN else [])]
    with figure(path, "Feature cache: hit rate against bytes", height=4.6) as (ax, *_):
        for (name, values), style in zip(bounds.items(), ("--", ":"), strict=False):
            ax.plot(megabytes, 100 * np.asarray(values), style, lw=1.5, color=GREY, label=f"{name} (bound)")
        for name, colour in zip(shown, [colour for colour in COLOURS if colour not in (BLUE, GREY)] * 2, strict=False):
            ax.plot(megabytes, 100 * np.asarray(rates[name]), ".-", lw=1, ms=5, color=colour, label=name)
        ax.plot(megabytes, 100 * np.asarray(rates[ours]), "o-", lw=2, ms=5, color=BLUE, label=f"{ours} (ours)")
        ax.set(xlabel="bytes of the cache, MB", ylabel="requests served, %", xscale="log", ylim=(0, 102))
        ax.legend(loc="upper left", fontsize=8)


def plot_marginal_gain(budget_bytes: Sequence[int], saved: Sequence[float], chosen_bytes: int, path: Path) -> None:
    """Draw what another gigabyte would avoid of the bytes of all misses, from each budget to the next.

    Parameters
    ----------
    budget_bytes : (P,) ascending
    saved : (P,)
        Share of the bytes of all misses that our plan avoids at each budget.
    chosen_bytes
        Budget of the configuration.
    path
        PNG file to write.
    """
    megabytes = np.asarray(budget_bytes, np.float64) / _MEGABYTE
    gain = np.diff(100 * np.asarray(saved)) / (np.diff(np.asarray(budget_bytes, np.float64)) / _GIGABYTE)
    with figure(path, "What another gigabyte would avoid") as (ax, *_):
        ax.stairs(gain, megabytes, color=BLUE, lw=2, baseline=None, label="our plan, both caches")
        ax.axvline(chosen_bytes / _MEGABYTE, ls="--", lw=1.2, color=ORANGE, label="cache.device_budget")
        ax.set(xlabel="device budget, MB", ylabel="points of all bytes a gigabyte", xscale="log", yscale="log")
        ax.legend(loc="upper right")


def plot_profile_epochs(epochs: Sequence[int], rates: Curves, oracle: float, path: Path) -> None:
    """Draw the feature hit rate against the number of profiling epochs, by counting rule.

    Parameters
    ----------
    epochs : (E,)
    rates
        Hit rate after each number of epochs, by counting rule.
    oracle
        Hit rate of the static oracle.
    path
        PNG file to write.
    """
    with figure(path, "Feature cache: hit rate against profiling epochs") as (ax, *_):
        ax.axhline(100 * oracle, ls="--", lw=1.5, color=GREY, label="static oracle (bound)")
        for (name, values), colour in zip(rates.items(), (BLUE, ORANGE, GREEN), strict=False):
            ax.plot(epochs, 100 * np.asarray(values), "o-", lw=2, ms=5, color=colour, label=name)
        ax.set(xlabel="profiling epochs", ylabel="requests served, %", xscale="log")
        ax.set_xticks(list(epochs), [str(number) for number in epochs])
        ax.minorticks_off()
        ax.legend(loc="lower right")


def plot_splits(list_shares: Sequence[float], saved: Sequence[float], chosen: tuple[float, float], path: Path) -> None:
    """Draw what each split of the budget avoids, and the split that was chosen.

    Parameters
    ----------
    list_shares : (S,)
        Share of the bytes that goes to adjacency lists.
    saved : (S,)
        Share of the bytes of all misses that the split avoids.
    chosen
        Both of the plan.
    path
        PNG file to write.
    """
    with figure(path, "Split of the budget: chosen against possible") as (ax, *_):
        ax.plot(100 * np.asarray(list_shares), 100 * np.asarray(saved), ".-", lw=2, color=BLUE, label="fixed splits")
        ax.plot(100 * chosen[0], 100 * chosen[1], "o", ms=9, color=ORANGE, label=f"chosen: {chosen[0]:.0%} to lists")
        ax.set(xlabel="share of the budget for adjacency lists, %", ylabel="bytes of all misses avoided, %")
        ax.legend(loc="lower left")
