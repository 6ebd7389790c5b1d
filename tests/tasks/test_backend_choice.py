from __future__ import annotations

from typing import Any

import pytest

from conf.schema import PipelineConfig
from kernels import backend as backend_module
from kernels.cuda.probe import Device, Probe
from tasks.training_config import chosen_backend


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "cuda"),
        ({"backend": "cpu"}, "cpu"),
        ({"storage": {"mode": "storage"}}, "cpu"),
        ({"cache": {"dynamic": {"share": 0.5}}}, "cuda"),
    ],
)
def test_a_gpu_trains_where_it_can_do_what_is_asked(
    changes: dict[str, Any], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Probe((Device("a GPU", (9, 0), 80 << 30),), "", "")
    monkeypatch.setattr(backend_module, "probe", lambda: gpu)
    monkeypatch.setattr(backend_module, "fault_of", lambda _: "")
    assert chosen_backend(PipelineConfig.model_validate(changes)) == backend
