"""What must change a stage's digest does, and nothing else does; input files count by content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conf.load import load_config
from storage.errors import InputError
from tasks.input_digests import InputDigests
from tasks.sources import ingest_options
from tasks.specs import STAGES, cache_spec, ingest_spec, input_files, profile_spec, reorder_spec, train_spec


def digests(tmp_path: Path, *overrides: str, preset: str = "demo") -> dict[str, str]:
    """Digest of each stage's output under a configuration."""
    config = load_config(preset, overrides)
    ingest = ingest_spec(config, InputDigests(tmp_path / "state")).digest
    reorder = reorder_spec(config, ingest).digest
    profile = profile_spec(config, reorder).digest
    cache = cache_spec(config, profile).digest
    train = train_spec(config, cache).digest
    return dict(zip(STAGES, (ingest, reorder, profile, cache, train), strict=True))


@pytest.mark.parametrize(
    ("override", "first_changed"),
    [
        ("data.demo.seed=1", "ingest"),
        ("data.self_loops=remove", "ingest"),
        ("layout.order=none", "reorder"),
        ("layout.order=hotness", "reorder"),
        ("layout.block_bytes=4096", "reorder"),
        ("seed=1", "profile"),
        ("sampling.fanouts=[5, 5]", "profile"),
        ("sampling.batch_size=10", "profile"),
        ("sampling.replace=true", "profile"),
        ("profile.epochs=5", "profile"),
        ("profile.heldout_epochs=5", "profile"),
        ("profile.counting=full_link", "cache"),
        ("cache.device_budget=1MiB", "cache"),
        ("sampling.superbatch=2", "train"),
        ("model.hidden=8", "train"),
        ("training.epochs=3", "train"),
        ("sampling.threads=4", None),
        ("layout.keep_ingest=true", None),
        ("name=other", None),
        ("experiment=other", None),
        ("state_dir=elsewhere", None),
        ("host_budget=1GiB", None),
        ("disk_budget=1GiB", None),
    ],
)
def test_a_setting_rebuilds_the_stages_that_depend_on_it(
    tmp_path: Path, override: str, first_changed: str | None
) -> None:
    before, after = digests(tmp_path), digests(tmp_path, override)
    changed = [stage for stage in STAGES if before[stage] != after[stage]]
    assert changed == ([] if first_changed is None else list(STAGES[STAGES.index(first_changed) :]))


def test_a_hotness_order_depends_on_what_is_sampled(tmp_path: Path) -> None:
    hotness = "layout.order=hotness"
    before, after = digests(tmp_path, hotness), digests(tmp_path, hotness, "seed=1")
    assert before["ingest"] == after["ingest"]
    assert before["reorder"] != after["reorder"]


def test_a_hotness_order_does_not_depend_on_epochs_that_choose_nothing(tmp_path: Path) -> None:
    hotness = "layout.order=hotness"
    before, after = digests(tmp_path, hotness), digests(tmp_path, hotness, "profile.heldout_epochs=5")
    assert before["reorder"] == after["reorder"]
    assert before["profile"] != after["profile"]


def test_the_ingested_store_does_not_depend_on_the_layout() -> None:
    small, large = (load_config("demo", [f"layout.block_bytes={size}"]) for size in ("4096", "1MiB"))
    assert ingest_options(small) == ingest_options(large)


def test_stages_of_one_name_have_distinct_digests(tmp_path: Path) -> None:
    assert len(set(digests(tmp_path).values())) == len(STAGES)


def write_graph(folder: Path, edges: str = "0 1\n1 2\n", name: str = "edges.txt") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(edges)
    os.utime(folder / name, (1, 1))
    return f"data.edges={folder / name}"


def test_input_files_count_by_content_not_by_place(tmp_path: Path) -> None:
    here, there = write_graph(tmp_path / "here"), write_graph(tmp_path / "there")
    other = write_graph(tmp_path / "other", "0 1\n1 3\n")
    no_tables = ("data.features=", "data.labels=")
    ingests = [digests(tmp_path, edges, *no_tables, preset="edge_list")["ingest"] for edges in (here, there, other)]
    assert ingests[0] == ingests[1] != ingests[2]


@pytest.mark.parametrize(("name", "is_same"), [("renamed.txt", True), ("edges.csv", False)])
def test_of_a_files_name_the_suffix_counts(tmp_path: Path, name: str, is_same: bool) -> None:
    no_tables = ("data.features=", "data.labels=")
    graphs = (write_graph(tmp_path / "a"), write_graph(tmp_path / "b", name=name))
    first, second = (digests(tmp_path, edges, *no_tables, preset="edge_list")["ingest"] for edges in graphs)
    assert (first == second) == is_same


@pytest.mark.parametrize(
    ("preset", "names"),
    [
        ("demo", set()),
        ("cora", {f"ind.cora.{part}" for part in ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")}),
        ("musae_facebook", {"facebook_edges.csv", "facebook.json", "facebook_target.csv"}),
        ("edge_list", {"edges.csv", "features.npy", "labels.npy"}),
    ],
)
def test_every_file_of_a_format_counts(preset: str, names: set[str]) -> None:
    assert set(input_files(load_config(preset).data)) == names


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ind\.cora\.x"):
        digests(tmp_path, f"data.path={tmp_path}", preset="cora")
