"""Each page of the console over a large installation: what it counts, and how little it draws.

1,000 topics, 10,000 processors, 10,000 tasks and 1,000,000 segments. No times are checked here:
`benchmarks/console.py` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from penstock.core.clock import SystemClock
from tests.harness.metadata_kit import open_metadata
from tests.kits.browser_kit import TIMEOUT_MS, started_browser
from tests.kits.console_kit import Console, violations
from tests.services.large_installation_kit import (
    PROCESSORS,
    TASKS,
    TOPICS,
    large_installation,
    publish_hours,
    repeat_hours,
)

pytestmark = pytest.mark.system

PERIOD = 10
HOURS = 910_000
SEGMENTS = HOURS * 11 // 10
CELLS = 80
LISTED = 50
NODES_MAX = 300
ELEMENTS_MAX = 4_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("large")
    store = open_metadata(folder, SystemClock())
    publish_hours(store, "d", PERIOD)
    store.close()
    repeat_hours(folder / "metadata.db", PERIOD, HOURS)
    store = open_metadata(folder, SystemClock())
    with large_installation(folder, store) as made:
        yield made.url
    store.close()


@pytest.fixture(scope="module")
def console(browser: Browser, address: str) -> Iterator[Console]:
    made = Console(browser, address, viewport={"width": 1280, "height": 900})
    made.expect("POST", 404, "/druid/v2/sql", "this server has no SQL")
    made.expect("GET", 404, "/penstock/v1/uploads", "this server has no uploads")
    yield made
    made.close()


@dataclass(frozen=True)
class Large:
    """A page, and what it shows of a large installation.

    Attributes:
        place: Its address.
        texts: Texts that it shows.
        rows: Maximum number of rows that it draws of this table.
        table: Name of the table; empty: none is checked.
        figures: Its figures by name.
    """

    place: str
    texts: tuple[str, ...] = ()
    rows: int = 0
    table: str = ""
    figures: dict[str, int] = field(default_factory=dict)


PAGES = (
    Large("", (f"{TOPICS:,} topics", "10K components", "10K waiting")),
    Large("topics", ("topic0000", f"1 to 50 of {TOPICS}"), 50, "topics", {"topics": TOPICS}),
    Large("flow", ("group of 100",), figures={"components": PROCESSORS}),
    Large("tasks", ("more active tasks",), 200, "tasks", {"wait for a worker": TASKS}),
    Large("locks", ("No lock is held",), figures={"locks": 0}),
    Large("supervisors", ("There is no supervisor",)),
    # Every tenth hour has a segment that a newer one hides: it does not count.
    Large("datasources", ("query", f"{HOURS:,}"), 100, "datasources"),
    Large("datasources/d", (f"{SEGMENTS:,} segments", "Zoom in to see single segments")),
    Large("sql", ("Statement",)),
    Large("load", ("Load data",)),
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.place or "home")
def test_a_page_counts_all_and_draws_a_part(console: Console, page: Large) -> None:
    console.open(page.place)
    for text in page.texts:
        console.shows(text)
    for name, value in page.figures.items():
        expect(figure(console, name)).to_have_text(f"{value:,}")
    if page.table:
        rows = console.page.get_by_role("region", name=page.table, exact=True).locator("tbody tr")
        assert 0 < rows.count() <= page.rows
    assert elements(console) <= ELEMENTS_MAX


def figure(console: Console, name: str) -> Locator:
    label = console.page.locator("dt", has_text=name)
    return console.page.locator(".figure", has=label).first.locator("dd")


def elements(console: Console) -> int:
    """The number of elements on the page."""
    return int(console.page.evaluate("document.querySelectorAll('*').length"))


def test_opened_groups_draw_up_to_300_nodes(console: Console) -> None:
    console.open("flow")
    nodes = console.page.locator(".graph .node")
    expect(nodes).to_have_count(PROCESSORS // 100)
    for opened, count in ((0, 199), (1, 298), (2, NODES_MAX)):
        nodes.filter(has_text=f"G{opened}").filter(has_text="group of").first.click()
        expect(nodes).to_have_count(count)
    console.shows("more components and groups are not drawn")
    assert elements(console) <= ELEMENTS_MAX
    console.page.get_by_role("searchbox").fill("G99/P7")
    expect(console.page.get_by_role("status").get_by_role("link")).to_have_count(11)
    for opened in range(3):  # faster than the answers come
        console.page.get_by_role("button", name=f"close G{opened}", exact=True).click()
    expect(nodes).to_have_count(PROCESSORS // 100)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_card_of_a_group_is_accessible(browser: Browser, address: str, theme: str) -> None:
    size = {"width": 390, "height": 800}
    made = Console(browser, address, color_scheme=theme, viewport=size, bypass_csp=True)
    made.open("flow?group=G1")
    made.shows("Group G1")
    made.shows("waiting in it")
    assert violations(made) == []
    assert made.page.evaluate("document.documentElement.scrollWidth") <= 390
    made.close()


def test_a_search_finds_what_is_not_drawn(console: Console) -> None:
    console.open("topics")
    console.page.get_by_role("searchbox").fill("topic099")
    rows = console.page.get_by_role("region", name="topics").locator("tbody tr")
    expect(rows).to_have_count(10)
    console.open("tasks")
    console.page.get_by_role("searchbox").fill("009999")
    expect(console.page.get_by_role("region", name="tasks").locator("tbody tr")).to_have_count(1)


def test_segments_are_zoomed_to_single_ones(console: Console, address: str) -> None:
    console.open("datasources/d")
    bars = console.page.get_by_role("group", name="segments over time").get_by_role("button")
    sight = console.page.locator(".sight")
    listed = console.page.get_by_role("region", name="single segments").locator("tbody tr")
    answer = timeline(console, address)
    while answer["segmentList"] is None:
        expect(bars).to_have_count(len(answer["cells"]))
        expect(sight).to_contain_text(f"{answer['segments']:,} segments")
        middle = answer["cells"][len(answer["cells"]) // 2]
        bars.nth(len(answer["cells"]) // 2).click()
        answer = timeline(console, address, f"{middle['start']}/{middle['end']}")
    expect(sight).to_contain_text(f"{answer['segments']} segments")
    expect(listed).to_have_count(min(LISTED, len(answer["segmentList"])))
    first = answer["segmentList"][0]
    expect(listed.first).to_contain_text(first["version"])
    expect(listed.first).to_contain_text(first["state"])
    assert elements(console) <= ELEMENTS_MAX


def timeline(console: Console, address: str, interval: str | None = None) -> dict[str, Any]:
    """The server's answer for the picture of an interval."""
    path = f"{address}/penstock/v1/datasources/d/segments/timeline"
    wanted: dict[str, str | float | bool] = {"cells": CELLS}
    if interval is not None:
        wanted["interval"] = interval
    found: dict[str, Any] = console.page.request.get(path, params=wanted, timeout=TIMEOUT_MS).json()
    return found
