"""Predictions and representations: rows in the input's order, the very numbers of the layers, within the budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, Kind, build_model, edgeless_mfg
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from storage.blocks.layout import lay_out
from storage.errors import BudgetError, ChecksumMismatchError, InputError, MachineError
from storage.formats.results import write_npy
from storage.graph_store import GraphStore, write_store
from storage.order import invert_order
from storage.store_format import ORIGINAL_ID
from tasks import prediction_rows
from tasks.budgets import SMALL_FILES_BYTES, Budgets
from tasks.model_data import ModelData
from tasks.model_reference import NamedModel
from tasks.predict import store_file, write_output
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data, with_many_labels

NAMES = np.array([f"node {v}" for v in range(300)])
IDS = np.random.default_rng(5).permutation(10_000)[:300]


@pytest.fixture(scope="module")
def data() -> Data:
    return community_data()


@pytest.fixture(scope="module")
def store_path(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph with text ids, in a random node order."""
    folder = tmp_path_factory.mktemp("store")
    write_store(
        folder / "ingested.h5",
        indptr=data.topology.indptr,
        indices=data.topology.indices,
        features=data.rows,
        labels=data.labels,
        original_ids=NAMES,
    )
    order = np.random.default_rng(3).permutation(data.topology.num_nodes)
    with GraphStore.open(folder / "ingested.h5") as store:
        lay_out(store, folder / "graph.h5", old_to_new=invert_order(order), order="locality", block_bytes=1 << 20)
    return folder / "graph.h5"


def named(kind: Kind) -> NamedModel:
    spec = replace(OPTIONS, kind=kind, fanouts=() if kind == "mlp" else (4, 4)).model_spec(8, NUM_CLASSES)
    return NamedModel(build_model(spec, seed=1), None, "the model")


def layer_outputs(model: GnnModel, data: Data) -> list[torch.Tensor]:
    """What each layer puts out for all nodes, over the whole graph at once."""
    nodes = np.arange(data.topology.num_nodes)
    sampler = NeighborSampler(data.topology, [-1], seed=0, purpose=Purpose.VALIDATE)
    sample = sampler.sample([nodes], epoch=0, first_batch=0).samples[0]
    assert np.array_equal(sample.input_nodes, nodes)
    mfg = sample.hops[0] if model.spec.needs_graph else edgeless_mfg(len(nodes))
    degrees = NodeDegrees(data.degrees.in_degree, data.degrees.out_degree).take(nodes)
    outputs, h = [], torch.from_numpy(data.rows)
    with torch.no_grad():
        for index, layer in enumerate(model.ordered_layers()):
            h = model.activate(index, layer(mfg, h, degrees))
            outputs.append(h)
    return outputs


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
def test_rows_are_those_of_the_layers_in_the_order_of_the_input(
    kind: Kind, data: Data, store_path: Path, tmp_path: Path
) -> None:
    model = named(kind)
    hidden, logits = layer_outputs(model.model, data)
    write_output(model, store_path, tmp_path / "c.parquet", "classes", Budgets())
    write_output(model, store_path, tmp_path / "h.npy", "hidden", Budgets())
    table = pl.read_parquet(tmp_path / "c.parquet")
    assert table["id"].to_list() == NAMES.tolist()
    probabilities = table.select(pl.exclude("id", "class")).to_numpy()
    np.testing.assert_allclose(probabilities, torch.softmax(logits, 1).numpy(), atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "h.npy"), hidden.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat", "mlp"])
