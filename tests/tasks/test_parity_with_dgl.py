"""Our networks score as DGL's do on the Planetoid graphs, public split, paired by seed; needs dgl and GARDEN_DATA."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
from tests.benchmarks.parity_runs import DATASETS, MARGIN, RECIPES, Comparison, read_graph

if TYPE_CHECKING:
    from tests.benchmarks.parity_runs import Graph

ROOT = Path(os.environ.get("GARDEN_DATA", "data"))

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not (ROOT / "cora").is_dir(), reason="set GARDEN_DATA to the folder of the public graphs"),
]


@cache
def graph(name: str, folder: Path) -> Graph:
    return read_graph(ROOT / name, name, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planetoid")


@pytest.mark.parametrize("kind", RECIPES)
def test_one_seed_scores_alike(folder: Path, kind: Any) -> None:
    """Both sides take the same steps but for rounding."""
    data, options = graph("cora", folder), replace(RECIPES[kind], epochs=30)
    assert data.ours(options) == pytest.approx(data.dgls(options), abs=0.5)


@pytest.mark.full
@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("name", DATASETS)
def test_accuracy_is_dgls_within_a_point(
    folder: Path, name: str, kind: Any, record_property: Callable[[str, object], None]
) -> None:
    found = Comparison.of(graph(name, folder), kind)
    record_property("figures", f"{name} {kind}: {found.figures()}")
    low, high = found.interval
    assert low >= -MARGIN, found.figures()
    assert high <= MARGIN, found.figures()


def test_the_interval_can_fail() -> None:
    low, high = Comparison(np.array([81.2, 80.0, 82.4, 79.1]), np.array([80.0, 79.0, 81.0, 78.0])).interval
    assert low > 0
    assert high > MARGIN
