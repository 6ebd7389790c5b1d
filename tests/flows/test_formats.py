"""Formats through the command line: data sets are prepared whole, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tests.flows.conftest import Garden
from tests.storage.formats.read import real_graph


def write_config(folder: Path, **data: object) -> str:
    lines = [f"  {field}: {value}" for field, value in data.items()]
    (folder / "mine.yaml").write_text("\n".join(["name: mine", "data:", *lines]), encoding="utf-8")
    return str(folder / "mine.yaml")


def laid_out(garden: Garden) -> GraphStore:
    (directory,) = [path for path in (garden.state / "artifacts" / "reorder").iterdir() if path.name != ".locks"]
    manifest = Manifest.read(directory)
    assert manifest is not None
    return GraphStore.open(manifest.path("graph.h5"))


def test_triples_are_prepared_with_their_relations(fresh_garden: Garden, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_bytes(b"a\tr\tb\r\nb\ts\ta\r\nb\tr\tc\r\n")
    (tmp_path / "test.txt").write_bytes(b"c\ts\td\r\n")
    config = write_config(tmp_path, format="triples", path=tmp_path)
    summary = fresh_garden.summary(config, "--until", "reorder")
    assert tuple(summary["stages"]) == ("ingest", "reorder")
    with laid_out(fresh_garden) as store:
        assert (store.info.num_nodes, store.info.num_edges) == (4, 3)
        assert store.info.relation_names == ("r", "s")
        assert store.read_original_ids()[store.read_links("test").edges].tolist() == [["c", "d"]]


def test_a_ragged_row_is_exit_code_2(fresh_garden: Garden, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2\n")
    config = write_config(tmp_path, format="edge_list", edges=tmp_path / "e.csv", split="random")
    done = fresh_garden.run(config, "--until", "ingest")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path}/e.csv, line 3: 1 fields where 2 are expected")


@pytest.mark.full
@pytest.mark.real_data
def test_molecules_become_one_graph(fresh_garden: Garden) -> None:
    overrides = (f"data.path={real_graph('ogbg_molbace')}", "data.edge_weights=drop")
    summary = fresh_garden.summary("ogb", "--until", "cache", overrides=overrides)
    assert tuple(summary["stages"]) == ("ingest", "reorder", "profile", "cache")
    with laid_out(fresh_garden) as store:
        assert (store.info.num_nodes, store.info.num_edges) == (51_577, 2 * 55_768)
        assert len(set(store.read_graph_ids().tolist())) == 1513
