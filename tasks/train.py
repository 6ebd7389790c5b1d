"""Stage 5, train: the store and the plan become a model with its scores; each finished epoch survives a crash."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from prefect import task
from prefect.cache_policies import NO_CACHE

from storage.graph_store import GraphStore
from storage.manifest import Manifest
from tasks.artifacts import StageOutcome, StageSpec
from tasks.budgets import Estimate
from tasks.build_cache import PLAN_FILE
from tasks.checkpoint import save_model
from tasks.gpu_slot import gpu_slot
from tasks.model_card import CARD_FILE, model_card
from tasks.model_data import MODEL_FOLDER, ModelData
from tasks.plots import plot_training
from tasks.predictions import prediction_errors
from tasks.progress import Advance, progress
from tasks.run_context import RunContext
from tasks.sources import STORE_FILE, ingest_options
from tasks.specs import CACHE, INGEST, REORDER, TRAIN, train_spec
from tasks.train_on_disk import storage_estimate, train_on_disk
from tasks.trainer import train
from tasks.training_config import MemoryShares, train_options, training_estimate
from tasks.training_data import load_training_data
from tasks.training_reports import EpochReport, TrainResult
from tasks.worker_team import worker_team

_logger = logging.getLogger(__name__)
_PICTURE = "training.png"
_EPOCH_LINE_S = 3.0


@task(name=TRAIN, cache_policy=NO_CACHE)
def train_model(run: RunContext) -> Manifest:
    """Train anew, or go on from the checkpoint of a run of this configuration that died; register the model."""
    spec = train_spec(run.config, run.manifest(CACHE).digest)
    with gpu_slot():
        manifest = run.record(TRAIN, lambda _: _train(run, spec))
    run.picture(manifest.path(_PICTURE))
    return manifest


def _train(run: RunContext, spec: StageSpec) -> StageOutcome:
    path = run.manifest(REORDER).path(STORE_FILE)
    checkpoint = run.config.state_dir / "checkpoints" / spec.digest / "checkpoint.pt"
    run.note_training(spec.digest)
    held_bytes = run.artifacts.held_bytes(spec)

    def build(directory: Path) -> Mapping[str, Any]:
        result, disk_figures = _run_trainer(run, path, checkpoint, held_bytes)
        _log_result(run, result, disk_figures)
        _save(result, directory)
        with GraphStore.open(path) as store:
            ModelData.of(store.info, ingest_options(run.config), run.manifest(REORDER).digest).save(
                directory / MODEL_FOLDER
            )
        return _counts(result)

    outcome = run.artifacts.build_anew(spec, build, lambda: _estimate(run, path))
    shutil.rmtree(checkpoint.parent)
    run.parent.log_text(model_card(run, outcome.manifest), f"{MODEL_FOLDER}/{CARD_FILE}")
    metric = run.config.training.metric
    score = run.facts[f"valid_{metric}"]
    tags = {
        "store_digest": run.manifest(REORDER).digest,
        "train_digest": spec.digest,
        "data_digest": run.manifest(INGEST).digest,
    }
    folder = outcome.manifest.directory / MODEL_FOLDER
    run.parent.register_model(run.config.name, folder, metric, float("nan") if score is None else score, tags)
    return outcome


def _run_trainer(
    run: RunContext, path: Path, checkpoint: Path, held_bytes: int
) -> tuple[TrainResult, Mapping[str, float]]:
    """Train from memory or from disk; from disk, tell what else a prediction is compared with."""
    if run.config.storage.mode == "storage":
        return _train_on_disk(run, path, checkpoint, held_bytes)
    return _train_in_memory(run, path, checkpoint), {}


def _train_in_memory(run: RunContext, path: Path, checkpoint: Path) -> TrainResult:
    """Load the store and the plan into the tiers, and train, with workers where they are asked for."""
    with GraphStore.open(path) as store:
        shares = MemoryShares.of(run.config, store, on_gpu=run.backend == "cuda")
    cache, options = run.manifest(CACHE), train_options(run.config, checkpoint)
    options = replace(
        options, backend=run.backend, in_flight_bytes=shares.in_flight_bytes, chunk_bytes=shares.chunk_bytes
    )
    plan, digest = cache.path(PLAN_FILE), cache.digest
    data = load_training_data(path, plan, shared=options.workers > 1, on_gpu=options.backend == "cuda")
    with (
        closing(data),
        worker_team(path, plan, options, data_digest=digest, directory=checkpoint.parent, held=data.held) as peers,
        progress(TRAIN, "epochs") as advance,
    ):
        return train(
            data.topology,
            data.features,
            data.labels,
            data.splits,
            data.degrees,
            options,
            num_classes=data.num_classes,
            data_digest=digest,
            on_epoch=lambda report: _log_epoch(run, report, advance),
            peers=peers,
        )


def _train_on_disk(
    run: RunContext, path: Path, checkpoint: Path, held_bytes: int
) -> tuple[TrainResult, Mapping[str, float]]:
    cache = run.manifest(CACHE)
    with progress(TRAIN, "epochs") as advance:
        return train_on_disk(
            run,
            path,
            cache.path(PLAN_FILE),
            train_options(run.config, checkpoint),
            lambda report: _log_epoch(run, report, advance),
            data_digest=cache.digest,
            directory=checkpoint.parent,
            held_bytes=held_bytes,
        )


def _estimate(run: RunContext, path: Path) -> Estimate:
    if run.config.storage.mode == "storage":
        return storage_estimate(run.config, path)
    with GraphStore.open(path) as store:
        return training_estimate(run.config, store, on_gpu=run.backend == "cuda")


def _log_epoch(run: RunContext, report: EpochReport, advance: Advance | None = None) -> None:
    """Send one epoch's figures in one batch."""
    features, adjacency = report.feature_reads, report.adjacency_reads
    figures: dict[str, float | None] = {
        "train/loss": report.loss,
        "valid/accuracy": report.valid_accuracy,
        "valid/loss": report.valid_loss,
        "train/learning_rate": report.learning_rate,
        "cache/feature_hit_rate": features.hit_rate,
        "cache/adjacency_hit_rate": adjacency.hit_rate,
        "io/device_feature_bytes": features.device_bytes,
        "io/host_feature_bytes": features.host_bytes,
        "io/device_adjacency_bytes": adjacency.device_bytes,
        "io/host_adjacency_bytes": adjacency.host_bytes,
        **{f"cache/{name}": value for name, value in report.dynamic.items()},
        "system/rss_bytes": psutil.Process().memory_info().rss,
    }
    if run.config.training.metric != "accuracy":
        figures[f"valid/{run.config.training.metric}"] = report.valid_metric
    figures |= {f"time/{part}_s": seconds for part, seconds in report.seconds.items()}
    run.parent.log_metrics({name: value for name, value in figures.items() if value is not None}, report.epoch)
    if advance is not None:
        advance(report.epoch + 1, run.config.training.epochs)
        _say_epoch(run, report)


