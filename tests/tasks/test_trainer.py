"""The training loop: it learns, repeats itself bit by bit, resumes after a kill, and refuses what cannot work."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.mfg import IdArray
from kernels.nn import project
from kernels.nn.model import Kind, build_model
from kernels.rng import Purpose
from kernels.sampler import NeighborSampler, shuffled_batches
from kernels.tiered_rows import TieredRows
from storage.cache import tiers
from storage.cache.tiers import FeatureTiers
from storage.errors import InputError
from tasks.training_reports import EpochReport, TrainResult
from tasks.training_types import Splits, TrainOptions
from tests.tasks import killed_training
from tests.tasks.training_graphs import OPTIONS, Data, community_data

ROOT = Path(__file__).parents[2]
DATA = community_data()


def assert_same_run(a: TrainResult, b: TrainResult) -> None:
    """Losses, scores and weights are equal to the bit."""
    assert [report.loss for report in a.history] == [report.loss for report in b.history]
    assert [report.valid_loss for report in a.history] == [report.valid_loss for report in b.history]
    assert (a.best_epoch, a.valid_accuracy, a.test_accuracy) == (b.best_epoch, b.valid_accuracy, b.test_accuracy)
    assert a.state_dict.keys() == b.state_dict.keys()
    assert all(torch.equal(a.state_dict[name], b.state_dict[name]) for name in a.state_dict)


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_learns_more_than_an_mlp(kind: str) -> None:
    graph = DATA.train(replace(OPTIONS, kind=kind, epochs=10))  # type: ignore[arg-type]
    alone = DATA.train(replace(OPTIONS, kind="mlp", fanouts=(), epochs=10))
    assert graph.test_accuracy is not None
    assert alone.test_accuracy is not None
    assert graph.test_accuracy > 0.9
    assert graph.test_accuracy > alone.test_accuracy + 0.1


@pytest.fixture(scope="module")
def reference() -> TrainResult:
    return DATA.train(replace(OPTIONS, threads=1, superbatch=1))


@pytest.mark.parametrize(("threads", "superbatch"), [(1, 4), (2, 4), (4, 8), (2, 1)])
def test_neither_threads_nor_superbatches_change_a_bit(reference: TrainResult, threads: int, superbatch: int) -> None:
    assert_same_run(DATA.train(replace(OPTIONS, threads=threads, superbatch=superbatch)), reference)


def test_caches_do_not_change_a_bit(reference: TrainResult) -> None:
    cached = DATA.with_adjacency_cache(100).train(OPTIONS, cached=150)
    assert_same_run(cached, reference)
    assert cached.feature_reads.hit_rate > 0.3
    assert cached.adjacency_reads.hit_rate > 0.1
    requests = [r.feature_reads.device_rows + r.feature_reads.host_rows for r in (cached, reference)]
    assert requests[0] == requests[1]


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_rows_read_in_place_train_the_same_network_whatever_the_tiers(kind: Kind, dtype: str) -> None:
    """Without dropout of the input no row is gathered; dropout of next to nothing gathers and rounds to nothing."""
    data = community_data(dtype=dtype)
    options = replace(OPTIONS, kind=kind, epochs=2, input_dropout=0.0)
    in_place = data.train(options)
    assert_same_run(data.train(replace(options, threads=1, superbatch=2), cached=150), in_place)
    gathered = data.train(replace(options, input_dropout=1e-9))
    for ours, theirs in zip(in_place.history, gathered.history, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-4)
        assert ours.feature_reads == theirs.feature_reads


@pytest.mark.parametrize("kind", ["sage", "gcn", "gat"])
def test_input_rows_never_stand_together_in_memory(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first layer reads them in the tiers: at most a piece of them is ever gathered, and only to be projected."""
    gathered, gather, gather_group = [], TieredRows.gather, FeatureTiers.gather_group

    def watched(self: TieredRows, begin: int = 0, end: int | None = None) -> np.ndarray:
        rows = gather(self, begin, end)
        if sys._getframe(1).f_globals["__name__"] != tiers.__name__:  # evaluation gathers there, and may
            gathered.append(len(rows))
        return rows

    def refused(self: FeatureTiers, batches: Sequence[IdArray]) -> Any:
        if threading.current_thread().name == "gather":  # evaluation may
            raise AssertionError("rows were gathered")
        return gather_group(self, batches)

    monkeypatch.setattr(project, "_PIECE_ROWS", 16)
    monkeypatch.setattr(TieredRows, "gather", watched)
    monkeypatch.setattr(FeatureTiers, "gather_group", refused)
    DATA.train(replace(OPTIONS, kind=kind, epochs=1, input_dropout=0.0, batch_size=100))
    assert max(gathered, default=0) <= 16
    with pytest.raises(AssertionError, match="rows were gathered"):
        DATA.train(replace(OPTIONS, kind=kind, epochs=1, input_dropout=0.5))


