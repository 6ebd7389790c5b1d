"""What all tests share. Warnings are errors (pyproject.toml); the few that other packages cause in us stand here."""

from __future__ import annotations

import pytest

THIRD_PARTY_WARNINGS = (
    # MLflow 3.17 under SQLAlchemy 2.1
    "ignore:The ``noload`` loader strategy is deprecated",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
