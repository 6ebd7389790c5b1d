"""Predictions and representations: rows in the input's order, the very numbers of the layers, within the budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from kernels.nn.layers import NodeDegrees
from kernels.nn.model import GnnModel, Kind, build_model, edgeless_mfg
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler
from storage.blocks.layout import lay_out
from storage.errors import BudgetError, InputError, MachineError
from storage.formats.results import write_npy
from storage.graph_store import GraphStore, write_store
from storage.order import invert_order
from tasks.budgets import Budgets
from tasks.model_data import ModelData
from tasks.model_reference import NamedModel
from tasks.predict import store_file, write_output
from tests.tasks.training_graphs import NUM_CLASSES, OPTIONS, Data, community_data, with_many_labels

NAMES = np.array([f"node {v}" for v in range(300)])


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


def test_a_model_of_one_layer_has_no_hidden_representation(store_path: Path, tmp_path: Path) -> None:
    spec = replace(OPTIONS, fanouts=(4,)).model_spec(8, NUM_CLASSES)
    model = NamedModel(build_model(spec, seed=1), None, "the model")
    with pytest.raises(InputError, match="no hidden representation"):
        write_output(model, store_path, tmp_path / "h.npy", "hidden", Budgets())


def test_an_output_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(MachineError, match="cannot be written"):
        write_npy(tmp_path / "x.npy", np.zeros((2, 2)))
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
