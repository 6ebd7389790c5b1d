"""What ingest will need follows from what the numbered source holds: names and held-out links too."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from storage.formats.base import GraphSource, Links
from storage.formats.edge_list import open_edge_list
from storage.ingest import IngestOptions, ingest
from tasks.memory import ingest_estimate
from tests.storage.stores import small_source


def test_names_and_links_count() -> None:
    names = np.array([f"{node}".rjust(1000, "x") for node in range(6)], np.bytes_)
    negatives = np.zeros((100_000, 2), np.int64)
    plain = ingest_estimate(small_source(original_ids=np.arange(6)), IngestOptions())
    named = ingest_estimate(small_source(original_ids=names), IngestOptions())
    linked = ingest_estimate(
        small_source(links={"test": Links(np.zeros((4, 2), np.int64), negatives=negatives)}), IngestOptions()
    )
    assert named.disk_bytes - plain.disk_bytes == names.nbytes
    assert named.memory_bytes - plain.memory_bytes >= 2 * names.nbytes
    assert linked.disk_bytes - plain.disk_bytes == negatives.nbytes + 64
    assert linked.memory_bytes - plain.memory_bytes >= negatives.nbytes


def test_names_that_edges_bring_count_once_they_are_known(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("".join(f"{'x' * 2000}{node},first\n" for node in range(500)))
    source = open_edge_list(tmp_path / "edges.csv")
    options = IngestOptions(split="random", block_bytes=4096)
    numbered: list[GraphSource] = []
    ingest(source, options, tmp_path / "g.h5", on_numbered=numbered.append)
    before, after = ingest_estimate(source, options), ingest_estimate(numbered[0], options)
    assert numbered[0].num_nodes == 501
    assert after.memory_bytes - before.memory_bytes > 2 * 501 * 2000
    assert (tmp_path / "g.h5").stat().st_size <= after.disk_bytes
