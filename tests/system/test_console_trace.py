"""The page that follows one event, over a topic with rows, refused messages and equal ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from penstock.core.errors import Unavailable
from penstock.services.api.asgi import application
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.storage.metadata import CountsRow
from tests.harness.access_kit import with_token
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.services.trace_kit import TOPIC, Row, TraceWorld

pytestmark = pytest.mark.system

MANY = 150


class ServedTraces:
    """The console over a trace world."""

    def __init__(self, folder: Path) -> None:
        self.world = world = TraceWorld(folder)
        self.live = LiveAnswers()
        equal: Row = (world.day, "AA", 2)
        rows: list[Row] = [(world.day, HOSTILE, 1), *[equal] * MANY]
        for row in rows:
            world.send_row(row)
        world.send(b"\xff<script>alert(1)</script>" + b"x" * 1_000_000)
        world.task(0, active=False, error=f"the peon was killed {HOSTILE}")
        task, end = world.task(0), len(rows) + 1
        segment = world.segment(0, rows, "v1", 0)
        counts = CountsRow(processed=len(rows), unparseable=1)
        world.publish(task, (0, end), [segment], counts)
        world.end(task.id)
        routes = [
            *ConsoleRoutes().routes(),
            *LoginRoutes().routes(),
            *self.live.routes(),
            *world.routes,
        ]
        app = application(routes, access=with_token(None))
        self.server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def close(self) -> None:
        self.live.close()
        self.server.stop()
        self.world.close()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedTraces]:
    with closing(ServedTraces(tmp_path_factory.mktemp("traces"))) as made:
        yield made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def console(browser: Browser, traces: ServedTraces) -> Iterator[Console]:
    made = Console(browser, traces.url)
    yield made
    made.close()


def picture(console: Console, name: str) -> None:
    """Keep a picture for people, where the variable says."""
    if folder := os.environ.get("PENSTOCK_PICTURES"):
        console.page.screenshot(path=f"{folder}/{name}.png", full_page=True)


def test_a_message_is_followed_by_keyboard(console: Console, traces: ServedTraces) -> None:
    console.open("trace")
    console.page.get_by_label("topic").fill(TOPIC)
    console.page.get_by_label("stream partition").fill("0")
    offset = console.page.get_by_label("offset")
    offset.fill("0")
    offset.press("Enter")
    console.shows("SQL shows its row")
    expect(offset).to_be_focused()
    steps = console.page.get_by_role("list", name="steps to flights").get_by_role("listitem")
    expect(steps).to_have_count(5)
    expect(steps.first).to_contain_text(f"ended as FAILED: the peon was killed {HOSTILE}")
    # A task that ended is found by its link.
    expect(steps.nth(1).get_by_role("link", name="task")).to_be_visible()
    picture(console, "trace-message")
    # The next one by its id, which is also the place for others.
    console.page.get_by_label("stream partition").fill("")
    offset.fill("")
    console.page.get_by_label("or message id").fill(f"{MANY + 1:016x}")
    console.page.get_by_role("button", name="follow").click()
    console.shows("unparseable")
    console.shows("it was published to the dead-letter topic")
    console.page.reload()
    console.shows("unparseable")


def test_errors_are_shown_in_place(console: Console, traces: ServedTraces) -> None:
    console.open(f"trace?topic={TOPIC}&partition=0&offset=9999")
    console.shows("has no message at offset 9999 yet")
    console.page.get_by_label("offset").fill("<b>")
    console.page.get_by_role("button", name="follow").click()
    console.shows("is not a whole number")
    console.open("trace/row?datasource=flights&time=noon&columns=")
    console.shows("time: ")
    traces.world.topics.error = Unavailable("the broker does not answer")
    console.expect("GET", 503, "/penstock/v1/trace/message", "the broker does not answer")
    console.open(f"trace?topic={TOPIC}&partition=0&offset=1")
    console.shows("the broker does not answer")
    traces.world.topics.error = None
    console.page.get_by_role("button", name="follow").click()  # the same again
    console.shows("SQL shows its row")


def test_a_row_is_followed_back_to_all_of_its_messages(console: Console) -> None:
    console.open("trace/row")
    console.page.get_by_label("datasource").fill("flights")
    console.page.get_by_label("__time").fill("2013-01-01")
    console.page.get_by_label("columns, a line each").fill("carrier=AA\nn=2")
    console.page.get_by_role("button", name="follow").click()
    rows = console.page.get_by_role("region", name="messages that make the row").locator("tbody tr")
    expect(rows).to_have_count(100)
    console.page.get_by_role("button", name="scan further").click()
    expect(rows).to_have_count(MANY)
    console.shows(f"{MANY + 2} of {MANY + 2} messages of the sequence scanned")
    picture(console, "trace-row")
    console.page.get_by_label("columns, a line each").fill(f"carrier={HOSTILE}")
    console.page.get_by_role("button", name="follow").click()
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="0", exact=True).click()
    console.shows("SQL shows its row")
    expect(console.page.get_by_label("offset")).to_have_value("0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_and_fits(
    browser: Browser, traces: ServedTraces, scheme: str
) -> None:
    places = {
        "message": f"trace?topic={TOPIC}&partition=0&offset=0",
        "refused": f"trace?topic={TOPIC}&partition=0&offset={MANY + 1}",
        "row": "trace/row?datasource=flights&time=2013-01-01&columns=carrier%3DAA",
    }
    for width in (1280, 390):
        viewport = {"width": width, "height": 800}
        options = {"color_scheme": scheme, "viewport": viewport, "bypass_csp": True}
        with closing(Console(browser, traces.url, **options)) as one:
            for name, where in places.items():
                one.open(where)
                one.shows("messages of the sequence" if name == "row" else "supervisor flights")
                assert violations(one) == []
                overflow = "document.documentElement.scrollWidth - window.innerWidth"
                assert one.page.evaluate(overflow) <= 0
                picture(one, f"trace-{name}-{scheme}-{width}")
