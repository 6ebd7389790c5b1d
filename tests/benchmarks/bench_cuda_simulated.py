"""What the sampling kernels would issue and move on a GPU, by running the compiler's PTX: **simulated**, not measured.

`python -m tests.benchmarks.bench_cuda_simulated` ends with one JSON line. Workload, fixed: 2,000 rows, drawn with seed
1, as one frontier of two batches, of PubMed (below `GARDEN_DATA`) and of a power-law graph of 200k nodes and 3M edges
(seed 0); fanouts 5, 10 and 15; int32 ids, sm_90. Every form's result is compared with the reference first, but for the
baseline's, whose draws are its own. Costs count all passes of a form. Instructions are PTX, without parameters and
address casts, and machine code: each of its instructions as often as the line of PTX that the compiler says it was made
of. Where the assembler unrolls a loop, as in the baseline's, that says too much: compare those by PTX.
Sectors count each request by itself, as if nothing were kept in a cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kernels import reference
from kernels.cuda.baselines import sample_by_classes, sample_by_edges, sample_by_groups, sample_by_warps
from kernels.cuda.sample import Plan, fill_rows, group_shape, plan_rows
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import IdArray
from kernels.topology import Topology
from storage.formats.planetoid import open_planetoid
from tests.benchmarks.report import publish
from tests.cudasim.preload import preload_limit
from tests.cudasim.ptx_launcher import ARCH, PtxLauncher
from tests.cudasim.ptx_memory import Requests
from tests.graphs import csc_from_edges, power_law_graph

FANOUTS, NUM_ROWS, PRELOAD = (5, 10, 15), 2000, 32
LEAST_EFFICIENCY, MOST_INSTRUCTIONS, MOST_SECTORS = 0.9, 6.0, 1.1
_ID_BYTES = 4
Form = Callable[[Any, DeviceTopology, Plan, IdArray, Any], IdArray]


def _grouped(launcher: PtxLauncher, topology: DeviceTopology, plan: Plan, uniq: IdArray, _ptr: Any) -> IdArray:
    neighbors = np.empty(int(plan.row_ptr[-1]), uniq.dtype)
    sample_by_groups(launcher, topology, plan, len(uniq), np.empty(0, np.int64), neighbors)
    return neighbors


FORMS: dict[str, Form] = {
    "parted": lambda launcher, topology, plan, uniq, ptr: fill_rows(
        launcher, topology, plan, uniq, len(uniq), int(plan.row_ptr[-1])
    )[0],
    "grouped": _grouped,
    "two_kernels": sample_by_classes,
    "two_kernels_preload_by_rule": lambda launcher, topology, plan, uniq, ptr: sample_by_classes(
        launcher, topology, plan, uniq, ptr, preload=preload_limit(plan.fanout, _ID_BYTES)
    ),
    f"two_kernels_preload_{PRELOAD}": partial(sample_by_classes, preload=PRELOAD),
    "edge_parallel": lambda launcher, topology, plan, uniq, ptr: sample_by_edges(launcher, topology, plan, uniq),
    "warp_per_row": lambda launcher, topology, plan, uniq, ptr: sample_by_warps(launcher, plan, uniq),
}
OURS, DIRECT = "parted", "grouped"
"""The default form; and the one in which a group of lanes reads its own row in place: sectors are compared with it."""


def graphs() -> dict[str, Topology]:
    """PubMed, where `GARDEN_DATA` names the folder that holds it, and the power-law graph."""
    power_law = {"power_law_200k": Topology.in_memory(*power_law_graph(200_000, 3_000_000))}
    if "GARDEN_DATA" not in os.environ:
        print("without GARDEN_DATA, PubMed is left out", flush=True)
        return power_law
    source = open_planetoid(Path(os.environ["GARDEN_DATA"]) / "pubmed", "pubmed")
    chunks = list(source.edges.chunks())
    src, dst = (np.concatenate([chunk[side] for chunk in chunks]) for side in (0, 1))
    return {"pubmed": Topology.in_memory(*csc_from_edges(source.num_nodes or 0, src, dst))} | power_law


def measure(topology: Topology, fanout: int) -> dict[str, dict[str, float]]:
    """Costs of every form."""
    nodes = np.random.default_rng(1).permutation(topology.num_nodes)[:NUM_ROWS].astype(np.int32)
    uniq_ptr, keys = np.array([0, NUM_ROWS // 2, NUM_ROWS]), np.array([11, 12], np.uint64)
    row_ptr, expected, _, _ = reference.sample_neighbors(topology, nodes, uniq_ptr, fanout, stream_keys=keys)
    found = {}
    for name, form in FORMS.items():
        launcher = PtxLauncher()
        device = DeviceTopology.place(launcher, topology)
        uniq, ptr, stream_keys = (launcher.to_device(array) for array in (nodes, uniq_ptr, keys))
        plan = plan_rows(launcher, device, uniq, ptr, fanout, stream_keys=stream_keys)
        got = form(launcher, device, plan, uniq, ptr)
        _check(name, topology, nodes, row_ptr, got, expected)
        found[name] = _costs(launcher, len(expected))
    return found


def _check(name: str, topology: Topology, nodes: IdArray, row_ptr: Any, got: IdArray, expected: IdArray) -> None:
    if name != "warp_per_row":
        if not np.array_equal(got, expected):
            raise RuntimeError(f"{name} differs from the reference")
        return
    for row, node in enumerate(nodes):
        drawn = got[row_ptr[row] : row_ptr[row + 1]]
        if not np.isin(drawn, topology.indices[topology.indptr[node] : topology.indptr[node + 1]]).all():
            raise RuntimeError(f"{name} draws for node {node} what is not its neighbor")


def _costs(launcher: PtxLauncher, num_edges: int) -> dict[str, float]:
    total, lists = launcher.total(), Requests()
    requests = Requests()
    for kind, part in total.requests.items():
        requests.add(part)
        if kind == "lists":
            lists.add(part)
    return {
        "thread_efficiency": round(total.lane_efficiency, 4),
        "instructions_per_edge": round(total.warp_instructions / num_edges, 3),
        "machine_instructions_per_edge": round(total.machine_instructions / num_edges, 3),
        "bytes_per_edge": round(requests.sectors * 32 / num_edges, 2),
        "list_bytes_per_edge": round(lists.sectors * 32 / num_edges, 2),
        "lanes_per_request": round(requests.lanes / requests.warps, 2),
        "list_lanes_per_request": round(lists.lanes / max(1, lists.warps), 2),
        "sectors_per_request": round(requests.sectors / requests.warps, 2),
    }


def main() -> None:
    """Run and publish."""
    figures: dict[str, Any] = {"simulated": True, "arch": f"sm_{ARCH}", "rows": NUM_ROWS}
    forms = {
        graph: {str(fanout): measure(topology, fanout) for fanout in FANOUTS} for graph, topology in graphs().items()
    }
    for figure in ("thread_efficiency", "bytes_per_edge"):
        figures[figure] = {
            graph: {
                "ours": {fanout: run[OURS][figure] for fanout, run in runs.items()},
                "warp_per_row": {fanout: run["warp_per_row"][figure] for fanout, run in runs.items()},
            }
            for graph, runs in forms.items()
        }
    figures["gates"] = {graph: {fanout: _gates(run) for fanout, run in runs.items()} for graph, runs in forms.items()}
    figures["preload_limit"] = {
        f"{id_bytes}_bytes": {str(fanout): preload_limit(fanout, id_bytes) for fanout in FANOUTS} for id_bytes in (4, 8)
    }
    figures["preload_list_bytes"] = {
        graph: {fanout: _preload_shares(run) for fanout, run in runs.items()} for graph, runs in forms.items()
    }
    figures["group_shape"] = {
        str(fanout): [group_shape(fanout).lanes, group_shape(fanout).rounds] for fanout in FANOUTS
    }
    publish("bench_cuda_simulated", figures | {"forms": forms})


def _preload_shares(run: dict[str, dict[str, float]]) -> dict[str, float]:
    """Bytes of lists that the paper's two kernels read with preloading, for each read in place."""
    in_place = run["two_kernels"]["list_bytes_per_edge"]
    return {
        name.removeprefix("two_kernels_preload_"): round(costs["list_bytes_per_edge"] / in_place, 3)
        for name, costs in run.items()
        if name.startswith("two_kernels_preload_")
    }


def _gates(run: dict[str, dict[str, float]]) -> dict[str, bool]:
    ours, direct = run[OURS], run[DIRECT]
    return {
        "efficiency": ours["thread_efficiency"] >= LEAST_EFFICIENCY,
        "instructions": ours["machine_instructions_per_edge"] <= MOST_INSTRUCTIONS,
        "sectors": ours["bytes_per_edge"] <= MOST_SECTORS * direct["bytes_per_edge"],
        "list_sectors": ours["list_bytes_per_edge"] <= MOST_SECTORS * direct["list_bytes_per_edge"],
    }


if __name__ == "__main__":
    main()
