"""Measures peaks of memory in this process and prints them, as JSON, beside what was promised."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np

from conf.load import load_config
from kernels.nn.layers import NodeDegrees
from kernels.nn.model import ModelSpec, build_model
from kernels.topology import Topology
from storage.cache.tiers import FeatureTiers
from tasks.budgets import Budgets, Estimate
from tasks.build_cache import build_cache
from tasks.inference import ExactInference, inference_bytes
from tasks.ingest import ingest_graph
from tasks.profile import profile_graph
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.train import train_model
from tests.graphs import power_law_graph

_TASKS = (ingest_graph, reorder_graph, profile_graph, build_cache, train_model)
Peaks = dict[str, tuple[int, int]]
"""What was promised and what was measured, in bytes, by what was done."""


class Meter:
    """The most that this process grows by while something is done, beside what was promised."""

    def __init__(self) -> None:
        self.peaks: Peaks = {}
        self._before, self._name, self._promised = 0, "", 0

    def start(self, name: str, promised: int) -> None:
        """Count from here; where this very thing is being done already, only the promise is new."""
        if name != self._name:
            self.stop()
            ctypes.CDLL(None).malloc_trim(0)  # else it would grow into what was freed before
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak becomes what is held now
            self._name, self._before = name, _peak_bytes()
        self._promised = promised

    def stop(self) -> None:
        """Note the peak."""
        if self._name:
            self.peaks[self._name] = (self._promised, _peak_bytes() - self._before)
        self._name = ""

    def check(self, stage: str, estimate: Estimate, *_: object, **__: object) -> None:
        """Stand in for `Budgets.check`, which stages call when they start."""
        self.start(stage, estimate.memory_bytes)


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def measure_stages(state_dir: Path, preset: str, overrides: Sequence[str], num_stages: int = len(_TASKS)) -> Peaks:
    """Run the first stages in a fresh state directory."""
    config = load_config(preset, [*overrides, f"state_dir={state_dir}"])
    parent, meter, check = MagicMock(), Meter(), Budgets.check
    parent.key = "measured"
    Budgets.check = meter.check  # type: ignore[method-assign,assignment]
    try:
        context = RunContext(config, MagicMock(), parent)
        for task in _TASKS[:num_stages]:
            task.fn(context)
    finally:
        Budgets.check = check  # type: ignore[method-assign]
    meter.stop()
    return meter.peaks


def measure_inference(num_nodes: int, num_edges: int, kinds: Sequence[str]) -> Peaks:
    """Predict all nodes with layers that widen, keep and narrow their rows."""
    topology = Topology.in_memory(*power_law_graph(num_nodes, num_edges))
    degrees = NodeDegrees(topology.in_degree(), np.bincount(topology.indices, minlength=num_nodes))
    features = FeatureTiers(np.ones((num_nodes, 16), np.float32), np.arange(0))
    meter, chunk_bytes = Meter(), 1 << 20
    for kind in kinds:
        spec = ModelSpec(kind, 16, 96, 8, 3)  # type: ignore[arg-type]
        meter.start(kind, inference_bytes(spec, num_nodes, num_edges, chunk_bytes))
        inference = ExactInference(topology, np.arange(num_nodes), spec, degrees=degrees, chunk_bytes=chunk_bytes)
        inference.run(build_model(spec, seed=0), features)
        meter.stop()
    return meter.peaks


def main() -> None:
    """Measure inference, then the stages of each case of the JSON object given: name -> [preset, overrides, stages]."""
    cases, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    kinds = ["sage", "gcn", "gat", "mlp"]
    measure_inference(300, 2000, kinds)  # so that libraries and compiled code are there
    peaks = {"inference": measure_inference(50_000, 150_000, kinds)}
    tiny = ["data.demo.nodes=300", "data.demo.edges=2000", "training.epochs=1", "layout.order=locality"]
    measure_stages(folder / "tiny", "demo", tiny)
    peaks |= {name: measure_stages(folder / name, *case) for name, case in cases.items()}
    sys.stdout.write(json.dumps(peaks))


if __name__ == "__main__":
    main()
