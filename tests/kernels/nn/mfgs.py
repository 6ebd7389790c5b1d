"""Drawn message-flow graphs, and the whole-graph hop that layers are compared on."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from kernels.mfg import Mfg
from kernels.nn.layers import NodeDegrees


@st.composite
def mfgs(draw: st.DrawFn, *, max_src: int = 12, max_dst: int = 8, max_degree: int = 11) -> Mfg:
    """Hops with empty rows, multi-edges and rows longer than one unrolled pass, down to no rows at all."""
    num_src = draw(st.integers(0, max_src))
    num_dst = draw(st.integers(0, min(num_src, max_dst)))
    row = st.lists(st.integers(0, max(num_src - 1, 0)), max_size=max_degree)
    rows = [draw(row) for _ in range(num_dst)]
    indptr = np.cumsum([0, *(len(sources) for sources in rows)], dtype=np.int64)
    return Mfg(indptr, np.array([s for sources in rows for s in sources], np.int32), num_src)


def random_mfg(num_dst: int, num_src: int, max_degree: int, *, seed: int = 0) -> Mfg:
    """Large hop with degrees from 0 to `max_degree`."""
    rng = np.random.default_rng(seed)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, max_degree + 1, num_dst))]).astype(np.int64)
    return Mfg(indptr, rng.integers(0, num_src, indptr[-1]).astype(np.int32), num_src)


def destinations(mfg: Mfg) -> torch.Tensor:
    """(num_edges,) destination of each edge."""
    return torch.from_numpy(np.repeat(np.arange(mfg.num_dst), np.diff(mfg.indptr)))


def sources(mfg: Mfg) -> torch.Tensor:
    """(num_edges,) source of each edge."""
    return torch.from_numpy(mfg.indices.astype(np.int64))


def whole_graph(num_nodes: int, mean_degree: int, *, seed: int = 0) -> tuple[Mfg, NodeDegrees, torch.Tensor]:
    """A directed multigraph as one hop onto itself, its degrees and its dense (dst, src) adjacency of edge counts."""
    rng = np.random.default_rng(seed)
    num_edges = num_nodes * mean_degree
    dst, src = np.sort(rng.integers(1, num_nodes, num_edges)), rng.integers(0, num_nodes - 1, num_edges)
    in_degree = np.bincount(dst, minlength=num_nodes)
    mfg = Mfg(np.concatenate([[0], np.cumsum(in_degree)]).astype(np.int64), src.astype(np.int32), num_nodes)
    adjacency = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    adjacency.index_put_(
        (torch.from_numpy(dst), torch.from_numpy(src)), torch.ones(num_edges).double(), accumulate=True
    )
    return mfg, NodeDegrees(in_degree, np.bincount(src, minlength=num_nodes)), adjacency