def test_attention_dropout_changes_the_run_and_repeats() -> None:
    options = replace(OPTIONS, kind="gat", epochs=2, heads=4, attention_dropout=0.5)
    first = DATA.train(options)
    assert_same_run(DATA.train(replace(options, threads=1)), first)
    assert first.history[0].loss != DATA.train(replace(options, attention_dropout=0.0)).history[0].loss


def test_seed_changes_the_run(reference: TrainResult) -> None:
    other = DATA.train(replace(OPTIONS, seed=2**64 - 1))
    assert other.history[0].loss != reference.history[0].loss


def test_compute_threads_are_set_for_the_run_alone() -> None:
    before, seen = torch.get_num_threads(), []
    DATA.train(replace(OPTIONS, epochs=1, compute_threads=3), on_epoch=lambda _: seen.append(torch.get_num_threads()))
    assert (seen, torch.get_num_threads()) == ([3], before)


def test_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    DATA.train(replace(OPTIONS, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
def test_rows_are_converted_from_their_storage_dtype(dtype: str) -> None:
    stored = community_data(dtype=dtype)
    as_float = Data(stored.topology, stored.rows.astype(np.float32), stored.labels, stored.splits, stored.degrees)
    compact = stored.train(replace(OPTIONS, epochs=2))
    assert_same_run(compact, as_float.train(replace(OPTIONS, epochs=2)))
    assert compact.feature_reads.host_bytes * (4 // stored.rows.itemsize) > 0


def test_unlabelled_nodes_are_never_trained_on(reference: TrainResult) -> None:
    """Moving every unlabelled node into the training split changes nothing."""
    unlabelled = np.flatnonzero(DATA.labels < 0)
    assert len(unlabelled)
    everywhere = Splits(
        np.union1d(DATA.splits.train, unlabelled), np.union1d(DATA.splits.valid, unlabelled), DATA.splits.test
    )
    more = Data(DATA.topology, DATA.rows, DATA.labels, everywhere, DATA.degrees)
    assert_same_run(more.train(OPTIONS), reference)


def test_sampled_validation_scores_about_the_same() -> None:
    exact = DATA.train(replace(OPTIONS, epochs=6))
    sampled = DATA.train(replace(OPTIONS, epochs=6, validation="sampled"))
    assert [r.loss for r in exact.history] == [r.loss for r in sampled.history]
    for a, b in zip(exact.history, sampled.history, strict=True):
        assert a.valid_accuracy is not None
        assert b.valid_accuracy is not None
        assert abs(a.valid_accuracy - b.valid_accuracy) < 0.15
    assert sampled.history[0].valid_adjacency_reads.host_rows > 0


def test_counts_cover_training_alone(reference: TrainResult) -> None:
    """What sampling the epochs' batches needs is counted, and validation apart from it."""
    sampler = NeighborSampler(DATA.topology, OPTIONS.fanouts, seed=OPTIONS.seed, purpose=Purpose.TRAIN)
    nodes = DATA.splits.labelled(DATA.labels).train
    for report in reference.history:
        batches = shuffled_batches(nodes, OPTIONS.batch_size, seed=OPTIONS.seed, epoch=report.epoch)
        sampled = sampler.sample(batches, epoch=report.epoch, first_batch=0)
        assert report.feature_reads.host_rows == sum(len(sample.input_nodes) for sample in sampled.samples)
        assert report.adjacency_reads.host_rows == sum(h.num_dst for s in sampled.samples for h in s.hops)
    assert reference.feature_reads.host_rows == sum(r.feature_reads.host_rows for r in reference.history)
    assert reference.adjacency_reads.host_bytes == sum(r.adjacency_reads.host_bytes for r in reference.history)
    validated = sum(r.valid_feature_reads.host_rows for r in reference.history)
    assert 0 < validated < reference.evaluation_feature_reads.host_rows


def test_time_is_accounted_for(reference: TrainResult) -> None:
    start = time.perf_counter()
    result = DATA.train(replace(OPTIONS, epochs=3))
    wall_s = time.perf_counter() - start
    assert set(result.seconds) == {"train", "wait", "validate", "sample", "gather", "evaluate"}
    on_the_wall = sum(result.seconds[part] for part in ("train", "wait", "validate", "evaluate"))
    assert 0.2 * wall_s < on_the_wall <= wall_s


def test_best_epoch_is_the_one_of_the_best_validation() -> None:
    result = DATA.train(replace(OPTIONS, epochs=12, learning_rate=0.05))
    key = [(r.valid_accuracy, -(r.valid_loss or 0.0)) for r in result.history]
    assert key[result.best_epoch] == max(key)
    assert result.valid_accuracy == result.history[result.best_epoch].valid_accuracy
    again = DATA.train(replace(OPTIONS, epochs=result.best_epoch + 1, learning_rate=0.05))
    assert all(torch.equal(again.state_dict[name], result.state_dict[name]) for name in result.state_dict)


def test_patience_stops_early() -> None:
    result = DATA.train(replace(OPTIONS, epochs=200, patience=3, learning_rate=0.05))
    assert len(result.history) == result.best_epoch + 1 + 3


def test_without_validation_nodes_the_last_epoch_counts() -> None:
    alone = replace(DATA, splits=Splits(DATA.splits.train, DATA.splits.valid[:0], DATA.splits.test[:0]))
    result = alone.train(replace(OPTIONS, epochs=3, patience=1))
    assert (result.best_epoch, result.valid_accuracy, result.test_accuracy) == (2, None, None)


def test_state_dict_fits_its_spec(reference: TrainResult) -> None:
    build_model(reference.spec, seed=0).load_state_dict(reference.state_dict)


def test_interrupted_run_goes_on_as_if_undisturbed(tmp_path: Path, reference: TrainResult) -> None:
    options = replace(OPTIONS, checkpoint_path=tmp_path / "checkpoint.pt")

    def interrupt(report: EpochReport) -> None:
        if report.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DATA.train(options, on_epoch=interrupt)
    seen: list[int] = []
    resumed = DATA.train(replace(options, threads=4, superbatch=2), on_epoch=lambda report: seen.append(report.epoch))
    assert (resumed.resumed_epochs, seen) == (2, [2, 3])
    assert_same_run(resumed, reference)
    assert resumed.feature_reads.host_rows == reference.feature_reads.host_rows


def kill_after_epoch(checkpoint_path: Path, epoch: int, delay_s: float) -> None:
    """Start the run in a process of its own and kill it with SIGKILL a moment after an epoch was announced."""
    command = [sys.executable, "-m", "tests.tasks.killed_training", str(checkpoint_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == epoch:
                time.sleep(delay_s)
                child.send_signal(signal.SIGKILL)
                break
        assert child.wait(60) == -signal.SIGKILL, "the run ended before it was killed"


def test_killed_run_ends_with_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    kill_after_epoch(path, epoch=2, delay_s=0.01)
    resumed = DATA.train(killed_training.options(path))
    assert 3 <= resumed.resumed_epochs < killed_training.EPOCHS
    assert_same_run(resumed, DATA.train(killed_training.options(None)))


@pytest.mark.full
@pytest.mark.parametrize("trial", range(8))
def test_killed_at_any_time(tmp_path: Path, trial: int) -> None:
    path, rng = tmp_path / "checkpoint.pt", random.Random(trial)
    kill_after_epoch(path, epoch=rng.randrange(20), delay_s=rng.random() * 0.1)
    assert_same_run(DATA.train(killed_training.options(path)), DATA.train(killed_training.options(None)))


def test_finished_run_is_only_evaluated_again(tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=2, checkpoint_path=tmp_path / "checkpoint.pt")
    first = DATA.train(options)
    second = DATA.train(options)
    assert second.resumed_epochs == 2
    assert_same_run(first, second)


@pytest.mark.parametrize("change", [{"learning_rate": 0.5}, {"hidden": 17}, {"seed": 1}, {"fanouts": (3, 4)}])
def test_checkpoint_of_other_options_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    options = replace(OPTIONS, epochs=1, checkpoint_path=tmp_path / "checkpoint.pt")
    DATA.train(options)
    with pytest.raises(InputError, match="other options or data"):
        DATA.train(replace(options, **change))


def test_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=1, checkpoint_path=tmp_path / "checkpoint.pt")
    DATA.train(options, data_digest="a")
    with pytest.raises(InputError, match="other options or data"):
        DATA.train(options, data_digest="b")
    fewer = replace(DATA, splits=Splits(DATA.splits.train[1:], DATA.splits.valid, DATA.splits.test))
    with pytest.raises(InputError, match="other options or data"):
        fewer.train(options, data_digest="a")


def test_divergence_names_where_and_what_to_do() -> None:
    with pytest.raises(InputError, match=r"epoch \d+, batch \d+ is not finite; try a learning rate below 1e\+30"):
        DATA.train(replace(OPTIONS, learning_rate=1e30, epochs=50))


def test_divergence_in_the_last_step_is_found_by_validation() -> None:
    options = replace(OPTIONS, learning_rate=1e30, epochs=1, batch_size=1000)
    with pytest.raises(InputError, match="validation loss after epoch 0"):
        DATA.train(options)


def test_nothing_to_train_on_is_refused() -> None:
    nothing = replace(DATA, splits=Splits(np.flatnonzero(DATA.labels < 0), DATA.splits.valid, DATA.splits.test))
    with pytest.raises(InputError, match="no labelled node to train on"):
        nothing.train(OPTIONS)


def test_gcn_needs_degrees() -> None:
    without = replace(DATA, degrees=None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs the degrees"):
        without.train(replace(OPTIONS, kind="gcn"))


def test_data_are_checked() -> None:
    with pytest.raises(InputError, match="300 labels"):
        replace(DATA, labels=DATA.labels[:-1], splits=Splits(*[np.arange(3)] * 3)).train(OPTIONS)
    with pytest.raises(InputError, match="300 degrees"):
        replace(DATA, degrees=DATA.degrees.take(np.arange(9))).train(OPTIONS)
    with pytest.raises(InputError, match="below 3"):
        DATA.train(OPTIONS, num_classes=3)
    with pytest.raises(InputError, match="node 300 of the valid split"):
        replace(DATA, splits=Splits(np.arange(3), np.array([300]), np.arange(3))).train(OPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be >= 1"),
        ({"patience": 0}, "patience"),
        ({"learning_rate": float("nan")}, "learning_rate must be > 0"),
        ({"validation": "none"}, "exact"),
        ({"fanouts": ()}, "goes with no fanouts"),
        ({"kind": "mlp"}, "goes with no fanouts"),
    ],
)
def test_options_are_checked(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(OPTIONS, **change)


def test_wrong_network_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"dropout must lie in \[0, 1\)"):
        TrainOptions(kind="sage", fanouts=(2,), dropout=1.5).model_spec(3, 2)
