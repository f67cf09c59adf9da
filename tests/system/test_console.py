"""The console in a browser, over a whole Penstock with data in each of its parts."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from penstock.core.clock import SystemClock
from penstock.core.intervals import Interval
from penstock.flow.graph.yaml_reader import read_flow
from penstock.segments.segment import Segment
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.static_pages import FRONT_PAGE, ConsoleRoutes, ManualRoutes
from penstock.services.host.login_links import new_login_link
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.storage.sqlite_urls import sqlite_url
from penstock.testing.server import LocalPenstock
from tests.harness.access_kit import AccessFolderKit
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.services.large_flow_kit import large_flow, opened
from tests.services.overlord_kit import OverlordWorld, served
from tests.system.serving_kit import serving

pytestmark = pytest.mark.system

FLOW = """
name: made
processors:
  Make:
    type: GenerateFlowFile
    schedule: every 1 sec
    properties: {custom_text: '<script>alert(2)</script>'}
  Publish:
    type: PublishTopic
    enabled: false
    properties: {topic: made}
    auto_terminated: [success, failure]
connections:
  - {from: Make.success, to: Publish, back_pressure_count: 1}
"""
SUPERVISOR = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "clicks",
            "timestampSpec": {"column": "time"},
            "dimensionsSpec": {"dimensions": ["page", {"name": "<script>", "type": "string"}]},
        },
        "ioConfig": {
            "type": "penstock",
            "topic": "clicks",
            "taskDuration": "PT1H",
            "useEarliestOffset": True,
        },
    },
}
# The page and a text that it shows once its answers have come.
PAGES = {
    "": "full queue",
    "topics": "clicks",
    "topics/clicks": "archive",
    "flow": "holds others up",
    "supervisors": "clicks",
    "supervisors/clicks": "reading",
    "tasks": "1 of ",
    "locks": "Who has locked what",
    "datasources": "clicks",
    "sql": "Statement",
    "nowhere": "There is no page nowhere",
}


@pytest.fixture(scope="module")
def penstock(
    tmp_path_factory: pytest.TempPathFactory, shared_spark: str
) -> Iterator[LocalPenstock]:
    variables = {"PENSTOCK_SPARK_CONNECT": shared_spark}
    with serving(tmp_path_factory.mktemp("console") / "data", variables) as made:
        made.create_topic("clicks", "archive")
        made.publish("clicks", *(event(number) for number in range(120)))
        made.publish("hostile", HOSTILE.encode(), b"\xff\x00\xfe", b"x" * 900_000)
        made.submit_supervisor(SUPERVISOR)
        answer = httpx.put(f"{made.api_url}/flow", content=FLOW)
        assert answer.status_code == 200, answer.text
        assert httpx.post(f"{made.api_url}/flow/start", json={}).status_code == 200
        made.wait_for_rows("SELECT count(*) AS n FROM clicks", [{"n": 120}])
        yield made


def event(number: int) -> bytes:
    time = f"2026-11-21T10:{number % 60:02}:00Z"
    return json.dumps({"time": time, "page": f"/{number % 7}", "<script>": HOSTILE}).encode()


@pytest.fixture(scope="module")
def segments(penstock: LocalPenstock) -> None:
    """A day of which a newer version replaced the first half, and a day that is unused."""
    day, half = "2026-01-01/2026-01-02", "2026-01-01T00:00/2026-01-01T12:00"
    place = {"type": "local", "path": "/none"}
    made = [(day, "v1"), (half, "v2"), ("2026-01-02/2026-01-03", "v1")]
    with MetadataStore.open(sqlite_url(penstock.folder / "metadata.db")) as store:
        for interval, version in made:
            one = Segment(
                "days", Interval.parse(interval), version, place, size=9_000, total_rows=90
            )
            assert store.publish(PublishRequest(version + interval, "days", (one.to_row(),))).ok
        assert store.segments.mark_unused([one.to_row().id]) == 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def console(browser: Browser, penstock: LocalPenstock) -> Iterator[Console]:
    made = Console(browser, penstock.api_url)
    yield made
    made.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_accessible(browser: Browser, penstock: LocalPenstock, theme: str) -> None:
    console = Console(browser, penstock.api_url, color_scheme=theme, bypass_csp=True)
    wrong = []
    for place, text in PAGES.items():
        console.open(place)
        console.shows(text)
        wrong += [(place, *one) for one in violations(console)]
    console.close()
    assert wrong == []


def test_pages_show_their_answers_and_fit_on_a_small_screen(
    browser: Browser, penstock: LocalPenstock
) -> None:
    size = {"width": 390, "height": 800}
    console = Console(browser, penstock.api_url, viewport=size)
    for place, text in PAGES.items():
        console.open(place)
        console.shows(text)
        width = console.page.evaluate("document.documentElement.scrollWidth")
        assert width <= 390, place
    console.close()


def test_messages_are_shown_as_text(console: Console) -> None:
    console.open("topics/hostile")
    console.page.get_by_role("button", name="read").click()
    console.shows(HOSTILE)
    console.shows("binary, as base64")
    expect(console.page.locator("main img")).to_have_count(0)
    assert console.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_messages_are_filtered_and_followed(console: Console) -> None:
    console.open("topics/clicks")
    console.page.get_by_label("from offset").fill("100")
    console.page.get_by_role("button", name="read").click()
    expect(console.page.locator(".message")).to_have_count(20)
    console.page.get_by_label("body contains").fill('"page": "/3"')
    expect(console.page.locator(".message")).to_have_count(3)
    console.page.get_by_label("from offset").fill("1000")
    console.page.get_by_role("button", name="read").click()
    expect(console.page.get_by_role("alert")).to_contain_text("use 0 to 120")


def test_a_query_is_answered_and_its_error_is_shown(console: Console) -> None:
    console.open("sql")
    console.write("SELECT `<script>`, count(*) AS n FROM clicks GROUP BY 1")
    console.page.get_by_role("button", name="run", exact=True).click()
    rows = console.page.get_by_role("region", name="rows")
    expect(rows).to_contain_text(HOSTILE)
    expect(rows).to_contain_text("120")
    # The statement is in the address, so that it can be shared.
    assert "GROUP%20BY" in console.page.url
    console.write("SELECT nothing FROM clicks")
    console.page.get_by_label("statement", exact=True).press("Control+Enter")
    expect(console.page.get_by_role("alert")).to_contain_text("nothing")
    expect(console.page.locator(".cm-error")).to_have_text("nothing")


def test_names_are_completed(console: Console) -> None:
    console.open("sql")
    editor = console.page.get_by_label("statement", exact=True)
    editor.press("Control+A")
    editor.press_sequentially("SELECT pag")
    editor.press_sequentially(" FROM clicks WHERE clicks.pa")
    expect(console.page.get_by_role("option", name="page")).to_be_visible()


def test_rows_are_drawn_and_downloaded(console: Console) -> None:
    console.open("sql")
    console.write("SELECT date_trunc('MINUTE', __time) AS t, count(*) AS n FROM clicks GROUP BY 1")
    console.page.get_by_role("button", name="run", exact=True).click()
    console.page.get_by_role("button", name="chart").click()
    expect(console.page.get_by_role("img", name="rows as a chart")).to_be_visible()
    with console.page.expect_download() as found:
        console.page.get_by_role("button", name="CSV").click()
    lines = Path(found.value.path()).read_text().splitlines()
    assert lines[0] == "t,n"
    assert len(lines) == 61


def test_a_large_result_is_drawn_in_part(console: Console) -> None:
    console.open("sql")
    console.write("SELECT id FROM range(100000)")
    console.page.get_by_role("button", name="run", exact=True).click()
    expect(console.page.get_by_role("status").filter(has_text="100,000 rows")).to_be_visible()
    rows = console.page.get_by_role("region", name="rows")
    assert rows.locator("tbody tr").count() < 200
    rows.evaluate("box => box.scrollTo(0, box.scrollHeight)")
    expect(rows.get_by_text("99999", exact=True)).to_be_visible()


def test_numbers_change_while_the_page_is_open(console: Console, penstock: LocalPenstock) -> None:
    console.open("topics?search=later")
    console.shows("No topic has this in its name")
    penstock.publish("later", b"1", b"2")
    console.shows("later")
    expect(console.page.locator(".connection")).to_contain_text("live")


def test_a_stream_that_is_cut_alone_is_resumed(console: Console, penstock: LocalPenstock) -> None:
    """A number that changes meanwhile is shown, although the server answers all the time."""
    penstock.create_topic("cut", "c")
    penstock.publish("cut", b"1")
    held = console.cut_stream()
    console.open("topics/cut")
    channels = console.page.get_by_role("region", name="channels")
    waiting = channels.locator("tbody tr td").nth(2)
    expect(waiting).to_have_text("1")
    connection = console.page.locator(".connection")
    expect(connection).to_contain_text("connecting")
    penstock.publish("cut", b"2", b"3")
    # The page works without it.
    console.page.get_by_role("button", name="pause the channel c", exact=True).click()
    console.page.get_by_role("button", name="read", exact=True).click()
    expect(console.page.locator(".message")).to_have_count(3)
    expect(waiting).to_have_text("1")
    [stream] = held
    stream.continue_()
    expect(connection).to_contain_text("live")
    expect(waiting).to_have_text("3")
    expect(channels).to_contain_text("paused")


def test_a_running_query_is_listed_and_cancelled(console: Console) -> None:
    console.open("sql")
    console.shows("No query runs")
    console.write("SELECT count(*) FROM range(100000000) a CROSS JOIN range(100000) b")
    console.page.get_by_role("button", name="run", exact=True).click()
    running = console.page.get_by_role("region", name="running queries")
    expect(running).to_contain_text("CROSS JOIN")
    expect(running).to_contain_text("owner:")
    running.get_by_role("button", name=re.compile("cancel the query")).click()
    console.shows("No query runs")
    expect(console.page.get_by_role("alert").first).to_contain_text("cancel")


def test_a_query_that_has_ended_meanwhile_cannot_be_cancelled(console: Console) -> None:
    listed = [
        {
            "queryId": "gone",
            "principal": "user:<b>",
            "state": "WAITING",
            "reason": "32 others run",
            "statement": HOSTILE,
            "isCut": True,
            "runningMs": 1_000,
        }
    ]
    event = f"data: {json.dumps({'watch': 0, 'status': 200, 'body': listed})}\n\n"
    console.page.route(
        "**/penstock/v1/live?**",
        lambda route: route.fulfill(body=event, content_type="text/event-stream"),
    )
    console.open("sql")
    row = console.page.get_by_role("region", name="running queries").locator("tbody tr")
    expect(row).to_contain_text("waits: 32 others run")
    expect(row).to_contain_text(HOSTILE)
    row.get_by_role("button").click()
    expect(row.get_by_role("alert")).to_contain_text("404")


def test_a_place_of_the_flow_is_a_link(console: Console) -> None:
    console.open("flow")
    console.page.locator(".node", has_text="PublishTopic").click()
    console.shows("the queue before it is full")
    console.page.get_by_label(re.compile("in the queue Make")).click()
    console.page.get_by_role("button", name="show the FlowFiles").click()
    console.shows("filename=")


def test_segments_are_shown_over_time(console: Console, segments: None) -> None:
    console.open("datasources/days")
    picture = console.page.get_by_role("group", name=re.compile("segments over time"))
    first = picture.get_by_role("button").first
    expect(first).to_be_visible()
    sight = console.page.locator(".sight")
    whole = sight.inner_text()
    # By keyboard: into the first hour, which a newer version replaced.
    first.focus()
    expect(console.page.locator(".pointed")).to_contain_text("overshadowed: ")
    first.press("Enter")
    expect(first).to_be_focused()
    expect(console.page).to_have_url(re.compile("interval=2026-01-01"))
    expect(sight).not_to_have_text(whole)
    rows = console.page.get_by_role("region", name="single segments")
    expect(rows.locator("tbody tr")).to_have_count(2)
    expect(rows).to_contain_text("partlyVisible")
    expect(rows).to_contain_text("v2 (2026-01-01 to 2026-01-01 12:00)")
    # Single segments: the newer version is above the one that it hides a part of.
    blocks = console.page.get_by_role("group", name="segments by interval and version")
    expect(blocks.get_by_role("button")).to_have_count(2)
    older, newer = (blocks.get_by_role("button", name=re.compile(one)) for one in ("v1 ", "v2 "))
    expect(older).to_have_attribute("aria-label", re.compile("hidden by version v2"))
    tops = [one.locator(".part").first.bounding_box() for one in (older, newer)]
    assert tops[0] is not None
    assert tops[1] is not None
    assert tops[0]["y"] > tops[1]["y"]
    older.hover()
    expect(console.page.locator(".pointed-block")).to_contain_text("hidden by version v2")
    expect(newer).to_have_class("hider")
    console.page.get_by_text("the same as a table").click()
    expect(console.page.get_by_role("region", name="segments by time")).to_contain_text("hidden by")
    # With the mouse: the whole range again, and back into a day that is unused.
    console.page.get_by_role("button", name="all").click()
    expect(console.page).not_to_have_url(re.compile("interval="))
    expect(sight).to_have_text(whole)  # it is drawn, too
    last = picture.get_by_role("button").last
    last.hover()
    expect(console.page.locator(".pointed")).to_contain_text("unused: ")
    last.click()
    expect(rows).to_contain_text("unused")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_segments_of_a_datasource_are_accessible(
    browser: Browser, penstock: LocalPenstock, segments: None, theme: str
) -> None:
    size = {"width": 390, "height": 800}
    console = Console(browser, penstock.api_url, color_scheme=theme, viewport=size, bypass_csp=True)
    console.open("datasources/days")
    console.shows("the same as a table")
    console.page.get_by_text("the same as a table").click()
    assert violations(console) == []
    assert console.page.evaluate("document.documentElement.scrollWidth") <= 390
    console.close()


def test_a_router_that_is_killed_is_told_until_it_is_back(
    browser: Browser, penstock: LocalPenstock
) -> None:
    console = Console(browser, penstock.api_url)
    console.open("topics")
    console.shows("clicks")
    started = re.findall(r"router started as process (\d+)", penstock.logs(1_000))
    console.note_texts(".connection")
    os.kill(int(started[-1]), signal.SIGKILL)
    console.has_noted("no answer")
    console.shows("clicks")  # the last answer stays
    expect(console.page.locator(".connection")).to_contain_text("live")
    console.context.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedPort]:
    made = GuardedPort(tmp_path_factory.mktemp("guarded"))
    yield made
    made.close()


class GuardedPort:
    """The console over a large flow, on a port that needs a login."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", '[principals]\n"user:alice" = ["viewer"]\n')
        self.options = PenstockOptions(data_dir=folder)
        self.flow = opened(folder / "flow")
        self.flow.apply(read_flow(large_flow(300).encode()).flow)
        self.live = LiveAnswers()
        self.site = folder / "site"
        routes = [
            *ConsoleRoutes().routes(),
            *LoginRoutes().routes(),
            *self.live.routes(),
            *ManualRoutes(self.site).routes(),
            *FlowRoutes(lambda: self.flow, SystemClock()).routes(),
        ]
        app = application(routes, access=self.kit.control, accepts_sessions=True)
        self.server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def link(self) -> str:
        link = new_login_link(self.options, self.url, SystemClock(), "token:operator")
        assert link is not None
        return link

    def close(self) -> None:
        self.live.close()
        self.server.stop()
        self.flow.close()


