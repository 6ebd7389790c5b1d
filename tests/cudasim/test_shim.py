from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.cpu import sample
from kernels.cpu.draw import new_shuffle
from kernels.cuda.source import Kernel, source_text
from kernels.cuda.topology import DeviceTopology
from kernels.topology import Topology
from tests.cudasim.build import GXX, BuildError
from tests.cudasim.launcher import Schedule, SimError, SimLauncher
from tests.gpu.ops import CudaOps
from tests.graphs import csc_from_edges

TOYS = (Path(__file__).parent / "toys.cu").read_text()

if GXX is None:
    pytest.skip("g++ is not installed: the CUDA kernels are NOT tested here", allow_module_level=True)


def _run(name: str, *arguments: object, schedule: Schedule = Schedule.ASCENDING, **shape: int) -> None:
    text = ("#define PLANT_NO_BARRIER\n" if shape.pop("plant", 0) else "") + TOYS
    launcher = SimLauncher(schedule, texts={"toys": text})
    cta, grid, shared = shape.get("cta", 32), shape.get("grid", 1), shape.get("shared", 0)
    launcher.run(Kernel("toys", name), grid, cta, arguments, shared)


@pytest.mark.parametrize("schedule", Schedule)
def test_warp_collectives(schedule: Schedule) -> None:
    values = np.random.default_rng(0).integers(-100, 100, 128).astype(np.int32)
    reversed_, sums, votes = np.zeros(128, np.int32), np.zeros(128, np.int32), np.zeros(128, np.uint32)
    _run("collectives", values, reversed_, sums, votes, schedule=schedule, cta=64, grid=2)
    warps = values.reshape(-1, 32)
    assert np.array_equal(reversed_.reshape(-1, 32), warps[:, ::-1])
    assert np.array_equal(sums.reshape(-1, 32), np.repeat(warps.sum(axis=1)[:, None], 32, axis=1))
    odd = ((warps & 1).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(axis=1)
    assert np.array_equal(votes.reshape(-1, 32), np.repeat(odd[:, None], 32, axis=1))


@pytest.mark.parametrize("schedule", Schedule)
def test_barriers_order_shared_memory(schedule: Schedule) -> None:
    values, out = np.arange(512, dtype=np.int32), np.zeros(512, np.int32)
    _run("shift", values, out, schedule=schedule, cta=256, grid=2)
    assert np.array_equal(out, np.roll(values.reshape(2, 256), -1, axis=1).ravel())
    out[:] = 0
    _run("shift_dynamic", values, out, schedule=schedule, cta=256, shared=1024)
    assert np.array_equal(out[:256], np.roll(values[:256], -1))


def test_a_missing_barrier_shows() -> None:
    values, expected = np.arange(256, dtype=np.int32), np.roll(np.arange(256, dtype=np.int32), -1)
    wrong = []
    for schedule in Schedule:
        out = np.zeros(256, np.int32)
        _run("shift", values, out, schedule=schedule, cta=256, plant=1)
        wrong.append(not np.array_equal(out, expected))
    assert any(wrong)


def test_shared_memory_that_nobody_set_is_poison() -> None:
    out = np.zeros(32, np.int32)
    _run("unset_shared", out, np.int32(3))
    assert (out[:3] == 1).all()
    assert (out[3:].view(np.uint32) == 0xCDCDCDCD).all()


@pytest.mark.parametrize("schedule", Schedule)
def test_atomics(schedule: Schedule) -> None:
    values = np.random.default_rng(1).integers(-99, 99, 96).astype(np.int32)
    totals, wide, real = np.zeros(3, np.int32), np.zeros(1, np.uint64), np.zeros(1, np.float32)
    swapped = np.array([-1, 0], np.int32)
    _run("atomics", values, totals, wide, real, swapped, schedule=schedule, cta=96)
    assert totals.tolist() == [values.sum(), min(0, values.min()), max(0, values.max())]
    assert int(wide[0]) == 96 * 0x100000001
    assert real[0] == 48
    assert swapped[1] == 1


@pytest.mark.parametrize(
    ("name", "cta", "message"),
    [
        ("divergent_barrier", 64, "barrier reached at two places"),
        ("deadlock", 64, "deadlock: no thread can run"),
        ("divergent_collective", 32, "collective mismatch"),
        ("outside_mask", 32, "is not in mask 0000ffff"),
    ],
)
@pytest.mark.parametrize("schedule", Schedule)
def test_what_would_hang_or_misbehave_is_reported(name: str, cta: int, message: str, schedule: Schedule) -> None:
    with pytest.raises(SimError, match=message) as error:
        _run(name, np.zeros(64, np.int32), schedule=schedule, cta=cta)
    assert "toys.cu:" in str(error.value)


@pytest.mark.parametrize("shape", [{"cta": 1025}, {"cta": 0}, {"grid": 0}, {"shared": 228 << 10}])
def test_launches_that_no_device_takes(shape: dict[str, Any]) -> None:
    with pytest.raises(SimError, match="invalid launch"):
        _run("unset_shared", np.zeros(32, np.int32), np.int32(0), **shape)


def test_what_cuda_lacks_does_not_compile() -> None:
    wrong = "__global__ void k(long long* p) { atomicAdd(p, 1ll); }"
    with pytest.raises(BuildError):
        SimLauncher(texts={"wrong": wrong}).run(Kernel("wrong", "k"), 1, 32, (np.zeros(1, np.int64),), 0)


def _wide_sample_is_right(launcher: SimLauncher, fanout: int) -> bool:
    rng = np.random.default_rng(2)
    num_edges = 43 * fanout
    topology = Topology.in_memory(*csc_from_edges(30, rng.integers(0, 30, num_edges), rng.integers(0, 9, num_edges)))
    uniq, ptr, keys = np.arange(30, dtype=np.int32), np.array([0, 30]), np.array([5], np.uint64)
    expected = sample.sample_neighbors(topology, uniq, ptr, fanout, stream_keys=keys, shuffle=new_shuffle())
    device = DeviceTopology.place(launcher, topology)
    got = CudaOps(launcher).sample_neighbors(device, uniq, ptr, fanout, stream_keys=keys)
    return np.array_equal(got[1], expected[1])


_BARRIERS = {
    "    }\n  __syncwarp(ALL_LANES);\n  if (is_traced": 70,
    "heads[slot] = -1;\n  __syncwarp(ALL_LANES);": 1030,  # as many draws as shared memory does not hold
    "    }\n  }\n  __syncwarp(ALL_LANES);\n}": 1030,
}


@pytest.mark.parametrize("barrier", _BARRIERS)
def test_a_barrier_taken_out_of_our_kernels_shows(barrier: str) -> None:
    text, fanout = source_text("sample"), _BARRIERS[barrier]
    assert text.count(barrier) == 1
    planted = text.replace(barrier, barrier.replace("__syncwarp(ALL_LANES);", ""))
    assert all(_wide_sample_is_right(SimLauncher(schedule), fanout) for schedule in Schedule)
    broken = (SimLauncher(schedule, texts={"sample": planted}) for schedule in Schedule)
    assert not all(_wide_sample_is_right(launcher, fanout) for launcher in broken)


def test_memory_that_nobody_wrote_is_poisoned() -> None:
    xp = SimLauncher().xp
    for made in (xp.empty(3, np.float32), xp.empty_like(np.zeros((2, 2)))):
        assert np.isnan(made).all()
    for dtype in (np.int32, np.int64, np.uint8, np.uint64):
        made = xp.empty((4, 0 if dtype is np.uint8 else 2), dtype)
        assert made.dtype == dtype
        assert (made.view(np.uint8) == 0xA5).all()
    assert (xp.__name__, xp.ndarray, xp.zeros) == ("numpy", np.ndarray, np.zeros)
