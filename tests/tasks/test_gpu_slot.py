"""Which refusals of a slot may pass, and that nothing is asked where no limit is named. Real slots: tests/ui."""

from __future__ import annotations

import httpx
import pytest
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
