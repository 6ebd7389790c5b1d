"""The adjacency as device kernels see it: offsets and cached lists on the device, all lists in host memory below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cuda.launch import Array, Launcher
from kernels.topology import Topology

_WIDE_DEGREE = 2**32


@dataclass(frozen=True, slots=True)
class DeviceTopology:
    """A `Topology` within reach of one device; what is cached never changes what is sampled."""

    indptr: Array
    """(num_nodes + 1,) int64 on the device."""
    indices: Any
    """(num_edges,) ids: on the device, or a host array that the device reads through UVA."""
    indices_address: int
    """Where `indices` begins for kernels."""
    has_cache: bool
    """Whether there is an adjacency cache."""
    bits: Array
    """Bitmap of the cached ids (`RankMap.bits`), one word without a cache."""
    rank: Array
    """Its ranks (`RankMap.rank`)."""
    cached_indptr: Array
    """(num_cached + 1,) int64 offsets on the device."""
    cached_indices: Array
    """Copies of the cached lists on the device."""
    largest_degree: int
    """Length of the longest list: chooses the width of positions."""

    @classmethod
    def place(cls, launcher: Launcher, topology: Topology, indices: Any | None = None) -> DeviceTopology:
        """Bring a topology within reach of the device.

        Parameters
        ----------
        launcher : Launcher
        topology : Topology
        indices : array, optional
            Where the lists of all nodes are read: a device array, or host memory that the device reaches. By default
            `topology.indices` is copied to the device.
        """
        indices = launcher.to_device(topology.indices) if indices is None else indices
        cached = topology.cached
        degrees = topology.in_degree()
        return cls(
            launcher.to_device(topology.indptr),
            indices,
            launcher.address(indices),
            cached is not None,
            launcher.to_device(np.zeros(1, np.uint64) if cached is None else cached.bits),
            launcher.to_device(np.zeros(1, np.uint32) if cached is None else cached.rank),
            launcher.to_device(topology.cached_indptr),
            launcher.to_device(topology.cached_indices),
            int(degrees.max(initial=0)),
        )

    @property
    def position_type(self) -> str:
        """C++ type that holds every position in a list."""
        return "u32" if self.largest_degree < _WIDE_DEGREE else "u64"
