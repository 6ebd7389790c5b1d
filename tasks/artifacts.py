"""Open-or-build: a stage's output is found by digest or built, within the budgets, and published whole."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.atomic import building
from storage.disk_full import on_full_disk
from storage.errors import InputError, MachineError, StorageError
from storage.leftovers import remove_leftovers
from storage.locks import lock_file, locked
from storage.manifest import MANIFEST_NAME, Manifest, files_in
from tasks.budgets import Budgets, Estimate

_logger = logging.getLogger(__name__)
_SHORTEST_DIGEST = 4
_DIGEST_LENGTH = 24  # hexadecimal digits: 96 bits, far beyond chance, still short enough to read

CONFIG_FILE = "config.yaml"
"""The whole configuration of a run, in the run's directory."""
SCRATCH_FOLDER = "scratch"
"""Files that a prediction needs meanwhile, in the state directory."""
USED_FILE = "used.json"
"""Names a run and the artifacts it needs, in the run's directory."""

Build = Callable[[Path], Mapping[str, Any]]
"""Writes a stage's data files into the directory it is given and returns the counts for the manifest."""


@dataclass(frozen=True)
class StageSpec:
    """All that decides a stage's output; equal specs have equal outputs."""

    stage: str
    """Name of the stage."""
    inputs: Mapping[str, str]
    """Digest of each input, by name."""
    config: Mapping[str, Any]
    """The part of the configuration that decides the content (plain values)."""
    algorithm_version: int
    """Raise it when the same input would give another result."""
    format_version: int
    """Version of the files written."""

    @property
    def digest(self) -> str:
        """Identity of the output."""
        parts = [self.stage, dict(self.inputs), dict(self.config), self.algorithm_version, self.format_version]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]


@dataclass(frozen=True)
class StageOutcome:
    """What a stage came to in this run."""

    manifest: Manifest
    """The artifact."""
    reused: bool
    """Whether it was there already."""
    seconds: float
    """Wall time in this run."""


