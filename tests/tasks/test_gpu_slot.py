"""Which refusals of a slot may pass, and that nothing is asked where no limit is named. Real slots: tests/ui."""

from __future__ import annotations

import contextlib
import logging
import time
from uuid import uuid4

import httpx
import pytest
from prefect.concurrency import _leases
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from tasks.gpu_slot import LIMIT_VARIABLE, gpu_slot, may_pass


def refusal(cause: Exception | None) -> ConcurrencySlotAcquisitionError:
    error = ConcurrencySlotAcquisitionError("no")
    error.__cause__ = cause
    return error


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://prefect")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (TimeoutError(), True),
        (refusal(answered(423)), True),  # all are taken
        (refusal(answered(503)), True),  # SQLite is busy
        (refusal(httpx.ConnectError("away")), True),
        (refusal(answered(422)), False),
        (refusal(None), False),  # there is no such limit
    ],
)
def test_what_is_waited_for(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


def test_without_a_limit_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIMIT_VARIABLE, raising=False)
    asked = list[str]()
    monkeypatch.setattr("tasks.gpu_slot._wait_for_slot", lambda name, stack: asked.append(name))
    with gpu_slot():
        assert asked == []
    monkeypatch.setenv(LIMIT_VARIABLE, "gpu")
    with gpu_slot():
        assert asked == ["gpu"]


class Away:
    """A client that reaches no server."""

    def __enter__(self) -> Away:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def renew_concurrency_lease(self, **_: object) -> None:
        raise answered(410)


def test_a_slot_that_is_lost_costs_a_line_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a process was suspended for minutes: Prefect's own renewal, against a server that has let go of it."""
    monkeypatch.setenv(LIMIT_VARIABLE, "gpu")
    monkeypatch.setattr(_leases, "get_client", lambda sync_client: Away())
    monkeypatch.setattr(_leases, "exponential_backoff_with_jitter", lambda *_: 0.001)

    def take(_: str, stack: contextlib.ExitStack) -> None:
        stack.enter_context(_leases.maintain_concurrency_lease(uuid4(), 60.0))

    monkeypatch.setattr("tasks.gpu_slot._wait_for_slot", take)
    with gpu_slot():
        deadline = time.monotonic() + 20
        while not caplog.records and time.monotonic() < deadline:
            time.sleep(0.01)
    (record,) = caplog.records
    assert record.name == "tasks.gpu_slot"
    assert record.exc_info is None
    assert "its slot of 'gpu' is lost: it goes on all the same" in record.getMessage()
    logging.getLogger("prefect.concurrency").warning("Concurrency lease renewal failed, outside of a slot")
    assert len(caplog.records) == 2
