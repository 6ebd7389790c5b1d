"""Graphs that DGL saved; skipped where DGL is not installed, but for the error that says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.errors import InputError
from storage.formats import dgl_binary
from storage.formats.dgl_binary import open_dgl
from storage.graph_store import GraphStore
from storage.ingest import IngestOptions, ingest
from tests.storage.formats.read import read_edges, read_features


def dgl_module() -> Any:
    pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
    return pytest.importorskip("dgl")


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Leave out the process that tries a file first, which takes seconds to import DGL."""
    if "probed" not in request.fixturenames:
        monkeypatch.setattr(dgl_binary, "_ends_the_reader", lambda path: False)


@pytest.fixture
def probed() -> None:
    """Ask for that process all the same."""


def save(path: Path, **changes: Any) -> Path:
    """Save a graph of four nodes, one of them isolated, with a repeated edge and a self loop."""
    dgl = dgl_module()
    src, dst = torch.tensor([0, 2, 2, 1]), torch.tensor([1, 1, 1, 1])
    graph = dgl.graph((src, dst), num_nodes=4, idtype=changes.pop("idtype", torch.int64))
    ndata = {
        "feat": torch.arange(8.0).reshape(4, 2),
        "label": torch.tensor([1, 0, -1, 1]),
        "train_mask": torch.tensor([True, False, False, False]),
        "val_mask": torch.tensor([False, True, False, False]),
        "test_mask": torch.tensor([False, False, True, True]),
    } | changes
    for name, tensor in ndata.items():
        if tensor is not None:
            graph.ndata[name] = tensor
    dgl.save_graphs(str(path), [graph])
    return path


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_reads_what_dgl_saved(tmp_path: Path, idtype: torch.dtype) -> None:
    source = open_dgl(save(tmp_path / "g.bin", idtype=idtype, year=torch.zeros(4)))
    assert read_edges(source) == [(0, 1), (2, 1), (2, 1), (1, 1)]
    assert read_features(source).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    report = ingest(source, IngestOptions(), tmp_path / "g.h5")
    assert (report.num_nodes, report.duplicates_found, report.isolated_nodes) == (4, 1, 1)
    assert (report.split_sizes, report.notes) == ({"train": 1, "valid": 1, "test": 1}, {"node_data_left_out": 1})
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert store.read_labels().tolist() == [1, 0, -1, 1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_features_of_any_type(tmp_path: Path, dtype: torch.dtype) -> None:
    source = open_dgl(save(tmp_path / "g.bin", feat=torch.arange(4).to(dtype)))
    assert read_features(source).tolist() == [[0], [1], [2], [3]]


def test_without_node_data(tmp_path: Path) -> None:
    bare = dict.fromkeys(("feat", "label", "train_mask", "val_mask", "test_mask"))
    source = open_dgl(save(tmp_path / "g.bin", **bare))
    assert (source.features, source.labels, source.splits) == (None, None, None)


def test_masks_come_together_and_one_a_node(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give train_mask, val_mask and test_mask"):
        open_dgl(save(tmp_path / "g.bin", val_mask=None))
    with pytest.raises(InputError, match="one value a node"):
        open_dgl(save(tmp_path / "g.bin", val_mask=torch.ones(4, 10, dtype=torch.bool)))


def test_edge_data_are_refused_unless_they_are_to_be_left_out(tmp_path: Path) -> None:
    dgl = dgl_module()
    graph = dgl.graph((torch.tensor([0]), torch.tensor([1])))
    graph.edata["w"] = torch.ones(1)
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph])
    with pytest.raises(InputError, match=r"gives edges data \(w\), .* --set data\.edge_weights=drop"):
        open_dgl(tmp_path / "g.bin")
    assert open_dgl(tmp_path / "g.bin", edge_weights="drop").notes == {"edge_data_left_out": 1}


def test_several_graphs_and_kinds_are_refused_with_the_way_out(tmp_path: Path) -> None:
    dgl = dgl_module()
    graph = dgl.graph((torch.tensor([0]), torch.tensor([1])))
    dgl.save_graphs(str(tmp_path / "g.bin"), [graph, graph])
    with pytest.raises(InputError, match=r"holds 2 graphs: save one graph a file, or dgl\.batch them"):
        open_dgl(tmp_path / "g.bin")
    mixed = dgl.heterograph({("a", "r", "b"): ([0], [1]), ("b", "s", "a"): ([0], [1])})
    dgl.save_graphs(str(tmp_path / "g.bin"), [mixed])
    with pytest.raises(InputError, match=r"heterogeneous \(a-r-b, b-s-a\).* dgl\.to_homogeneous"):
        open_dgl(tmp_path / "g.bin")


@pytest.mark.usefixtures("probed")
def test_damage_that_ends_the_reader_does_not_end_us(tmp_path: Path) -> None:
    path = save(tmp_path / "g.bin")
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    with pytest.raises(InputError, match=r"g\.bin is no readable DGL file \(.*\): write it with dgl\.save_graphs"):
        open_dgl(path)
    crafted = bytearray(whole)
    crafted[24:32] = np.uint64(2**60).tobytes()  # the number of graphs
    path.write_bytes(crafted)
    with pytest.raises(InputError, match=r"g\.bin is a damaged DGL file") as caught:
        open_dgl(path)
    assert "\n" not in str(caught.value)


def test_without_dgl_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "g.bin").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(InputError, match=r"needs DGL: pip install '\.\[dgl\]'"):
        open_dgl(tmp_path / "g.bin")
