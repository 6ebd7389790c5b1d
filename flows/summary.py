"""What a run came to, as one plain object: last line of `--json`, table of the terminal, artifact in Prefect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from tasks.run_context import RunContext
from tasks.specs import CACHE

Summary = dict[str, Any]
_CACHED = {"feature": "feature", "adjacency": "adjacency (neighbor list)"}


def summarize(run: RunContext, seconds: float) -> Summary:
    """Sum up a run.

    Returns
    -------
    dict
        JSON values. Scores, measured hit rates and bytes read are None or empty where the run stopped before training.
    """
    stages = {
        name: {
            "seconds": round(stage.seconds, 3),
            "bytes": stage.manifest.nbytes,
            "reused": stage.reused,
            "digest": stage.manifest.digest,
        }
        for name, stage in run.outcomes.items()
    }
    summary: Summary = {
        "name": run.config.name,
        "mlflow_run_id": run.parent.key,
        "mlflow_run_url": run.tracking.run_url(run.parent),
        "prefect_flow_run_id": str(flow_run.id),
        "test_accuracy": run.facts.get("test_accuracy"),
        "valid_accuracy": run.facts.get("valid_accuracy"),
        **_chosen_metric(run),
        "epochs": run.facts.get("epochs"),
        "resumed_epochs": run.facts.get("resumed_epochs"),
        "seconds": round(seconds, 3),
        "peak_rss_bytes": peak_rss_bytes(),
        "stages": stages,
        "hit_rates": _hit_rates(run),
        "tier_bytes": run.facts.get("tier_bytes", {}),
        "figures": {name: key_figures(name, stage.manifest.counts) for name, stage in run.outcomes.items()},
    }
    summary |= run.facts.get("sweep", {})
    if "compare" in run.facts:
        summary["compare"] = run.facts["compare"]
    return summary | {"headline": headline(summary)}


def _chosen_metric(run: RunContext) -> dict[str, Any]:
    """Name and values of `training.metric`, under its name too."""
    metric = run.config.training.metric
    values = {f"{split}_{metric}": run.facts.get(f"{split}_{metric}") for split in ("test", "valid")}
    return {"metric": metric, **values}


def _hit_rates(run: RunContext) -> dict[str, dict[str, float | None]]:
    counts = run.manifest(CACHE).counts if CACHE in run.outcomes else {}
    measured = run.facts.get("measured", {})
    return {
        kind: {
            "predicted": counts.get(f"predicted_{kind}_hit_rate"),
            "measured": measured.get(kind),
            "oracle": counts.get(f"oracle_{kind}_hit_rate"),
        }
        for kind in ("feature", "adjacency")
    }


def key_figures(stage: str, counts: Mapping[str, Any]) -> str:
    """Say in a few words what a stage made."""
    templates = {
        "ingest": "{num_nodes:,} nodes, {num_edges:,} edges",
        "reorder": "largest out-degree {max_out_degree:,}",
        "profile": "{feature_accesses:,} feature reads counted",
        "cache": "{cached_features:,} rows, {cached_lists:,} lists",
        "train": "{epochs} epochs, {parameters:,} weights",
    }
    return templates[stage].format_map(counts)


def to_markdown(summary: Summary, links: Mapping[str, str]) -> str:
    """Write a summary for the Prefect UI."""
    rows = [
        f"| {name} | {stage['seconds']:.1f} | {stage['bytes'] / 1e6:.1f} | {'yes' if stage['reused'] else 'no'} "
        f"| {summary['figures'][name]} |"
        for name, stage in summary["stages"].items()
    ]
    lines = [
        f"# {summary['name']}",
        " · ".join(f"[{text}]({url})" for text, url in links.items()),
        "",
        *(f"- {line}" for line in summary["headline"]),
        "",
        "| stage | seconds | MB | reused | |",
        "| --- | ---: | ---: | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def headline(summary: Summary) -> list[str]:
    """Say what matters most, one sentence a line."""
    lines = []
    if summary["test_accuracy"] is not None:
        valid = "" if summary["valid_accuracy"] is None else f" (validation {summary['valid_accuracy']:.1%})"
        lines.append(f"test accuracy {summary['test_accuracy']:.1%}{valid}")
    metric = summary["metric"]
    if metric != "accuracy" and summary[f"test_{metric}"] is not None:
        valid = "" if summary[f"valid_{metric}"] is None else f" (validation {summary[f'valid_{metric}']:.3f})"
        lines.append(f"test {metric} {summary[f'test_{metric}']:.3f}{valid}")
    for kind, rates in summary["hit_rates"].items():
        if rates["predicted"] is not None:
            measured = "" if rates["measured"] is None else f"{rates['measured']:.1%} measured, "
            oracle = f"{rates['predicted']:.1%} predicted, {rates['oracle']:.1%} at best (chosen with hindsight)"
            lines.append(f"{_CACHED[kind]} cache hit rate {measured}{oracle}")
    if summary.get("best") is not None:
        lines.append(f"best of {len(summary['points'])} points: {_in_words(summary['best'])}")
    if "compare" in summary:
        lines.append(f"configuration: {summary['compare']['recommended_file']}")
    lines.append(f"{summary['seconds']:.1f} s for all stages, peak memory {summary['peak_rss_bytes'] / 1e6:,.0f} MB")
    if "compare" in summary:
        lines.append(summary["compare"]["recommendation"])
    return lines


def _in_words(point: Mapping[str, Any]) -> str:
    """Settings of one point of a sweep, and how it scored."""
    values = " ".join(f"{key}={value}" for key, value in point["values"].items())
    test = "" if point["test"] is None else f", test {point['test']:.4f}"
    return f"{values} (validation {point['metric']} {point['valid']:.4f}{test})"


def peak_rss_bytes() -> int:
    """Return the most memory this process has had resident (its parent's is not in it, unlike in `getrusage`)."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM line")
