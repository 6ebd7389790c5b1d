"""A cache plan in words and numbers: what the bytes went to, why, and what that is expected to serve."""

from __future__ import annotations

from storage.cache.plan import CachePlan


def explain_plan(plan: CachePlan, num_nodes: int) -> list[str]:
    """Say what a plan holds and why, one sentence a line.

    Parameters
    ----------
    plan : CachePlan
    num_nodes : int
        Nodes of the graph.

    Returns
    -------
    list of str
    """
    lines = [_where_the_bytes_went(plan)]
    if plan.feature_ids.size:
        lines.append(_served("feature row", len(plan.feature_ids), num_nodes, *_feature_rates(plan)))
    if plan.adjacency_ids.size:
        lines.append(_served("adjacency list", len(plan.adjacency_ids), num_nodes, *_adjacency_rates(plan)))
    if plan.dynamic_rows:
        lines.append(_upkeep(plan))
    lines.append(_why_this_split(plan))
    spare = plan.device_budget - plan.total_bytes
    if spare > plan.device_budget // 100:
        lines.append(f"{_bytes(spare)} stay spare: no other row or list was expected to be read (cache.use_spare).")
    return lines


def _where_the_bytes_went(plan: CachePlan) -> str:
    parts = {
        "feature rows": plan.feature_bytes,
        "adjacency lists": plan.adjacency_bytes,
        "the dynamic cache": plan.dynamic_bytes,
        "maps": plan.map_bytes,
    }
    budget = max(1, plan.device_budget)
    spent = ", ".join(f"{name} {_bytes(n)} ({n / budget:.1%})" for name, n in parts.items() if n)
    return f"Of {_bytes(plan.device_budget)}: {spent or 'nothing is cached, as nothing that is read fits'}."


def _feature_rates(plan: CachePlan) -> tuple[float, float]:
    return plan.predicted_feature_hit_rate, plan.oracle_feature_hit_rate


def _adjacency_rates(plan: CachePlan) -> tuple[float, float]:
    return plan.predicted_adjacency_hit_rate, plan.oracle_adjacency_hit_rate


def _served(what: str, held: int, num_nodes: int, predicted: float, oracle: float) -> str:
    return (
        f"{held:,} of {num_nodes:,} {what}s ({held / num_nodes:.1%}) are expected to serve {predicted:.1%} of the "
        f"requests; with hindsight the same bytes would serve {oracle:.1%}."
    )


def _upkeep(plan: CachePlan) -> str:
    when = f"every {plan.dynamic_interval_batches} mini-batches" if plan.dynamic_interval_batches else "each epoch"
    return (
        f"The dynamic cache holds up to {plan.dynamic_rows:,} rows more, chosen {when} by scores that keep "
        f"{plan.dynamic_gamma:g} of themselves a mini-batch, for {plan.dynamic_epochs} epochs."
    )


def _why_this_split(plan: CachePlan) -> str:
    alone = f"rows alone would avoid {plan.rows_only_saved:.1%} of it, lists alone {plan.lists_only_saved:.1%}"
    return (
        f"This split avoids {plan.predicted_saved:.1%} of the cost of all misses; {alone}. Rows and lists were taken "
        "by avoided cost a byte, the dearest first, so the last row and the last list are worth about the same a byte."
    )


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"
