"""Whether somebody listens at an address, and who has a port that is wanted."""

from __future__ import annotations

import contextlib
import socket
import urllib.error
import urllib.request

import psutil

from storage.errors import MachineError

HOST = "127.0.0.1"
"""Servers listen on loopback alone."""


def answers(url: str, timeout_s: float) -> bool:
    """Whether a server answers at all, be it with an error."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s):  # noqa: S310 - http addresses only
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except (OSError, ValueError):
        return False


def free_port() -> int:
    """Return a port of loopback that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def require_free(port: int, option: str) -> None:
    """Refuse a port that another program has.

    Raises
    ------
    MachineError
        It names the program, if that may be known, and the option that chooses another port.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise MachineError(
                f"port {port} cannot be used ({error.strerror}): stop {_owner(port)}, or choose another with {option}"
            ) from error


def _owner(port: int) -> str:
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                return f"process {connection.pid} ({psutil.Process(connection.pid).name()}), which has it"
    return "the program that has it"
