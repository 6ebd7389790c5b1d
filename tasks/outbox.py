"""Calls to a server that may go away: sent in order from a thread, kept meanwhile, left in a file at the very end."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """One call to be made, in plain values so that it can be written down."""

    verb: str
    """What to do."""
    arguments: Mapping[str, Any]
    """With what; JSON values only."""


class Outbox:
    """Sends calls in the order given, never blocking who gives them and never raising into them."""

    def __init__(
        self,
        send: Callable[[Call], None],
        is_refusal: Callable[[Exception], bool],
        *,
        server: str,
        unsent_file: Path,
        retry_s: float = 2.0,
        merge: Callable[[Call, Call], Call | None] = lambda last, new: None,
    ) -> None:
        """Start the sending thread.

        Parameters
        ----------
        send
            Makes one call; an exception means that it did not happen.
        is_refusal
            Whether an exception means that trying again is no use.
        server
            Name of the other side, for messages.
        unsent_file
            JSON lines file for calls that could not be made; created only when there are any.
        retry_s
            Pause between attempts while the server is away, in seconds.
        merge
            Makes one call of two that wait one after the other, or returns None: a server that is slower than who
            calls it is spared the number of calls.
        """
        self._merge = merge
        self._send, self._is_refusal, self._server = send, is_refusal, server
        self._unsent_file, self._retry_s = unsent_file, retry_s
        self._pending: deque[Call] = deque()
        self._refused: list[Call] = []
        self._changed = threading.Condition()
        self._closing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self._thread.start()

    def put(self, verb: str, **arguments: Any) -> None:
        """Add one call; returns at once."""
        call = Call(verb, arguments)
        with self._changed:
            # The head of the line may be on its way.
            merged = self._merge(self._pending[-1], call) if len(self._pending) > 1 else None
            if merged is not None:
                self._pending.pop()
            self._pending.append(merged or call)
            self._changed.notify()

    def close(self, wait_s: float, *, patient: bool = False) -> Path | None:
        """Send what is left for up to `wait_s` seconds, then write the rest down.

        Parameters
        ----------
        wait_s
            How long to wait.
        patient
            Count from the last call that arrived: a server that is behind is waited for, one that is away is not.

        Returns
        -------
        Path or None
            The file with what could not be sent, if anything.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        left = len(self._pending) + 1
        while self._thread.is_alive() and len(self._pending) < left:
            left = len(self._pending) if patient else 0
            self._thread.join(wait_s)
        self._stopped.set()
        with self._changed:
            unsent = [*self._refused, *self._pending]
        if not unsent:
            return None
        self._unsent_file.parent.mkdir(parents=True, exist_ok=True)
        with self._unsent_file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(call)) + "\n" for call in unsent)
        _logger.warning(
            "%d calls could not be sent to %s; they are kept in %s", len(unsent), self._server, self._unsent_file
        )
        return self._unsent_file

    def _run(self) -> None:
        while (call := self._next()) is not None:
            if not self._deliver(call):
                return
            with self._changed:
                self._pending.popleft()

    def _next(self) -> Call | None:
        """Wait for the call at the head of the line; None when all is done."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            return self._pending[0] if self._pending else None

    def _deliver(self, call: Call) -> bool:
        """Make one call, trying for as long as it takes; False if the outbox was stopped first."""
        away_since: float | None = None
        while not self._stopped.is_set():
            try:
                self._send(call)
            except Exception as error:  # whatever it is, it must not reach who is training
                if self._is_refusal(error):
                    _logger.warning("%s refused %s: %s", self._server, call.verb, _first_line(error))
                    self._refused.append(call)
                    return True
                if away_since is None:
                    away_since = time.monotonic()
                    _logger.warning(
                        "%s is away; figures are kept and sent when it returns (%s)", self._server, _first_line(error)
                    )
                self._stopped.wait(self._retry_s)
            else:
                if away_since is not None:
                    _logger.info("%s is back after %.0f s", self._server, time.monotonic() - away_since)
                return True
        return False


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
