"""Good files of every format, damaged at random: read all the same, or refused with one line; never anything else.

`GARDEN_MUTATIONS=500 pytest tests/storage/formats/test_mutations.py` looks further.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

from storage.errors import GardenError
from storage.formats.base import GraphSource
from storage.formats.edge_list import open_edge_list
from storage.formats.igb import open_igb
from storage.formats.matrix_market import open_matrix_market
from storage.formats.musae import open_musae
from storage.formats.ogb import open_ogb
from storage.formats.parquet import open_parquet
from storage.formats.planetoid import open_planetoid
from storage.formats.sparse_npz import open_sparse_npz
from storage.formats.triples import open_triples
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats import test_igb, test_musae, test_ogb, test_planetoid, test_triples

OPTIONS = IngestOptions(split="random", block_bytes=4096)
PROVIDED = IngestOptions(block_bytes=4096)
IMPUTED = replace(OPTIONS, nan_policy="zero")
JUNK = (b"", b"\0", b"\n", b"\r", b'"', b",", b"\t", b"-1", b"nan", b"9" * 20, b"\xff\xfe", b"1e308", b"#")

Good = Callable[[Path], tuple[Callable[[], GraphSource], IngestOptions]]
"""Writes a good data set to a folder; returns how to open and to ingest it."""


def write_tables(folder: Path) -> dict[str, Any]:
    np.save(folder / "x.npy", np.eye(4, dtype=np.float32))
    np.save(folder / "y.npy", np.array([0.0, 1.0, np.nan, 1.0]))
    return {"features": folder / "x.npy", "labels": folder / "y.npy"}


def edge_list(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    (folder / "e.csv").write_text("source,target\n0,1\n1,2\n2,3\n3,0\n")
    tables = write_tables(folder)
    return lambda: open_edge_list(folder / "e.csv", **tables), OPTIONS


def named_edges(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    (folder / "e.tsv").write_text('# c\na\tb\nb\t"c d"\nc\ta\n')
    return lambda: open_edge_list(folder / "e.tsv"), OPTIONS


def parquet(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    pl.DataFrame({"u": [0, 1, 2], "v": [1, 2, 3]}).write_parquet(folder / "e.parquet")
    pl.DataFrame({"f": [0.5, 1.5, 2.5, 3.5], "g": [1, 2, None, 4]}).write_parquet(folder / "x.parquet")
    pl.DataFrame({"y": ["a", None, "b", "a"]}).write_parquet(folder / "y.parquet")
    tables: dict[str, Any] = {"features": folder / "x.parquet", "labels": folder / "y.parquet"}
    return lambda: open_parquet(folder / "e.parquet", **tables), IMPUTED


def named_parquet(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    pl.DataFrame({"u": ["a", "b"], "v": ["b", "c"]}).write_parquet(folder / "e.parquet")
    return lambda: open_parquet(folder / "e.parquet"), OPTIONS


def matrix_market(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    (folder / "e.mtx").write_text("%%MatrixMarket matrix coordinate pattern symmetric\n% c\n4 4 3\n2 1\n3 1\n4 4\n")
    tables = write_tables(folder)
    return lambda: open_matrix_market(folder / "e.mtx", **tables), OPTIONS


def sparse_matrix(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    matrix = sparse.csr_matrix((np.ones(3), ([0, 1, 3], [1, 2, 0])), shape=(4, 4))
    sparse.save_npz(folder / "e.npz", matrix, compressed=False)
    return lambda: open_sparse_npz(folder / "e.npz"), OPTIONS


def planetoid(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_planetoid.write_tiny(folder)
    return lambda: open_planetoid(folder, "tiny"), PROVIDED


def musae(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_musae.write_tiny(folder)
    return lambda: open_musae(folder, "tiny"), OPTIONS


def ogb_nodes(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_ogb.write_nodes(folder)
    return lambda: open_ogb(folder), PROVIDED


def ogb_arrays(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_ogb.write_nodes(folder, "npz")
    return lambda: open_ogb(folder), PROVIDED


def ogb_links(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_ogb.write_links(folder, valid={"edge": np.array([[3, 2]]), "edge_neg": np.array([[1, 0]])})
    return lambda: open_ogb(folder), PROVIDED


def igb(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_igb.write_igb(folder)
    return lambda: open_igb(folder), PROVIDED


def triples(folder: Path) -> tuple[Callable[[], GraphSource], IngestOptions]:
    test_triples.write_triples(folder)
    return lambda: open_triples(folder), PROVIDED


FORMATS: list[Good] = [
    edge_list,
    named_edges,
    parquet,
    named_parquet,
    matrix_market,
    sparse_matrix,
    planetoid,
    musae,
    ogb_nodes,
    ogb_arrays,
    ogb_links,
    igb,
    triples,
]


def mutate(path: Path, rng: random.Random) -> str:
    """Damage one file in one way; says how."""
    content = path.read_bytes()
    place = rng.randrange(len(content) + 1)
    kind = rng.choice(("cut", "flip", "junk", "drop", "repeat", "empty", "other"))
    if kind == "cut":
        content = content[:place]
    elif kind == "flip" and content:
        place %= len(content)
        content = content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    elif kind == "junk":
        content = content[:place] + rng.choice(JUNK) + content[place + rng.randrange(3) :]
    elif kind == "drop":
        content = content[:place] + content[place + rng.randrange(1, 40) :]
    elif kind == "repeat":
        content = content[:place] + content[max(0, place - 20) :]
    elif kind == "empty":
        content = b""
    else:
        content = rng.choice((b"PK\x03\x04" + bytes(40), rng.randbytes(300), b"\x1f\x8b\x08" + bytes(20), b"{}\n"))
    path.write_bytes(content)
    return f"{kind} {path.name} at {place}"


@pytest.mark.parametrize("good", FORMATS, ids=lambda good: good.__name__)
def test_damaged_files_are_read_or_refused(good: Good, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    open_graph, options = good(tmp_path)
    store = tmp_path / "out" / "g.h5"
    store.parent.mkdir()
    ingest(open_graph(), options, store)
    files = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file() and path != store}
    for number in range(int(os.environ.get("GARDEN_MUTATIONS", "12"))):
        rng = random.Random(f"{good.__name__} {number}")
        damage = [mutate(rng.choice(list(files)), rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        store.unlink(missing_ok=True)
        try:
            ingest(open_graph(), options, store)
        except GardenError as error:
            assert error.exit_code == 2, damage
            assert not list(store.parent.iterdir()), damage
        except BaseException as error:
            error.add_note(f"mutation {number}: {', '.join(damage)}")
            raise
        else:
            with GraphStore.open(store) as whole:
                whole.verify()
                whole.read_adjacency()
        for path, content in files.items():
            path.write_bytes(content)
