"""What all tests share. Warnings are errors (pyproject.toml); the few that other packages cause in us stand here."""

from __future__ import annotations

import hypothesis
import pytest

# Drawn cases are judged by what they give: a busy machine, or a body compiled at its first call, makes them slow.
hypothesis.settings.register_profile("garden", deadline=None)
hypothesis.settings.load_profile("garden")

THIRD_PARTY_WARNINGS = (
    # MLflow 3.17 under SQLAlchemy 2.1
    "ignore:The ``noload`` loader strategy is deprecated",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in THIRD_PARTY_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
