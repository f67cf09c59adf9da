"""The tutorial of the console, followed in a browser, and its screenshots.

`make pictures` runs it and writes the screenshots into docs/pictures; otherwise it only follows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from penstock.testing.server import LocalPenstock
from tests.docs.markdown_kit import ROOT, fences
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import Console
from tests.system.serving_kit import serving

pytestmark = pytest.mark.system

PAGE = ROOT / "docs" / "tutorials" / "first-minute.md"
PICTURES = ROOT / "docs" / "pictures"
IS_WRITING = "PENSTOCK_WRITE_PICTURES" in os.environ
SIZE = {"width": 1280, "height": 820}
BYTES_MAX = 120_000


def shown(language: str, title: str = "") -> str:
    """A text that the page shows, which a reader copies."""
    return next(
        fence.text for fence in fences(PAGE) if (fence.language, fence.title) == (language, title)
    )


@pytest.fixture(scope="module")
def penstock(
    tmp_path_factory: pytest.TempPathFactory, shared_spark: str
) -> Iterator[LocalPenstock]:
    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark}
    with serving(tmp_path_factory.mktemp("tutorial") / "data", variables) as made:
        yield made


def picture(console: Console, name: str) -> None:
    """Take a screenshot; keep it if `make pictures` runs."""
    content = console.page.screenshot(scale="css", animations="disabled")
    assert len(content) <= BYTES_MAX, f"{name} is too large for the manual"
    if IS_WRITING:
        (PICTURES / f"console-{name}.png").write_bytes(content)


def go(console: Console, name: str) -> None:
    """Choose a page in the navigation."""
    console.page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()


def press(console: Console, name: str) -> None:
    console.page.get_by_role("button", name=name, exact=True).click()


def scroll_to(console: Console, heading: str) -> None:
    console.page.get_by_role("heading", name=heading).evaluate("one => one.scrollIntoView()")


def load_rows(console: Console) -> None:
    page = console.page
    go(console, "Load data")
    page.get_by_label("text to paste").check()
    page.get_by_label("rows", exact=True).fill(shown("json", "visits.jsonl"))
    press(console, "show the rows")
    rows = page.get_by_role("region", name="rows as they will be loaded")
    expect(rows).to_contain_text("2026-11-21T11:30:00.000Z")
    page.get_by_label("datasource").fill("visits")
    console.shows("visits is new")
    scroll_to(console, "2. Rows")
    picture(console, "load")
    press(console, "load the rows")
    console.shows("8 rows of visits can be queried")


def publish_message(console: Console) -> None:
    page = console.page
    go(console, "Topics")
    page.get_by_text("create a topic").click()
    page.get_by_label("name", exact=True).fill("visits")
    press(console, "create the topic")
    page.get_by_role("link", name="visits", exact=True).click()
    page.get_by_text("publish a message").click()
    page.get_by_label("message", exact=True).fill(shown("json"))
    press(console, "publish to visits")
    console.shows("published")
    press(console, "read")
    expect(page.locator(".message")).to_have_count(1)
    expect(page.locator(".message")).to_contain_text("2026-11-21T12:00:00Z")
    # The numbers of the page follow the message after a second.
    partition = page.get_by_role("region", name="stream partitions").get_by_role("row").last
    expect(partition.get_by_role("cell").nth(2)).to_have_text("1")
    scroll_to(console, "Stream partitions")
    picture(console, "topic")


def ask(console: Console) -> None:
    page = console.page
    go(console, "SQL")
    console.write(shown("sql"))
    press(console, "run")
    expect(page.get_by_role("region", name="rows")).to_contain_text("2026-11-21T08:00")
    press(console, "bars")
    chart = page.get_by_role("img", name="rows as a chart")
    expect(chart).to_be_visible()
    chart.scroll_into_view_if_needed()
    picture(console, "sql")


def test_the_steps_of_the_tutorial_work(penstock: LocalPenstock) -> None:
    with started_browser() as browser:
        console = Console(browser, penstock.api_url, viewport=SIZE, color_scheme="light")
        console.open("")
        load_rows(console)
        go(console, "Home")
        console.shows("Everything works")
        datasources = console.page.get_by_role("region", name="datasources")
        expect(datasources.get_by_role("link", name="visits")).to_be_visible()
        expect(datasources).to_contain_text(" ago")
        picture(console, "home")
        publish_message(console)
        ask(console)
        console.close()


def test_the_page_has_the_pictures() -> None:
    named = set(re.findall(r"\.\./pictures/(console-\w+\.png)", PAGE.read_text()))
    assert named == {path.name for path in PICTURES.glob("console-*.png")}
    for name in named:
        assert Path(PICTURES, name).stat().st_size <= BYTES_MAX
