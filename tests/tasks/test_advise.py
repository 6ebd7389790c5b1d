"""Advice follows from the stages' own arithmetic and measured rates, and the run afterwards says how far off it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conf.load import load_config
from conf.schema import PipelineConfig
from storage.blocks.probe import DiskSpeed, probe_disk
from storage.graph_store import GraphStore
from storage.ingest import ingest
from tasks.advise import Advice, Machine, advise, decide, plan_of, workload
from tasks.expected_graph import expect_graph
from tasks.predictions import keep_prediction, prediction_errors
from tasks.sources import ingest_options, open_source

SMALL = ("data.demo.nodes=2000", "data.demo.edges=20000", "sampling.batch_size=100", "sampling.fanouts=[3, 4]")
DISK = DiskSpeed(True, 1e9, 10_000.0, 1.5e9, 1e9)


def config(tmp_path: Path, *overrides: str) -> PipelineConfig:
    return load_config("demo", [*SMALL, f"state_dir={tmp_path}", *overrides])


def machine(memory_bytes: int) -> Machine:
    return Machine(memory_bytes, 1 << 40, 2, "", DISK)


def advice_for(asked: PipelineConfig, memory_bytes: int) -> Advice:
    source = open_source(asked.data)
    return decide(asked, source, machine(memory_bytes), workload(asked, expect_graph(asked, source, 60.0)))


def test_what_fits_is_trained_in_memory_and_what_does_not_from_disk(tmp_path: Path) -> None:
    asked = config(tmp_path, "cache.device_budget=1MB", "data.demo.nodes=20000", "data.demo.edges=200000")
    roomy, tight = advice_for(asked, 1 << 30), advice_for(asked, 5 << 20)
    assert (roomy.mode, roomy.settings["storage.mode"]) == ("memory", "memory")
    assert (roomy.epoch.read_bytes, roomy.hyperbatch) == (0, 0)
    assert (tight.mode, int(tight.settings["host_budget"])) == ("storage", max(tight.smallest_host_budget.values()))
    data_bytes, small = 20_000 * (4 * 64 + 8) + 200_000 * 4, advice_for(config(tmp_path, "storage.mode=storage"), 1)
    assert 20_000 * 4 * 64 <= tight.epoch.read_bytes < 50 * data_bytes
    assert small.epoch.read_bytes == 0, "all of it stays in the buffers"
    assert min(roomy.epoch.seconds, tight.epoch.seconds, roomy.evaluation.seconds, tight.evaluation.seconds) > 0
    assert tight.evaluation.read_bytes > 0


@pytest.mark.parametrize(
    "model",
    [("model.kind=gcn",), ("model.kind=gat",), ("model.kind=mlp", "sampling.fanouts=[]"), ("model.norm=batch",)],
)
def test_every_network(tmp_path: Path, model: tuple[str, ...]) -> None:
    asked = config(tmp_path, *model, "storage.mode=storage")
    told = advice_for(asked, 1 << 30)
    assert told.epoch.seconds > 0
    assert (told.evaluation.seconds > 0) == (told.evaluation.read_bytes > 0) == ("model.kind=mlp" not in model)


def test_a_budget_too_small_gives_way_to_the_smallest(tmp_path: Path) -> None:
    tight = advice_for(config(tmp_path), 1000)
    assert tight.settings["host_budget"] == str(max(tight.smallest_host_budget.values()))
    assert set(tight.smallest_host_budget) == {"ingest", "reorder", "profile", "cache", "train"}
    assert advice_for(config(tmp_path), int(tight.settings["host_budget"])).settings == tight.settings


def test_what_is_expected_of_a_graph_is_what_its_store_holds(tmp_path: Path) -> None:
    asked = config(tmp_path)
    expected = expect_graph(asked, open_source(asked.data), 60.0).store
    ingest(open_source(asked.data), ingest_options(asked), tmp_path / "graph.h5")
    with GraphStore.open(tmp_path / "graph.h5") as store:
        names = set(store.datasets)
        assert set(expected.datasets) == names | {"nodes/new_to_old"}, "which the layout adds"
        assert {name: store.nbytes(name) for name in names} == {name: expected.nbytes(name) for name in names}
        blocks = {name: (store.extent(name).num_blocks, expected.extent(name).num_blocks) for name in names}
        assert all(found == foreseen for found, foreseen in blocks.values()), blocks
        assert replace(store.info, order="degree") == expected.info


def test_larger_hyperbatches_read_less(tmp_path: Path) -> None:
    asked = config(tmp_path, "storage.mode=storage")
    work = workload(asked, expect_graph(asked, open_source(asked.data), 60.0))
    one, two = (
        plan_of(replace_hyperbatch(asked, count), work, 64 << 20).traffic(work.first.sizes).read for count in (1, 2)
    )
    assert two < one <= 2 * two


def replace_hyperbatch(asked: PipelineConfig, count: int) -> PipelineConfig:
    return asked.model_copy(update={"storage": asked.storage.model_copy(update={"hyperbatch": count})})


@pytest.mark.parametrize(
    ("rate", "small", "expected"), [(1e9, 10_000.0, 1 << 20), (1e9, 1e6, 64 << 10), (200e6, 100.0, 4 << 20)]
)
def test_slow_small_reads_ask_for_large_blocks(rate: float, small: float, expected: int) -> None:
    assert DiskSpeed(True, rate, small, rate, rate).efficient_block_bytes == expected


def test_the_disk_is_measured(tmp_path: Path) -> None:
    speed = probe_disk(tmp_path, 0.2)
    assert speed.bytes_per_s > 4096 * speed.small_reads_per_s > 0
    assert min(speed.streamed_bytes_per_s, speed.written_bytes_per_s) > 0
    assert list(tmp_path.iterdir()) == []


def test_all_of_it(tmp_path: Path) -> None:
    advice = advise(config(tmp_path), seconds=0.1)
    assert advice.mode == "memory"
    assert any("2,000 nodes" in reason for reason in advice.reasons)
    assert set(advice.prediction) == {
        "epoch_s",
        "epoch_read_bytes",
        "evaluation_s",
        "evaluation_read_bytes",
        "hyperbatch",
    }


def test_a_run_is_compared_with_its_own_prediction_only(tmp_path: Path) -> None:
    asked = config(tmp_path)
    assert prediction_errors(asked, {"epoch_s": 3.0}) == {}
    in_memory = {"storage.mode": "memory", "layout.block_bytes": "65536"}
    keep_prediction(asked, in_memory, {"epoch_s": 2.0, "epoch_read_bytes": 0.0, "evaluation_s": 4.0})
    assert prediction_errors(asked, {"epoch_s": 3.0, "epoch_read_bytes": 5.0, "evaluation_s": 2.0}) == {
        "advice/epoch_s": 2.0,
        "advice/epoch_s_error": 0.5,
        "advice/evaluation_s": 4.0,
        "advice/evaluation_s_error": -0.5,
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
