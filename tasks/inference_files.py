"""How much disk exact inference out of core takes: the files of the layers that are there at once."""

from __future__ import annotations

from kernels.nn.model import ModelSpec, build_model
from storage.blocks.row_pieces import row_file_bytes


def inference_disk_bytes(spec: ModelSpec, num_nodes: int) -> int:
    """Most bytes of the files that `TiledInference` has at once for all nodes, layer after layer."""
    layers, source, most = build_model(spec, seed=0).ordered_layers(), 0, 0
    for index, layer in enumerate(layers):
        widths = [layer.projected_dim] if layer.transform_first else []
        widths += [layer.out_dim] if index < len(layers) - 1 else []  # the last one's output goes to no file
        for width in widths:
            made = row_file_bytes(num_nodes, width)
            source, most = made, max(most, source + made)
    return most