@pytest.fixture
def visitor(browser: Browser, guarded: GuardedPort) -> Iterator[Console]:
    made = Console(browser, guarded.url)
    yield made
    made.context.close()  # Chromium reports each answer 401


def test_a_browser_logs_in_and_out(visitor: Console, guarded: GuardedPort) -> None:
    visitor.open("flow")
    visitor.shows("penstock login --link")
    expect(visitor.page.locator(".connection")).to_contain_text("not logged in")
    other = visitor.context.new_page()
    other.goto(guarded.link())
    other.get_by_role("button", name="Log in").click()
    other.wait_for_url(f"{guarded.url}/")
    visitor.shows("group of 100")  # without a reload
    expect(visitor.page.locator("header.top")).to_contain_text("token:operator")
    expect(visitor.page.get_by_text("penstock login --link")).to_have_count(0)
    visitor.open("sql?query=SELECT%20'secret'")
    visitor.page.get_by_role("button", name="run", exact=True).click()
    expect(visitor.page.get_by_role("alert").first).to_be_visible()  # this server has no SQL
    visitor.page.get_by_role("button", name="theme: system").click()
    other.goto(f"{guarded.url}/#/sql?query=SELECT%20'second'")
    statement = other.get_by_label("statement", exact=True)
    expect(statement).to_contain_text("second")
    assert "secret" in kept_by(visitor)
    visitor.page.get_by_role("button", name="log out").click()
    visitor.shows("penstock login --link")
    expect(visitor.page.get_by_role("button", name="log out")).to_have_count(0)
    # What the former principal did is forgotten, except for the theme.
    assert "secret" not in kept_by(visitor)
    expect(visitor.page.get_by_role("button", name="theme: light")).to_be_visible()
    # Nor does another page, which is still that of this principal, keep anything.
    statement.press("x")
    other.goto("about:blank")
    assert "second" not in kept_by(visitor)
    # The manual needs no login.
    manual = visitor.page.get_by_role("link", name="Manual", exact=True)
    manual.click()
    visitor.shows("this installation has no manual")
    guarded.site.mkdir()
    (guarded.site / FRONT_PAGE).write_text("<!doctype html><title>The manual</title>")
    manual.click()
    visitor.page.wait_for_url(f"{guarded.url}/docs/")
    expect(visitor.page).to_have_title("The manual")