def _say_epoch(run: RunContext, report: EpochReport) -> None:
    """Log an epoch for people, one in some seconds; all are in MLflow."""
    now, total = time.monotonic(), run.config.training.epochs
    if report.epoch + 1 < total and now - run.facts.get("last_epoch_line", -np.inf) < _EPOCH_LINE_S:
        return
    run.facts["last_epoch_line"] = now
    metric = run.config.training.metric
    valid = "" if report.valid_metric is None else f", validation {metric.replace('_', ' ')} {report.valid_metric:.3f}"
    seconds = sum(report.seconds.get(part, 0.0) for part in ("train", "wait"))
    _logger.info("%s: epoch %d of %d, loss %.4g%s, %.2f s", TRAIN, report.epoch + 1, total, report.loss, valid, seconds)


def _log_result(run: RunContext, result: TrainResult, disk_figures: Mapping[str, float]) -> None:
    """Keep what the summary shows; send the epochs that the run which died had, so that the curves are whole."""
    run_here = max(1, len(result.history) - result.resumed_epochs)
    here = result.history[result.resumed_epochs :]
    measured = {
        "epoch_s": sum(report.seconds["train"] + report.seconds["wait"] for report in here) / run_here,
        "evaluation_s": sum(report.seconds["validate"] for report in here) / run_here,
        **disk_figures,
    }
    run.parent.log_metrics(prediction_errors(run.config, measured))
    for report in result.history[: result.resumed_epochs]:
        _log_epoch(run, report)
    scores = _scores(result)
    run.parent.log_metrics({name.replace("_", "/best_", 1): v for name, v in scores.items() if v is not None})
    features, adjacency = result.feature_reads, result.adjacency_reads
    run.facts |= scores | {
        "metric": result.metric,
        "epochs": len(result.history),
        "resumed_epochs": result.resumed_epochs,
        "measured": {"feature": features.hit_rate, "adjacency": adjacency.hit_rate},
        "tier_bytes": {
            "device_feature": features.device_bytes,
            "host_feature": features.host_bytes,
            "device_adjacency": adjacency.device_bytes,
            "host_adjacency": adjacency.host_bytes,
        },
        "training_s": {
            "training": {part: result.seconds[part] for part in ("train", "wait", "validate", "evaluate")},
            "its threads": {part: result.seconds[part] for part in ("sample", "gather")},
        },
    }


def _scores(result: TrainResult) -> dict[str, float | None]:
    """Accuracies, and the metric that chose the epoch."""
    scores = {"test_accuracy": result.test_accuracy, "valid_accuracy": result.valid_accuracy}
    chosen = {
        f"test_{result.metric}": result.test_metrics.get(result.metric),
        f"valid_{result.metric}": result.valid_metric,
    }
    return scores | chosen


def _save(result: TrainResult, directory: Path) -> None:
    save_model(directory / MODEL_FOLDER, result.spec, result.state_dict)
    history = [report.to_dict() for report in result.history]
    (directory / "history.json").write_text(json.dumps(history, indent=1), encoding="utf-8")
    accuracies = [np.nan if report.valid_accuracy is None else report.valid_accuracy for report in result.history]
    test_accuracy = np.nan if result.test_accuracy is None else result.test_accuracy
    plot_training([report.loss for report in result.history], accuracies, test_accuracy, directory / _PICTURE)


def _counts(result: TrainResult) -> dict[str, Any]:
    return {
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        **_scores(result),
        **{f"test_{name}": value for name, value in result.test_metrics.items()},
        "parameters": sum(tensor.numel() for tensor in result.state_dict.values()),
    }
