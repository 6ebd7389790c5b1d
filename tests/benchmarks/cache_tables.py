"""Prints the tables of docs/cache-laboratory.md from `results/bench_policies.json`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.report import RESULTS

Figures = dict[str, Any]
SHOWN = (
    ("smoothed (default here)", "smoothed"),
    ("PreSC#4 (GNNLab)", "presc"),
    ("PreSC#1 (GNNLab)", "presc_1"),
    ("full-link (GARDEN Eq. 4)", "full_link"),
    ("inclusion probability (Quiver)", "inclusion"),
    ("out-degree (PaGraph)", "out_degree"),
    ("training neighborhood (GNNLab)", "train_neighborhood"),
    ("FastGL", "fastgl"),
    ("S3-FIFO", "s3_fifo"),
    ("SIEVE", "sieve"),
    ("LFU", "lfu"),
    ("CLOCK", "clock"),
    ("LRU", "lru"),
    ("random", "random"),
    ("*static oracle*", "static_oracle"),
    ("*Belady*", "belady"),
)


def percent(value: float | None) -> str:
    """As in the paper, two decimals; a dash for what was not run."""
    return "–" if value is None else f"{100 * value:.2f}"


def row(*cells: Any) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def head(*cells: str) -> list[str]:
    """The first two lines of a table."""
    return [row(*cells), row("---", *["---:"] * (len(cells) - 1))]


def by_policy(figures: Figures) -> Iterator[str]:
    """Table II: feature hit rates at equal bytes."""
    graphs, shares = figures["graphs"], ("0.05", "0.1", "0.2")
    yield from head("feature hit rate, %", *(f"{graph} {float(share):.0%}" for graph in graphs for share in shares))
    for title, name in SHOWN:
        yield row(title, *(percent(graphs[g]["feature_hit_rate"][s].get(name)) for g in graphs for s in shares))


def by_split(figures: Figures) -> Iterator[str]:
    """Both caches: share of the bytes of all misses avoided."""
    graphs, shares = figures["graphs"], ("0.05", "0.1", "0.2")
    yield from head("bytes avoided, %", *(f"{graph} {float(share):.0%}" for graph in graphs for share in shares))
    for title, name in (
        ("garden plan (default here)", "garden_plan"),
        ("full-link plan (GARDEN)", "full_link_plan"),
        ("DUCATI", "ducati"),
        ("*oracle plan*", "oracle_plan"),
    ):
        yield row(title, *(percent(graphs[g]["bytes_saved"][s][name]) for g in graphs for s in shares))


def by_epochs(figures: Figures) -> Iterator[str]:
    """Table III."""
    for rates in figures["by_profile_epochs"].values():
        yield from head("profiling epochs", *rates["presc"])
        for name in ("presc", "full_link", "smoothed", "static_oracle"):
            yield row(name, *(percent(value) for value in rates[name].values()))


def by_step(figures: Figures) -> Iterator[str]:
    """Table IV: gains, the paper's ratios, and sums."""
    for paper in figures["paper"].values():
        steps = paper["steps"]
        gains = {name: [b - a for a, b in itertools.pairwise(v)] for name, v in steps.items()}
        yield from head("step", *(f"{n}: {what}" for n in ("DUCATI", "garden plan") for what in ("D", "r", "sum")))
        for i in range(1, len(gains["ducati"])):
            cells = []
            for name in ("ducati", "garden_plan"):
                now, before = gains[name][i], gains[name][i - 1]
                ratio = f"{1 - now / before:.2f}" if before else "–"
                cells += [percent(now), ratio, percent(steps[name][i + 1] - steps[name][0])]
            yield row(i, *cells)


def by_batch_size(figures: Figures) -> Iterator[str]:
    """Figure 13a."""
    for paper in figures["paper"].values():
        rates = paper["batch_sizes"]
        yield from head("batch size", *rates["smoothed"])
        for name, values in rates.items():
            yield row(name, *map(percent, values.values()))


def by_part(figures: Figures) -> Iterator[str]:
    """Figure 14."""
    for paper in figures["paper"].values():
        yield from head("", "static", "+ dynamic, same bytes", "+ dynamic, bytes on top")
        for name in ("naive", "full_link", "smoothed"):
            dynamic = paper["ablation"][f"{name}_dynamic"]
            static = paper["ablation"][name]["equal_bytes"]
            yield row(name, *map(percent, (static, dynamic["equal_bytes"], dynamic["bytes_on_top"])))


def by_drift(figures: Figures) -> Iterator[str]:
    """Workloads that drift."""
    names = ("static_oracle_of_first_fifth", "static_and_dynamic", "belady", "lru", "lfu", "sieve", "s3_fifo")
    yield from head("workload, bytes", *names, "share of gap", "share, gamma, interval")
    for workload, budgets in figures["drifts"].items():
        for share, rates in budgets.items():
            if share == "three_way":
                continue
            chosen = ", ".join(str(value) for value in rates["chosen"].values())
            cells = [percent(rates[name]) for name in names]
            yield row(f"{workload} {float(share):.0%}", *cells, f"{rates['share_of_belady_gap']:.2f}", chosen)


def by_three_way(figures: Figures) -> Iterator[str]:
    """Rows, lists and a dynamic cache in one budget."""
    shares = ("0", "0.25", "0.5", "0.75")
    tried = (f"first fifth, {float(share):.0%} dynamic" for share in shares)
    yield from head("bytes of misses avoided, %", *tried, "share, gamma, interval", "rest, static", "rest, as chosen")
    splits = {name: budgets["three_way"] for name, budgets in figures["drifts"].items()}
    splits |= {f"shuffled epochs, {name}": paper["three_way"] for name, paper in figures["paper"].items()}
    for name, split in splits.items():
        chosen = ", ".join(map(str, split["chosen"].values())) if split["chosen"]["share"] else "none"
        rest = percent(split["rest_static"]), percent(split["rest_with_dynamic"])
        yield row(name, *(percent(split["first_fifth"][share]) for share in shares), chosen, *rest)


def by_time(_: Figures) -> Iterator[str]:
    """Table VI, and the cache part of Figure 19."""
    names = ("epoch_s", "peak_mb", "test_accuracy", "crossing_mb_an_epoch", "times_fewer_bytes", "upkeep_s_an_epoch")
    titles = ("s an epoch", "peak MB", "accuracy", "MB crossing an epoch", "times fewer", "s of upkeep an epoch")
    yield from head("", *titles, "simulated transfer, ms")
    times = json.loads((RESULTS / "bench_cache_time.json").read_text(encoding="utf-8"))["figures"]["variants"]
    for name, figures in times.items():
        yield row(name, *(figures[key] for key in names), figures["simulated_transfer_ms"])


def main() -> None:
    """Print all tables."""
    figures = json.loads((RESULTS / "bench_policies.json").read_text(encoding="utf-8"))["figures"]
    tables = (by_policy, by_split, by_epochs, by_step, by_batch_size, by_part, by_drift, by_three_way, by_time)
    for table in tables:
        print(f"\n## {table.__doc__}\n")
        print("\n".join(line for line in table(figures) if line))


if __name__ == "__main__":
    main()