def test_from_disk_the_rows_are_those_from_memory(
    kind: Kind, data: Data, store_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)
    monkeypatch.setattr(prediction_rows, "PART_BYTES", 4000)
    model = named(kind)
    hidden, logits = layer_outputs(model.model, data)
    write_output(model, store_path, tmp_path / "c.parquet", "classes", Budgets())
    write_output(model, store_path, tmp_path / "c.csv", "classes", Budgets())
    write_output(model, store_path, tmp_path / "h.npy", "hidden", Budgets())
    write_output(model, store_path, tmp_path / "h.parquet", "hidden", Budgets())
    table, text = pl.read_parquet(tmp_path / "c.parquet"), pl.read_csv(tmp_path / "c.csv", infer_schema_length=None)
    assert table["id"].to_list() == text["id"].to_list() == NAMES.tolist()
    probabilities = table.select(pl.exclude("id", "class")).to_numpy()
    np.testing.assert_allclose(probabilities, torch.softmax(logits, 1).numpy(), atol=1e-5)
    assert table["class"].to_list() == [str(place) for place in probabilities.argmax(1)]
    np.testing.assert_array_equal(text.select(pl.exclude("id", "class")).to_numpy().astype(np.float32), probabilities)
    np.testing.assert_allclose(np.load(tmp_path / "h.npy"), hidden.numpy(), atol=1e-5)
    np.testing.assert_array_equal(
        pl.read_parquet(tmp_path / "h.parquet")["embedding"].to_numpy(), np.load(tmp_path / "h.npy")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.csv", "c.parquet", "h.npy", "h.parquet"]


def test_integer_ids_and_a_store_in_the_input_s_order_from_disk(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, topology = tmp_path / "graph.h5", data.topology
    write_store(path, indptr=topology.indptr, indices=topology.indices, features=data.rows, original_ids=IDS)
    write_output(named("sage"), path, tmp_path / "memory.parquet", "classes", Budgets())
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)
    write_output(named("sage"), path, tmp_path / "disk.parquet", "classes", Budgets())
    expected, found = (pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("memory", "disk"))
    assert found["id"].to_list() == expected["id"].to_list() == IDS.tolist()
    np.testing.assert_allclose(found.drop("id", "class"), expected.drop("id", "class"), atol=1e-5)


@pytest.mark.parametrize("suffix", ["npy", "csv", "parquet"])
def test_a_damaged_store_is_named_and_leaves_no_output(
    data: Data, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, topology = tmp_path / "graph.h5", data.topology
    write_store(path, indptr=topology.indptr, indices=topology.indices, features=data.rows)
    with GraphStore.open(path) as store:
        extent = store.extent("features/x")
    with path.open("r+b") as file:
        file.seek(extent.offset + extent.nbytes // 2)
        file.write(b"damage")
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)
    with pytest.raises(ChecksumMismatchError, match="features/x"):
        write_output(named("sage"), path, tmp_path / f"h.{suffix}", "hidden", Budgets())
    assert [item.name for item in tmp_path.iterdir()] == ["graph.h5"]


@pytest.mark.parametrize("describes_its_data", [True, False])
def test_each_label_of_many_has_a_probability_of_its_own(
    data: Data, store_path: Path, tmp_path: Path, describes_its_data: bool
) -> None:
    """The store says what a bare model does not; what a model says of itself counts first."""
    model, path = named("sage"), store_path
    if describes_its_data:
        about = ModelData(tuple("abcd"), False, False, "keep", "refuse", "none", multi_label=True)
        model = replace(model, data=about)
    else:
        path = tmp_path / "many.h5"
        labels = with_many_labels(data).labels.astype(np.int8)
        topology = data.topology
        write_store(path, indptr=topology.indptr, indices=topology.indices, features=data.rows, labels=labels)
    write_output(model, path, tmp_path / "c.parquet", "classes", Budgets())
    table = pl.read_parquet(tmp_path / "c.parquet")
    assert table.columns == ["id", *(f"p_{name}" for name in ("abcd" if describes_its_data else "0123"))]
    expected = torch.sigmoid(layer_outputs(model.model, data)[-1]).numpy()
    np.testing.assert_allclose(table.drop("id").to_numpy(), expected, atol=1e-5)


def test_the_budget_that_an_error_names_will_do(store_path: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="set --host-budget to at least") as error:
        budgets = Budgets(1000, host_option="--host-budget")
        write_output(named("sage"), store_path, tmp_path / "c.parquet", "classes", budgets)
    enough = int(str(error.value).rsplit(" ", 1)[-1])
    write_output(named("sage"), store_path, tmp_path / "c.parquet", "classes", Budgets(enough))
    with pytest.raises(BudgetError):
        write_output(named("sage"), store_path, tmp_path / "c.parquet", "classes", Budgets(enough - 1))


def test_a_model_of_one_layer_has_no_hidden_representation(store_path: Path, tmp_path: Path) -> None:
    spec = replace(OPTIONS, fanouts=(4,)).model_spec(8, NUM_CLASSES)
    model = NamedModel(build_model(spec, seed=1), None, "the model")
    with pytest.raises(InputError, match="no hidden representation"):
        write_output(model, store_path, tmp_path / "h.npy", "hidden", Budgets())


def test_an_output_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(MachineError, match="cannot be written"):
        write_npy(tmp_path / "x.npy", (2, 2), [np.zeros((2, 2), np.float32)])
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no artifact with a store"):
        store_file(tmp_path)


def test_model_data_comes_back(tmp_path: Path) -> None:
    described = ModelData(("a", "b"), True, False, "remove", "zero", "row", multi_label=True)
    described.save(tmp_path)
    assert ModelData.load(tmp_path) == described
    assert ModelData.load(tmp_path / "elsewhere") is None
    options = described.reading_options()
    assert (options.symmetrize, options.self_loops, options.normalize_features) == (True, "remove", "row")


@pytest.mark.parametrize("suffix", ["npy", "csv", "parquet"])
@pytest.mark.parametrize("block_bytes", [4096, 1 << 20])
def test_every_budget_above_the_smallest_will_do(
    data: Data, tmp_path: Path, suffix: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)
    topology = data.topology
    parts: dict[str, Any] = {"indptr": topology.indptr, "indices": topology.indices, "features": data.rows}
    write_store(tmp_path / "graph.h5", **parts, block_bytes=block_bytes)
    head = prediction_rows.Head.of(named("sage").model, hidden=False)
    with GraphStore.open(tmp_path / "graph.h5") as store:

        def planned(budget: int) -> int:
            return prediction_rows.plan_prediction(head, store, Path(f"out.{suffix}"), budget).estimate.memory_bytes

        smallest = planned(0)
        for budget in range(smallest, smallest + (8 << 20), 64 << 10):
            assert planned(budget) <= budget


def test_blocks_of_ids_are_read_once(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integer ids and text that straddles blocks; whatever the pieces of output are."""
    monkeypatch.setattr(prediction_rows, "_in_memory_bytes", lambda *_: 1 << 60)
    monkeypatch.setattr(prediction_rows, "PART_BYTES", 100)
    topology, times_read = data.topology, dict[str, float]()
    parts: dict[str, Any] = {"indptr": topology.indptr, "indices": topology.indices, "features": data.rows}
    head = prediction_rows.Head.of(named("sage").model, hidden=False)
    for name, ids in (("integers", IDS), ("text", NAMES)):
        path = tmp_path / f"{name}.h5"
        write_store(path, **parts, original_ids=ids, block_bytes=4096)
        with GraphStore.open(path) as store:
            plan = prediction_rows.plan_prediction(head, store, Path("out.npy"), 1 << 30)
            found = [part for part, _ in prediction_rows.predicted_rows(head, store, plan, tmp_path)]
            assert prediction_rows.original_ids(np.concatenate(found)).tolist() == ids.tolist()
            read = store.reader(ORIGINAL_ID).stats.counts().read_bytes
            blocks = store.extent(ORIGINAL_ID).num_blocks
            times_read[name] = read / (4096 * blocks)
    assert times_read["integers"] <= 1
    assert times_read["text"] <= 2  # names straddle blocks


@pytest.mark.parametrize("output", ["classes", "hidden"])
def test_a_csv_takes_no_more_disk_than_planned(data: Data, store_path: Path, tmp_path: Path, output: Any) -> None:
    model = named("sage")
    with torch.no_grad():
        for weight in model.model.parameters():
            weight.mul_(-1.2345678e-9)  # as many digits as there are
    write_output(model, store_path, tmp_path / "out.csv", output, Budgets())
    head = prediction_rows.Head.of(model.model, hidden=output == "hidden")
    with GraphStore.open(store_path) as store:
        estimate = prediction_rows.plan_prediction(head, store, tmp_path / "out.csv", 1 << 30).estimate
    assert (tmp_path / "out.csv").stat().st_size <= estimate.disk_bytes - SMALL_FILES_BYTES
