"""Ingest and block layout of a generated graph from every kind of file: edges a second, and peak memory.

`python -m tests.benchmarks.bench_ingest [--nodes 2000000 --edges 30000000]` ends with one JSON line. Each measurement
has a process of its own, which first ingests a few rows of the same file, so that libraries and compiled kernels are
there; peak memory counts what comes on top, as a multiple of the bytes of `indptr` and `indices`. The files were just
written, so they are read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from storage.blocks.layout import lay_out
from storage.formats.base import GraphSource
from storage.formats.demo import open_demo
from storage.formats.edge_list import open_edge_list
from storage.formats.parquet import open_parquet
from storage.graph_store import INDICES, INDPTR, GraphStore
from storage.ingest import IngestOptions, ingest
from storage.order import node_order
from tests.benchmarks.report import ROOT, publish

# The columns that each file holds, of the node numbers u.
IDS: dict[str, pl.Expr] = {
    "dense": pl.all(),
    "gaps": pl.all() * 3 + 7,
    "sparse": (pl.all() * 7919 + 7) * 1_000_003,
    "names": pl.all().cast(pl.String).str.pad_start(8, "u"),
}


def main() -> None:
    """Write the files, measure each in a child, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=30_000_000)
    parser.add_argument("--child", type=Path)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        figures = {path.name: run_child(path) for path in write_files(Path(folder), args.nodes, args.edges)}
    publish("bench_ingest", {"nodes": args.nodes, "edges": args.edges, "files": figures})


def write_files(folder: Path, nodes: int, edges: int) -> list[Path]:
    """Write each file, and a tiny one of its kind beside it."""
    source = open_demo(
        nodes=nodes, edges=edges, classes=16, feature_dim=1, exponent=2.3, homophily=0.7, noise=1.0,
        train_fraction=0.1, valid_fraction=0.05, seed=0,
    )  # fmt: skip
    frame = pl.concat([pl.DataFrame({"u": src, "v": dst}) for src, dst in source.edge_chunks()]).cast(pl.Int64)
    paths = [folder / f"{kind}.parquet" for kind in IDS] + [folder / "dense.tsv"]
    for path in paths:
        table = frame.select(IDS[path.stem])
        for target, part in ((path, table), (tiny(path), table.head(100))):
            if path.suffix == ".tsv":
                part.write_csv(target, separator="\t", include_header=False)
            else:
                part.write_parquet(target)
    return paths


def tiny(path: Path) -> Path:
    """The file of a few rows that goes with a file."""
    return path.with_name(f"tiny-{path.name}")


def run_child(path: Path) -> dict[str, Any]:
    """Measure a file in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", "--child", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    figures: dict[str, Any] = json.loads(done.stdout)
    print(path.name, figures, flush=True)
    return figures


def measure(path: Path) -> dict[str, Any]:
    """Ingest and lay out a file."""
    stores = [path.with_suffix(".ingested.h5"), path.with_suffix(".laid-out.h5")]
    run(tiny(path), stores)
    ingest_s, ingest_peak, layout_s, layout_peak, topology_bytes, rows = run(path, stores)
    for store in stores:
        store.unlink()
    return {
        "ingest_s": round(ingest_s, 2),
        "ingest_medges_per_s": round(rows / ingest_s / 1e6, 2),
        "ingest_peak_over_topology": round(ingest_peak / topology_bytes, 2),
        "layout_s": round(layout_s, 2),
        "layout_peak_over_topology": round(layout_peak / topology_bytes, 2),
    }


def run(path: Path, stores: list[Path]) -> tuple[float, int, float, int, int, int]:
    """Seconds and peak bytes of ingest and of ordering with layout; bytes of the topology; rows read."""
    before, start = reset_peak(), time.perf_counter()
    report = ingest(open_file(path), IngestOptions(split="random"), stores[0])
    ingest_s, ingest_peak = time.perf_counter() - start, memory_bytes("VmHWM") - before
    before, start = reset_peak(), time.perf_counter()
    with GraphStore.open(stores[0]) as store:
        topology_bytes = store.nbytes(INDPTR) + store.nbytes(INDICES)
        order = node_order("degree", store.read_indptr(), store.read_indices(), out_degree_N=store.read_out_degree())
        lay_out(store, order, stores[1], order="degree", block_bytes=1 << 20)
    layout_s, layout_peak = time.perf_counter() - start, memory_bytes("VmHWM") - before
    return ingest_s, ingest_peak, layout_s, layout_peak, topology_bytes, report.rows_read


def open_file(path: Path) -> GraphSource:
    """Describe a file."""
    return open_parquet(path) if path.suffix == ".parquet" else open_edge_list(path)


def reset_peak() -> int:
    """Forget the peak so far; the resident bytes now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory_bytes("VmRSS")


def memory_bytes(field: str) -> int:
    """A field of this process's status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
