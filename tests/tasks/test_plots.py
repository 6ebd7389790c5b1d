"""The pictures are drawn for ordinary runs and for degenerate ones, as PNG files of a sensible size."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.degrees import count_degrees
from tasks import plots
from tasks.plots import plot_degrees, plot_hit_rates, plot_time, plot_training

FRACTION = np.linspace(0, 1, 11)


def is_picture(path: Path) -> bool:
    content = path.read_bytes()
    width, height = (int.from_bytes(content[start : start + 4], "big") for start in (16, 20))
    return content.startswith(b"\x89PNG") and 600 <= width <= 2000 and 300 <= height <= 1000


@pytest.mark.parametrize("degree_N", [[0, 1, 2, 2, 9], [0, 0], [], [5]])
def test_degrees(tmp_path: Path, degree_N: list[int]) -> None:
    counts = count_degrees([np.array(degree_N[:2], np.int64), np.array(degree_N[2:], np.int64)])
    assert dict(zip(counts.degree_D.tolist(), counts.nodes_D.tolist(), strict=True)) == Counter(degree_N)
    plot_degrees(counts, counts, tmp_path / "degrees.png")
    assert is_picture(tmp_path / "degrees.png")


@pytest.mark.parametrize("hits", [FRACTION**0.5, np.zeros(11)])
def test_hit_rates(tmp_path: Path, hits: np.ndarray) -> None:
    plot_hit_rates(FRACTION, hits, hits, (0.1, 0.3), tmp_path / "hits.png")
    assert is_picture(tmp_path / "hits.png")


@pytest.mark.parametrize(
    "bars_s",
    [
        {"run": {"ingest": 1.0, "train": 30.0}, "training": {"train": 4.0, "wait": 0.01}, "threads": {"sample": 3.0}},
        {"run": {"ingest": 1.0}, "training": {}},
        {"run": {}},
        {},
    ],
)
def test_time(tmp_path: Path, bars_s: dict[str, dict[str, float]]) -> None:
    plot_time(bars_s, tmp_path / "time.png")
    assert is_picture(tmp_path / "time.png")


def test_no_words_overlap_where_bars_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes: list[Any] = []
    opened = plots.figure

    @contextlib.contextmanager
    def spy(*args: Any, **options: Any) -> Iterator[Any]:
        with opened(*args, **options) as found:
            axes.extend(found)
            yield found

    monkeypatch.setattr(plots, "figure", spy)
    run = {"ingest": 0.8, "reorder": 0.7, "profile": 0.9, "cache": 0.4, "train": 9.5}
    training = {"train": 0.6, "wait": 0.2, "validate": 0.3, "evaluate": 0.1}
    plot_time({"run": run, "training": training, "its threads": {"sample": 0.5, "gather": 0.4}}, tmp_path / "time.png")
    (ax,) = axes
    boxes = [text.get_window_extent() for text in (*ax.texts, *ax.get_yticklabels())]
    assert len(boxes) > 6
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


@pytest.mark.parametrize("epochs", [1, 5, 200])
@pytest.mark.parametrize("valid", [0.8, float("nan")])
def test_training(tmp_path: Path, epochs: int, valid: float) -> None:
    plot_training([1.0] * epochs, [valid] * epochs, 0.7, tmp_path / "training.png")
    assert is_picture(tmp_path / "training.png")
