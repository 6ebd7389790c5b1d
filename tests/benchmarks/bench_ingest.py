"""Ingest of a generated graph from Parquet and text: edges a second, and peak memory beside the finished topology.

`python -m tests.benchmarks.bench_ingest [--nodes 2000000 --edges 30000000]` ends with one JSON line. Speed is that of
the ingest stage of `garden run ... --until ingest`, the best of several runs. Peak memory is that of a process which
has imported all that the stage needs and has done nothing yet: what comes on top, as a multiple of the bytes of
`indptr` and `indices`, whichever of the two files is worse. Further files (ids with gaps, far apart, names) and the
block layout are measured once, in such processes. The files were just written, so they are read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from storage.formats.demo import open_demo
from tests.benchmarks.report import ROOT, publish

# The columns that each file holds, of the node numbers u.
IDS: dict[str, pl.Expr] = {
    "dense": pl.all(),
    "gaps": pl.all() * 3 + 7,
    "sparse": (pl.all() * 7919 + 7) * 1_000_003,
    "names": pl.all().cast(pl.String).str.pad_start(8, "u"),
}
GATED = ("dense.parquet", "dense.tsv")


def main() -> None:
    """Write the files, measure, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=30_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", type=Path)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(measure(args.child)))
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder), args.nodes, args.edges)
        ingest_s = {path.name: stage_seconds(path, args.repeats) for path in paths if path.name in GATED}
        files = {path.name: run_child(path) for path in paths}
    publish(
        "bench_ingest",
        {
            "parquet_edges_per_s": round(args.edges / ingest_s["dense.parquet"]),
            "text_edges_per_s": round(args.edges / ingest_s["dense.tsv"]),
            "peak_over_topology": max(files[name]["ingest_peak_over_topology"] for name in GATED),
            "nodes": args.nodes,
            "edges": args.edges,
            "load_1_min": round(os.getloadavg()[0], 1),
            "files": files,
        },
    )


def write_files(folder: Path, nodes: int, edges: int) -> list[Path]:
    """Write each file."""
    source = open_demo(
        nodes=nodes, edges=edges, classes=16, feature_dim=1, exponent=2.3, homophily=0.7, noise=1.0,
        train_fraction=0.1, valid_fraction=0.05, seed=0,
    )  # fmt: skip
    frame = pl.concat([pl.DataFrame({"u": src, "v": dst}) for src, dst in source.edge_chunks()]).cast(pl.Int64)
    paths = [folder / "dense.parquet", folder / "dense.tsv"]
    paths += [folder / f"{kind}.parquet" for kind in IDS if kind != "dense"]
    for path in paths:
        table = frame.select(IDS[path.stem])
        if path.suffix == ".tsv":
            table.write_csv(path, separator="\t", include_header=False)
        else:
            table.write_parquet(path)
    return paths


def stage_seconds(path: Path, repeats: int) -> float:
    """Seconds of the ingest stage, through the command line."""
    best = float("inf")
    form = "edge_list" if path.suffix == ".tsv" else "parquet"
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            config = Path(folder) / "bench.yaml"
            config.write_text(f"name: bench\ndata: {{format: {form}, edges: {path}, split: random}}\n", "utf-8")
            command = [sys.executable, "-m", "flows.cli", "run", str(config), "--until", "ingest", "--json"]
            done = subprocess.run(
                [*command, "--set", f"state_dir={folder}/state"], capture_output=True, text=True, check=True, cwd=ROOT
            )
            seconds = float(json.loads(done.stdout.splitlines()[-1])["stages"]["ingest"]["seconds"])
        print(f"{path.name}: ingest stage {seconds:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
        best = min(best, seconds)
    return best


def run_child(path: Path) -> dict[str, Any]:
    """Measure a file in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_ingest", "--child", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    figures: dict[str, Any] = json.loads(done.stdout)
    print(path.name, figures, flush=True)
    return figures


def measure(path: Path) -> dict[str, Any]:
    """Ingest a file, order and lay it out: seconds, and peak memory over the bytes of the topology."""
    import tasks.ingest  # noqa: F401 - all that the stage needs, before memory is looked at
    from storage.blocks.layout import lay_out
    from storage.formats.edge_list import open_edge_list
    from storage.formats.parquet import open_parquet
    from storage.graph_store import INDICES, INDPTR, OUT_DEGREE, GraphStore, row_chunks
    from storage.ingest import IngestOptions, ingest
    from storage.order import falling_ranks

    stores = [path.with_suffix(".ingested.h5"), path.with_suffix(".laid-out.h5")]
    before, start, start_cpu = reset_peak(), time.perf_counter(), time.process_time()
    source = open_parquet(path) if path.suffix == ".parquet" else open_edge_list(path)
    ingest(source, IngestOptions(split="random"), stores[0])
    ingest_s, ingest_cpu_s = time.perf_counter() - start, time.process_time() - start_cpu
    ingest_peak = memory_bytes("VmHWM") - before
    before, start = reset_peak(), time.perf_counter()
    with GraphStore.open(stores[0]) as store:
        topology_bytes = store.nbytes(INDPTR) + store.nbytes(INDICES)
        ranks = falling_ranks(lambda: row_chunks(store, OUT_DEGREE), store.info.num_nodes)
        lay_out(store, stores[1], old_to_new=ranks, order="degree", block_bytes=1 << 20)
    layout_s, layout_peak = time.perf_counter() - start, memory_bytes("VmHWM") - before
    for file in stores:
        file.unlink()
    return {
        "ingest_s": round(ingest_s, 2),
        "ingest_cpu_s": round(ingest_cpu_s, 2),
        "ingest_peak_over_topology": round(ingest_peak / topology_bytes, 2),
        "layout_s": round(layout_s, 2),
        "layout_peak_over_topology": round(layout_peak / topology_bytes, 2),
    }


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
