"""The train stage where topology and features stay on disk: the same trainer on another data source, I/O tracked."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from conf.schema import PipelineConfig
from kernels.nn.model import ModelSpec
from storage.blocks.io_stats import IoCounts
from storage.cache.plan import CachePlan
from storage.errors import BudgetError, MachineError
from storage.graph_store import GraphStore
from tasks.budgets import Estimate, available_memory
from tasks.disk_plan import least_budget
from tasks.inference_sizes import inference_disk_bytes
from tasks.io_monitor import IoMonitor
from tasks.on_disk import OnDisk, StorageOptions, open_on_disk
from tasks.plots import plot_io
from tasks.run_context import RunContext
from tasks.score_rows import ScoreFile
from tasks.trainer import train_from
from tasks.training_config import model_disk_bytes, train_options
from tasks.training_reports import EpochReport, TrainResult
from tasks.training_types import TrainOptions

_FREE_SHARE = 0.8
"""Of the memory that is free, where no budget is set."""
_LIMITED_SHARE = 0.95
"""Of the memory that is free, where that is less than the budget: a control group's limit."""
_PICTURE = "disk.png"


def train_on_disk(
    run: RunContext,
    store_path: Path,
    plan_path: Path,
    options: TrainOptions,
    on_epoch: Callable[[EpochReport], None],
    *,
    data_digest: str,
    directory: Path,
    held_bytes: int = 0,
) -> tuple[TrainResult, Mapping[str, float]]:
    """Train from the laid-out store without loading it; metrics `io/*` and a picture go to the run.

    Parameters
    ----------
    run : RunContext
    store_path, plan_path : Path
    options : TrainOptions
    on_epoch : callable
    data_digest : str
    directory : Path
        Where to spill.
    held_bytes : int
        Bytes of `disk_budget` that are there already.

    Returns
    -------
    TrainResult
    mapping
        Means of the epochs that were run: `epoch_read_bytes` without evaluation, `evaluation_read_bytes`; `hyperbatch`.

    Raises
    ------
    InputError, BudgetError, StorageError, MachineError
        As `tasks.on_disk.open_on_disk` and `tasks.trainer.train`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan, config = CachePlan.load(plan_path), run.config
    storage = _storage_options(config, store_path, directory, held_bytes)
    with (
        _blaming_free_memory(config, storage.host_budget),
        open_on_disk(store_path, plan.feature_ids, plan.adjacency_ids, options, storage) as data,
        IoMonitor(data.source.stats) as monitor,
    ):
        epoch_io = _EpochIo(run, data.source)

        def report(epoch: EpochReport) -> None:
            on_epoch(epoch)
            epoch_io.log(epoch.epoch)

        result = train_from(
            data.source,
            data.labels,
            data.splits,
            data.degrees,
            options,
            num_classes=data.num_classes,
            data_digest=data_digest,
            on_epoch=report,
        )
        run.parent.log_metrics(
            {"io/hyperbatch": data.source.plan.hyperbatch, "io/planned_bytes": data.source.plan.total}
        )
    run.picture(_picture(monitor, result, directory))
    return result, epoch_io.means() | {"hyperbatch": data.source.plan.hyperbatch}


def _picture(monitor: IoMonitor, result: TrainResult, directory: Path) -> Path:
    """What was moved over time, and where the time went."""
    parts = {name: result.seconds[name] for name in ("train", "wait", "validate", "evaluate")}
    picture = directory / _PICTURE
    plot_io(monitor.seconds, monitor.read_bytes, monitor.write_bytes, parts, picture)
    return picture


class _EpochIo:
    """Logs what each epoch moved, and remembers what it read."""

    def __init__(self, run: RunContext, source: OnDisk) -> None:
        self._run, self._source, self._before = run, source, source.stats.counts()
        self._trained, self._evaluated = list[int](), list[int]()

    def log(self, epoch: int) -> None:
        """Log what has been moved since the last epoch."""
        counts = self._source.stats.counts()
        moved, self._before = counts.since(self._before), counts
        self._trained.append(self._source.features.epoch_io.read_bytes)
        self._evaluated.append(moved.read_bytes - self._trained[-1])
        _log_io(self._run, epoch, moved, self._trained[-1])

    def means(self) -> dict[str, float]:
        """Bytes read in an epoch, in training and in evaluation; none where no epoch was run."""
        if not self._trained:
            return {}
        return {
            "epoch_read_bytes": statistics.fmean(self._trained),
            "evaluation_read_bytes": statistics.fmean(self._evaluated),
        }


@contextmanager
def _blaming_free_memory(config: PipelineConfig, budget: int) -> Iterator[None]:
    """Say so where not `host_budget` is too small, but what is free: to set it higher would not help."""
    try:
        yield
    except BudgetError as error:
        if error.needed is None or (config.host_budget is not None and budget >= int(config.host_budget)):
            raise
        raise MachineError(
            f"training from disk needs {error.needed} bytes of memory and {budget} of those that are free may be "
            "taken: free some, use a larger machine, or use smaller sampling.batch_size or fanouts"
        ) from error


def _log_io(run: RunContext, epoch: int, counts: IoCounts, train_read_bytes: int) -> None:
    figures = {
        "io/train_read_bytes": train_read_bytes,
        "io/disk_read_bytes": counts.read_bytes,
        "io/disk_write_bytes": counts.write_bytes,
        "io/disk_reads": counts.reads,
        "io/disk_read_size": counts.read_bytes / max(1, counts.reads),
        "io/disk_bytes_per_s": counts.bytes_per_s,
        "io/disk_busy_s": counts.busy_s,
        "io/block_hit_rate": counts.hit_rate,
    }
    run.parent.log_metrics(figures, epoch)


def _storage_options(config: PipelineConfig, store_path: Path, directory: Path, held_bytes: int) -> StorageOptions:
    with GraphStore.open(store_path) as store:
        spec = _spec(config, store)
    return StorageOptions(
        host_budget=_budget(config),
        directory=directory,
        disk_budget=None if config.disk_budget is None else int(config.disk_budget),
        disk_taken=held_bytes + model_disk_bytes(spec, config.training.epochs),
        hyperbatch=config.storage.hyperbatch,
        keep=config.storage.keep,
    )


def storage_estimate(config: PipelineConfig, store_path: Path) -> Estimate:
    """The budget, which is shared out once the first mini-batches are known, and the disk that evaluation takes.

    Or the least of a budget that is known already, where that is more.
    """
    with GraphStore.open(store_path) as store:
        spec, scores, budget = _spec(config, store), ScoreFile.of(store.info, config.training.metric), _budget(config)
        least = least_budget(store, train_options(config, None), spec, budget)
        return Estimate(
            memory_bytes=max(least, 0 if config.host_budget is None else budget),
            disk_bytes=inference_disk_bytes(spec, store.info.num_nodes, scores)
            + model_disk_bytes(spec, config.training.epochs),
        )


def _spec(config: PipelineConfig, store: GraphStore) -> ModelSpec:
    return train_options(config, None).model_spec(max(1, store.info.feature_dim), max(1, store.info.num_classes))


def _budget(config: PipelineConfig) -> int:
    """Return `host_budget`, or most of what is free where that is less."""
    free = available_memory()
    if config.host_budget is None:
        return int(_FREE_SHARE * free)
    return min(int(config.host_budget), int(_LIMITED_SHARE * free))
