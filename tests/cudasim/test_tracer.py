"""The tracer sees what each line touches, and races that every schedule may hide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels import reference
from kernels.cuda.baselines import sample_by_groups
from kernels.cuda.sample import plan_rows
from kernels.cuda.source import Kernel, source_text
from kernels.cuda.topology import DeviceTopology
from kernels.topology import Topology
from tests.cudasim.build import GXX
from tests.cudasim.launcher import Schedule, SimError, SimLauncher
from tests.cudasim.tracer import Trace
from tests.gpu.ops import CudaOps
from tests.graphs import csc_from_edges

if GXX is None:
    pytest.skip("g++ is not installed: the CUDA kernels are NOT traced here", allow_module_level=True)

TOYS = (Path(__file__).parent / "toys.cu").read_text()


def _traced(name: str, *arguments: object, cta: int = 32, shared: int = 0, plant: str = "") -> Trace:
    launcher = SimLauncher(traced=True, texts={"toys": plant + TOYS})
    launcher.run(Kernel("toys", name), 1, cta, arguments, shared)
    return launcher.trace()


def test_requests_are_counted_by_line() -> None:
    raw = np.zeros(4096 + 64, np.int32)
    values = raw[(-raw.ctypes.data % 128) // 4 :][:4096]
    trace = _traced("strided", values, np.zeros(128, np.int32), np.int32(32))
    (load,) = [site for site in trace.sites if site.kind == "global load"]
    assert load.at.startswith("toys.cu:")
    assert "in[threadIdx.x * stride]" in TOYS.splitlines()[int(load.at.split(":")[1]) - 1]
    # Lanes 0, 4, ... 28 read int32, 512 bytes apart.
    assert (load.requests, load.lanes, load.sectors, load.lines, load.bytes) == (1, 8, 8, 8, 4)
    assert not trace.findings


def test_barriers_order_and_their_absence_is_found() -> None:
    values, out = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    assert not _traced("shift", values, out, cta=256).findings
    assert not _traced("shift_dynamic", values, out, cta=256, shared=1024).findings
    findings = _traced("shift", values, out, cta=256, plant="#define PLANT_NO_BARRIER\n").findings
    assert any("race" in text or "no thread has set" in text for _, text in findings)


def test_shared_memory_that_nobody_set_is_found() -> None:
    findings = _traced("unset_shared", np.zeros(32, np.int32), np.int32(3)).findings
    assert [text for _, text in findings] == ["read of shared memory that no thread has set"]


def test_an_access_outside_every_array_is_an_error() -> None:
    with pytest.raises(SimError, match="global write of 4 bytes outside every array"):
        _traced("out_of_bounds", np.zeros(8, np.int32), np.int32(8))


def test_dynamic_shared_memory_has_an_end() -> None:
    with pytest.raises(SimError, match="past the 64 bytes of dynamic shared memory"):
        _traced("shift_dynamic", np.zeros(32, np.int32), np.zeros(32, np.int32), shared=64)


@pytest.fixture(scope="module")
def topology() -> Topology:
    rng = np.random.default_rng(3)
    return Topology.in_memory(*csc_from_edges(60, rng.integers(0, 60, 600), rng.integers(0, 60, 600)))


def _preloaded(launcher: SimLauncher, topology: Topology) -> bool:
    uniq, ptr, keys = np.arange(60, dtype=np.int32), np.array([0, 60]), np.array([5], np.uint64)
    row_ptr, expected, _, _ = reference.sample_neighbors(topology, uniq, ptr, 5, stream_keys=keys)
    device = DeviceTopology.place(launcher, topology)
    plan = plan_rows(launcher, device, uniq, ptr, 5, stream_keys=keys)
    neighbors, rows = np.full(row_ptr[-1], -1, np.int32), np.arange(60)
    sample_by_groups(launcher, device, plan, 60, rows, neighbors, preload=16)
    return np.array_equal(neighbors, expected)


def test_a_race_that_no_schedule_shows_is_found(topology: Topology) -> None:
    """Without its barrier the preloading kernel is right in every schedule, as its shuffles happen to order lanes."""
    barrier = "  if (PRELOAD) __syncwarp(ALL_LANES);\n"
    text = source_text("sample")
    assert text.count(barrier) == 1
    planted = {"sample": text.replace(barrier, "")}
    for schedule in Schedule:
        assert _preloaded(SimLauncher(schedule, texts=planted), topology)
    sound, unsound = SimLauncher(traced=True), SimLauncher(traced=True, texts=planted)
    assert _preloaded(sound, topology)
    assert _preloaded(unsound, topology)
    assert not sound.trace().findings
    assert any("race: read after an unordered write" in text for _, text in unsound.trace().findings)


def _sampled(launcher: SimLauncher, topology: Topology) -> bool:
    uniq, ptr, keys = np.arange(60, dtype=np.int32), np.array([0, 60]), np.array([5], np.uint64)
    expected = reference.sample_neighbors(topology, uniq, ptr, 5, stream_keys=keys)[1]
    device = DeviceTopology.place(launcher, topology)
    return np.array_equal(CudaOps(launcher).sample_neighbors(device, uniq, ptr, 5, stream_keys=keys)[1], expected)


def test_rows_shared_within_a_warp_need_their_barrier(topology: Topology) -> None:
    """The collectives around it happen to order lanes in every schedule; memory they do not order: this is a race."""
    barrier = "  __syncwarp(ALL_LANES);\n  copy_full<"
    text = source_text("sample")
    assert text.count(barrier) == 1
    planted = {"sample": text.replace(barrier, "  copy_full<")}
    for schedule in Schedule:
        assert _sampled(SimLauncher(schedule, texts=planted), topology)
    unsound = SimLauncher(traced=True, texts=planted)
    assert _sampled(unsound, topology)
    assert any("race: read after an unordered write" in finding for _, finding in unsound.trace().findings)


@pytest.mark.parametrize("fanout", [-1, 5, 20, 70, 1200])
def test_sampling_touches_only_its_arrays_and_races_nowhere(topology: Topology, fanout: int) -> None:
    launcher = SimLauncher(traced=True)
    device = DeviceTopology.place(launcher, topology)
    uniq, ptr, keys = np.arange(60, dtype=np.int32), np.array([0, 20, 60]), np.array([5, 6], np.uint64)
    row_ptr, neighbors, _, _ = CudaOps(launcher).sample_neighbors(device, uniq, ptr, fanout, stream_keys=keys)
    CudaOps(launcher).relabel(uniq, ptr, neighbors, row_ptr[ptr])
    assert not launcher.trace().findings
