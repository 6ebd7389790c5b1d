"""Advice follows from sizes and measured rates, and the run afterwards says how far off it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from conf.load import load_config
from conf.schema import PipelineConfig
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from kernels.topology import Topology
from storage.blocks.probe import DiskSpeed, probe_disk
from tasks.advise import Machine, advise, decide, expected_batch, hyperbatch_read_bytes, workload
from tasks.predictions import keep_prediction, prediction_errors
from tasks.sources import open_source

SMALL = ("data.demo.nodes=2000", "data.demo.edges=20000", "sampling.batch_size=100", "sampling.fanouts=[3, 4]")


def config(tmp_path: Path, *overrides: str) -> PipelineConfig:
    return load_config("demo", [*SMALL, f"state_dir={tmp_path}", *overrides])


def machine(memory_bytes: int) -> Machine:
    return Machine(memory_bytes, 1 << 40, 2, "", DiskSpeed(True, 1e9, 10_000.0))


def test_what_fits_is_trained_in_memory_and_what_does_not_from_disk(tmp_path: Path) -> None:
    asked = config(tmp_path, "cache.device_budget=1MB")
    work = workload(asked, open_source(asked.data))
    assert (work.num_nodes, work.num_edges, work.train_nodes, work.row_bytes) == (2000, 20_000, 200, 256)
    roomy, tight = decide(asked, machine(1 << 30), work), decide(asked, machine(1 << 20), work)
    assert (roomy.mode, roomy.settings["storage.mode"], roomy.epoch_read_bytes) == ("memory", "memory", 0)
    assert (tight.mode, tight.settings["host_budget"]) == ("storage", str(1 << 20))
    assert work.num_batches == 2
    assert 0 < tight.epoch_read_bytes <= 2 * work.data_bytes, "no block is read twice for a hyperbatch"
    assert tight.epoch_s >= tight.epoch_read_bytes / 1e9
    assert roomy.epoch_s > 0


def test_larger_hyperbatches_read_less(tmp_path: Path) -> None:
    asked = config(tmp_path)
    work = workload(asked, open_source(asked.data))
    one, two = (hyperbatch_read_bytes(work, count, 4096) for count in (1, 2))
    assert one < two < 2 * one


def test_the_expected_batch_is_near_a_sampled_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    topology = Topology.in_memory(np.arange(5001) * 10, rng.integers(0, 5000, 50_000).astype(np.int32))
    nodes, edges = expected_batch(5000, 50_000, 100, config(tmp_path))
    sampler = NeighborSampler(topology, (3, 4), seed=0, purpose=Purpose.TRAIN)
    sample = sampler.sample([rng.permutation(5000)[:100]], epoch=0, first_batch=0).samples[0]
    assert edges == pytest.approx([hop.num_edges for hop in sample.hops], rel=0.05)
    assert nodes[-1] == pytest.approx(len(sample.input_nodes), rel=0.1), "nodes expanded twice find the same neighbors"


@pytest.mark.parametrize(
    ("rate", "small", "expected"), [(1e9, 10_000.0, 1 << 20), (1e9, 1e6, 64 << 10), (200e6, 100.0, 4 << 20)]
)
def test_slow_small_reads_ask_for_large_blocks(rate: float, small: float, expected: int) -> None:
    assert DiskSpeed(True, rate, small).efficient_block_bytes == expected


def test_the_disk_is_measured(tmp_path: Path) -> None:
    speed = probe_disk(tmp_path, 0.2)
    assert speed.bytes_per_s > 4096 * speed.small_reads_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_all_of_it(tmp_path: Path) -> None:
    advice = advise(config(tmp_path), seconds=0.1)
    assert advice.mode == "memory"
    assert any("2,000 nodes" in reason for reason in advice.reasons)


def test_a_run_is_compared_with_its_own_prediction_only(tmp_path: Path) -> None:
    asked = config(tmp_path)
    assert prediction_errors(asked, {"epoch_s": 3.0}) == {}
    in_memory = {"storage.mode": "memory", "layout.block_bytes": "65536"}
    keep_prediction(asked, in_memory, {"epoch_s": 2.0, "epoch_read_bytes": 0.0})
    assert prediction_errors(asked, {"epoch_s": 3.0, "epoch_read_bytes": 5.0}) == {
        "advice/epoch_s": 2.0,
        "advice/epoch_s_error": 0.5,
    }
    for other in ("sampling.fanouts=[9, 9]", "storage.mode=storage", "backend=cpu"):
        assert prediction_errors(config(tmp_path, other), {"epoch_s": 3.0}) == {}, other
    assert prediction_errors(config(tmp_path, "host_budget=2GB"), {"epoch_s": 3.0}) != {}


def test_a_prediction_for_training_from_disk_holds_for_its_settings_only(tmp_path: Path) -> None:
    settings = {"storage.mode": "storage", "layout.block_bytes": "65536", "host_budget": "1000000000"}
    keep_prediction(config(tmp_path), settings, {"epoch_s": 2.0, "epoch_read_bytes": 10.0})
    followed = [f"{name}={value}" for name, value in settings.items()]
    figures = prediction_errors(config(tmp_path, *followed), {"epoch_s": 3.0, "epoch_read_bytes": 5.0})
    assert figures["advice/epoch_read_bytes_error"] == -0.5
    for other in ([], [*followed, "host_budget=2GB"], [*followed, "layout.block_bytes=4096"]):
        assert prediction_errors(config(tmp_path, *other), {"epoch_s": 3.0}) == {}, other
