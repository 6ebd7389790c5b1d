"""What edges carry beside their two ends: no model here uses it, so it is refused unless it is to be left out."""

from __future__ import annotations

from typing import Literal

from storage.errors import InputError

EdgeWeights = Literal["refuse", "drop"]
"""What to do with edge weights, types and features."""


def check_edge_data(found: str, where: str, edge_weights: EdgeWeights) -> None:
    """Refuse what edges carry, unless it is to be left out.

    Parameters
    ----------
    found : str
        What there is, as `weights (entry 3 is 0.5)`; empty where there is nothing.
    where : str
        How errors name the file.
    edge_weights : str

    Raises
    ------
    InputError
        There is something, and it is to be refused.
    """
    if found and edge_weights == "refuse":
        raise InputError(
            f"{where} gives edges {found}, which no model here uses: to read the edges alone, give --set "
            "data.edge_weights=drop"
        )
