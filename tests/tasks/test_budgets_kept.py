"""Ingest, reorder and profile keep within budgets far below the data: resident memory, and the page cache too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import bench_billion
from tests.cgroups import NoControlGroupsError, memory_group

ROOT = Path(__file__).parents[2]
SPARE = 1.1
"""Ten percent for what nobody counts."""
QUICK = (60_000, 5_000_000, 1300)
"""Nodes, edges, features a node: 333 MB, of which the topology alone takes a sixteenth."""
LARGE = (400_000, 16_000_000, 600)
"""1.02 GB."""
STAGES = 3
ON_DISK = (
    "storage.mode=storage",
    "model.hidden=16",
    "training.epochs=1",
    "sampling.batch_size=20",
    "cache.device_budget=1MB",
)
Measured = dict[str, dict[str, float]]


def write_graph(folder: Path, num_nodes: int, num_edges: int, dim: int, labelled: float = 1.0) -> int:
    """Write a graph with hubs in IGB's layout, some share of its nodes labelled; bytes of topology and features."""
    rng = np.random.default_rng(0)
    for name in ("paper", "paper__cites__paper"):
        (folder / name).mkdir(parents=True)
    values = rng.standard_normal(1 << 20, np.float32)
    features = np.lib.format.open_memmap(folder / "paper/node_feat.npy", "w+", np.float32, (num_nodes, dim))
    for start in range(0, num_nodes, 1000):
        features[start : start + 1000] = np.resize(values, features[start : start + 1000].shape)
    del features
    labels = rng.integers(0, 19, num_nodes)
    labels[int(labelled * num_nodes) :] = -1
    np.save(folder / "paper/node_label_19.npy", labels)
    ends = (rng.random((num_edges, 2)) ** 3 * num_nodes).astype(np.int32)
    np.save(folder / "paper__cites__paper/edge_index.npy", ends)
    return num_nodes * (dim * 4 + 8) + 4 * num_edges


def settings(folder: Path, budget: int | None) -> list[str]:
    return [
        f"data.path={folder}",
        "data.split=random",
        "data.train_fraction=0.05",
        "profile.epochs=1",
        "profile.heldout_epochs=1",
        "sampling.batch_size=100",
        "sampling.superbatch=1",
        "sampling.fanouts=[5, 5]",
        *([] if budget is None else [f"host_budget={budget}"]),
    ]


