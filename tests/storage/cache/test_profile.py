"""Access profiles against counting by hand."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest

from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.topology import Topology
from storage.blocks.stored_topology import StoredTopology
from storage.cache import pre_sampling
from storage.cache.pre_sampling import ProfileOptions, profile_accesses, write_profile
from storage.cache.profile import AccessProfile, StoredProfile, count_dtype
from storage.errors import ChecksumMismatchError, StorageError
from storage.graph_store import GraphStore
from tests.graphs import power_law_graph
from tests.storage.stores import BLOCK_BYTES, write_small_store

COUNTS = (
    "feature_count_N",
    "full_link_count_N",
    "adjacency_count_N",
    "heldout_feature_count_N",
    "heldout_adjacency_count_N",
)
TOPOLOGY = Topology.in_memory(*power_law_graph(300, 2400, seed=3))
TRAIN = np.arange(0, 300, 4)


def take_profile(
    nodes: npt.NDArray[np.int64] = TRAIN,
    fanouts: tuple[int, ...] = (4, 3),
    *,
    batch_size: int = 20,
    superbatch: int = 2,
    seed: int = 5,
    epochs: int = 2,
    heldout_epochs: int = 3,
    threads: int = 2,
    **others: object,
) -> AccessProfile:
    return profile_accesses(
        TOPOLOGY,
        nodes,
        fanouts,
        batch_size=batch_size,
        superbatch=superbatch,
        seed=seed,
        epochs=epochs,
        heldout_epochs=heldout_epochs,
        replace=False,
        threads=threads,
        **others,  # type: ignore[arg-type]
    )


def count_by_hand(purpose: Purpose, fanouts: tuple[int, ...], epochs: int) -> dict[str, npt.NDArray[np.int64]]:
    """Counts by the letter of their definitions, Eq. 4 with its sets and sums."""
    sampler = NeighborSampler(TOPOLOGY, fanouts, seed=5, purpose=purpose)
    counts = {name: np.zeros(300, np.int64) for name in ("feature", "adjacency", "full_link")}
    for job in pre_sampling._jobs(TRAIN, 20, 1, 5, purpose, epochs):
        (sample,) = sampler.sample(job.batches, epoch=job.epoch, first_batch=job.first_batch).samples
        for v in set(sample.input_nodes.tolist()):
            counts["feature"][v] += 1
            counts["full_link"][v] += 1
        for hop in sample.hops:
            for v in set(sample.input_nodes[: hop.num_dst].tolist()):
                counts["adjacency"][v] += 1
                counts["full_link"][v] += 1
            for v in set(sample.input_nodes[: hop.num_src].tolist()):
                counts["full_link"][v] += 1
    return counts


@pytest.mark.parametrize("fanouts", [(4, 3), (2, 2, 2), (-1,), ()])
def test_counts_follow_their_definitions(fanouts: tuple[int, ...]) -> None:
    profile = take_profile(fanouts=fanouts)
    chosen = count_by_hand(Purpose.PROFILE, fanouts, profile.epochs)
    heldout = count_by_hand(Purpose.HELDOUT, fanouts, profile.heldout_epochs)
    np.testing.assert_array_equal(profile.feature_count_N, chosen["feature"])
    np.testing.assert_array_equal(profile.adjacency_count_N, chosen["adjacency"])
    np.testing.assert_array_equal(profile.full_link_count_N, chosen["full_link"])
    np.testing.assert_array_equal(profile.heldout_feature_count_N, heldout["feature"])
    np.testing.assert_array_equal(profile.heldout_adjacency_count_N, heldout["adjacency"])
    assert profile.counts("input") == (profile.feature_count_N, profile.adjacency_count_N)
    assert profile.counts("full_link") == (profile.full_link_count_N, profile.adjacency_count_N)
    assert profile.counts("smoothed") == (profile.smoothed_feature_N, profile.smoothed_adjacency_N)


def test_every_seed_is_counted_once_an_epoch_the_last_partial_batch_too() -> None:
    profile = take_profile(fanouts=())
    assert profile.num_batches == 4
    np.testing.assert_array_equal(np.flatnonzero(profile.feature_count_N), TRAIN)
    assert set(profile.feature_count_N[TRAIN]) == {2}
    assert not profile.adjacency_count_N.any()


@pytest.mark.parametrize(("threads", "superbatch"), [(1, 1), (1, 4), (4, 1), (3, 100)])
def test_counts_do_not_depend_on_threads_and_superbatch(threads: int, superbatch: int) -> None:
    one, other = take_profile(), take_profile(threads=threads, superbatch=superbatch)
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_chosen_and_heldout_epochs_are_different_draws() -> None:
    profile = take_profile(epochs=3, heldout_epochs=3)
    assert (profile.feature_count_N != profile.heldout_feature_count_N).any()
    assert (profile.feature_count_N != take_profile(seed=6, epochs=3).feature_count_N).any()


def test_no_epoch_order_is_that_of_training() -> None:
    def first_batch(purpose: Purpose) -> tuple[int, ...]:
        return tuple(next(pre_sampling._jobs(TRAIN, 20, 1, 5, purpose, 1)).batches[0].tolist())

    training = tuple(shuffled_batches(TRAIN, 20, seed=5, epoch=0)[0].tolist())
    orders = [training, first_batch(Purpose.PROFILE), first_batch(Purpose.HELDOUT)]
    assert len(set(orders)) == 3


def test_progress_counts_up_to_all_batches() -> None:
    seen: list[tuple[int, int]] = []
    take_profile(superbatch=3, progress=lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [20] * len(seen)
    assert [done for done, _ in seen] == [3, 4, 7, 8, 11, 12, 15, 16, 19, 20]


def test_an_error_in_progress_ends_the_profile() -> None:
    def fail(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_profile(progress=fail)


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ChecksumMismatchError("damaged")

    monkeypatch.setattr(NeighborSampler, "sample", fail)
    with pytest.raises(ChecksumMismatchError):
        take_profile()


def test_seeds_must_be_nodes() -> None:
    with pytest.raises(ValueError, match="seed node 300"):
        take_profile(nodes=np.array([2, 300]))


def test_nothing_to_train_on() -> None:
    profile = take_profile(nodes=np.empty(0, np.int64))
    assert profile.num_batches == 0
    assert not any(getattr(profile, name).any() for name in COUNTS)


@pytest.mark.parametrize("name", ["batch_size", "superbatch", "threads"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be >= 1 \(got 0\)"):
        take_profile(**{name: 0})  # type: ignore[arg-type]


def test_unknown_rule() -> None:
    with pytest.raises(ValueError, match="'input' or 'full_link'"):
        take_profile().counts("both")  # type: ignore[arg-type]


def test_round_trip(tmp_path: Path) -> None:
    profile = take_profile()
    profile.save(tmp_path / "profile.h5")
    loaded = AccessProfile.load(tmp_path / "profile.h5")
    assert (loaded.epochs, loaded.heldout_epochs, loaded.num_batches) == (2, 3, 4)
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(loaded, name), getattr(profile, name))


@pytest.mark.parametrize("counting", ["smoothed", "input", "full_link"])
def test_a_profile_written_as_it_is_counted_is_the_same(tmp_path: Path, counting: Any) -> None:
    sizes: dict[str, Any] = {
        "batch_size": 20, "superbatch": 2, "seed": 5, "epochs": 2, "heldout_epochs": 3, "threads": 2
    }  # fmt: skip
    options = ProfileOptions(replace=False, **sizes)
    accesses = write_profile(tmp_path / "profile.h5", TOPOLOGY, TRAIN, (4, 3), options)
    profile, loaded = take_profile(), AccessProfile.load(tmp_path / "profile.h5")
    for field in dataclasses.fields(profile):
        assert np.array_equal(getattr(loaded, field.name), getattr(profile, field.name)), field.name
    assert accesses == (profile.feature_count_N.sum(), profile.adjacency_count_N.sum())
    stored = StoredProfile(tmp_path / "profile.h5")
    for found, expected in zip(stored.counts(counting), profile.counts(counting), strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(stored.heldout_counts(), profile.heldout_counts(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_wide_counts_are_the_narrow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = take_profile()
    monkeypatch.setattr(pre_sampling, "count_dtype", lambda *_: np.dtype(np.int64))
    wide = take_profile()
    for name in (*COUNTS, "smoothed_feature_N", "smoothed_adjacency_N"):
        found, expected = getattr(narrow, name), getattr(wide, name)
        assert (found.dtype, expected.dtype) == (np.int32, np.int64)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("batches", "epochs", "heldout", "hops", "dtype"),
    [(2**20, 1, 1, 2, np.int32), (2**20, 1, 1, 3, np.int64), (2**19, 0, 1024, 3, np.int64), (0, 9, 9, 3, np.int32)],
)
def test_counts_are_as_wide_as_they_can_get(batches: int, epochs: int, heldout: int, hops: int, dtype: Any) -> None:
    assert count_dtype(batches, epochs, heldout, hops) == dtype


def test_counting_takes_20_bytes_a_node_and_a_profile_28(tmp_path: Path) -> None:
    num_nodes = 1 << 20
    topology = Topology.in_memory(np.arange(num_nodes + 1), np.arange(num_nodes, dtype=np.int32)[::-1].copy())
    sizes: dict[str, Any] = {
        "batch_size": 10, "superbatch": 1, "seed": 5, "epochs": 1, "heldout_epochs": 1, "threads": 1
    }  # fmt: skip
    nodes, options = np.arange(100), ProfileOptions(replace=False, **sizes)
    sampler_bytes = 8 * num_nodes

    def peak(work: Callable[[], object]) -> float:
        work()  # compiled, and what stays is there
        tracemalloc.start()
        work()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return (most - sampler_bytes) / num_nodes

    assert peak(lambda: write_profile(tmp_path / "p.h5", topology, nodes, (2,), options)) < 20.5
    assert 28 <= peak(lambda: profile_accesses(topology, nodes, (2,), replace=False, **sizes)) < 28.5


def test_damage_is_found(tmp_path: Path) -> None:
    take_profile().save(tmp_path / "profile.h5")
    with h5py.File(tmp_path / "profile.h5", "r+") as file:
        file["heldout_feature_count_N"][0] += 1
    with pytest.raises(ChecksumMismatchError, match="heldout_feature_count_N"):
        AccessProfile.load(tmp_path / "profile.h5")
    with h5py.File(tmp_path / "profile.h5", "r+") as file:
        del file.attrs["epochs"]
        file["heldout_feature_count_N"][0] -= 1
    with pytest.raises(StorageError, match="not a readable access profile"):
        AccessProfile.load(tmp_path / "profile.h5")


@pytest.mark.parametrize(("hyperbatch", "work_bytes"), [(1, 1 << 20), (3, 1 << 10), (50, 1 << 14), (50, 1 << 20)])
@pytest.mark.parametrize("indptr_buffer_bytes", [None, 2 * BLOCK_BYTES])
@pytest.mark.parametrize("fanouts", [(4, 3), (-1, 3, 2), ()])
def test_counts_from_disk_are_those_from_memory(
    tmp_path: Path, hyperbatch: int, work_bytes: int, indptr_buffer_bytes: int | None, fanouts: tuple[int, ...]
) -> None:
    write_small_store(tmp_path / "g.h5")
    with GraphStore.open(tmp_path / "g.h5") as store:
        fields: dict[str, Any] = {
            "batch_size": 64, "seed": 5, "epochs": 2, "heldout_epochs": 1, "replace": False, "threads": 2
        }  # fmt: skip
        nodes = store.read_split("train")
        in_memory = profile_accesses(
            Topology.in_memory(*store.read_adjacency()), nodes, fanouts, superbatch=2, **fields
        )
        buffers: dict[str, Any] = {"buffer_bytes": 2 * BLOCK_BYTES, "indptr_buffer_bytes": indptr_buffer_bytes}
        with StoredTopology(store, np.empty(0, np.int64), **buffers) as topology:
            fields |= {"superbatch": hyperbatch, "work_bytes": work_bytes}
            from_disk = profile_accesses(topology, nodes, fanouts, **fields)
    for field in dataclasses.fields(in_memory):
        expected, found = getattr(in_memory, field.name), getattr(from_disk, field.name)
        assert np.array_equal(found, expected), field.name
