"""A process that has imported everything and forks one `garden` after another: `python -m tests.flows.warm_garden`.

Input comes in pairs of lines: a JSON object of `arguments` and an `output` file is answered by the process id of the
child, then any line by its exit code, once it has ended. Until asked for it, the child is not reaped: its process id
is its own, however early it ends. Starting `garden` as usual takes seconds of imports, and the tests of recovery start
and kill many.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import threading
import traceback

PRELOADED = ("flows.cli", "flows.pipeline", "matplotlib.figure", "torch._dynamo", "mlflow", "alembic", "sqlalchemy")


def main() -> None:
    """Serve until the input ends."""
    for module in PRELOADED:
        importlib.import_module(module)
    gc.freeze()
    sys.stdout.write(f"{threading.active_count()}\n")
    sys.stdout.flush()
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            _become_garden(request["arguments"], request["output"])
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def _become_garden(arguments: list[str], output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    code = 1
    try:
        from flows.cli import app

        app(arguments, standalone_mode=False)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
