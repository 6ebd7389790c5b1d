"""Files with flipped, missing, doubled or foreign bytes: read where what is left is a graph, else refused in a line."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import scipy.io
import scipy.sparse

from conf.load import load_config
from storage.errors import InputError
from storage.graph_store import GraphStore
from storage.ingest import ingest
from tasks.sources import ingest_options, open_source

NODES, EDGES = 300, 2000
CASES = {
    "keyed Parquet": ("parquet", "names.parquet", "x.parquet", "y.parquet", "id"),
    "keyed CSV": ("edge_list", "names.csv", "x.csv", "y.csv", "id"),
    "Parquet and arrays": ("parquet", "edges.parquet", "x.npy", "y.npy", None),
    "CSV and arrays": ("edge_list", "edges.csv", "x.npy", "y.npy", None),
    "sparse npz": ("npz", "edges.npz", "x.npy", "y.npy", None),
    "Matrix Market": ("matrix_market", "edges.mtx", "x.npy", "y.npy", None),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    ends = rng.integers(0, NODES, (EDGES, 2))
    names = np.array([f"n{node:04d}" for node in range(NODES)])
    for frame, name in (
        (pl.DataFrame({"source": ends[:, 0], "target": ends[:, 1]}), "edges"),
        (pl.DataFrame({"source": names[ends[:, 0]], "target": names[ends[:, 1]]}), "names"),
        (pl.DataFrame({"id": names, **{f"f{i}": rng.standard_normal(NODES) for i in range(5)}}), "x"),
        (pl.DataFrame({"id": names, "y": rng.integers(0, 4, NODES)}), "y"),
    ):
        frame.write_parquet(folder / f"{name}.parquet")
        frame.write_csv(folder / f"{name}.csv")
    np.save(folder / "x.npy", rng.standard_normal((NODES, 5), np.float32))
    np.save(folder / "y.npy", rng.integers(0, 4, NODES))
    matrix = scipy.sparse.coo_matrix((np.ones(EDGES), (ends[:, 0], ends[:, 1])), shape=(NODES, NODES))
    scipy.sparse.save_npz(folder / "edges.npz", matrix.tocsr())
    scipy.io.mmwrite(folder / "edges.mtx", matrix, field="pattern")
    return folder


def damaged(content: bytes, rng: random.Random) -> bytes:
    data, at = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["flipped", "truncated", "zeroed", "doubled", "foreign"])
    if kind == "flipped":
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "truncated":
        del data[at:]
    elif kind == "zeroed":
        end = min(len(data), at + rng.choice([1, 8, 64]))
        data[at:end] = bytes(end - at)
    else:
        length = rng.choice([1, 8, 100])
        data[at:at] = data[at : at + length] if kind == "doubled" else rng.randbytes(length)
    return bytes(data)


@pytest.mark.parametrize("tries", [12, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("case", CASES)
def test_damaged_files_are_read_or_refused(files: Path, tmp_path: Path, case: str, tries: int) -> None:
    file_format, edges, features, labels, id_column = CASES[case]
    rng, refused = random.Random(case), 0
    for number in range(tries):
        paths = {"edges": files / edges, "features": files / features, "labels": files / labels}
        role = rng.choice(list(paths))
        bad = tmp_path / f"bad{paths[role].suffix}"
        bad.write_bytes(damaged(paths[role].read_bytes(), rng))
        paths[role] = bad
        settings = [f"data.format={file_format}", *(f"data.{role}={path}" for role, path in paths.items())]
        settings += [f"data.id_column={id_column}"] if id_column else []
        settings += ["data.edge_weights=drop"] if file_format == "npz" else []
        store = tmp_path / f"{number}.h5"
        try:
            config = load_config("edge_list", settings)
            ingest(open_source(config.data), ingest_options(config), store)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
            assert not store.exists()
        else:
            with GraphStore.open(store) as opened:
                assert opened.info.num_nodes > 0
    assert refused
