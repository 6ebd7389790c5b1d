"""A graph before it is ingested: sizes of the store that its files will make, and degrees of its nodes, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from conf.data import DataConfig
from conf.schema import PipelineConfig
from storage.degree_sample import DegreeSample, EdgeRules, sample_degrees
from storage.expected_store import ExpectedStore
from storage.formats.base import FeatureTable, GraphSource
from storage.graph_store import FORMAT_VERSION, StoreInfo
from storage.scratch_array import ScratchArray
from storage.splits import count_labelled


@dataclass(frozen=True)
class ExpectedGraph:
    """What is known of a graph before it is ingested."""

    store: ExpectedStore
    """Sizes of the laid-out store."""
    degrees: DegreeSample
    """Degrees of its nodes."""
    share_of_ones: float = 1.0
    """Of features that are stored as 0 or 1, the share that is 1, by the first rows."""

    def in_blocks_of(self, block_bytes: int) -> ExpectedGraph:
        """The same graph, laid out in other blocks."""
        return replace(self, store=ExpectedStore(replace(self.store.info, block_bytes=block_bytes)))


def expect_graph(config: PipelineConfig, source: GraphSource, seconds: float) -> ExpectedGraph:
    """Read edges for a while, and take the rest from what the files declare.

    Parameters
    ----------
    config : PipelineConfig
    source : GraphSource
    seconds : float
        How long to read edges.

    Raises
    ------
    InputError
        What was read of the edges is not of the format.
    """
    data = config.data
    rules = EdgeRules(data.symmetrize, data.deduplicate, data.self_loops == "remove")
    degrees = sample_degrees(
        source.edges.chunks,
        rules,
        num_nodes=source.num_nodes,
        approx_edges=source.approx_edges,
        seconds=seconds,
    )
    num_nodes = max(1, degrees.num_nodes)
    labels, features = source.labels, source.features
    many = labels is not None and (data.task == "multi" or not labels.one_class)
    dtype, share_of_ones = (np.dtype(np.float32), 1.0) if features is None else _stored_as(data, features)
    info = StoreInfo(
        num_nodes=num_nodes,
        num_edges=degrees.num_edges,
        feature_dim=0 if features is None else features.dim,
        feature_dtype=dtype,
        num_classes=0 if labels is None else len(labels.names),
        label_names=() if labels is None else labels.names,
        order=config.layout.order,
        block_bytes=int(config.layout.block_bytes),
        format_version=FORMAT_VERSION,
        split_sizes=_split_sizes(data, source, num_nodes),
        is_multi_label=many,
    )
    return ExpectedGraph(ExpectedStore(info), degrees, share_of_ones)


def as_numbered(source: GraphSource, graph: ExpectedGraph) -> GraphSource:
    """A source with the sizes that it will have once its nodes are numbered; what it holds then is not known."""
    if source.num_nodes is not None:
        return source
    num_nodes, width, features = graph.store.info.num_nodes, graph.degrees.name_bytes, source.features
    names = ScratchArray(Path(), num_nodes, np.dtype(f"S{width}")) if width else None  # sizes alone: there is no file
    if features is not None and features.keyed is None:
        features = replace(features, num_rows=num_nodes, keyed=lambda: iter(()))
    return replace(source, num_nodes=num_nodes, original_ids=names, features=features)


def _stored_as(data: DataConfig, features: FeatureTable) -> tuple[np.dtype[Any], float]:
    """The type that ingest will store features in, and how many are 1; the first tell whether all are 0 or 1."""
    if data.normalize_features == "row":
        return np.dtype(np.float32), 1.0
    pieces = features.chunks() if features.keyed is None else (rows for _, rows in features.keyed())
    first = next(pieces, np.empty(0))
    if np.all((first == 0) | (first == 1)):
        return np.dtype(np.uint8), np.count_nonzero(first) / max(1, first.size)
    return np.dtype(np.float16 if features.dtype == np.float16 else np.float32), 1.0


def _split_sizes(data: DataConfig, source: GraphSource, num_nodes: int) -> dict[str, int]:
    """Nodes of each split, by the rule that ingest follows."""
    labelled = num_nodes if source.labels is None else count_labelled(source.labels.labels_N, num_nodes)
    if data.split == "random":
        train, valid = round(labelled * data.train_fraction), round(labelled * data.valid_fraction)
        return {"train": train, "valid": valid, "test": max(0, labelled - train - valid)}
    sizes = {split: len(nodes) for split, nodes in (source.splits or {}).items()}
    sizes = {split: sizes.get(split, 0) for split in ("train", "valid", "test")}
    if data.split == "full":
        sizes["train"] = max(0, labelled - sizes["valid"] - sizes["test"])
    return sizes
