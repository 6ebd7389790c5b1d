"""Advice follows from the stages' own arithmetic and measured rates, and the run afterwards says how far off it was."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from conf.load import load_config
from conf.schema import PipelineConfig
from storage.blocks.probe import DiskSpeed, probe_disk
from storage.errors import BudgetError
from storage.graph_store import GraphStore
from storage.ingest import ingest
from storage.numbering import numbered
from tasks import advise as advising
from tasks import machine_rates
from tasks.advise import Advice, Machine, advise, decide
from tasks.advised_budgets import plan_of, settled, smallest_budgets
from tasks.budgets import Budgets
from tasks.expected_graph import as_numbered, expect_graph
from tasks.expected_work import batch_seconds, workload
from tasks.memory import ingest_planner, numbering_room
from tasks.predictions import keep_prediction, prediction_errors
from tasks.sources import ingest_options, open_source
from tests.tasks.test_run_disk import DEMO, named, run

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
    asked = config(tmp_path, "storage.mode=storage")  # what the smallest budget is for may fit in memory
    tight = advice_for(asked, 1000)
    assert tight.settings["host_budget"] == str(max(tight.smallest_host_budget.values()))
    assert set(tight.smallest_host_budget) == {"ingest", "reorder", "profile", "cache", "train"}
    assert advice_for(asked, int(tight.settings["host_budget"])).settings == tight.settings


def test_memory_is_named_where_the_smallest_budget_is_enough_for_it(tmp_path: Path) -> None:
    """A few nodes take less memory to train on than to prepare."""
    few = (*DEMO, "data.demo.nodes=200", "data.demo.edges=2000", "sampling.batch_size=100")
    told = advice_for(load_config("demo", [*few, f"state_dir={tmp_path}"]), 1)
    assert (told.mode, told.settings["storage.mode"]) == ("memory", "memory")
    assert any("fits into what other stages need" in reason for reason in told.reasons)
    assert told.memory_bytes <= int(told.settings["host_budget"])
    run(tmp_path, *few, *(f"{name}={value}" for name, value in told.settings.items()))


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
    one, two = (plan_of(replace_hyperbatch(asked, count), work, 64 << 20).traffic(work.sizes).read for count in (1, 2))
    assert two < one <= 2 * two


def replace_hyperbatch(asked: PipelineConfig, count: int) -> PipelineConfig:
    return asked.model_copy(update={"storage": asked.storage.model_copy(update={"hyperbatch": count})})


@pytest.mark.parametrize(("share", "dtype"), [(0.01, "uint8"), (0.4, "uint8"), (None, "float32")])
def test_steps_are_timed_on_as_few_ones_as_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float | None, dtype: str
) -> None:
    """Features of 0 and 1 are told from their first rows; a step adds up columns where few are 1."""
    rng, nodes, width = np.random.default_rng(0), 1000, 3000
    rows = rng.random((nodes, width), np.float32)
    np.save(tmp_path / "x.npy", rows if share is None else (rows < share).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 4, nodes))
    edges = rng.integers(0, nodes, (5000, 2))
    pl.DataFrame({"source": edges[:, 0], "target": edges[:, 1]}).write_csv(tmp_path / "edges.csv")
    files = [f"data.{name}={tmp_path / file}" for name, file in (("edges", "edges.csv"), ("features", "x.npy"))]
    asked = load_config("edge_list", [*files, f"data.labels={tmp_path / 'y.npy'}", f"state_dir={tmp_path / 'state'}"])
    work = workload(asked, expect_graph(asked, open_source(asked.data), 60.0))
    assert work.graph.store.info.feature_dtype == np.dtype(dtype)
    assert work.share_of_ones == (None if share is None else pytest.approx(share, rel=0.05))
    dropping = replace(work, spec=replace(work.spec, input_dropout=0.5))
    assert dropping.share_of_ones is None
    made_up, timed = machine_rates._rows, list[torch.Tensor]()

    def noted(*sizes: Any) -> torch.Tensor:
        timed.append(made_up(*sizes))
        return timed[-1]

    monkeypatch.setattr(machine_rates, "_rows", noted)
    batch_seconds(work)
    assert timed[0].dtype == (torch.float32 if share is None else torch.uint8)
    assert share is None or timed[0].float().mean() == pytest.approx(share, rel=0.1)


RUN = (*DEMO, "data.demo.nodes=8000", "data.demo.edges=80000", "sampling.batch_size=500", "model.hidden=48")
KEEPING = ("layout.keep_ingest=true",)


@pytest.mark.parametrize(
    ("memory_bytes", "settings"),
    [(1 << 30, ()), (5 << 20, ()), (5 << 20, (*KEEPING, "storage.mode=storage", "storage.hyperbatch=2"))],
    ids=["from memory", "from disk", "hyperbatches of two, keeping ingest"],
)
def test_the_advised_budget_of_disk_does_for_a_whole_run(
    tmp_path: Path, memory_bytes: int, settings: tuple[str, ...]
) -> None:
    asked = load_config("demo", [*RUN, *settings, f"state_dir={tmp_path}"])
    advice, from_disk = advice_for(asked, memory_bytes), memory_bytes < 1 << 30
    assert (advice.mode == "storage") == from_disk
    advised = [*RUN, *settings, *(f"{name}={value}" for name, value in advice.settings.items())]
    with pytest.raises(BudgetError) as caught:
        run(tmp_path, *advised, "disk_budget=1MB")
    assert named(caught) == advice.disk_budget >= advice.disk_bytes
    for budget in (1, advice.disk_bytes - 1, advice.disk_budget):  # one that the run would refuse gives way
        tight = asked.model_copy(update={"disk_budget": budget})
        block = DISK.efficient_block_bytes
        found = settled(tight, open_source(asked.data), memory_bytes, block, from_disk=from_disk)
        assert found.disk_budget == advice.disk_budget
    run(tmp_path, *advised, f"disk_budget={advice.disk_budget}")


def test_the_smallest_memory_of_an_order_is_what_its_refusal_names(tmp_path: Path) -> None:
    sizes = ("data.demo.nodes=800000", "data.demo.edges=900000", "sampling.batch_size=1000", "sampling.fanouts=[9, 9]")
    found = dict[str, int]()
    graph = expect_graph(load_config("demo", [*DEMO, *sizes]), open_source(load_config("demo", sizes).data), 60.0)
    run(tmp_path, *DEMO, *sizes, until="ingest")
    for order in ("degree", "locality", "hotness"):
        settings = (*DEMO, *sizes, f"layout.order={order}")
        asked = load_config("demo", settings)
        found[order] = smallest_budgets(asked, open_source(asked.data), workload(asked, graph))["reorder"]
        with pytest.raises(BudgetError, match=rf"reorder .* set host_budget to at least {found[order]}$"):
            run(tmp_path, *settings, "host_budget=1MB", until="reorder")
    assert found["degree"] < min(found["locality"], found["hotness"])


def test_what_fits_while_it_trains_gets_the_memory_that_preparing_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = config(tmp_path)
    source = open_source(asked.data)
    monkeypatch.setattr(advising, "smallest_budgets", lambda *asked: smallest_budgets(*asked) | {"ingest": 1 << 32})
    work = workload(asked, expect_graph(asked, source, 60.0))
    advice = decide(asked, source, machine(1 << 30), work)
    assert (advice.mode, advice.settings["host_budget"]) == ("memory", str(1 << 32))
    assert "host_budget" not in decide(asked, source, machine(1 << 32), work).settings


def named_graph(folder: Path) -> list[str]:
    """Edges between names, and tables that go by them."""
    edges, nodes = "".join(f"n{i % 300},n{7 * i % 299}\n" for i in range(3000)), range(300)
    (folder / "edges.csv").write_text(edges)
    (folder / "x.csv").write_text("id,a,b\n" + "".join(f"n{i},1.5,{i}\n" for i in nodes))
    (folder / "y.csv").write_text("id,label\n" + "".join(f"n{i},{'cat' if i % 3 else 'dog'}\n" for i in nodes))
    files = [
        f"data.{name}={folder / file}.csv"
        for name, file in zip(("edges", "features", "labels"), ("edges", "x", "y"), strict=True)
    ]
    return [*files, "data.id_column=id", f"state_dir={folder / 'state'}"]


@pytest.mark.parametrize("tables", [True, False], ids=["tables by id", "edges alone"])
def test_names_that_are_not_numbered_are_counted(tmp_path: Path, tables: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    without = [] if tables else ["data.features=", "data.labels=", "data.id_column="]
    asked = load_config("edge_list", [*named_graph(tmp_path), *without])
    source = open_source(asked.data)
    graph = expect_graph(asked, source, 60.0)
    (tmp_path / "numbering").mkdir()
    sizes, exact = as_numbered(source, graph), numbered(open_source(asked.data), tmp_path / "numbering")
    assert (sizes.num_nodes, graph.degrees.name_bytes) == (exact.num_nodes, 4) == (300, 4)
    assert sizes.original_ids is not None and exact.original_ids is not None
    assert sizes.original_ids.nbytes == exact.original_ids.nbytes
    monkeypatch.setattr(advising, "probe_disk", lambda *_: DISK)
    known = advise(asked, seconds=0.1)
    monkeypatch.setattr(advising, "_NUMBERED_EDGES_PER_S", 0)
    unknown = advise(asked, seconds=0.1)
    assert known.disk_budget <= unknown.disk_budget <= 1.5 * known.disk_budget
    assert unknown.mode == known.mode


def test_the_smallest_memory_of_an_ingest_by_names_is_what_ingest_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, once the names are numbered."""
    monkeypatch.setattr(advising, "probe_disk", lambda *_: DISK)
    asked = load_config("edge_list", named_graph(tmp_path))
    smallest, options = advise(asked, seconds=0.1).smallest_host_budget["ingest"], ingest_options(asked)
    for budget in (smallest - 1, smallest):
        budgets, source = Budgets(budget), open_source(asked.data)
        plan, room = ingest_planner(options, budgets, tmp_path), numbering_room(budgets, tmp_path)
        with nullcontext() if budget == smallest else pytest.raises(BudgetError, match=f"to at least {smallest}$"):
            ingest(source, options, tmp_path / "graph.h5", plan=plan, room=room)