class ArtifactStore:
    """The artifacts below one state directory: `<state>/artifacts/<stage>/<digest>/`."""

    def __init__(self, state_dir: Path, budgets: Budgets) -> None:
        self.root = state_dir / "artifacts"
        self.budgets = budgets
        self.inputs_bytes: Callable[[], int] = lambda: 0
        """Bytes on disk of what stages before the one to be built left."""

    def directory(self, spec: StageSpec) -> Path:
        """Return where the artifact of `spec` lies, or would."""
        return self.root / spec.stage / spec.digest

    def find(self, spec: StageSpec) -> Manifest | None:
        """Return the manifest of the published artifact, whether or not its data files were collected."""
        try:
            return Manifest.read(self.directory(spec))
        except StorageError as error:
            _logger.warning("%s", error)
            return None

    def open(self, spec: StageSpec) -> Manifest | None:
        """Return the manifest of the published artifact if all its data files are there."""
        manifest = self.find(spec)
        return manifest if manifest is not None and not manifest.missing_files() else None

    def require(self, spec: StageSpec) -> StageOutcome:
        """Open an artifact that another flow makes.

        Raises
        ------
        InputError
            If it is not there.
        """
        start = time.perf_counter()
        manifest = self.open(spec)
        if manifest is None:
            raise InputError(
                f"no finished {spec.stage} stage for this configuration and input: build it first, "
                f"with the flow that does or `garden run CONFIG --until {spec.stage}`"
            )
        return StageOutcome(manifest, True, time.perf_counter() - start)

    def open_or_build(self, spec: StageSpec, build: Build, estimate: Callable[[], Estimate]) -> StageOutcome:
        """Return the artifact of `spec`, building it if needed; of several processes only one builds.

        Parameters
        ----------
        spec
            What is wanted.
        build
            Called with an empty directory to write the data files into; returns the counts.
        estimate
            Called before `build`: what it will need at most.

        Raises
        ------
        BudgetError
            If the estimate is above a budget; names the smallest one that would do.
        MachineError
            If it is above what the machine has free, or the disk ran full all the same.
        """
        start, directory = time.perf_counter(), self.directory(spec)
        directory.parent.mkdir(parents=True, exist_ok=True)
        for leftover in remove_leftovers(directory.parent):
            _logger.info("%s: removed what a run that died left behind (%s)", spec.stage, leftover.name)
        manifest = self.open(spec)
        if manifest is not None:
            return StageOutcome(manifest, True, time.perf_counter() - start)
        with locked(lock_file(directory), wait=False) as free:
            if free:
                return self._build(spec, build, estimate, start)
        _logger.info("%s: another process is building %s; waiting for it", spec.stage, directory.name)
        with locked(lock_file(directory)):
            return self._build(spec, build, estimate, start)

    def build_anew(self, spec: StageSpec, build: Build, estimate: Callable[[], Estimate]) -> StageOutcome:
        """Build the artifact of `spec` whether or not there is one; the old one stays until the new one is whole.

        Raises
        ------
        BudgetError, MachineError
            As `open_or_build`; MachineError too if another process is building it now.
        """
        start, directory = time.perf_counter(), self.directory(spec)
        remove_leftovers(directory.parent)
        with locked(lock_file(directory), wait=False) as free:
            if not free:
                raise MachineError(
                    f"another process is running the {spec.stage} stage of this very configuration: "
                    "wait for it, or change the configuration (another seed, say)"
                )
            return self._publish(spec, build, estimate, start)

    def _build(self, spec: StageSpec, build: Build, estimate: Callable[[], Estimate], start: float) -> StageOutcome:
        """Build under the lock, unless whoever held it before has done so."""
        manifest = self.open(spec)
        if manifest is not None:
            return StageOutcome(manifest, True, time.perf_counter() - start)
        return self._publish(spec, build, estimate, start)

    def _publish(self, spec: StageSpec, build: Build, estimate: Callable[[], Estimate], start: float) -> StageOutcome:
        directory = self.directory(spec)
        self.budgets.check(spec.stage, estimate(), directory.parent, self.held_bytes(spec))
        with on_full_disk("set state_dir to another disk"), building(directory) as partial:
            counts = build(partial)
            _describe(spec, partial, counts, time.perf_counter() - start).write()
        manifest = Manifest.read(directory)
        assert manifest is not None, "published without a manifest"
        return StageOutcome(manifest, False, time.perf_counter() - start)

    def held_bytes(self, spec: StageSpec) -> int:
        """Bytes on disk that count while `spec` is built: its inputs, and what it is to replace."""
        directory = self.directory(spec)
        return self.inputs_bytes() + (sum(files_in(directory).values()) if directory.is_dir() else 0)

    def collect(self, manifest: Manifest) -> int:
        """Remove the data files of an intermediate artifact; its manifest stays to tell what they were.

        Returns
        -------
        int
            Bytes given back; 0 where another process is using the artifact (that one collects later).
        """
        with locked(lock_file(manifest.directory), wait=False) as free:
            if not free:
                return 0
            present = [manifest.path(name) for name in manifest.files if manifest.path(name).exists()]
            freed = sum(path.stat().st_size for path in present)
            for path in present:
                path.unlink()
            return freed


def find_artifact(text: str, state_dir: Path) -> Path | None:
    """Find the artifact whose digest starts with a text; None where there is none.

    Raises
    ------
    InputError
        If several do.
    """
    if len(text) < _SHORTEST_DIGEST or not set(text) <= set("0123456789abcdef"):
        return None
    found = [path.parent for path in (state_dir / "artifacts").glob(f"*/{text}*/{MANIFEST_NAME}")]
    if len(found) > 1:
        names = ", ".join(f"{path.parent.name}/{path.name}" for path in sorted(found))
        raise InputError(f"several artifacts start with {text}: {names}; give more digits")
    return found[0] if found else None


def _describe(spec: StageSpec, directory: Path, counts: Mapping[str, Any], seconds: float) -> Manifest:
    return Manifest(
        stage=spec.stage,
        digest=spec.digest,
        inputs=dict(spec.inputs),
        config=dict(spec.config),
        algorithm_version=spec.algorithm_version,
        format_version=spec.format_version,
        counts=dict(counts),
        files=files_in(directory),
        seconds=round(seconds, 3),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        directory=directory,
    )
