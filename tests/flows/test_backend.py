from __future__ import annotations

from pathlib import Path

import pytest

from conf.schema import PipelineConfig
from flows.commands.ending import exit_codes
from flows.run import open_run
from kernels import backend
from kernels.cuda.probe import Probe


def test_a_gpu_that_is_not_there_ends_a_run_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend, "probe", lambda: Probe((), "no NVIDIA driver (libcuda.so.1)", "use backend: cpu"))
    config = PipelineConfig(backend="cuda", state_dir=tmp_path / "state")
    with pytest.raises(SystemExit) as ended, exit_codes(), open_run(config):
        raise AssertionError("the run went on")
    assert ended.value.code == 2
    assert "backend: cuda cannot be used: no NVIDIA driver" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
