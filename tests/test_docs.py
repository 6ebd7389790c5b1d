"""The code in the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import store_format
from storage.blocks.writer import CRC_GROUP
from storage.extras import LINK_PARTS

API_PAGE = Path(__file__).parents[1] / "docs" / "python-api.md"
_CODE = re.compile(r"^```python *(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_page(page: Path, *, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Run a page's code of some kinds (the word after `python`) from top to bottom; return its names."""
    text, names = page.read_text(encoding="utf-8"), dict[str, Any]()
    for match in _CODE.finditer(text):
        if match[1] in kinds:
            above = "\n" * text.count("\n", 0, match.start(2))  # so that a traceback names the line of the page
            exec(compile(above + match[2], str(page), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_python_api() -> None:
    names = run_page(API_PAGE, kinds=("",))
    assert names["accuracy"] > 0.85
    assert names["held"][0] <= 100_000
    assert abs(names["expected"] - names["measured"]) < 0.05
    assert names["same"]
    assert names["logits"].shape == (names["pyg"].batch_size, 4)
    with torch.no_grad():
        assert sum(names["trimming"][0]) == len(names["pyg"].n_id)


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity opt is not enabled")
def test_python_api_with_dgl() -> None:
    pytest.importorskip("kernels.interop_dgl", exc_type=ImportError)
    names = run_page(API_PAGE, kinds=("", "dgl"))
    assert torch.isfinite(names["loss"])
    assert names["h"].shape[1] == 4


def test_the_table_of_a_store_names_every_dataset() -> None:
    text = (API_PAGE.parent / "file-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`/.*?) \|", text, re.MULTILINE)
    named = {name.strip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    constants = {value for name, value in vars(store_format).items() if name.isupper() and isinstance(value, str)}
    datasets = {value for value in constants if "/" in value and value != CRC_GROUP}
    datasets |= {f"{store_format.LINKS}/SPLIT/{part}" for part in LINK_PARTS}
    assert len(datasets) > 12
    assert datasets <= named
    assert all(any(split in name for name in named) for split in store_format.SPLITS)
