"""What training says that it takes of a GPU, against what it takes on the host shim: arrays and tensors counted."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.cuda.current import launching_through
from tasks.device_compute import DeviceCompute
from tasks.device_memory import RESERVE_BYTES, numbering_bytes
from tasks.in_memory import InMemory
from tasks.peers import Alone
from tasks.training_epoch import EpochTrainer
from tasks.training_types import TrainData
from tests.cudasim.build import GXX
from tests.cudasim.launcher import SimLauncher
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data

if GXX is None:
    pytest.skip("g++ is not installed: training on the device is NOT tested here", allow_module_level=True)

_HOST_NOISE = 600_000
"""Bytes of Python objects, and of what the host keeps beside the device: labels of a step, queues, threads."""
BIG = replace(OPTIONS, batch_size=200, superbatch=2, fanouts=(6, 6), hidden=32, epochs=1)


@pytest.fixture(scope="module")
def data() -> Data:
    with launching_through(SimLauncher()):  # compiled code is loaded once, and is not the device's
        for kind in ("sage", "gat"):
            community_data().train(replace(OPTIONS, kind=kind, epochs=1, backend="cuda"))
    made = community_data(12_000)
    splits = replace(made.splits, train=made.splits.train[:: len(made.splits.train) // 1000])
    return replace(made, rows=np.random.default_rng(0).random((12_000, 64), np.float32), splits=splits)


class _Tensors(TorchDispatchMode):
    """Most bytes of the storages that PyTorch had at once; those over NumPy's memory are not its own."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._held = 0, dict[StorageWeakRef, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().resizable():
                self._held[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self._held = {storage: size for storage, size in self._held.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._held.values()))
        return out


@contextmanager
def _peaks() -> Iterator[list[int]]:
    """Most bytes of NumPy's arrays, and of PyTorch's tensors, that were held at once above what there was."""
    found: list[int] = []
    tracemalloc.start()
    try:
        with _Tensors() as tensors:
            yield found
        arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    found += [arrays, tensors.peak]


@pytest.mark.parametrize(
    "changes",
    [{}, {"input_dropout": 0.0}, {"kind": "gat", "heads": 4, "superbatch": 1}],
    ids=["copied", "in place", "gat"],
)
def test_training_takes_no_more_than_it_says(data: Data, changes: dict[str, Any]) -> None:
    options = replace(BIG, **changes, backend="cuda")
    features = data.features(3000, stands_in=False)
    source = InMemory(data.topology, features)
    whole = TrainData(source, data.labels, data.splits.labelled(data.labels), data.degrees, NUM_CLASSES, "")
    with launching_through(SimLauncher()), _peaks() as peaks, EpochTrainer(whole, options, Alone()) as epochs:
        epochs.run(0)
        compute = epochs._compute
    assert isinstance(compute, DeviceCompute)
    said, taken = compute.needs.total - RESERVE_BYTES, sum(peaks)
    assert taken - _HOST_NOISE <= said
    assert said <= 3 * taken


def test_a_hash_table_takes_what_is_said() -> None:
    for entries in (0, 1, 17, 1000):
        slots = 1 << max(5, (2 * entries - 1).bit_length()) if entries else 1
        assert numbering_bytes(entries, 4) == 12 * slots + 44 * entries
