"""The fused aggregate beside torch's sparse product and `index_add`: milliseconds forward, and forward plus backward.

`python -m tests.benchmarks.bench_aggregate [--threads N]` ends with one JSON line. Graphs are uniformly random;
medians of nine runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch

from kernels.mfg import Mfg
from kernels.nn.aggregate import aggregate
from tests.benchmarks.report import publish
from tests.kernels.nn.mfgs import destinations, random_mfg, sources

# (destinations, sources, largest degree, width)
SHAPES = ((80_000, 500_000, 20, 128), (10_000, 80_000, 20, 64), (10_000, 60_000, 30, 16), (1_000, 10_000, 20, 256))


def contenders(mfg: Mfg, h: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """The same sum, three ways; what is converted beforehand is not timed."""
    dst, src = destinations(mfg), sources(mfg)
    shape = (mfg.num_dst, mfg.num_src)
    indptr, ones = torch.from_numpy(mfg.indptr), torch.ones(mfg.num_edges)
    sparse = torch.sparse_csr_tensor(indptr, src, ones, shape, check_invariants=False)
    return {
        "ours": lambda: aggregate(mfg, h),
        "sparse_csr": lambda: sparse @ h,
        "index_add": lambda: h.new_zeros(mfg.num_dst, h.shape[1]).index_add(0, dst, h[src]),
    }


def median_ms(call: Callable[[], object]) -> float:
    """Median of nine timed calls after one to warm up."""
    call()
    times = []
    for _ in range(9):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(times), 3)


def measure(num_dst: int, num_src: int, max_degree: int, width: int) -> dict[str, dict[str, float]]:
    """Time one shape."""
    mfg = random_mfg(num_dst, num_src, max_degree)
    h, grad = torch.randn(num_src, width, requires_grad=True), torch.randn(num_dst, width)
    figures = {}
    for name, call in contenders(mfg, h).items():
        both = median_ms(lambda call=call: torch.autograd.grad(call(), h, grad))  # type: ignore[misc]
        figures[name] = {"forward_ms": median_ms(call), "forward_backward_ms": both}
    return figures


def main() -> None:
    """Measure all shapes and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    figures: dict[str, object] = {"threads": torch.get_num_threads()}
    for shape in SHAPES:
        name = "{}x{}_deg{}_width{}".format(*shape)
        figures[name] = measured = measure(*shape)
        print(name, measured, flush=True)
    publish("bench_aggregate", figures)


if __name__ == "__main__":
    main()
