"""What a comparison of cache policies comes to: the configuration to run, and why."""

from __future__ import annotations

from typing import Any

from conf.schema import PipelineConfig
from tasks.compare_measure import ORACLE, OURS, OURS_DUAL

Facts = dict[str, Any]
_LEAST_GAIN = 0.005


def recommend(config: PipelineConfig, facts: Facts) -> tuple[PipelineConfig, str]:
    """The configuration to run, valid as it is, and why, in a sentence."""
    at = facts["budgets"].index(facts["device_budget"])
    rates = {name: values[at] for name, values in facts["feature_hit_rate"].items()}
    counting = {OURS: "smoothed", "presc": "input", "full_link": "full_link"}
    best = max((name for name in counting if name in rates), key=rates.__getitem__)
    dynamic = facts["dynamic"]
    gain = dynamic["static_and_dynamic"] - dynamic["static"]
    is_kept = config.storage.mode == "memory"
    pays = is_kept and dynamic["share"] > 0 and gain >= _LEAST_GAIN
    options = type(config.cache.dynamic)()
    if pays:
        options = options.model_validate({name: dynamic[name] for name in ("share", "gamma", "interval_batches")})
    cache = config.cache.model_copy(update={"dynamic": options, "device_budget": facts["device_budget"]})
    profile = config.profile.model_copy(update={"counting": counting[best]})
    changed = config.model_copy(update={"cache": cache, "profile": profile})
    recommended = type(config).model_validate_json(changed.model_dump_json())  # a copy is not validated
    larger = [number for number, budget in enumerate(facts["budgets"]) if budget > facts["device_budget"]]
    saved = facts["saved"][OURS_DUAL]
    more = ""
    if larger:
        extra_mb = (facts["budgets"][larger[0]] - facts["device_budget"]) / 1e6
        more = f"; {extra_mb:,.1f} MB more would avoid {saved[larger[0]]:.1%}"
    upkeep = _upkeep(dynamic, gain, is_kept=is_kept, pays=pays)
    of_oracle = rates[best] / max(1e-12, rates[ORACLE])
    sentence = (
        f"Keep {facts['device_budget'] / 1e6:,.1f} MB by {counting[best]!r} counts {upkeep}: that avoids "
        f"{saved[at]:.1%} of the bytes of all misses and, spent on rows alone, reaches {of_oracle:.1%} of the static "
        f"oracle's hit rate{more}."
    )
    return recommended, sentence


def _upkeep(dynamic: Facts, gain: float, *, is_kept: bool, pays: bool) -> str:
    """Why there is a dynamic cache, or none."""
    if pays:
        return f"with a dynamic cache of {dynamic['share']:.0%} of it, which avoids {100 * gain:.1f} points more"
    if not is_kept:
        return "without a dynamic cache, which training from disk does not keep"
    tried = {float(share): saved for share, saved in dynamic["tried"].items()}
    best = max((share for share in tried if share), key=tried.__getitem__, default=0.0)
    if not best or tried[best] >= tried[0.0] + _LEAST_GAIN:
        return "without a dynamic cache, which would not pay"
    return (
        f"without a dynamic cache, which would not pay (on the first fifth {tried[best]:.1%} of the bytes of misses "
        f"were avoided with {best:.0%} of the budget for it, {tried[0.0]:.1%} without)"
    )
