"""The compiler's own PTX gives the reference's samples, and its costs are counted as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels import reference
from kernels.cuda.gather import count_accesses
from kernels.cuda.topology import DeviceTopology
from kernels.topology import Topology
from tests.cudasim.compiler import COMPILER, NVRTC, by_nvrtc, compile_cubin
from tests.cudasim.machine_code import read_machine_code
from tests.cudasim.ptx import PtxError, parse
from tests.cudasim.ptx_launcher import ARCH, PtxLauncher
from tests.gpu.ops import CudaOps
from tests.graphs import cached_topology, power_law_graph

if COMPILER is None:
    pytest.skip("neither nvcc nor nvidia-cuda-nvrtc is installed: no PTX is run here", allow_module_level=True)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("fanout", [5, 10, 15, 25, -1])
def test_ptx_samples_as_the_reference_does(fanout: int, dtype: Any) -> None:
    indptr, indices = power_law_graph(300, 4000, seed=1, dtype=dtype)
    topology = cached_topology(indptr, indices, np.arange(0, 300, 3))
    launcher = PtxLauncher()
    uniq, uniq_ptr, keys = np.arange(300, dtype=dtype), np.array([0, 130, 300]), np.array([7, 8], np.uint64)
    expected = reference.sample_neighbors(topology, uniq, uniq_ptr, fanout, stream_keys=keys)
    device = DeviceTopology.place(launcher, topology)
    got = CudaOps(launcher).sample_neighbors(device, uniq, uniq_ptr, fanout, stream_keys=keys)
    assert np.array_equal(got[0], expected[0])
    assert np.array_equal(got[1], expected[1])
    assert got[3] == expected[3]
    assert 0.5 < launcher.total().lane_efficiency <= 1


def test_requests_are_counted() -> None:
    """A warp that counts 32 ids in a row reads 4 sectors of int32; its additions go to as many sectors as there are."""
    launcher = PtxLauncher()
    ids, counts = launcher.to_device(np.arange(64, dtype=np.int32)), launcher.to_device(np.zeros(64, np.int64))
    count_accesses(launcher, counts, ids)
    assert counts.tolist() == [1] * 64
    requests = launcher.total().requests
    load, atomic = requests["load"], requests["atomic"]
    assert (load.warps, load.lanes, load.sectors, load.bytes) == (2, 64, 8, 256)
    assert (atomic.warps, atomic.lanes, atomic.sectors, atomic.bytes) == (2, 64, 16, 512)


def test_machine_instructions_follow_the_lines_that_they_were_made_of() -> None:
    """A kernel without a jump but that past its end: the warps that enter issue all of it, the others what precedes."""
    code = read_machine_code(compile_cubin("gather", ("count_accesses<i32>",), ARCH))
    (name,) = (name for name in code.lines if "count_accesses" in name)
    (entry,) = (entry for entry in parse(code.ptx) if entry.name == name)
    written = {instruction.line for block in entry.blocks for instruction in block}
    assert set(code.lines[name]) <= written | {entry.line}
    issued = []
    for num_ids in (32, 256):
        launcher = PtxLauncher()
        count_accesses(launcher, np.zeros(256, np.int64), np.arange(num_ids, dtype=np.int32))
        issued.append(launcher.total().machine_instructions)
    assert issued[1] == 8 * len(code.lines[name])
    behind = {instruction.line for instruction in entry.blocks[1]}
    assert issued[0] == issued[1] - 7 * sum(line in behind for line in code.lines[name])


@pytest.mark.skipif(NVRTC is None, reason="nvidia-cuda-nvrtc is not installed")
def test_machine_code_without_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="without -lineinfo"):
        read_machine_code(by_nvrtc("plan", ("batch_bounds",), ARCH, to="CUBIN")[0])
    assert read_machine_code(by_nvrtc("plan", ("batch_bounds",), ARCH, "-lineinfo", to="CUBIN")[0]).lines


def test_an_access_outside_every_array_is_an_error() -> None:
    launcher = PtxLauncher()
    with pytest.raises(PtxError, match="outside every array"):
        count_accesses(launcher, np.zeros(4, np.int64), np.array([2**30], np.int32))


def test_idle_lanes_cost_efficiency() -> None:
    few, many = PtxLauncher(), PtxLauncher()
    topology = Topology.in_memory(*power_law_graph(300, 4000, seed=1))
    for launcher, rows in ((few, 1), (many, 300)):
        device = DeviceTopology.place(launcher, topology)
        uniq, keys = np.arange(rows, dtype=np.int32), np.array([7], np.uint64)
        CudaOps(launcher).sample_neighbors(device, uniq, np.array([0, rows]), 5, stream_keys=keys)
    assert few.total().lane_efficiency < many.total().lane_efficiency
