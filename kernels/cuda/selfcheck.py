"""One mini-batch on the GPU against the CPU: `python -m kernels.cuda.selfcheck` prints what differs, as JSON.

With `--pinning` it says what keeps host memory from being pinned. Run in a process of its own, so that a kernel that
hangs or breaks the driver's context costs nothing but this check.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cuda.current import cuda_launcher, launching_through
from kernels.cuda.device_rows import DeviceRows
from kernels.cuda.gather import check_rows, row_addresses
from kernels.cuda.host_rows import HostRows, PageableRows, PinnedRows
from kernels.cuda.launch import DeviceLauncher, PinnedMemoryError
from kernels.cuda.sampler import CudaSampler
from kernels.cuda.tiers import DeviceTiers
from kernels.cuda.topology import DeviceTopology
from kernels.mfg import Sample, SuperBatch
from kernels.nn.layers import Rows
from kernels.nn.model import GnnModel, ModelSpec, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology

_NODES, _SEEDS, _WIDTH, _CLASSES = 2000, 60, 24, 7
_FANOUTS = (4, 10)
_PINNED_BYTES = 256 << 20
_TOLERANCE = 1e-3
Floats = npt.NDArray[np.float32]


def differences(launcher: DeviceLauncher) -> list[str]:
    """Names of what the device does otherwise than the CPU: sampling, gathering, training.

    Parameters
    ----------
    launcher : DeviceLauncher

    Returns
    -------
    list of str
        Empty where all is well.
    """
    topology, features = _graph()
    batches = [np.arange(first, first + _SEEDS, dtype=np.int32) for first in (0, 500)]
    on_cpu = NeighborSampler(topology, _FANOUTS, seed=1, purpose=Purpose.TRAIN)
    expected = on_cpu.sample(batches, epoch=0, first_batch=0)
    with ExitStack() as opened, launcher.stream():
        host, lists = _in_reach(launcher, features, topology, opened)
        sampler = CudaSampler(launcher, DeviceTopology.place(launcher, topology, lists), on_cpu)
        sampled = sampler.sample(batches, epoch=0, first_batch=0)
        if not _same_samples(launcher, sampled, expected):
            return ["sampling"]
        tiers = DeviceTiers(launcher, host, np.arange(0, _NODES, 3))
        ids = [sample.input_nodes for sample in sampled.samples]
        copied, placed = tiers.gather_group(ids), tiers.locate_group(ids)
        for rows, place, sample in zip(copied.rows, placed.rows, expected.samples, strict=True):
            if not _is_inside(launcher, place) or not np.array_equal(
                launcher.to_host(rows), features[sample.input_nodes]
            ):
                return ["gathering"]
        return _of_training(launcher, sampled.samples[0], placed.rows[0], expected.samples[0], features)


def _in_reach(
    launcher: DeviceLauncher, features: Floats, topology: Topology, opened: ExitStack
) -> tuple[HostRows, Any | None]:
    """Rows and lists as training would have them: pinned, or copied where that is refused."""
    try:
        for array in (topology.indices, features):
            launcher.reach(array)
            opened.callback(launcher.release, array)
    except PinnedMemoryError:
        return PageableRows(launcher, features), None
    return PinnedRows(launcher, features), topology.indices


def _graph() -> tuple[Topology, Floats]:
    """Lists of all lengths, empty ones and hubs among them."""
    rng = np.random.default_rng(0)
    degree = np.minimum(rng.zipf(1.6, _NODES) * 3, _NODES)
    degree[::9] = 0
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    indices = rng.integers(0, _NODES, indptr[-1]).astype(np.int32)
    return Topology.in_memory(indptr, indices), rng.random((_NODES, _WIDTH), np.float32)


def _same_samples(launcher: DeviceLauncher, found: SuperBatch, expected: SuperBatch) -> bool:
    for one, other in zip(found.samples, expected.samples, strict=True):
        pairs = [(one.input_nodes, other.input_nodes), (one.seed_inverse, other.seed_inverse)]
        for hop, wanted in zip(one.hops, other.hops, strict=True):
            pairs += [(hop.indptr, wanted.indptr), (hop.indices, wanted.indices)]
        if not all(np.array_equal(launcher.to_host(got), right) for got, right in pairs):
            return False
    return True


def _is_inside(launcher: DeviceLauncher, rows: DeviceRows) -> bool:
    """Whether each row is one of its tier."""
    _, bad = row_addresses(launcher, rows.table, rows.tier_n, rows.slot_n)
    try:
        check_rows(launcher, bad, rows.tier_n, rows.slot_n)
    except ValueError:
        return False
    return True


def _of_training(launcher: DeviceLauncher, sample: Sample, rows: Rows, on_cpu: Sample, features: Floats) -> list[str]:
    """Logits and gradients of one step of each kind of layer, to rounding."""
    found = []
    for kind in ("sage", "gat"):
        spec = ModelSpec(kind, _WIDTH, 16, _CLASSES, len(_FANOUTS), heads=2 if kind == "gat" else None)
        expected = _step(build_model(spec, seed=0), on_cpu, torch.from_numpy(features[on_cpu.input_nodes]))
        with launching_through(launcher):
            got = _step(build_model(spec, seed=0).to(launcher.torch_device), sample, rows)
        if not all(_is_close(one, other) for one, other in zip(got, expected, strict=True)):
            found.append(f"training ({kind})")
    return found


def _is_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors agree as a whole: rounding may turn a ReLU on or off, and then few elements differ a lot."""
    difference = torch.linalg.vector_norm(found - expected)
    return bool(difference <= _TOLERANCE * (torch.linalg.vector_norm(expected) + 1e-3))


def _step(model: GnnModel, sample: Sample, rows: Rows) -> list[torch.Tensor]:
    logits = model(sample.hops, rows)
    logits.cos().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [tensor.detach().cpu() for tensor in (logits, *gradients)]


def refusal(launcher: DeviceLauncher) -> str:
    """What the driver says to pinning some host memory; empty where it does so."""
    array = np.zeros(_PINNED_BYTES, np.uint8)
    try:
        launcher.release(launcher.reach(array))
    except PinnedMemoryError as error:
        return str(error)
    return ""


def main() -> None:
    """Print `{"fault": "..."}`, empty where there is none."""
    launcher = cuda_launcher(0)
    if sys.argv[1:] == ["--pinning"]:
        fault = refusal(launcher)
    else:
        found = differences(launcher)
        fault = f"it does not compute what the CPU does: {', '.join(found)}" if found else ""
    sys.stdout.write(json.dumps({"fault": fault}) + "\n")


if __name__ == "__main__":
    main()
