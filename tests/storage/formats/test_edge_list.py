"""Text edge lists in every dialect that users bring, and the errors for those that are broken."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InputError
from storage.formats import text_table
from storage.formats.edge_list import open_edge_list
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, real_graph

RANDOM = IngestOptions(split="random", block_bytes=4096)


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "0\t1\n2\t0\n",
        "0\t1\r\n2\t0\r\n",
        "0\t1\n2\t0",
        "0\t1\r\n2\t0\r",
        "0,1\n2,0\n",
        "0;1\n2;0\n",
        "0|1\n2|0\n",
        "0 1\n2 0\n",
        "0  1\n2 0 \n",
        " 0\t 1\n2\t0\n",
        "# a comment\n# From\tTo\n0\t1\n2\t0\n",
        "# a comment\r\n0\t1\r\n# another\r\n2\t0\r\n",
        "% KONECT\n0 1\n2 0\n",
        "0,1\n\n2,0\n\n\n",
        "source,target\n0,1\n2,0\n",
        "# c\nnode a,node b\n0,1\n2,0\n",
        '"0","1"\n"2","0"\n',
        "0, 1\n2, 0\n",
        "\n# c\n\n0,1\n# d\n2,0\n\n# e\n",
    ],
)
def test_dialects(tmp_path: Path, content: str) -> None:
    source = open_edge_list(write(tmp_path / "e.txt", content))
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert read_edges(source) == [(0, 1), (2, 0)], "read again"
    assert 1 <= source.approx_edges <= 20


def test_gzip_is_found_by_content(tmp_path: Path) -> None:
    source = open_edge_list(write(tmp_path / "plain-name.csv", gzip.compress(b"# c\n0,1\n2,0\n")))
    assert read_edges(source) == [(0, 1), (2, 0)]


def test_a_damaged_gzip_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(np.random.default_rng(0).bytes(100).hex().encode())
    with pytest.raises(InputError, match="damaged gzip file"):
        open_edge_list(write(tmp_path / "e.gz", whole[:-20]))


def test_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "weight,to,from\n9,1,0\n9,0,2\n")
    source = open_edge_list(path, source_column="from", target_column="to", edge_weights="drop")
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert source.notes == {"ignored_columns": 1}
    with pytest.raises(InputError, match="has no column 'src'; its first line reads weight, to, from"):
        open_edge_list(path, source_column="src")
    with pytest.raises(InputError, match="source and target are the same column"):
        open_edge_list(path, source_column="to")


def test_weights_are_refused_unless_they_are_to_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "e.csv", "0,1,0.5,x\n2,0,1.5,y\n")
    with pytest.raises(InputError, match=r"e\.csv gives edges 2 further columns, .* --set data\.edge_weights=drop"):
        open_edge_list(path)
    source = open_edge_list(path, edge_weights="drop")
    assert read_edges(source) == [(0, 1), (2, 0)]
    assert source.notes == {"ignored_columns": 2}


@settings(deadline=None)
@given(
    edges=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=40),
    delimiter=st.sampled_from("\t,;| "),
    line_end=st.sampled_from(["\n", "\r\n"]),
    final_end=st.booleans(),
    block_bytes=st.integers(1, 60),
)
def test_blocks_of_any_size_give_the_same_edges(
    tmp_path_factory: pytest.TempPathFactory,
    edges: list[tuple[int, int]],
    delimiter: str,
    line_end: str,
    final_end: bool,
    block_bytes: int,
) -> None:
    text = line_end.join(f"{u}{delimiter}{v}" for u, v in edges) + line_end * final_end
    path = write(tmp_path_factory.mktemp("blocks") / "e.txt", text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_table, "_BLOCK_BYTES", block_bytes)
        assert read_edges(open_edge_list(path)) == edges


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("0,1\n1,2\n3\n", r"line 3: 1 fields where 2 are expected \(delimiter ','\)"),
        ("# c\n0,1\n1,2,3\n", "line 3: 3 fields where 2 are expected"),
        ("0,1\n1,\n", "line 2: an id is empty"),
        ("0\t1\r\n\r\n1\tx\r\n", "line 3: 'x' is no integer"),
        ("0,1\n1,2.5\n", "line 2: '2.5' is no integer"),
        ("a,b\nb,  \n", "line 2: an id is empty"),
        ("a,b\nb,\n", "line 2: an id is empty"),
        ("0,1\n1,99999999999999999999\n", "line 2: id 99999999999999999999 does not fit 64 bits"),
        ("0\n1\n", "line 1: one field where an edge has two: set delimiter"),
        ("a,b\nb,caf\u00e9\n".encode("latin-1"), r"line 2: b'b,caf\\xe9' is not in UTF-8: save the file as UTF-8"),
        ("0,1\n1,2\n".encode("utf-16"), "is no text, or not in UTF-8"),
        (b"0,1\r1,2\r2,0", "lines end with carriage returns alone, as those of old Macs: write it with line feeds"),
        (b"\x89PNG\r\n\0\0", "is no text, or not in UTF-8: give the format it has"),
        (b'a,"b\rc"\n"d\re,"f"\n', r"e\.csv, line"),
        ('a,b\n"c,d\n', "line 2: 1 fields where 2 are expected"),
        ('a,b\n"c""d,e"x,f\n', r"e\.csv, line"),
    ],
)
def test_broken_lines_are_named(tmp_path: Path, content: bytes | str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_edges(open_edge_list(write(tmp_path / "e.csv", content)))


def test_a_broken_line_far_from_the_first_ones_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_table, "_BLOCK_BYTES", 100)
    content = "# c\r\n" + "0\t1\r\n" * 299 + "\r\n1\tx\r\n"
    with pytest.raises(InputError, match="line 302: 'x' is no integer, but most ids of the first lines are"):
        read_edges(open_edge_list(write(tmp_path / "e.csv", content)))


def test_a_wrong_delimiter_is_named_with_the_likely_one(tmp_path: Path) -> None:
    path = write(tmp_path / "e.tsv", "# c\n0\t1\n")
    with pytest.raises(InputError, match=r"line 2: one field where an edge has two: it looks delimited by '\\t'"):
        open_edge_list(path, delimiter=",")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.csv does not exist: check the path"):
        open_edge_list(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="is a directory: name the file itself"):
        open_edge_list(tmp_path)


@pytest.mark.parametrize("content", ["", "# only a comment\n", "\n\n"])
def test_an_empty_graph_is_refused_unless_its_size_is_given(tmp_path: Path, content: str) -> None:
    path = write(tmp_path / "e.txt", content)
    with pytest.raises(InputError, match="is empty: a graph needs at least one node"):
        ingest(open_edge_list(path), RANDOM, tmp_path / "g.h5")
    assert ingest(open_edge_list(path, num_nodes=3), RANDOM, tmp_path / "g.h5").num_edges == 0


def test_gaps_are_closed_in_ascending_order(tmp_path: Path) -> None:
    source = open_edge_list(write(tmp_path / "e.txt", "30 10\n10 70\n"))
    report = ingest(source, RANDOM, tmp_path / "g.h5")
    assert (report.num_nodes, report.ids_remapped) == (3, 3)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_original_ids().tolist() == [10, 30, 70]
        assert store.read_indptr().tolist() == [0, 1, 1, 2]
        assert store.read_indices().tolist() == [1, 0]


def test_names_are_numbered_in_byte_order(tmp_path: Path) -> None:
    source = open_edge_list(write(tmp_path / "e.csv", "source,target\nzoë,bob\nbob, Ann\n\nzoë ,zoë\n"))
    report = ingest(source, RANDOM, tmp_path / "g.h5")
    assert (report.num_nodes, report.num_edges, report.ids_remapped) == (3, 3, 3)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_original_ids().tolist() == ["Ann", "bob", "zoë"]
        assert store.read_indptr().tolist() == [0, 1, 2, 3]
        assert store.read_indices().tolist() == [1, 2, 2]


def test_names_cannot_stand_for_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="string ids, which are no row numbers"):
        open_edge_list(write(tmp_path / "e.csv", "a,b\n"), num_nodes=2)


def test_an_id_outside_the_given_size_is_named_by_line(tmp_path: Path) -> None:
    source = open_edge_list(write(tmp_path / "e.csv", "# c\nsource,target\n0,1\n\n2,1\n"), num_nodes=2)
    with pytest.raises(InputError, match=r"line 5: edge \(2, 1\) names a node outside \[0, 2\)"):
        ingest(source, RANDOM, tmp_path / "g.h5")
    assert not (tmp_path / "g.h5").exists()


def test_a_negative_id_is_named_by_line(tmp_path: Path) -> None:
    source = open_edge_list(write(tmp_path / "e.csv", "0,1\n1,-1\n"))
    with pytest.raises(InputError, match="line 2: id -1 is negative"):
        ingest(source, RANDOM, tmp_path / "g.h5")


def test_features_and_labels_fix_the_size(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(5, dtype=np.float64))
    np.save(tmp_path / "y.npy", np.array([0, 1, -1, 1, np.nan]))
    path = write(tmp_path / "e.csv", "0,1\n1,3\n")
    source = open_edge_list(path, features=tmp_path / "x.npy", labels=tmp_path / "y.npy")
    report = ingest(source, RANDOM, tmp_path / "g.h5")
    assert (report.num_nodes, report.isolated_nodes, report.unlabelled_nodes) == (5, 2, 2)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_features().dtype == np.uint8
        assert store.read_labels().tolist() == [0, 1, -1, 1, -1]
    with pytest.raises(InputError, match=r"x\.npy has 5 rows, but the graph has 6 nodes"):
        ingest(open_edge_list(path, features=tmp_path / "x.npy", num_nodes=6), RANDOM, tmp_path / "h.h5")
    with pytest.raises(InputError, match="has 5 labels, but 6 nodes"):
        ingest(open_edge_list(path, labels=tmp_path / "y.npy", num_nodes=6), RANDOM, tmp_path / "h.h5")


@pytest.mark.real_data
def test_email_enron(tmp_path: Path) -> None:
    report = ingest(open_edge_list(real_graph("snap-email-enron") / "email-Enron.txt"), RANDOM, tmp_path / "g.h5")
    assert (report.rows_read, report.num_edges, report.num_nodes) == (367_662, 367_662, 36_692)
    assert (report.ids_remapped, report.self_loops_found, report.duplicates_found) == (0, 0, 0)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert np.diff(store.read_indptr()).max() == 1383
        assert np.array_equal(np.diff(store.read_indptr()), store.read_out_degree()), "both directions are stored"


@pytest.mark.real_data
def test_wiki_vote(tmp_path: Path) -> None:
    source = open_edge_list(real_graph("snap-wiki-vote") / "Wiki-Vote.txt")
    report = ingest(source, RANDOM, tmp_path / "g.h5")
    assert (report.rows_read, report.num_edges, report.num_nodes) == (103_689, 103_689, 7115)
    assert (report.ids_remapped, report.isolated_nodes, report.duplicates_found) == (7115, 0, 0)
    with GraphStore.open(tmp_path / "g.h5") as store:
        ids = store.read_original_ids()
        assert (ids[0], ids[-1]) == (3, 8297)
        in_degree, out_degree = np.diff(store.read_indptr()), store.read_out_degree()
        assert (int(in_degree.max()), int(np.count_nonzero(in_degree == 0))) == (457, 4734)
        assert (int(out_degree.max()), int(np.count_nonzero(out_degree == 0))) == (893, 1005)
    symmetric = ingest(source, IngestOptions(split="random", symmetrize=True), tmp_path / "s.h5")
    assert symmetric.num_edges == 2 * 100_762


@pytest.mark.real_data
def test_gzipped_ogb_edges(tmp_path: Path) -> None:
    source = open_edge_list(real_graph("ogbl_ddi") / "raw" / "edge.csv.gz", num_nodes=4267)
    report = ingest(source, RANDOM, tmp_path / "g.h5")
    assert (report.num_edges, report.self_loops_found, report.duplicates_found) == (1_067_911, 0, 0)