def run(
    folder: Path,
    graph: Path,
    budget: int | None,
    group: Path | None = None,
    stages: int = STAGES,
    others: tuple[str, ...] = (),
    *,
    twice: bool = False,
) -> Measured:
    """Run the stages in a process of its own, after a small graph's, or after themselves."""
    tiny = folder / "tiny"
    if not tiny.exists():
        write_graph(tiny, 300, 3000, 8)
    case: dict[str, Any] = {
        "warm": [["igb", [*settings(tiny, warm), *others], stages] for warm in (None, 120_000_000) if not twice],
        "stages": ["igb", [*settings(graph, budget), *others], stages],
        "group": str(group) if group else None,
    }
    state = folder / f"state-{budget}-{group is not None}"
    command = [sys.executable, "-m", "tests.tasks.budgeted_stages", str(state), json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    measured: Measured = json.loads(done.stdout)
    return measured


def assert_kept(measured: Measured, budget: int) -> None:
    over = {stage: figures["peak_bytes"] / budget for stage, figures in measured.items()}
    assert all(share <= SPARE for share in over.values()), over


@pytest.fixture(scope="module")
def quick_graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    folder = tmp_path_factory.mktemp("quick")
    return folder / "graph", write_graph(folder / "graph", *QUICK)


def test_a_sixteenth_of_the_data_is_enough(quick_graph: tuple[Path, int], tmp_path: Path) -> None:
    graph, data_bytes = quick_graph
    assert_kept(run(tmp_path, graph, data_bytes // 16, twice=True), data_bytes // 16)


def test_the_page_cache_does_not_help(quick_graph: tuple[Path, int], tmp_path: Path) -> None:
    graph, data_bytes = quick_graph
    # Stages count what is free below the kernel's limit, and what earlier ones left in the process is not.
    budget = data_bytes // 12
    try:
        with memory_group("garden-test") as group:
            group.limit(int(SPARE * budget))
            assert_kept(run(tmp_path, graph, budget, group.folder, twice=True), budget)
            assert group.peak_bytes > budget / 2, "the group was charged for what was done in it"
    except NoControlGroupsError as reason:
        pytest.skip(f"NOT TESTED: {reason}")


def assert_trains_in_a_group(graph: Path, budget: int, folder: Path, *others: str, twice: bool = True) -> None:
    """All stages to the end of training, where the kernel allows the budget and ten percent."""
    stages, others = STAGES + 2, (*ON_DISK, *others)
    try:
        with memory_group("garden-test") as group:
            group.limit(int(SPARE * budget))
            assert_kept(run(folder, graph, budget, group.folder, stages, others, twice=twice), budget)
    except NoControlGroupsError as reason:
        pytest.skip(f"NOT TESTED: {reason}")


def test_training_from_disk_keeps_a_quarter_without_the_page_cache(
    quick_graph: tuple[Path, int], tmp_path: Path
) -> None:
    """Wide rows, and exact evaluation after training."""
    graph, data_bytes = quick_graph
    assert_trains_in_a_group(graph, data_bytes // 4, tmp_path, twice=False)


@pytest.mark.full
def test_training_from_disk_keeps_an_eighth_without_the_page_cache(
    quick_graph: tuple[Path, int], tmp_path: Path
) -> None:
    """At less, outputs of the scored nodes and pieces of the layers' files do not fit."""
    graph, data_bytes = quick_graph
    assert_trains_in_a_group(graph, data_bytes // 8, tmp_path)


@pytest.mark.full
def test_training_from_disk_keeps_a_sixteenth_of_a_larger_graph(tmp_path: Path) -> None:
    """With a fifth of the nodes labelled: the outputs of all others would take more."""
    data_bytes = write_graph(tmp_path / "graph", *LARGE, labelled=0.2)
    assert_trains_in_a_group(tmp_path / "graph", data_bytes // 16, tmp_path)


def test_predictions_keep_a_quarter_of_the_data(quick_graph: tuple[Path, int], tmp_path: Path) -> None:
    """A table and bare rows, of a model that was trained from disk before."""
    graph, data_bytes = quick_graph
    measured = run(tmp_path, graph, data_bytes // 4, stages=STAGES + 4, others=ON_DISK)
    predicted = {stage: figures for stage, figures in measured.items() if stage.startswith("predict")}
    assert len(predicted) == 2
    assert_kept(predicted, data_bytes // 4)


@pytest.mark.full
@pytest.mark.parametrize("share", [4, 16])
def test_shares_of_a_larger_graph(tmp_path: Path, share: int) -> None:
    data_bytes = write_graph(tmp_path / "graph", *LARGE)
    budget = data_bytes // share
    assert_kept(run(tmp_path, tmp_path / "graph", budget), budget)
    try:
        with memory_group("garden-test") as group:
            group.limit(int(SPARE * budget))
            assert_kept(run(tmp_path, tmp_path / "graph", budget, group.folder), budget)
    except NoControlGroupsError as reason:
        pytest.skip(f"NOT TESTED: {reason}")


def test_the_benchmark_of_a_billion_edges_at_a_small_scale(tmp_path: Path) -> None:
    budget = 100_000_000
    figures = bench_billion.measure(14, 500_000, budget, 5, tmp_path)
    assert list(figures["stages"]) == [*bench_billion.STAGES, "evaluate"]
    over = figures["peak_rss_over_budget"]
    assert all(share <= SPARE for share in over.values()), over
