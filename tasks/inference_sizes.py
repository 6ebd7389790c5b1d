"""What exact inference from disk takes beside its tiles: sets of nodes, pieces of rows in memory, files on disk."""

from __future__ import annotations

from itertools import pairwise

from kernels.nn.model import ModelSpec, build_model
from kernels.rank_map import RankMap
from storage.blocks.row_file import RowLayout
from storage.blocks.row_pieces import FeaturePieces
from tasks.score_rows import ScoreFile
from tasks.tile_plan import least_tile_bytes


def tile_bytes(spec: ModelSpec, num_nodes: int) -> int:
    """The least memory for tiles."""
    layers = build_model(spec, seed=0).ordered_layers()
    return least_tile_bytes(num_nodes, max(max(layer.in_dim, layer.projected_dim) for layer in layers))


def sets_bytes(spec: ModelSpec, num_nodes: int, *, prepared: int = 1) -> int:
    """Bytes of the sets of needed nodes of so many inferences, and of one more while it is made."""
    return (prepared * (spec.num_layers + 1) + 1) * RankMap.nbytes_for(num_nodes)


def inference_disk_bytes(spec: ModelSpec, num_nodes: int, scores: ScoreFile | None = None) -> int:
    """Most bytes of the layers' files that `TiledInference` has at once for all nodes, layer after layer; no edges.

    With those of a file of scores, which is written beside the last one.
    """
    files = [RowLayout(num_nodes, width).nbytes for width in _file_widths(spec)]
    return _most_at_once([*files, scores.disk_bytes] if scores else files)


def pieces_bytes(
    spec: ModelSpec, num_nodes: int, row_bytes: int, block_bytes: int, scores: ScoreFile | None = None
) -> int:
    """Bytes of pieces of rows on their way from the store, and to the layers' files and back, beside tiles.

    Parameters
    ----------
    spec : ModelSpec
    num_nodes : int
    row_bytes, block_bytes : int
        Of a feature row as stored, and of the store's blocks.
    scores : ScoreFile, optional
        Where scores are kept for ranking: they are written while the last layer's sources are read.
    """
    files = [RowLayout(num_nodes, width).memory_bytes for width in _file_widths(spec)]
    files += [scores.memory_bytes] if scores else []
    return _most_at_once(files) + FeaturePieces.memory_bytes(row_bytes, block_bytes)


def _file_widths(spec: ModelSpec) -> list[int]:
    """Widths of the rows that go to files, one file after the other; the last layer's output goes to none."""
    layers = build_model(spec, seed=0).ordered_layers()
    widths = [[layer.projected_dim] * layer.transform_first + [layer.out_dim] for layer in layers]
    return [width for layer in widths for width in layer][:-1]


def _most_at_once(files: list[int]) -> int:
    """The most of two files that follow each other: one is read while the next is written."""
    return max((one + other for one, other in pairwise([0, *files])), default=0)
