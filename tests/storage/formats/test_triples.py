"""Knowledge graphs: entities of all files are nodes, relations lie beside the edges, triples held out are links."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from storage.errors import InputError
from storage.formats import text_table
from storage.formats.triples import open_triples, triple_files
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from storage.ingest_report import IngestReport
from tests.storage.formats.read import real_graph

Triples = list[tuple[str, str, str]]

TRAIN = 'b\tlikes\ta\r\na\tlikes\tb\r\nb\tis\tb\r\nb\tis "x"\ta\r\n# c\tis\ta'
VALID = "a\tis\tnew\n"


def write_triples(folder: Path, **files: str) -> Path:
    for split, text in ({"train": TRAIN, "valid": VALID} | files).items():
        (folder / f"{split}.txt").write_bytes(text.encode())
    return folder


def read_triples(path: Path) -> dict[str, Triples]:
    """All triples of a store by their names, those of training in the order of the adjacency lists."""
    with GraphStore.open(path) as store:
        names, relations = store.read_original_ids(), store.info.relation_names
        tails = np.repeat(np.arange(store.info.num_nodes), np.diff(store.read_indptr()))
        columns = (store.read_indices(), store.read_relations(), tails)
        ids = {"train": zip(*(column.tolist() for column in columns), strict=True)}
        for split in ("valid", "test"):
            links = store.read_links(split)
            assert links.relations is not None or not len(links.edges)
            relation = links.relations if links.relations is not None else np.empty(0, np.int32)
            ids[split] = zip(links.edges[:, 0].tolist(), relation.tolist(), links.edges[:, 1].tolist(), strict=True)
        store.verify()
        return {split: [(names[u], relations[r], names[v]) for u, r, v in part] for split, part in ids.items()}


def ingest_triples(folder: Path, store: Path, options: IngestOptions | None = None) -> IngestReport:
    return ingest(open_triples(folder), options or IngestOptions(), store)


@pytest.mark.parametrize("block_bytes", [5, 1 << 20])
def test_triples_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", block_bytes)
    report = ingest_triples(write_triples(tmp_path), tmp_path / "g.h5")
    assert (report.num_nodes, report.num_edges, report.self_loops_found, report.duplicates_found) == (4, 5, 1, 1)
    assert report.split_sizes == {"train": 0, "valid": 0, "test": 0}
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_original_ids().tolist() == ["# c", "a", "b", "new"]
        assert store.info.relation_names == ("is", 'is "x"', "likes")
        assert store.info.link_sizes == {"valid": 1}
    assert read_triples(tmp_path / "g.h5") == {
        "train": [("b", "likes", "a"), ("b", 'is "x"', "a"), ("# c", "is", "a"), ("a", "likes", "b"), ("b", "is", "b")],
        "valid": [("a", "is", "new")],
        "test": [],
    }


def test_self_loops_go_with_their_relations(tmp_path: Path) -> None:
    options = IngestOptions(self_loops="remove")
    assert ingest_triples(write_triples(tmp_path), tmp_path / "g.h5", options).num_edges == 4
    assert ("b", "is", "b") not in read_triples(tmp_path / "g.h5")["train"]


@pytest.mark.parametrize("options", [IngestOptions(symmetrize=True), IngestOptions(deduplicate=True)])
def test_what_would_lose_relations_is_refused(tmp_path: Path, options: IngestOptions) -> None:
    with pytest.raises(InputError, match="is a knowledge graph: reversed or merged edges would lose their relations"):
        ingest_triples(write_triples(tmp_path), tmp_path / "g.h5", options)
    assert not (tmp_path / "g.h5").exists()


def test_the_files_may_be_zipped_and_some_missing(tmp_path: Path) -> None:
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(b"a\tr\tb\n"))
    assert list(triple_files(tmp_path)) == ["train"]
    assert ingest_triples(tmp_path, tmp_path / "g.h5").num_edges == 1
    (tmp_path / "train.tsv.gz").unlink()
    with pytest.raises(InputError, match=r"train\.txt does not exist"):
        open_triples(tmp_path)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train": "a\tr\tb\na\tr\n"}, r"train\.txt, line 2: 2 fields where 3 are expected"),
        ({"valid": "a\tr\tb\n\na\t\tb\n"}, r"valid\.txt, line 3: an id is empty"),
        ({"train": "a r b\n"}, r"train\.txt, line 1: 1 fields where 3 are expected \(delimiter '\\t'\)"),
        ({"train": "", "valid": ""}, "is empty: a graph needs at least one node"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        ingest_triples(write_triples(tmp_path, **files), tmp_path / "g.h5")


@pytest.mark.real_data
def test_fb15k_237(tmp_path: Path) -> None:
    folder = real_graph("fb15k-237")
    report = ingest_triples(folder, tmp_path / "g.h5")
    assert (report.num_nodes, report.num_edges, report.isolated_nodes) == (14_541, 272_115, 36)
    assert report.num_edges - report.duplicates_found == 246_236, "pairs"
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.info.link_sizes == {"valid": 17_535, "test": 20_466}
        assert len(store.info.relation_names) == 237
        per_relation = np.bincount(store.read_relations())
        assert (per_relation.max(), per_relation.min()) == (15_989, 37)
        assert (np.diff(store.read_indptr()) + store.read_out_degree()).max() == 7614
    stored = read_triples(tmp_path / "g.h5")
    for split, triples in stored.items():
        lines = (folder / f"{split}.txt").read_text().splitlines()
        assert sorted(triples) == sorted(tuple(line.split("\t")) for line in lines)
    assert sum(head == tail for part in stored.values() for head, _, tail in part) == 1806
