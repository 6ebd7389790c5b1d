"""The local MLflow database: whole from the moment it is there."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Any

from storage.locks import locked

DATABASE = "mlflow.db"
_JOURNALS = ("", "-journal", "-wal", "-shm")
_ANY = "SELECT 1 FROM experiments UNION ALL SELECT 1 FROM registered_models LIMIT 1"


def make_database(home: Path) -> None:
    """Make the database below a directory where it is not there yet.

    MLflow makes it table by table and in migrations, for seconds, and one whose making broke off it can neither use nor
    finish: so it is made under another name. One that was not, and was never finished, is made anew.

    Parameters
    ----------
    home : Path
        MLflow's directory, made too if need be.
    """
    path, partial = home / DATABASE, home / f"{DATABASE}.partial"
    home.mkdir(parents=True, exist_ok=True)
    # Two processes that create one database at once would trip over each other.
    with locked(home / ".lock"):
        _remove(partial)
        if is_made(home):
            return
        _open(partial)
        _remove(path)
        partial.replace(path)


def is_made(home: Path) -> bool:
    """Whether there is a whole database below a directory, or one that cannot be read: MLflow will say why.

    The last thing that its making does is to add a first experiment. Should `mlflow gc` have removed all of them since,
    registered models tell that it was whole.
    """
    path = home / DATABASE
    try:
        # Not to read alone: what was cut off in mid-write has to be rolled back first.
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as database:
            return database.execute(_ANY).fetchone() is not None
    except sqlite3.Error as error:
        return path.exists() and "no such table" not in str(error)


def _open(path: Path) -> None:
    """Have MLflow open a database, making what it lacks."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    make_store: Any = SqlAlchemyStore  # it has no types
    make_store(f"sqlite:///{path}", (path.parent / "artifacts").as_uri()).engine.dispose()


def _remove(path: Path) -> None:
    for suffix in _JOURNALS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


if __name__ == "__main__":
    make_database(Path(sys.argv[1]))
