"""Grids of settings: what texts mean, which points they make, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from conf.grid import grid_points, parse_grid
from conf.load import ConfigError, load_config


def test_values_are_yaml() -> None:
    grid = parse_grid(["training.learning_rate=0.01,0.003", "sampling.fanouts=[5,5],[10,10]", "model.norm=none, batch"])
    assert grid == {
        "training.learning_rate": [0.01, 0.003],
        "sampling.fanouts": [[5, 5], [10, 10]],
        "model.norm": ["none", "batch"],
    }


def test_every_combination_is_a_point() -> None:
    config = load_config("demo", ["training.epochs=3"])
    points = grid_points(config, parse_grid(["training.learning_rate=0.01,0.003", "model.hidden=64,128"]))
    assert [(c.training.learning_rate, c.model.hidden) for _, c in points] == [
        (0.01, 64),
        (0.01, 128),
        (0.003, 64),
        (0.003, 128),
    ]
    assert points[1][0] == {"training.learning_rate": 0.01, "model.hidden": 128}
    assert all(c.training.epochs == 3 and c.data == config.data for _, c in points)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["model.hidden"], "expected a.b=v,w"),
        (["model.hidden="], "expected a.b=v,w"),
        (["=1"], "expected a.b=v,w"),
        (["model.hidden=[1"], "not valid YAML"),
        (["model.hidden=1,2", "model.hidden=3"], "given twice"),
        (["model.hiden=1,2"], "unknown key 'model.hiden': did you mean 'model.hidden'"),
        (["name.x=1,2"], "name is no section"),
        (["model.hidden=8,0"], "model.hidden"),
        ([], "1 to 1000 points"),
        ([f"seed={','.join(map(str, range(50)))}", f"model.hidden={','.join(['8'] * 50)}"], "got 2500"),
    ],
)
def test_what_is_refused(texts: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("[", r"\[")):
        grid_points(load_config("demo"), parse_grid(texts))
