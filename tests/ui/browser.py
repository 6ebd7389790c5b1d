"""A browser, as a person has it: Debian's chromium through playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.flows.conftest import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(os.environ.get("GARDEN_SCREENSHOTS", ROOT / "build" / "screenshots"))
_QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_ALONE = ("--disable-background-networking", "--disable-component-update")


def open_browser() -> Iterator[Browser]:
    """A browser without anybody's profile; the test is skipped where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install '.[ui]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=[*_QUIET, *_ALONE])
        yield browser
        browser.close()


def shoot(page: Page, name: str, *, whole: bool = False) -> None:
    """Keep what the page shows, as an artifact of the test."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=whole)
