"""What drawing costs: Philox4x32-10 against the splitmix64 chain of `kernels.rng`, as shares of sampling time.

`python -m tests.benchmarks.bench_rng [--nodes 2000000 --edges 30000000]` ends with one JSON line. Figures are CPU
milliseconds of one thread a mini-batch (the median batch), so a busy machine disturbs them little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from kernels.cpu.draw import draw_rows
from kernels.cpu.intrinsics import multiply_high
from kernels.mfg import IdArray, Sample
from kernels.rng import Purpose, stream_key
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from tests.benchmarks.report import publish
from tests.graphs import power_law_graph

BATCH, NUM_BATCHES, CHUNK_EDGES = 8000, 24, 1024
FANOUTS = ((15, 10, 5), (5, 10, 15))
LARGEST_SHARE = 0.1  # the design's limit for Philox

I64Array = npt.NDArray[np.int64]
Row = tuple[np.uint64, IdArray, I64Array, int]
_32, _LOW = np.uint64(32), np.uint64(2**32 - 1)


@njit(nogil=True, inline="always")
def philox(key: np.uint64, counter_low: np.uint64, counter_high: np.uint64) -> tuple[np.uint64, np.uint64]:
    """128 bits of Philox4x32-10 (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter_low & _LOW, counter_low >> _32, counter_high & _LOW, counter_high >> _32
    k0, k1 = key & _LOW, key >> _32
    for _ in range(10):
        product_0, product_2 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (product_2 >> _32) ^ c1 ^ k0, (product_0 >> _32) ^ c3 ^ k1
        c1, c3 = product_2 & _LOW, product_0 & _LOW
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _LOW, (k1 + np.uint64(0xBB67AE85)) & _LOW
    return c0 | c1 << _32, c2 | c3 << _32


@njit(nogil=True)
def philox_rows(
    key: np.uint64, nodes: IdArray, degrees: I64Array, fanout: int, _replace: bool, draws: I64Array
) -> None:
    """As `draw_rows`; each call of the generator serves two draws."""
    at = 0
    for row in range(len(nodes)):
        for i in range(0, fanout, 2):
            words = philox(key, np.uint64(nodes[row]), np.uint64(i))
            draws[at + i] = i + np.int64(multiply_high(words[0], np.uint64(degrees[row] - i)))
            if i + 1 < fanout:
                draws[at + i + 1] = i + 1 + np.int64(multiply_high(words[1], np.uint64(degrees[row] - i - 1)))
        at += fanout


def check_philox() -> None:
    """Compare with the known answers that its authors publish."""
    ones = np.uint64(2**64 - 1)
    for found, expected in (
        (philox(np.uint64(0), np.uint64(0), np.uint64(0)), (0xE169C58D6627E8D5, 0x9B00DBD8BC57AC4C)),
        (philox(ones, ones, ones), (0x41C83B0E408F276D, 0x6D5451FDA20BC7C6)),
    ):
        if tuple(map(int, found)) != expected:
            raise RuntimeError(f"Philox gives {[hex(word) for word in map(int, found)]}")


def drawn_rows(sample: Sample, degree_N: I64Array, fanouts: tuple[int, ...]) -> list[Row]:
    """Rows of a sample that drew, in the chunks that the sampler draws them in."""
    rows: list[Row] = []
    for hop, (mfg, fanout) in enumerate(zip(sample.hops, reversed(fanouts), strict=True)):
        nodes = sample.input_nodes[: mfg.num_dst]
        nodes = nodes[degree_N[nodes] > fanout]
        key, size = stream_key(Purpose.TRAIN, 0, 0, sample.batch_index, hop), CHUNK_EDGES // fanout
        chunks = (nodes[start : start + size] for start in range(0, len(nodes), size))
        rows.extend((key, chunk, degree_N[chunk], fanout) for chunk in chunks)
    return rows


def cpu_ms(body: Callable[[], object]) -> float:
    """CPU milliseconds of this thread in one run."""
    start = time.thread_time()
    body()
    return (time.thread_time() - start) * 1e3


def draw_ms(draw: Callable[..., None], rows: list[Row], draws: I64Array) -> float:
    """CPU milliseconds to draw `rows`, less what calling for each chunk costs."""

    def run(count: int | None) -> None:
        for key, nodes, degrees, fanout in rows:
            draw(key, nodes[:count], degrees, fanout, False, draws)

    run(None)
    return cpu_ms(lambda: run(None)) - cpu_ms(lambda: run(0))


def measure(topology: Topology, fanouts: tuple[int, ...]) -> dict[str, Any]:
    """Milliseconds of sampling, and of its draws with either generator."""
    sampler = NeighborSampler(topology, fanouts, seed=0, purpose=Purpose.TRAIN)
    batches = shuffled_batches(np.arange(topology.num_nodes), BATCH, seed=0, epoch=0)[:NUM_BATCHES]
    degree_N, draws = topology.in_degree(), np.empty(CHUNK_EDGES, np.int64)
    times = []
    for i, batch in enumerate(batches):
        sampling = cpu_ms(lambda batch=batch, i=i: sampler.sample([batch], epoch=0, first_batch=i))  # type: ignore[misc]
        rows = drawn_rows(sampler.sample([batch], epoch=0, first_batch=i).samples[0], degree_N, fanouts)
        times.append((sampling, draw_ms(draw_rows, rows, draws), draw_ms(philox_rows, rows, draws)))
    sampling, mix, other = map(float, np.median(times[2:], axis=0))
    with_philox = sampling - mix + other
    return {
        "sampling_ms": round(sampling, 2),
        "mix_ms": round(mix, 2),
        "philox_ms": round(other, 2),
        "mix_share": round(mix / sampling, 3),
        "philox_share": round(other / with_philox, 3),
        "sampling_with_philox_over_mix": round(with_philox / sampling, 3),
    }


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2_000_000)
    parser.add_argument("--edges", type=int, default=30_000_000)
    arguments = parser.parse_args()
    check_philox()
    topology = Topology.in_memory(*power_law_graph(arguments.nodes, arguments.edges))
    figures: dict[str, Any] = {str(list(fanouts)): measure(topology, fanouts) for fanouts in FANOUTS}
    worst = max(run["philox_share"] for run in figures.values())
    publish(
        "bench_rng",
        {
            "nodes": arguments.nodes,
            "edges": arguments.edges,
            "batch": BATCH,
            **figures,
            "philox_is_over_a_tenth_of_sampling": worst > LARGEST_SHARE,
        },
    )


if __name__ == "__main__":
    main()
