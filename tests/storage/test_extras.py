"""Relations, held-out links and graph numbers come back, and follow their edges and nodes into another order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.blocks.layout import estimate_store_bytes, lay_out
from storage.extras import Extras
from storage.formats.base import Links
from storage.graph_store import GraphStore
from storage.order import invert_order
from storage.store_format import RELATION
from tests.storage.stores import write_small_store

NUM_NODES, NUM_EDGES = 300, 4000


def drawn_extras() -> Extras:
    rng = np.random.default_rng(3)
    links = {
        "valid": Links(
            rng.integers(0, NUM_NODES, (50, 2)),
            rng.integers(0, 5, 50).astype(np.int32),
            rng.integers(0, NUM_NODES, (9, 2)),
            rng.integers(0, NUM_NODES, (50, 7)),
        ),
        "test": Links(rng.integers(0, NUM_NODES, (20, 2))),
    }
    return Extras(
        relations=rng.integers(0, 5, NUM_EDGES).astype(np.int32),
        relation_names=tuple("abcde"),
        links=links,
        graph_ids=np.sort(rng.integers(0, 4, NUM_NODES)).astype(np.int32),
        graph_labels=rng.random((4, 2), np.float32),
    )


def typed_edges(store: GraphStore, ids: Any) -> list[tuple[int, int, int]]:
    """Edges with their relations, by the names that `ids` gives the nodes, in order of the adjacency lists' names."""
    tails = np.repeat(np.arange(store.info.num_nodes), np.diff(store.read_indptr()))
    columns = (ids[tails], ids[store.read_indices()], store.read_relations())
    triples = list(zip(*(column.tolist() for column in columns), strict=True))
    return sorted(triples, key=lambda triple: triple[0])  # stable: the order within a list counts


@pytest.mark.parametrize("work_bytes", [100, 1 << 30])
def test_extras_follow_the_node_order(tmp_path: Path, work_bytes: int) -> None:
    extras = drawn_extras()
    write_small_store(tmp_path / "old.h5", num_nodes=NUM_NODES, num_edges=NUM_EDGES, extras=extras)
    order = np.random.default_rng(0).permutation(NUM_NODES)
    with GraphStore.open(tmp_path / "old.h5") as old:
        lay_out(
            old,
            tmp_path / "new.h5",
            old_to_new=invert_order(order),
            order="hotness",
            block_bytes=4096,
            work_bytes=work_bytes,
        )
        with GraphStore.open(tmp_path / "new.h5") as new:
            assert typed_edges(new, order) == typed_edges(old, np.arange(NUM_NODES))
            assert new.info.relation_names == tuple("abcde")
            assert new.info.link_sizes == {"valid": 50, "test": 20}
            for split, links in extras.links.items():
                found = new.read_links(split)  # type: ignore[arg-type]
                assert (found.relations is None) == (links.relations is None)
                assert found.nodes().keys() == links.nodes().keys()
                for name, ids in found.nodes().items():
                    assert np.array_equal(order[ids], links.nodes()[name]), name
            assert np.array_equal(new.read_links("valid").relations, extras.links["valid"].relations)  # type: ignore[arg-type]
            assert new.info.is_union
            assert np.array_equal(new.read_graph_ids(), old.read_graph_ids()[order])
            assert np.array_equal(new.read_graph_labels(), extras.graph_labels)  # type: ignore[arg-type]
            assert new.num_file_bytes <= estimate_store_bytes(old, 4096)
            new.verify()


def test_a_plain_store_has_none(tmp_path: Path) -> None:
    write_small_store(tmp_path / "g.h5", num_nodes=NUM_NODES, num_edges=NUM_EDGES)
    with GraphStore.open(tmp_path / "g.h5") as store:
        assert not store.has(RELATION)
        assert (store.info.relation_names, store.info.link_sizes, store.info.is_union) == ((), {}, False)
        assert not store.read_graph_ids().any()
        assert store.read_links("valid").edges.shape == (0, 2)
        assert store.read_graph_labels().shape == (0, 0)