def kept_by(visitor: Console) -> str:
    """All that the browser keeps for the console."""
    return str(visitor.page.evaluate("JSON.stringify(localStorage)"))


def test_a_large_flow_is_drawn_by_groups(visitor: Console, guarded: GuardedPort) -> None:
    visitor.page.goto(guarded.link())
    visitor.page.get_by_role("button", name="Log in").click()
    visitor.page.wait_for_url(f"{guarded.url}/")
    visitor.open("flow")
    visitor.shows("group of 100")
    nodes = visitor.page.locator(".graph .node")
    expect(nodes).to_have_count(3)
    visitor.page.reload()
    expect(nodes).to_have_count(3)
    walk_by_keyboard(visitor)
    nodes.filter(has_text="G1").press("Enter")
    expect(nodes).to_have_count(102)
    visitor.page.get_by_label("find a component").fill("G2/P7")
    visitor.page.get_by_role("link", name="G2/P70", exact=True).click()
    visitor.shows("LogAttribute")  # its card, although its group is closed
    expect(visitor.page.get_by_role("heading", name="G2/P70")).to_be_visible()
    visitor.page.get_by_role("button", name="close G1").click()
    expect(nodes).to_have_count(3)


def walk_by_keyboard(visitor: Console) -> None:
    """Go from the start of the page into its content, and through all that acts there."""
    page = visitor.page
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    acting = page.locator(
        "main :is(a[href], button:enabled, input, select, [tabindex='0']):visible"
    )
    count = acting.count()
    for number in range(count):
        page.keyboard.press("Tab")
        expect(acting.nth(number)).to_be_focused()
    assert count > 10
    page.keyboard.press("Shift+Tab")
    expect(acting.nth(count - 2)).to_be_focused()