def test_triples_are_told_about_before_they_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.txt").write_text("".join(f"e{i % 90}\tr{i % 3}\te{7 * i % 89}\n" for i in range(900)))
    file = tmp_path / "triples.yaml"
    file.write_text(f"name: triples\ndata: {{format: triples, path: {tmp_path}, split: random}}\n")
    asked = load_config(file, [f"state_dir={tmp_path / 'state'}"])
    monkeypatch.setattr(advising, "probe_disk", lambda *_: DISK)
    monkeypatch.setattr(advising, "_NUMBERED_EDGES_PER_S", 0)
    assert any("90 nodes" in reason for reason in advise(asked, seconds=0.1).reasons)


@pytest.mark.parametrize("mode", ["memory", "storage"])
@pytest.mark.parametrize("nodes", [1, 50])
def test_graphs_of_next_to_nothing(tmp_path: Path, nodes: int, mode: str) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n" if nodes > 1 else "0,0\n")
    np.save(tmp_path / "x.npy", np.ones((nodes, 3), np.float32) / 3)
    several = np.eye(3, dtype=np.int8)[np.arange(nodes) % 3]
    np.save(tmp_path / "y.npy", np.maximum(several, [1, 0, 0]))
    files = [f"data.{name}={tmp_path / file}" for name, file in (("edges", "edges.csv"), ("features", "x.npy"))]
    files += [f"data.num_nodes={nodes}", f"state_dir={tmp_path / 'state'}", f"storage.mode={mode}"]
    for labels in (f"data.labels={tmp_path / 'y.npy'}", "data.labels="):
        asked = load_config("edge_list", [*files, labels])
        assert advice_for(asked, 1 << 30).mode == mode
    assert advice_for(load_config("edge_list", [*files, "data.features=", "data.labels="]), 1 << 30).mode == mode


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
    keep_prediction(asked, in_memory | {"disk_budget": "50000000"}, {"epoch_s": 2.0})
    assert prediction_errors(asked, {"epoch_s": 3.0})["advice/epoch_s_error"] == 0.5, "no prediction hangs on it"
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
