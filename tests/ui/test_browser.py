"""A person at the browser: fills in the form, watches the run end, follows it to MLflow, compares two runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.flows.conftest import BUDGET
from tests.flows.up import Up
from tests.ui.browser import SCREENSHOTS, open_browser, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.full
TINY = ("data.demo.nodes=2000", "data.demo.edges=20000", "profile.heldout_epochs=4")
_PATIENCE_MS = 60_000  # two cores, shared with three servers and the run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from open_browser()


@pytest.fixture(scope="module")
def up(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up.start(tmp_path_factory.mktemp("up"))
    yield running
    running.kill()


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    opened.set_default_timeout(_PATIENCE_MS)
    yield opened
    shoot(opened, f"last-{request.node.name}")
    (SCREENSHOTS / f"last-{request.node.name}.html").write_text(opened.content(), encoding="utf-8")
    opened.close()


def open_form(page: Page, up: Up, flow: str) -> None:
    """The way a person goes: deployments, the one to run, Run, Custom run."""
    up.deployment(flow)
    page.goto(f"{up.prefect}/v2/deployments")
    row = page.get_by_role("row").filter(has_text=re.compile(f"^local{flow}"))
    row.get_by_role("link", name="local").click()
    page.get_by_role("button", name="Run").first.click()
    page.get_by_role("menuitem", name="Custom run").click()
    field(page, "Name").wait_for()


def field(page: Page, title: str) -> Locator:
    return page.get_by_label(f"{title} (Optional)", exact=True)


def add_lines(page: Page, lines: tuple[str, ...]) -> None:
    """Fill in the list of further settings."""
    settings = page.locator("div.group").filter(has=page.get_by_text("Further settings (Optional)", exact=True)).last
    for number, line in enumerate(lines):
        settings.get_by_role("button", name="Add Item").click()
        settings.get_by_role("textbox").nth(number).fill(line)


def close_assistant(page: Page) -> None:
    """MLflow opens a panel of its own in a browser that is new to it."""
    page.get_by_role("button", name="Close").first.click()


def test_the_form_refuses_what_is_out_of_bounds(up: Up, page: Page) -> None:
    open_form(page, up, "pipeline")
    shoot(page, "form", whole=True)
    field(page, "Epochs").fill("0")
    page.get_by_role("button", name="Submit").click()
    assert field(page, "Epochs").evaluate("input => input.validationMessage") == (
        "Value must be greater than or equal to 1."
    )
    field(page, "Epochs").fill("3")
    field(page, "Device budget").fill("six")
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("'six' does not match").first.wait_for()  # a notice may repeat it
    shoot(page, "refused", whole=True)
    assert up.api("/flow_runs/count", {}) == 0


def test_the_form_is_filled_in_and_the_run_is_found_in_mlflow(up: Up, page: Page) -> None:
    open_form(page, up, "pipeline")
    field(page, "Epochs").fill("3")
    field(page, "Device budget").fill(str(BUDGET))
    field(page, "Name").fill("first")
    page.get_by_role("button", name="Select Model").click()
    page.get_by_role("option", name="gcn").click()
    add_lines(page, TINY)
    shoot(page, "filled-in", whole=True)
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("button", name="View run").click()
    page.get_by_text("Completed", exact=True).first.wait_for(timeout=2 * _PATIENCE_MS)
    (run,) = up.api("/flow_runs/filter", {})
    assert run["parameters"]["config"]["model"] == "gcn"
    page.wait_for_timeout(1500)
    shoot(page, "run")

    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("mlflow-run", exact=True).click()
    page.get_by_role("link", name="MLflow run").click()
    page.get_by_role("heading", name="first").wait_for()
    close_assistant(page)
    page.get_by_text("Evaluations", exact=True).wait_for(state="detached")  # a run of training, not of GenAI
    page.get_by_text("test/best_accuracy").first.wait_for()
    page.get_by_text("model.kind").first.wait_for()
    page.get_by_role("link", name="run in Prefect").or_(page.get_by_role("link", name=run["name"])).first.wait_for()
    page.get_by_role("tab", name="Model metrics").click()
    page.get_by_text("hit_rate").first.wait_for()
    page.wait_for_timeout(1500)
    shoot(page, "curves")
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("pictures", exact=True).click()
    page.get_by_text("hit_rates.png").click()
    picture = page.locator("img[src*='hit_rates.png'], img[src^='blob:'], img[src^='data:image/png']").first
    picture.wait_for()
    assert picture.evaluate("image => image.naturalWidth") > 400
    shoot(page, "picture")
    page.get_by_text("model", exact=True).first.click()
    page.get_by_text("README.md").click()
    page.get_by_text("data digest").first.wait_for()
    shoot(page, "card")


def test_two_runs_are_compared(up: Up, page: Page) -> None:
    config = {"dataset": "demo", "settings": list(TINY), "epochs": 3, "name": "second", "model": "sage"}
    run_id = up.create("pipeline", {"config": config})
    up.wait(run_id, "COMPLETED")
    experiment = up.tracked(run_id)[0]["info"]["experiment_id"]
    page.goto(f"{up.mlflow}/#/experiments/{experiment}/runs?workflowType=machine_learning")
    for name in ("first", "second"):
        page.get_by_role("link", name=name, exact=True).wait_for()
    close_assistant(page)
    boxes = page.get_by_label("Press Space to toggle row selection")
    for number in range(2):
        boxes.nth(number).click()
    shoot(page, "runs")
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("Comparing 2 Runs").first.wait_for()
    page.get_by_text("model.kind").first.wait_for()
    for difference in ("gcn", "sage", str(BUDGET)):
        page.get_by_text(difference, exact=True).first.wait_for(state="attached")
    shoot(page, "compare-table")

    page.goto(f"{up.mlflow}/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART")
    page.get_by_placeholder("Search metric charts").fill("hit_rate")
    page.get_by_text("cache/feature_hit_rate").first.wait_for()
    for name in ("first", "second"):
        page.get_by_text(name, exact=True).first.wait_for()
    page.wait_for_timeout(3000)  # the charts draw themselves
    shoot(page, "compare")


@pytest.mark.parametrize("flow", ["prepare_graph", "profile_and_cache", "train_model", "sweep", "compare_policies"])
def test_every_flow_has_a_form(up: Up, page: Page, flow: str) -> None:
    open_form(page, up, flow)
    shoot(page, f"form-{flow}", whole=True)
    assert field(page, "Epochs").count() == (flow in ("train_model", "sweep"))
    assert page.get_by_text("JSON", exact=True).count() == 0, "a field that has to be written as JSON is no form"
