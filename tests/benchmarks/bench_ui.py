"""The demo through the servers, as the UI starts it, beside `garden run`: what the browser costs.

`python -m tests.benchmarks.bench_ui [--scale 1.0]` ends with one JSON line. Both run the preset `demo` twice in a fresh
state directory; the servers are up before the clock starts, and a run counts from Submit until Prefect says Completed.
Bound: at most 15 s + 10 % above `garden run`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.benchmarks.bench_demo import garden_run
from tests.benchmarks.report import publish
from tests.flows.up import Up

_FIXED_S, _SHARE = 15.0, 0.10


def through_the_servers(up: Up, settings: list[str]) -> dict[str, float]:
    """Submit the demo and wait for its end; wall seconds, and those within the flow."""
    start = time.perf_counter()
    run_id = up.create("pipeline", {"config": {"dataset": "demo", "settings": settings}})
    run = up.wait(run_id, timeout_s=300)
    wall_s = time.perf_counter() - start
    if run["state_type"] != "COMPLETED":
        raise SystemExit(f"the run {run['state_type']}: {up.logs(run_id)}")
    return {"wall_s": round(wall_s, 1), "flow_s": round(run["total_run_time"], 1)}


def main() -> None:
    """Run both twice and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="shrink the graph (1.0 is the preset's size)")
    scale = parser.parse_args().scale
    sized = [f"data.demo.nodes={int(200_000 * scale)}", f"data.demo.edges={int(3_000_000 * scale)}"]
    with tempfile.TemporaryDirectory() as state:
        alone = {name: garden_run(state, *sized)["wall_s"] for name in ("first", "second")}
    with tempfile.TemporaryDirectory() as state:
        start = time.perf_counter()
        up = Up.start(Path(state))
        up.deployment("pipeline")
        ready_s = time.perf_counter() - start
        try:
            served = {name: through_the_servers(up, sized) for name in ("first", "second")}
            up.stop()
        finally:
            up.kill()
    bounds = {name: round(_FIXED_S + (1 + _SHARE) * seconds, 1) for name, seconds in alone.items()}
    within = all(served[name]["wall_s"] <= bound for name, bound in bounds.items())
    figures = {"garden_run_wall_s": alone, "through_ui": served, "bound_wall_s": bounds, "within": within}
    publish("bench_ui", {**figures, "servers_ready_s": round(ready_s, 1)})
    if not within:
        raise SystemExit("slower than the bound")


if __name__ == "__main__":
    main()
