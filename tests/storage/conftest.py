"""Fixtures of the storage tests."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

_LIMIT_BYTES = 1 << 20


@pytest.fixture
def limit_file_size() -> Iterator[int]:
    """Let no file grow beyond 1 MiB, as on a disk that fills up; gives a number of bytes that is too much."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LIMIT_BYTES, hard))
    try:
        yield 2 * _LIMIT_BYTES
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
