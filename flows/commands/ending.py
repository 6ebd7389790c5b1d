"""How every command ends: one line of error and an exit code, or its results."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def exit_codes(interrupted: str = "stopped before the end") -> Iterator[None]:
    """End with one line and an exit code: 2 wrong input, 3 not on this machine now, 1 anything else.

    Parameters
    ----------
    interrupted
        What to say after Ctrl-C or SIGTERM.
    """
    try:
        yield
    except KeyboardInterrupt:
        _fail(interrupted, 1)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output (`head`) has enough; Python would complain at exit
        sys.exit(0)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            _fail(str(error), code)
        traceback.print_exc()
        _fail(f"{type(error).__name__}: {error} (a defect of this program: report it with the lines above)", 1)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a signal as Ctrl-C."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> NoReturn:
    from flows.terminal import say_error

    say_error(message)
    sys.exit(code)
