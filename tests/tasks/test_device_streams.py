"""Streams of training on the device: every two of them that touch the same bytes are ordered, and waits are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.cuda.current import launching_through
from kernels.cuda.gather import count_accesses
from storage.cache.hotset import DynamicOptions
from tests.cudasim.build import GXX
from tests.cudasim.order import OrderLauncher
from tests.tasks.training_graphs import OPTIONS, Data, community_data

if GXX is None:
    pytest.skip("g++ is not installed: streams are NOT tested here", allow_module_level=True)

SHORT = replace(OPTIONS, epochs=2, superbatch=4, backend="cuda", validation="sampled")
DYNAMIC = {"dynamic_rows": 40, "dynamic": DynamicOptions(share=0.5, interval_batches=4), "stands_in": False}


@pytest.fixture(scope="module")
def data() -> Data:
    return community_data().with_adjacency_cache(100)


class _Deaf(OrderLauncher):
    """Waits for no event."""

    def wait(self, event: Any) -> None:
        """Do not."""


def _trained(launcher: OrderLauncher, data: Data, **changes: Any) -> OrderLauncher:
    with launching_through(launcher):
        data.train(replace(SHORT, **changes), cached=90, tiers=DYNAMIC)
    return launcher


@pytest.mark.parametrize("input_dropout", [0.0, 0.1], ids=["in place", "copied"])
def test_streams_are_ordered_where_they_touch_the_same(data: Data, input_dropout: float) -> None:
    launcher = _trained(OrderLauncher(), data, input_dropout=input_dropout)
    assert launcher.findings == []
    assert set(launcher.launches) == {"main", "sample", "gather", "update"}


def test_an_order_that_is_missing_is_found(data: Data) -> None:
    found = {finding.split(" on ")[0] for finding in _trained(_Deaf(), data).findings}
    assert found & {"resolve_rows", "sum_rows", "row_addresses"}
    launcher, counts, ids = OrderLauncher(), np.zeros(9, np.int64), np.arange(9)
    for waits in (True, False):
        with launcher.on("sample"):
            count_accesses(launcher, counts, ids)
            event = launcher.record()
        with launcher.on("gather"):
            if waits:
                launcher.wait(event)
            count_accesses(launcher, counts, ids)
            event = launcher.record()
        assert len(launcher.findings) == (0 if waits else 1)
        launcher.finish(event)


@pytest.mark.parametrize(("fanouts", "more"), [((4, 4), 0), ((3, 3, 3), 0), ((4, -1), 1)])
def test_the_host_waits_once_a_hop_and_once_for_missed_rows(data: Data, fanouts: tuple[int, ...], more: int) -> None:
    launcher = OrderLauncher()
    with launching_through(launcher):
        data.train(replace(SHORT, fanouts=fanouts, input_dropout=0.0), cached=90)
    batches = -(-len(data.splits.labelled(data.labels).train) // SHORT.batch_size)
    groups = SHORT.epochs * -(-batches // SHORT.superbatch)
    assert launcher.waits["load"] == groups * (len(fanouts) + more + 1)
    # For all mini-batches of a super-batch once, four times an epoch for what was read, once for the caches; PyTorch
    # waits beside that for the loss of each step.
    assert launcher.waits["MainThread"] == groups + 4 * SHORT.epochs + 1
