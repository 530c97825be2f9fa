from pathlib import Path

import pytest

from harness.browser import chromium
from recycle.plan.document import load_plan
from recycle.view import html

SCHEDULES = Path(__file__).parent.parent.parent / "schedules"
WORKED = ("1-fault-free", "2-fused", "3-split", "4-staggered")


@pytest.fixture(params=WORKED)
def worked(request):
    """Each of the four forms of the worked example: its name and its plan."""
    return request.param, load_plan(SCHEDULES / f"{request.param}.json")


@pytest.fixture
def fused():
    return load_plan(SCHEDULES / "2-fused.json")


@pytest.fixture
def staggered():
    return load_plan(SCHEDULES / "4-staggered.json")


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a page of some panels; at the end nothing may stand in the browser's console."""

    def load(*panels):
        path = tmp_path / "page.html"
        path.write_text(html.page(panels))
        browser.get(path.as_uri())
        return browser

    yield load
    assert browser.get_log("browser") == []