def test_no_page_allows_inline_scripts_and_styles(guarded: GuardedPort) -> None:
    page = httpx.get(guarded.url)
    scripts = re.findall('<script [^>]*src="([^"]+)"', page.text)
    assert scripts
    for answer in (page, *(httpx.get(f"{guarded.url}/{one}") for one in scripts)):
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        allowed = dict(one.split(" ", 1) for one in policy.split("; "))
        assert allowed["default-src"] == "'none'"
        assert allowed["script-src"] == allowed["style-src"] == "'self'"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the console over an overlord with tasks that hold locks and wait for them."""
    world = OverlordWorld(tmp_path_factory.mktemp("locked"), slots=2).start()
    live = LiveAnswers()
    app = world.make_app(
        more=[*ConsoleRoutes().routes(), *LoginRoutes().routes(), *live.routes()],
    )
    for name, datasource in (("holder", "clicks"), ("other", "views"), ("waiter", "clicks")):
        kill = {"type": "kill", "dataSource": datasource, "interval": "2024-01-01/2024-01-02"}
        answer = world.api.post("/druid/indexer/v1/task", json={**kill, "id": name})
        assert answer.status_code == 200
        if name != "waiter":
            world.runs(name)
    world.until(lambda: "holder" in world.api.get("/druid/indexer/v1/task/waiter/why").text)
    with served(world, app) as address:
        yield address.url
        live.close()
    world.close()


@pytest.fixture
def locks(browser: Browser, locked: str) -> Iterator[Console]:
    made = Console(browser, locked)
    yield made
    made.close()


def test_a_waiting_task_leads_to_the_one_that_holds_its_lock(locks: Console) -> None:
    locks.open("locks?datasource=clicks")
    rows = locks.page.get_by_role("region", name="tasks that wait for locks").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("holder")
    held = locks.page.get_by_role("region", name="locks", exact=True).locator("tbody tr")
    expect(held).to_have_count(1)
    expect(held).to_contain_text("waiter")
    expect(locks.page.locator(".locks .wanted")).to_have_count(1)
    expect(locks.page.locator(".locks .held")).to_have_count(1)
    rows.get_by_role("link", name="waiter").click()
    locks.shows("It waits for a lock")
    table = locks.page.get_by_role("region", name="locks that the task waits for")
    table.get_by_role("link", name="holder").click()
    expect(locks.page.get_by_role("heading", name="Tasks / holder")).to_be_visible()


def test_tasks_are_found_by_the_server(locks: Console) -> None:
    locks.open("tasks")
    table = locks.page.get_by_role("region", name="tasks", exact=True)
    expect(table.locator("tbody tr").first).to_be_visible()
    locks.page.get_by_role("searchbox").fill("WAIT")
    expect(table.locator("tbody tr")).to_have_count(1)
    locks.page.get_by_role("combobox").select_option("RUNNING")
    locks.shows("There is no such task")
    workers = locks.page.get_by_role("region", name="workers")
    expect(workers).to_contain_text("2 of 2")
    expect(workers).to_contain_text("holder")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_locks_and_waits_are_accessible(browser: Browser, locked: str, theme: str) -> None:
    console = Console(browser, locked, color_scheme=theme, bypass_csp=True)
    wrong = []
    for place, text in (("locks", "waiter"), ("tasks", "2 of 2"), ("tasks/waiter", "It waits for")):
        console.open(place)
        console.shows(text)
        wrong += [(place, *one) for one in violations(console)]
    console.close()
    assert wrong == []
