"""Prints how many bytes go back to the system when exact evaluation begins where training has left a free heap.

`python -m tests.tasks.heap_after_training STORE FOLDER`, in a process of its own, whose heap nobody else has grown.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from kernels.cpu.heap import give_back_large_arrays, reused_heap
from kernels.nn.model import ModelSpec, build_model
from storage.blocks.stored_features import StoredFeatures
from storage.blocks.stored_topology import StoredTopology
from storage.graph_store import GraphStore
from tasks.tiled_inference import TiledInference
from tests.kernels.test_heap import resident_bytes

MB = 1 << 20
NONE = np.empty(0, np.int64)


def main() -> None:
    """Run one batch of outputs beside a hole in the heap that was used since."""
    give_back_large_arrays()
    with reused_heap(64 * MB):
        step = np.empty(60 * MB, np.uint8)
        above = bytes(100_000)  # else the heap would end where the step began
        del step
    with (
        GraphStore.open(Path(sys.argv[1])) as store,
        StoredTopology(store, NONE, buffer_bytes=MB) as topology,
        StoredFeatures(store, NONE, buffer_bytes=MB) as features,
    ):
        spec = ModelSpec("sage", store.info.feature_dim, 8, 4, 2)
        inference = TiledInference(topology, features, None, spec, budget_bytes=MB, directory=Path(sys.argv[2]))
        model = build_model(spec, seed=0)
        list(inference.stream(model))  # loads all code
        np.empty(48 * MB, np.uint8).fill(1)
        before = resident_bytes()
        next(inference.stream(model))
        sys.stdout.write(str(before - resident_bytes()))
    assert above


if __name__ == "__main__":
    main()
