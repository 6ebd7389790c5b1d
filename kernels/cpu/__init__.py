"""CPU bodies of the ops, compiled by numba and cached on disk.

Numba keys a compiled function by the file it stands in, blind to changes in functions of other files that were inlined
into it: an updated checkout would go on drawing with the old code. So the cache lies in a folder named by all sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numba

from kernels import rng

config: Any = numba.config  # its settings are made at import, unseen by type checkers


def sources_digest(paths: Iterable[Path]) -> str:
    """Digest of the names and bytes of files, 16 hex digits."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(paths):
        source = path.read_bytes()
        digest.update(f"{path.name} {len(source)}\n".encode() + source)
    return digest.hexdigest()


def _cache_folder() -> Path:
    here = Path(__file__).parent
    base = Path(config.CACHE_DIR) if config.CACHE_DIR else here / "__pycache__"
    return base / f"numba-{sources_digest([*here.glob('*.py'), Path(rng.__file__)])}"


CACHE_FOLDER = _cache_folder()
config.CACHE_DIR = str(CACHE_FOLDER)
