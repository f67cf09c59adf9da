"""Speed of the console in Chromium over a large installation, generated in a temporary folder.

    .venv/bin/python -m benchmarks.console [SEGMENTS]

1,000 topics, a flow of 10,000 processors, 10,000 waiting tasks and 1,000,000 segments. The broker
has a process of its own; the APIs of the router, the overlord and the flow run in this one, and
compete with Chromium for the cores. First paint is that of the browser's own measurements, with a
new profile each time. The time to the content ends with the first answer on the page. The sums of
segments are ready, as they are in the service some seconds after its start. An interaction is a
real click or key press, from the event to the next frame, as the browser's Event Timing API reports
it: multiples of 8 ms, of at least 16 ms; the worst of the repetitions counts.

Open tabs are what the servers spend on them, in processor time of this process and the broker's,
beyond what the same servers spend without a tab: here, and over a small installation. The median of
three turns counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from playwright.sync_api import Browser, Page, expect

from benchmarks.duties import SEGMENTS
from benchmarks.duties import fill as fill_segments
from benchmarks.processes import cpu_s
from benchmarks.table import Row, against, print_rows, start_timer
from penstock.core.clock import SystemClock
from penstock.storage.metadata import MetadataStore
from tests.kits.browser_kit import started_browser
from tests.services.large_installation_kit import (
    LargeInstallation,
    large_installation,
    publish_hours,
    repeat_hours,
)

PAINT_MS: Final = 1_000.0
INTERACTION_MS: Final = 100.0
REPEATED: Final = 3
TABS: Final = 10
TABS_PERCENT: Final = 1.0
TABS_S: Final = 15.0
LEAST_MS: Final = 16.0
"""Shorter events are not reported."""

_PUBLISHED: Final = 11
"""Segments that are published as tasks do; all others are copies for other hours."""

_SETTLE_MS: Final = 400
_TIMEOUT_MS: Final = 180_000
_EVENTS: Final = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries())
    if (one.interactionId > 0) window.longest = Math.max(window.longest, one.duration);
}).observe({ type: "event", durationThreshold: 16, buffered: true });
"""
_FIRST_PAINT: Final = "performance.getEntriesByType('paint')[0].startTime"

# A page, and a text that it shows with its first answer.
PAGES: Final = {
    "": "1,000 topics",
    "topics": "topic0000",
    "flow": "group of 100",
    "supervisors": "There is no supervisor",
    "tasks": "running_0",
    "locks": "Who has locked what",
    "datasources": "query",
    "datasources/d": "the same as a table",
    "sql": "Statement",
}


# What ten tabs show at the same time.
TABS_OF: Final = {
    "of Home": ("",),
    "of the flow": ("flow",),
    "of topics": ("topics",),
    "of ten pages": ("", *(place for place in PAGES if place)),
}


