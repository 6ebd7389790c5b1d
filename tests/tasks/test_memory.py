"""What ingest will need follows from what the numbered source holds: names and held-out links too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import BudgetError
from storage.formats.base import EdgeArrays, GraphSource, LabelColumn, Links
from storage.formats.edge_list import open_edge_list
from storage.id_hash import HashIndex
from storage.ingest import IngestOptions, ingest
from storage.scratch_array import ScratchArray
from tasks.budgets import Budgets
from tasks.memory import ingest_estimate, ingest_planner, plan_ingest
from tests.storage.stores import small_source


def test_names_and_links_count() -> None:
    names = ScratchArray(Path(), 6, np.dtype("S1000"))
    negatives = np.zeros((100_000, 2), np.int64)
    plain = ingest_estimate(small_source(), IngestOptions())
    named = ingest_estimate(small_source(original_ids=names), IngestOptions())
    linked = ingest_estimate(
        small_source(links={"test": Links(np.zeros((4, 2), np.int64), negatives=negatives)}), IngestOptions()
    )
    assert named.disk_bytes - plain.disk_bytes == 2 * names.nbytes + 6 * 8, "a scratch file of them, too"
    assert named.memory_bytes - plain.memory_bytes == HashIndex.nbytes_for(6)
    assert linked.disk_bytes - plain.disk_bytes == negatives.nbytes + 64
    assert linked.memory_bytes - plain.memory_bytes >= negatives.nbytes


def test_names_that_edges_bring_count_once_they_are_known(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("".join(f"{'x' * 2000}{node},first\n" for node in range(500)))
    source = open_edge_list(tmp_path / "edges.csv")
    options = IngestOptions(split="random", block_bytes=4096)
    numbered: list[GraphSource] = []
    ingest(source, options, tmp_path / "g.h5", plan=numbered.append)
    before, after = ingest_estimate(source, options), ingest_estimate(numbered[0], options)
    assert numbered[0].num_nodes == 501
    assert after.disk_bytes - before.disk_bytes > 501 * 2000
    assert (tmp_path / "g.h5").stat().st_size <= after.disk_bytes


def test_rows_of_labels_count(tmp_path: Path) -> None:
    """A node may have several of 200 labels: a row of so many bytes, in memory and in the store."""
    rows, options = np.zeros((5000, 200), np.int8), IngestOptions(split="random", block_bytes=4096)
    rows[:, :2], names = 1, tuple(map(str, range(200)))
    fields: dict[str, Any] = {"num_nodes": 5000, "features": None, "splits": None}
    labels = LabelColumn(np.zeros(5000, np.int64), names, rows, one_class=False)
    several, one = (small_source(**fields, labels=each) for each in (labels, replace(labels, rows_NC=None)))
    more, less = ingest_estimate(several, options), ingest_estimate(one, options)
    assert more.memory_bytes - less.memory_bytes == more.disk_bytes - less.disk_bytes == rows.nbytes
    ingest(several, options, tmp_path / "g.h5")
    assert (tmp_path / "g.h5").stat().st_size <= more.disk_bytes


def large_source() -> GraphSource:
    """60M edges that are never read: their number alone decides the plan."""
    return small_source(edges=EdgeArrays(np.zeros(1, np.int64), np.zeros(1, np.int64)), approx_edges=60_000_000)


def test_what_does_not_fit_is_sorted_in_scratch_files() -> None:
    source, options = large_source(), IngestOptions()
    whole = ingest_estimate(source, options)
    assert plan_ingest(source, options, whole.memory_bytes).work_bytes is None
    plan = plan_ingest(source, options, whole.memory_bytes - 1)
    assert plan.work_bytes is not None
    assert plan.estimate.memory_bytes < whole.memory_bytes
    assert plan.estimate.disk_bytes > whole.disk_bytes


def test_the_smallest_budget_that_a_refusal_names_will_do(tmp_path: Path) -> None:
    source, options = large_source(), IngestOptions(block_bytes=4096)
    with pytest.raises(BudgetError, match=r"ingest needs [0-9]+ bytes of memory and host_budget is 1000") as caught:
        ingest_planner(options, Budgets(host_bytes=1000), tmp_path)(source)
    least = int(str(caught.value).rpartition(" ")[2])
    assert least < 32 << 20
    with pytest.raises(BudgetError):
        ingest_planner(options, Budgets(host_bytes=least - 1), tmp_path)(source)
    ingest(source, options, tmp_path / "least.h5", plan=ingest_planner(options, Budgets(host_bytes=least), tmp_path))
    ingest(source, options, tmp_path / "whole.h5")
    assert (tmp_path / "least.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
