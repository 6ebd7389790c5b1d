"""What training takes of a GPU's memory, from plain sizes: stated before anything is allocated there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.nn.model import ModelSpec
from storage.errors import MachineError
from tasks.step_costs import HopShape, step_bytes

RESERVE_BYTES = 512 << 20
"""For what nobody counts: code of kernels, workspaces of matrix products, blocks that the allocator keeps apart."""
_WITH_ROWS, _WITHOUT_ROWS = 2, 1
"""Super-batches on the device at once (`tasks.device_loader`)."""
_SLOT_BYTES = 12  # of a hash table: key and first position
_ENTRY_BYTES = 40  # of what is numbered: slot, flag, sums, and the copy that summing makes
_PLAN_BYTES = 48  # a row that is planned: address, degree, key, count, offset, and the copy that summing makes
_PLACE_BYTES = 17  # a requested row: tier, slot, address
_TRANSPOSED_BYTES = 48  # an edge while its hop is turned round: order, keys and values of the sort twice
_FACTOR_BYTES = 16  # a row of a hop: weights and scales


@dataclass(frozen=True, slots=True)
class SuperBatchSizes:
    """Sizes of the mini-batches of a super-batch, each at most so large."""

    shapes: tuple[HopShape, ...]
    """Hops, that of the seeds first."""
    inputs: int
    """Input nodes."""
    batches: int
    """K."""
    id_bytes: int
    """Of a node id."""
    row_bytes: int
    """Of a feature row."""
    num_nodes: int
    """Of the graph."""
    in_place: bool
    """Whether rows that lie on the device are read there."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one that is sampled: hops, input nodes in an array with room for repeats, seeds."""
        hops = sum(16 * (shape.num_dst + 2) + 4 * shape.num_edges for shape in self.shapes)
        last = self.shapes[-1] if self.shapes else HopShape(self.inputs, self.inputs, 0)
        return self.batches * (hops + self.id_bytes * (last.num_dst + last.num_edges) + 8 * self.inputs)

    @property
    def staged_rows(self) -> int:
        """Most rows that the group brings from host memory."""
        return min(self.batches * self.inputs, self.num_nodes)

    @property
    def rows_bytes(self) -> int:
        """Bytes of the rows of one: those staged, and copies of all or places of all."""
        asked = self.batches * self.inputs
        return self.staged_rows * self.row_bytes + asked * (_PLACE_BYTES if self.in_place else self.row_bytes)

    @property
    def sampling_scratch(self) -> int:
        """Bytes while a hop is sampled, of the hop that takes most."""
        most, room = 0, self.batches * (self.shapes[0].num_dst if self.shapes else self.inputs)
        for shape in self.shapes:
            entries = self.batches * (shape.num_dst + shape.num_edges)
            plan = room * (_PLAN_BYTES + self.id_bytes)
            most = max(most, plan + self.id_bytes * entries + numbering_bytes(entries, self.id_bytes))
            room = entries
        return max(most, numbering_bytes(room, self.id_bytes))

    @property
    def gathering_scratch(self) -> int:
        """Bytes while missed rows are listed and numbered."""
        asked = self.batches * self.inputs
        return asked * (2 * self.id_bytes + 9 + 24) + numbering_bytes(asked, self.id_bytes) + 8 * self.staged_rows

    @property
    def loading_bytes(self) -> int:
        """Bytes of all super-batches on the device and of what makes them."""
        held = (_WITH_ROWS + _WITHOUT_ROWS) * self.sample_bytes + _WITH_ROWS * self.rows_bytes
        return held + self.sampling_scratch + self.gathering_scratch


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """Bytes that training takes of a GPU."""

    caches: int
    """Planned rows and lists and the dynamic cache: at most `cache.device_budget`."""
    resident: int
    """Offsets, degrees, scores: what does not depend on the budget."""
    loading: int
    """Super-batches in flight."""
    step: int
    """Weights, gradients, optimizer, outputs of the layers."""

    @property
    def beside_caches(self) -> int:
        """Everything but the caches, the reserve included: what a budget has to leave."""
        return self.resident + self.loading + self.step + RESERVE_BYTES

    @property
    def total(self) -> int:
        """Everything."""
        return self.caches + self.beside_caches


def numbering_bytes(entries: int, id_bytes: int) -> int:
    """Bytes while nodes are numbered through a hash table (`kernels.cuda.unique`)."""
    slots = 1 << max(5, (2 * entries - 1).bit_length()) if entries else 1
    return _SLOT_BYTES * slots + (_ENTRY_BYTES + id_bytes) * entries


def device_step_bytes(spec: ModelSpec, sizes: SuperBatchSizes) -> int:
    """Bytes of a training step: the layers' rows and gradients, the largest hop turned round, rows as floats."""
    hops = sizes.shapes or (HopShape(sizes.inputs, sizes.inputs, 0),)
    turned = max(_TRANSPOSED_BYTES * hop.num_edges + 3 * _FACTOR_BYTES * hop.num_src for hop in hops)
    as_floats = 4 * spec.in_dim * sizes.inputs * (2 if spec.input_dropout else 1)
    return step_bytes(spec, sizes.shapes, sizes.inputs) + turned + as_floats


def check_device(needs: DeviceNeeds, free_bytes: int, *, loading_by_batches: Sequence[int] = ()) -> None:
    """Refuse what does not fit.

    Parameters
    ----------
    needs : DeviceNeeds
    free_bytes : int
        Of the device.
    loading_by_batches : sequence of int
        Bytes of super-batches in flight with 1, 2, ... mini-batches each.

    Raises
    ------
    MachineError
        Says what would do.
    """
    if needs.total <= free_bytes:
        return
    for_caches = free_bytes - needs.beside_caches
    smaller = [
        batches
        for batches, loading in enumerate(loading_by_batches, start=1)
        if replace(needs, loading=loading).total <= free_bytes
    ]
    ways = [f"use a GPU with {needs.total:,} bytes free"]
    if for_caches >= 0 and needs.caches:
        ways.insert(0, f"set cache.device_budget to at most {for_caches:,}")
    if smaller:
        ways.insert(0, f"set sampling.superbatch to {smaller[-1]}")
    elif for_caches < 0:
        ways.insert(0, "lower sampling.batch_size or sampling.fanouts")
    raise MachineError(
        f"the GPU has {free_bytes:,} bytes free, training takes {needs.total:,}: {needs.caches:,} for caches, "
        f"{needs.resident:,} for offsets and maps, {needs.loading:,} for super-batches in flight, {needs.step:,} for "
        f"the network, {RESERVE_BYTES:,} in reserve; {', or '.join(ways)}"
    )
