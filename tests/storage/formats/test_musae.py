"""MUSAE graphs: unordered keys, quoted commas, string labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from storage.errors import InputError
from storage.formats.musae import open_musae
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features, real_graph

TARGET = (
    'id,facebook_id,page_name,page_type\n1,99999999999999,"Fun, ""games"" & më",tvshow\n2,5,b,company\n0,7,c,tvshow\n'
)


def write_tiny(
    folder: Path, *, edges: str = "id_1,id_2\n0,1\n2,2\n", features: str | None = None, target: str = TARGET
) -> Path:
    (folder / "tiny_edges.csv").write_text(edges)
    (folder / "tiny.json").write_text(features or json.dumps({"2": [3, 0], "0": [1], "1": []}))
    (folder / "tiny_target.csv").write_text(target, encoding="utf-8")
    return folder


def test_tiny(tmp_path: Path) -> None:
    source = open_musae(write_tiny(tmp_path), "tiny")
    assert read_edges(source) == [(0, 1), (2, 2)]
    assert read_features(source).tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert source.labels is not None
    assert (source.labels.labels_N.tolist(), source.labels.names) == ([1, 1, 0], ("company", "tvshow"))
    assert (source.num_nodes, source.notes) == (3, {"nodes_without_features": 1})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"features": "{"}, "no JSON object"),
        ({"features": "[1, 2]"}, "no JSON object"),
        ({"features": '{"a": [1]}'}, "no JSON object"),
        ({"features": "[" * 100_000}, "no JSON object"),
        ({"features": '{"5": [1]}'}, "describes node 5, but ids end at 2"),
        ({"features": '{"0": [-1]}'}, "-1 is no feature index"),
        ({"features": '{"0": ["x"]}'}, "'x' is no feature index"),
        ({"target": "id,page_type\n0,a\n2,b\n"}, "the ids in column 'id' are not 0..1, each once"),
        ({"target": "id,kind\n0,a\n"}, "has none of the columns"),
        ({"target": "id,page_type\n0,a\n1\n2,b,c,d\n"}, "no readable CSV file"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        open_musae(write_tiny(tmp_path, **changes), "tiny")


def test_an_edge_to_nowhere_is_named_by_line(tmp_path: Path) -> None:
    source = open_musae(write_tiny(tmp_path, edges="id_1,id_2\n0,1\n0,3\n"), "tiny")
    with pytest.raises(InputError, match=r"tiny_edges\.csv, line 3: edge \(0, 3\) names a node outside"):
        ingest(source, IngestOptions(split="random"), tmp_path / "g.h5")


@pytest.mark.real_data
def test_facebook(tmp_path: Path) -> None:
    source = open_musae(real_graph("musae-facebook"), "facebook")
    options = IngestOptions(symmetrize=True, self_loops="remove", split="random")
    report = ingest(source, options, tmp_path / "g.h5")
    assert (report.num_nodes, report.rows_read, report.num_edges) == (22_470, 171_002, 2 * 170_823)
    assert (report.self_loops_found, report.duplicates_found, report.isolated_nodes) == (179, 0, 0)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert np.diff(store.read_indptr()).max() == 709
        feat = store.read_features()
        assert (feat.shape, feat.dtype) == ((22_470, 4714), np.dtype(np.uint8))
        assert np.count_nonzero(feat) == 314_583
        assert store.info.label_names == ("company", "government", "politician", "tvshow")
        assert np.bincount(store.read_labels()).tolist() == [6495, 6880, 5768, 3327]
        assert store.info.split_sizes == {"train": 13_482, "valid": 4494, "test": 4494}
