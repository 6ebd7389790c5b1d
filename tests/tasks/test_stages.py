"""The five stages in one process, without Prefect around them: what they leave, keep, collect and refuse."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conf.load import load_config
from kernels import backend
from kernels.cuda.current import launching_through
from kernels.cuda.probe import Device, Probe
from storage.cache.plan import CachePlan
from storage.errors import BudgetError, InputError, MachineError
from storage.graph_store import GraphStore
from storage.locks import lock_file, locked
from tasks import memory
from tasks.build_cache import build_cache
from tasks.ingest import ingest_graph
from tasks.predictions import keep_prediction
from tasks.profile import profile_graph
from tasks.reorder import reorder_graph
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE
from tasks.specs import STAGES
from tasks.tracking import Tracking, open_client
from tasks.train import train_model
from tests.cudasim.build import GXX
from tests.cudasim.launcher import SimLauncher

TINY = ("data.demo.nodes=500", "data.demo.edges=4000", "profile.heldout_epochs=2", "cache.device_budget=20kB")
TASKS = dict(zip(STAGES, (ingest_graph, reorder_graph, profile_graph, build_cache, train_model), strict=True))


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return Tracking.connect(tmp_path_factory.mktemp("tracking"), "stages")


Run = Callable[..., RunContext]


@pytest.fixture
def run(tracking: Tracking, tmp_path: Path) -> Run:
    """Runs stages of the tiny demo, or of another preset, in a fresh state directory."""

    def run(until: str, *overrides: str, preset: str = "demo", may_build: Sequence[str] = STAGES) -> RunContext:
        base = TINY if preset == "demo" else ()
        config = load_config(preset, [*base, f"state_dir={tmp_path / 'state'}", "training.epochs=1", *overrides])
        with tracking.parent_run("stages", {}) as parent:
            context = RunContext(config, tracking, parent, may_build=may_build)
            for stage in STAGES[: STAGES.index(until) + 1]:
                TASKS[stage].fn(context)
        return context

    return run


def reused(context: RunContext) -> list[str]:
    return [stage for stage, outcome in context.outcomes.items() if outcome.reused]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host shim where a GPU would be."""
    found = Probe((Device("a GPU", (9, 0), 80 << 30),), "", "")
    monkeypatch.setattr(backend, "probe", lambda: found)
    monkeypatch.setattr(backend, "fault_of", lambda _: "")
    with launching_through(SimLauncher()):
        yield


