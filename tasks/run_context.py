"""What one run carries from stage to stage: configuration, artifacts, tracking, and what the stages came to."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from conf.schema import PipelineConfig
from kernels.backend import Backend
from kernels.cpu.heap import give_back_large_arrays
from storage.atomic import write_text
from storage.heap import return_freed_memory
from storage.leftovers import remove_partial_files
from storage.locks import in_use, lock_file, locked
from storage.manifest import Manifest
from tasks.artifacts import USED_FILE, ArtifactStore, Build, StageOutcome, StageSpec
from tasks.budgets import Budgets, Estimate, format_bytes
from tasks.input_digests import InputDigests
from tasks.process_io import io_metrics, process_io
from tasks.specs import INGEST, STAGES, TRAIN
from tasks.tracking import TrackedRun, Tracking
from tasks.training_config import chosen_backend

_logger = logging.getLogger(__name__)


class RunContext:
    """One run of a flow. Stages take their inputs' manifests from here and leave theirs."""

    def __init__(
        self,
        config: PipelineConfig,
        tracking: Tracking,
        parent: TrackedRun,
        *,
        verify_inputs: bool = False,
        may_build: Collection[str] = STAGES,
        input_digests: InputDigests | None = None,
        backend: Backend | None = None,
    ) -> None:
        """Open the state directory of a run.

        Parameters
        ----------
        config
            What was asked.
        tracking, parent
            The MLflow store and the run of the whole flow.
        verify_inputs
            Hash raw input files anew instead of trusting size, time and inode.
        may_build
            Stages that this flow builds; others must be finished.
        input_digests
            Those of another run, so that the points of a sweep hash an input once.
        backend
            What trains, where that is chosen already.

        Raises
        ------
        NoDeviceError
            If the configuration asks for a GPU that cannot be used.
        """
        self.backend: Backend = backend or chosen_backend(config)
        self.config, self.tracking, self.parent = config, tracking, parent
        budgets = Budgets(config.host_budget, config.disk_budget)
        if config.host_budget is not None:
            give_back_large_arrays()
        self.artifacts = ArtifactStore(config.state_dir, budgets)
        self.artifacts.inputs_bytes = self._held_bytes
        self.input_digests = input_digests or InputDigests(config.state_dir, verify=verify_inputs)
        self.directory = config.state_dir / "runs" / parent.key
        self.outcomes: dict[str, StageOutcome] = {}
        self.facts: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.until: str | None = None
        """The last stage that this run is for, where that is known."""
        self._may_build = frozenset(may_build)
        self._training: str | None = None
        self._in_use = contextlib.ExitStack()
        remove_partial_files(self.directory.parent)
        self._in_use.enter_context(locked(lock_file(self.directory)))

    def close(self) -> None:
        """Let go of the artifacts in use, which `garden gc` leaves alone until then."""
        self._in_use.close()

    @property
    def trains(self) -> bool:
        """Whether this run is to end with training."""
        return self.until == TRAIN

    def stages_after(self, stage: str) -> Sequence[str]:
        """Stages that this run has still to do once one is done."""
        return () if self.until is None else STAGES[STAGES.index(stage) + 1 : STAGES.index(self.until) + 1]

    def _held_bytes(self) -> int:
        """Bytes on disk of what this run's stages left so far; the ingested store may be gone."""
        return sum(outcome.manifest.present_bytes for outcome in self.outcomes.values())

    def manifest(self, stage: str) -> Manifest:
        """Return the artifact of an earlier stage of this run."""
        return self.outcomes[stage].manifest

    def open_or_build(self, spec: StageSpec, build: Build, estimate: Callable[[], Estimate]) -> Manifest:
        """Open or build a stage's artifact in an MLflow run of its own.

        Raises
        ------
        InputError
            If the stage is not for this flow to build and not finished.
        BudgetError, MachineError
            If it would need too much.
        """

        def work(_: TrackedRun) -> StageOutcome:
            self._in_use.enter_context(in_use(self.artifacts.directory(spec)))
            if spec.stage in self._may_build:
                return self.artifacts.open_or_build(spec, build, estimate)
            return self.artifacts.require(spec)

        return self.record(spec.stage, work)

    def record(self, stage: str, work: Callable[[TrackedRun], StageOutcome]) -> Manifest:
        """Run a stage in an MLflow run of its own; keep, log and track what it came to."""
        with self.tracking.child_run(self.parent, stage, {"stage": stage}) as child:
            before = process_io()
            try:
                outcome = work(child)
            finally:
                return_freed_memory()  # what this stage freed is none of the next one's
            if not outcome.reused:
                child.log_metrics(io_metrics(before, process_io(), outcome.seconds))
            self.outcomes[stage] = outcome
            manifest = outcome.manifest
            self._note_use()
            child.set_tags({"reused": str(outcome.reused).lower(), "digest": manifest.digest})
            child.log_params(dict(manifest.config))
            figures = {f"{stage}/{name}": value for name, value in _numbers(manifest.counts).items()}
            child.log_metrics(figures)
            child.log_text((manifest.directory / "manifest.json").read_text(encoding="utf-8"), "manifest.json")
        seconds, nbytes = outcome.seconds, manifest.nbytes
        # Runs are compared by their parents: stages are folded in MLflow's charts and tables.
        self.parent.log_metrics(figures | {f"stage/{stage}_s": seconds, f"stage/{stage}_bytes": nbytes})
        if stage == INGEST:
            self.parent.log_dataset(self.config.name, manifest.digest, manifest.counts)
        verb = f"reused {manifest.digest}" if outcome.reused else f"built in {seconds:.1f} s"
        _logger.info("%s: %s, %s", stage, verb, format_bytes(nbytes))
        return manifest

    def note_training(self, digest: str) -> None:
        """Write down whose checkpoint the same run would go on from, should this one die."""
        self._training = digest
        self._note_use()

    def _note_use(self) -> None:
        """Write down what this run needs, for `garden gc`; a run that is killed has said so by then."""
        digests = {stage: outcome.manifest.digest for stage, outcome in self.outcomes.items()}
        use = {"name": self.config.name, "stages": digests, "training": self._training}
        write_text(self.directory / USED_FILE, json.dumps(use) + "\n")

    def picture(self, path: Path) -> None:
        """Show a picture with the run of the whole flow."""
        self.parent.log_artifact(path, "pictures")


def _numbers(counts: Any) -> dict[str, float]:
    return {name: float(value) for name, value in counts.items() if isinstance(value, int | float)}
