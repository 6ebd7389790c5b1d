"""What `cache.device_budget: auto` comes to: a GPU's free memory, less what training takes beside the caches."""

from __future__ import annotations

import logging

from conf.byte_size import Bytes
from conf.schema import PipelineConfig
from kernels.backend import Backend
from kernels.cuda.current import device_launcher
from kernels.nn.model import ModelSpec
from kernels.rank_map import RankMap
from kernels.tiered_rows import TIER_DTYPES
from storage.cache.plan_choices import OFFSET_BYTES
from storage.cache.profile import AccessProfile, StoredProfile
from storage.graph_store import FEATURES, INDICES, INDPTR, GraphStore
from tasks.device_memory import DeviceNeeds, SuperBatchSizes, check_device, device_step_bytes
from tasks.step_costs import HopShape
from tasks.training_config import stand_in_bytes, train_options

Profile = AccessProfile | StoredProfile

_logger = logging.getLogger(__name__)
_MARGIN = 1.4
"""Of mini-batches above the mean of the profile; what training then checks by its first super-batch is less."""
_PARTS = 32
_DEGREE_BYTES = 16
_SCORE_BYTES = 8


def with_settled_budget(
    config: PipelineConfig, backend: Backend, store: GraphStore, profile: Profile | None = None
) -> PipelineConfig:
    """The configuration with `cache.device_budget` in bytes.

    On a GPU it is rounded down to a part in 32 to 64 of what is free, so that another process that takes or gives back
    a little does not change it from run to run, and is never above what all rows and lists take.

    Parameters
    ----------
    config, backend
        What was asked and what was chosen.
    store : GraphStore
        The laid-out graph.
    profile : AccessProfile or StoredProfile, optional
        How large mini-batches are; without one they count as large as they can get.

    Raises
    ------
    MachineError
        If the GPU's memory does not hold what training takes without any cache.
    """
    if config.cache.device_budget != "auto":
        return config
    budget = stand_in_bytes(config) if backend == "cpu" else _gpu_bytes(config, store, profile)
    _logger.info("cache.device_budget: auto is %s bytes here", f"{budget:,}")
    cache = config.cache.model_copy(update={"device_budget": Bytes(budget)})
    return config.model_copy(update={"cache": cache})


def _gpu_bytes(config: PipelineConfig, store: GraphStore, profile: Profile | None) -> int:
    launcher = device_launcher(0)
    free = launcher.free_bytes() // -(-config.training.workers // launcher.device_count())
    needs = _needs(config, store, profile)
    check_device(needs, free)
    unit = 1 << max(0, (free // _PARTS).bit_length() - 1)
    return min(_everything(store, config), (free - needs.beside_caches) // unit * unit)


def _everything(store: GraphStore, config: PipelineConfig) -> int:
    """Bytes at which no row and no list is left out; of a dynamic cache there is then nothing to gain."""
    num_nodes = store.info.num_nodes
    rows = store.nbytes(FEATURES) if store.has(FEATURES) else 0
    whole = store.nbytes(INDICES) + rows + OFFSET_BYTES * (num_nodes + 1)
    return int((whole + 2 * RankMap.nbytes_for(num_nodes)) / (1 - min(config.cache.dynamic.share, 0.5)))


def _needs(config: PipelineConfig, store: GraphStore, profile: Profile | None) -> DeviceNeeds:
    info, options = store.info, train_options(config, None)
    spec = options.model_spec(max(1, info.feature_dim), max(1, info.num_classes))
    sizes = _sizes(config, store, spec, profile)
    degrees = _DEGREE_BYTES * info.num_nodes if spec.needs_degrees else 0
    scores = _SCORE_BYTES * info.num_nodes if config.cache.dynamic.share else 0
    resident = store.nbytes(INDPTR) + degrees + scores
    return DeviceNeeds(0, resident, sizes.loading_bytes, device_step_bytes(spec, sizes))


def _sizes(config: PipelineConfig, store: GraphStore, spec: ModelSpec, profile: Profile | None) -> SuperBatchSizes:
    """Mini-batches as large as the profile saw them and a margin, or as large as they can get."""
    info, sampling = store.info, config.sampling
    nodes, shapes = min(sampling.batch_size, info.num_nodes), list[HopShape]()
    expanded, inputs = _seen(profile, config, store)
    for fanout in reversed(sampling.fanouts):
        nodes = min(nodes, expanded)
        edges = info.num_edges if fanout < 0 else nodes * fanout
        shapes.append(HopShape(nodes, min(nodes + edges, info.num_nodes), edges))
        nodes = shapes[-1].num_src
    return SuperBatchSizes(
        shapes=tuple(shapes),
        inputs=min(nodes, inputs),
        batches=sampling.superbatch,
        id_bytes=store.extent(INDICES).dtype.itemsize,
        row_bytes=info.feature_row_bytes,
        num_nodes=info.num_nodes,
        in_place=spec.input_dropout == 0 and store.extent(FEATURES).dtype in TIER_DTYPES,
    )


def _seen(profile: Profile | None, config: PipelineConfig, store: GraphStore) -> tuple[int, int]:
    """Most nodes that a hop expands, and input nodes, of a mini-batch."""
    if profile is None:
        return store.info.num_nodes, store.info.num_nodes
    num_batches = -(-store.info.split_sizes["train"] // config.sampling.batch_size)
    batches = max(1, config.profile.epochs * num_batches)
    inputs, expanded = (int(int(counts.sum()) / batches * _MARGIN) + 1 for counts in profile.counts("input"))
    return expanded, inputs
