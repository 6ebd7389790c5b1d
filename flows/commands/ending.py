"""How every command ends: one line of error and an exit code, or its results."""

from __future__ import annotations

import contextlib
import errno
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

_NO_FOLDER = (2, "choose another path")
_NO_RIGHT = (3, "change its permissions, or choose another place")
_SYSTEM_ERRORS = {
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.ENAMETOOLONG: _NO_FOLDER,
    errno.ELOOP: _NO_FOLDER,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.ENOSPC: (3, "the disk is full: free some space"),
    errno.EDQUOT: (3, "the disk is full: free some space"),
    errno.EMFILE: (3, "raise the limit of open files (`ulimit -n`)"),
    errno.ENFILE: (3, "close some programs"),
    errno.ENOMEM: (3, "close some programs, or use a larger machine"),
    errno.EIO: (3, "the disk fails: look at the system's log"),
}
"""What the system refuses: exit code and way out. What is not here is a defect of ours until shown otherwise."""


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
    except MemoryError as error:
        _fail(f"not enough memory ({error or 'an allocation failed'}); set host_budget, or use a larger machine", 3)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            _fail(str(error), code)
        if isinstance(error, OSError) and error.errno in _SYSTEM_ERRORS:
            code, way_out = _SYSTEM_ERRORS[error.errno]
            _fail(f"{error.filename or 'a file'}: {error.strerror}; {way_out}", code)
        traceback.print_exc()
        _fail(f"{type(error).__name__}: {error} (a defect of this program: report it with the lines above)", 1)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Treat a signal as Ctrl-C."""
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> NoReturn:
    from flows.terminal import say_error

    say_error(message)
    sys.exit(code)