@contextmanager
def installation(folder: Path, segments: int) -> Iterator[LargeInstallation]:
    """A large installation whose datasource has as many segments as are wanted."""
    clock = SystemClock()
    path = folder / "metadata.db"
    url = f"sqlite:///{path}"
    period = fill_segments(url, _PUBLISHED, clock)
    repeat_hours(path, period, segments * 10 // 11 // period * period)
    store = MetadataStore.open(url, clock=clock)
    try:
        with large_installation(folder, store) as made:
            yield made
    finally:
        store.close()


class Visitor:
    """A visitor of the console, with a new profile of the browser for each page."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self._address = address

    @contextmanager
    def opened(self, place: str) -> Iterator[Page]:
        """Open a page in a new profile, and wait for its content."""
        context = self._browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(_TIMEOUT_MS)
        context.add_init_script(_EVENTS)
        page = context.new_page()
        page.goto(f"{self._address}/#/{place}")
        expect(page.locator("main").get_by_text(PAGES[place]).first).to_be_visible(
            timeout=_TIMEOUT_MS
        )
        yield page
        context.close()

    def loads(self, place: str) -> list[Row]:
        """Measure the first paint of a page, and the time to its content."""
        paints, contents = [], []
        for _ in range(REPEATED):
            begun = time.perf_counter()
            with self.opened(place) as page:
                contents.append((time.perf_counter() - begun) * 1_000)
                paints.append(float(page.evaluate(_FIRST_PAINT)))
        name = place or "home"
        return [
            against(f"{name}: first paint", max(paints), "ms", "limit", PAINT_MS, "< 1"),
            Row(f"{name}: content, at first and best", contents[0], "ms", "best", min(contents)),
        ]

    def interacts(self, place: str, name: str, act: Callable[[Page, int], object]) -> Row:
        """Measure an interaction of a page."""
        found = []
        with self.opened(place) as page:
            for number in range(REPEATED):
                page.wait_for_timeout(_SETTLE_MS)
                page.evaluate("window.longest = 0")
                act(page, number)
                page.wait_for_timeout(_SETTLE_MS)
                found.append(max(LEAST_MS, float(page.evaluate("window.longest"))))
        title = f"{place or 'home'}: {name}"
        return against(title, max(found), "ms", "limit", INTERACTION_MS, "< 1")


def tabs(browser: Browser, made: LargeInstallation, what: str) -> list[Row]:
    """Measure what the servers spend on open tabs, in percent of a core.

    The servers have periodic work of their own, so the cost with and without tabs is
    measured in turns.
    """
    found: dict[str, list[float]] = {name: [] for name in TABS_OF}
    for _ in range(REPEATED):
        time.sleep(TABS_S)  # what the closed tabs left behind
        idle = percent(made)
        for name, places in TABS_OF.items():
            with ExitStack() as stack:
                for number in range(TABS):
                    # Each has connections of its own: a browser has six for all tabs of a server.
                    context = stack.enter_context(browser.new_context())
                    context.set_default_timeout(_TIMEOUT_MS)
                    context.new_page().goto(f"{made.url}/#/{places[number % len(places)]}")
                time.sleep(TABS_S)  # the first answers come more often
                found[name].append(percent(made) - idle)
    return [
        against(
            f"ten tabs {name}, {what}", median(some), "% of a core", "limit", TABS_PERCENT, "<= 1"
        )
        for name, some in found.items()
    ]


def percent(made: LargeInstallation) -> float:
    """Return the processor time of the servers for a while, in percent of one core."""
    assert made.broker.pid is not None
    begun, used = time.perf_counter(), time.process_time() + cpu_s(made.broker.pid)
    time.sleep(TABS_S)
    used = time.process_time() + cpu_s(made.broker.pid) - used
    return 100 * used / (time.perf_counter() - begun)


def small(folder: Path, browser: Browser) -> list[Row]:
    """Measure open tabs over an installation of the usual size."""
    store = MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=SystemClock())
    try:
        publish_hours(store, "d", 1_000)
        with large_installation(folder, store, topics=10, processors=100, tasks=10) as made:
            return tabs(browser, made, "small installation")
    finally:
        store.close()


def search(page: Page, number: int) -> None:
    """Press a key in the search of a page."""
    page.get_by_role("searchbox").first.press("0" if number % 2 == 0 else "Backspace")


def click(role: str, name: str) -> Callable[[Page, int], None]:
    """Return a click on what has a role and a name."""

    def act(page: Page, number: int) -> None:
        del number
        page.get_by_role(role, name=name).first.click()  # type: ignore[arg-type]

    return act


def choose(options: tuple[str, ...]) -> Callable[[Page, int], None]:
    """Return a choice in the first list of a page, by the keyboard."""

    def act(page: Page, number: int) -> None:
        page.locator("main select").first.press(
            "ArrowDown" if number % len(options) == 0 else "ArrowUp"
        )

    return act


def zoom(page: Page, number: int) -> None:
    """Zoom into the segments of a datasource."""
    del number
    bars = page.get_by_role("group").get_by_role("button")
    bars.nth(bars.count() // 2).click()


def open_group(page: Page, number: int) -> None:
    """Open a group of the flow, and close it."""
    if number % 2 == 0:
        page.locator(".graph .node").first.click()
    else:
        page.get_by_role("button", name="close").first.click()


def type_statement(page: Page, number: int) -> None:
    """Type a letter of a statement."""
    del number
    page.get_by_label("statement", exact=True).press("x")


INTERACTIONS: Final[tuple[tuple[str, str, Callable[[Page, int], object]], ...]] = (
    ("", "choose an order", choose(("newest", "oldest"))),
    ("", "go to topics", lambda page, _: page.get_by_role("link", name="Topics").first.click()),
    ("topics", "search", search),
    ("topics", "sort", choose(("name", "messages"))),
    ("topics", "next page", click("button", "next")),
    ("flow", "search", search),
    ("flow", "open and close a group", open_group),
    ("tasks", "search", search),
    ("tasks", "choose a state", choose(("", "RUNNING"))),
    ("datasources/d", "zoom", zoom),
    ("sql", "type", type_statement),
    ("sql", "new tab", click("button", "new tab")),
)


def run(segments: int = SEGMENTS) -> Iterator[Row]:
    """Measure, and give each row when it is known."""
    with (
        tempfile.TemporaryDirectory() as folder,
        started_browser() as browser,
        installation(Path(folder), segments) as made,
    ):
        start_timer()  # what the installation needed is not scanned again
        visitor = Visitor(browser, made.url)
        for place in PAGES:
            yield from visitor.loads(place)
        for one in INTERACTIONS:
            yield visitor.interacts(*one)
        yield from tabs(browser, made, "this installation")
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        yield from small(Path(folder), browser)


if __name__ == "__main__":
    measured: list[Row] = []
    try:
        measured.extend(run(int(sys.argv[1]) if len(sys.argv) > 1 else SEGMENTS))
    finally:  # what was measured counts although a later part failed
        print_rows(measured)