def _epochs(context: RunContext) -> list[dict[str, Any]]:
    epochs: list[dict[str, Any]] = json.loads((context.manifest("train").directory / "history.json").read_text())
    return epochs


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: stages on a GPU are NOT tested here")
@pytest.mark.usefixtures("gpu")
def test_all_stages_with_a_gpu(run: Run) -> None:
    sizes = ("sampling.batch_size=20", "sampling.superbatch=2", "training.epochs=3", "cache.dynamic.share=0.4")
    settings = (*sizes, "cache.dynamic.interval_batches=1", "training.validation=sampled")
    small = run("train", "backend=auto", *settings)
    assert small.backend == "cuda"
    epochs = _epochs(small)
    on_cpu = _epochs(run("train", "backend=cpu", *settings))
    for one, other in zip(epochs, on_cpu, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
        assert one["adjacency_reads"] == other["adjacency_reads"]
    assert epochs[-1]["feature_reads"]["dynamic_rows"] > 0


@pytest.mark.skipif(GXX is None, reason="g++ is not installed: stages on a GPU are NOT tested here")
@pytest.mark.usefixtures("gpu")
def test_a_gpu_that_holds_everything(run: Run) -> None:
    context = run("train", "backend=cuda", "cache.device_budget=auto", "cache.use_spare=true")
    assert context.outcomes["cache"].manifest.counts["cached_features"] == 500
    assert context.facts["measured"] == {"feature": 1.0, "adjacency": 1.0}
    assert reused(run("train", "backend=cuda", "cache.device_budget=auto", "cache.use_spare=true")) == list(STAGES[:4])


def test_each_stage_is_built_once(run: Run) -> None:
    assert reused(run("train")) == []
    assert reused(run("train")) == list(STAGES[:4])


def test_no_stage_writes_more_than_it_estimated(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        context = run("train")
    estimates = {r.args[0]: r.args for r in caplog.records if isinstance(r.args, tuple) and "needs up to" in r.msg}
    assert set(estimates) == set(STAGES)
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    for stage, outcome in context.outcomes.items():
        amount, unit = str(estimates[stage][3]).split()
        assert outcome.manifest.nbytes <= float(amount) * units[unit] * 1.01, stage


def test_the_ingested_store_is_collected_unless_it_is_kept(run: Run) -> None:
    collected = run("reorder").manifest("ingest")
    assert collected.missing_files() == [STORE_FILE]
    again = run("reorder")
    assert reused(again) == ["ingest", "reorder"]
    kept = run("reorder", "layout.keep_ingest=true")
    assert reused(kept) == ["reorder"]
    assert kept.manifest("ingest").missing_files() == []


def test_another_order_ingests_again_what_was_collected(run: Run) -> None:
    run("reorder")
    assert reused(run("reorder", "layout.order=none")) == []
    assert reused(run("reorder")) == ["ingest", "reorder"]


def test_a_damaged_laid_out_store_is_built_again_from_the_start(run: Run) -> None:
    first = run("reorder")
    path = first.manifest("reorder").path(STORE_FILE)
    path.write_bytes(path.read_bytes()[:-1])
    again = run("reorder")
    assert reused(again) == []
    with GraphStore.open(again.manifest("reorder").path(STORE_FILE)) as store:
        store.verify()


@pytest.mark.parametrize("order", ["degree", "hotness", "locality", "none"])
def test_every_order_keeps_the_graph(run: Run, order: str) -> None:
    context = run("reorder", f"layout.order={order}", "layout.keep_ingest=true")
    with (
        GraphStore.open(context.manifest("ingest").path(STORE_FILE)) as old,
        GraphStore.open(context.manifest("reorder").path(STORE_FILE)) as new,
    ):
        new_to_old = new.read_new_to_old()
        assert sorted(new_to_old) == list(range(500))
        assert (new_to_old != np.arange(500)).any() == (order != "none")
        np.testing.assert_array_equal(new.read_features(), old.read_features()[new_to_old])
        np.testing.assert_array_equal(new.read_labels(), old.read_labels()[new_to_old])


def test_the_plan_fills_the_budget_and_no_more(run: Run) -> None:
    for budget in (0, 1, 1000, 20_000, 10**9):
        plan = CachePlan.load(run("cache", f"cache.device_budget={budget}").manifest("cache").path("plan.h5"))
        assert plan.feature_bytes + plan.adjacency_bytes + plan.map_bytes <= budget


def test_a_flow_that_may_not_build_a_stage_says_which_to_run(run: Run) -> None:
    with pytest.raises(InputError, match=r"no finished ingest stage.*--until ingest"):
        run("cache", may_build=("profile", "cache"))
    run("reorder")
    assert reused(run("cache", may_build=("profile", "cache"))) == ["ingest", "reorder"]
    assert reused(run("train", may_build=("train",))) == list(STAGES[:4])


def test_a_graph_without_labels_is_prepared_but_not_trained_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("".join(f"{i} {(i * 7) % 50}\n" for i in range(200)))
    settings = (f"data.edges={tmp_path / 'edges.txt'}", "data.features=", "data.labels=")
    assert list(run("cache", *settings, preset="edge_list").outcomes) == list(STAGES[:4])
    with pytest.raises(InputError, match=r"the graph has no labels.*--until cache"):
        run("train", *settings, preset="edge_list")


@pytest.mark.parametrize("stage", STAGES)
def test_a_budget_too_small_stops_each_stage_before_it_starts(run: Run, stage: str) -> None:
    if stage != "ingest":
        run(STAGES[STAGES.index(stage) - 1])
    for budget in ("host_budget", "disk_budget"):
        with pytest.raises(BudgetError, match=rf"{stage} needs \d+ bytes .* set {budget} to at least \d+"):
            run(stage, f"{budget}=10")


def test_the_smallest_budget_that_an_error_names_will_do(run: Run) -> None:
    with pytest.raises(BudgetError) as caught:
        run("ingest", "host_budget=10")
    run("ingest", f"host_budget={str(caught.value).split()[-1]}")


@pytest.mark.parametrize("sampling", [(), ("sampling.batch_size=100", "sampling.superbatch=1", "sampling.threads=8")])
def test_training_goes_in_the_smallest_budget_that_its_refusal_names(
    run: Run, sampling: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Evaluation in chunks that it allows; and what is loaded ahead does not grow with it until it is too small."""
    graph = ("data.demo.nodes=40000", "data.demo.edges=80000", "data.demo.train_fraction=0.01", *sampling)
    run("cache", *graph)
    with pytest.raises(BudgetError) as caught:
        run("train", *graph, "host_budget=10")
    named = int(str(caught.value).split()[-1])
    caplog.set_level(logging.INFO)
    run("train", *graph, f"host_budget={named}")
    assert "train: epoch 1 of 1, loss " in caplog.text


def test_a_budget_is_checked_again_once_the_nodes_are_counted(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LEAST_NUMBERING_BYTES", 0)  # which is more than so few nodes take afterwards
    (tmp_path / "edges.txt").write_text("".join(f"{i} {i + 1}\n" for i in range(100_000)))
    settings = (f"data.edges={tmp_path / 'edges.txt'}", "data.features=", "data.labels=", "layout.block_bytes=4096")
    with pytest.raises(BudgetError) as before_reading:
        run("ingest", *settings, "host_budget=10", preset="edge_list")
    for_the_edges = int(str(before_reading.value).split()[-1])
    with pytest.raises(BudgetError) as after_counting:
        run("ingest", *settings, f"host_budget={for_the_edges}", preset="edge_list")
    for_the_nodes = int(str(after_counting.value).split()[-1])
    assert for_the_nodes - for_the_edges == pytest.approx((4 + 1 / 8) * 100_001, abs=1), "a split's id and a bit each"
    caplog.clear()
    caplog.set_level(logging.INFO)
    run("ingest", *settings, f"host_budget={for_the_nodes}", preset="edge_list")
    assert caplog.text.count("needs up to") == 1, "what is not final yet is not told"
    assert "split train" not in caplog.text, "there are no labels to train on"


def test_a_store_that_another_run_collected_is_a_machine_error(tracking: Tracking, run: Run, tmp_path: Path) -> None:
    first = run("ingest")
    with tracking.parent_run("race", {}) as parent:
        context = RunContext(first.config, tracking, parent)
        ingested = ingest_graph.fn(context)
        context.artifacts.collect(ingested)
        with pytest.raises(MachineError, match="collected the ingested store; run again"):
            reorder_graph.fn(context)


def test_two_trainings_of_one_configuration_do_not_mix(run: Run) -> None:
    trained = run("train")
    with (
        locked(lock_file(trained.manifest("train").directory)),
        pytest.raises(MachineError, match="another process is running the train stage"),
    ):
        run("train")


def test_a_run_from_disk_is_compared_with_its_prediction(run: Run, tracking: Tracking, tmp_path: Path) -> None:
    settings = {"storage.mode": "storage", "host_budget": "2000000000"}
    changes = [f"{name}={value}" for name, value in settings.items()]
    asked = load_config("demo", [*TINY, f"state_dir={tmp_path / 'state'}", *changes])
    keep_prediction(asked, settings, {"epoch_s": 1.0, "epoch_read_bytes": 1000.0})
    context = run("train", *changes)
    metrics = open_client(tracking.uri).get_run(context.parent.key).data.metrics
    assert metrics["io/train_read_bytes"] <= metrics["io/disk_read_bytes"]
    assert metrics["advice/epoch_read_bytes_error"] == metrics["io/train_read_bytes"] / 1000 - 1
