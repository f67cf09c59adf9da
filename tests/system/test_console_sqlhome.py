"""The pages Home and SQL of the console in a browser, over parts of a Penstock in this process."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, Route, expect

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.core.metrics import MetricRegistry
from penstock.services.api.asgi import application
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.sql import SqlRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from tests.harness.access_kit import with_token
from tests.harness.event_kit import KeptEvents
from tests.kits.browser_kit import TIMEOUT_MS, started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.kits.flow_console_kit import ProxiedApp

pytestmark = pytest.mark.system

WAIT = {"dependency": "storage", "since": "2026-11-29T10:00:00Z", "tries": 3, "error": HOSTILE}
SUPERVISOR = {
    "id": HOSTILE,
    "type": "penstock",
    "dataSource": "d",
    "state": "UNHEALTHY_SUPERVISOR",
    "detailedState": "UNABLE_TO_CONNECT_TO_STREAM",
    "healthy": False,
    "suspended": False,
    "aggregateLag": 12_345,
    "waits": [{**WAIT, "work": "x", "owner": f"supervisor {HOSTILE}"}],
}
TASK = {
    "id": "waiter",
    "type": "kill",
    "createdTime": "2026-11-29T10:00:00Z",
    "dataSource": "d",
    "errorMsg": None,
    "duration": 0,
}
ANSWERS: Mapping[str, object] = {
    "/status": {
        "ready": False,
        "version": "1",
        "reasons": ["the disk is full"],
        "waits": [{**WAIT, "work": "write", "owner": None}],
        "services": [
            {
                "service": "router",
                "instance": "r",
                "address": "127.0.0.1:1",
                "ready": False,
                "reasons": ["the disk is full"],
                "memoryBytes": 3 << 20,
            }
        ],
    },
    "/penstock/v1/broker/stats/topics": {
        "at": 1_000,
        "topics": 1,
        "found": 1,
        "message_count": 7,
        "message_bytes": 70,
        "depth": 2,
        "in_flight_count": 1,
        "page": [{"topic_name": HOSTILE, "message_count": 7, "depth": 2}],
    },
    "/flow/status": {
        "name": "f",
        "totals": {"components": 3, "states": {}, "full": 0, "in": 5, "created": 2},
        "repository": {"flowfiles": 1},
        "stuck": [
            {
                "id": "u1",
                "name": "Ingest/Send",
                "type": "PublishTopic",
                "problem": "it lost a right",
            }
        ],
    },
    "/flow/bulletins": {"count": 0, "bulletins": []},
    "/penstock/v1/supervisors": {
        "sums": {
            "supervisors": 5_000,
            "unhealthy": 1,
            "suspended": 0,
            "waiting": 1,
            "lag": 12_345,
            "rowsPerSecond": 4.2,
        },
        "found": 5_000,
        "supervisors": [SUPERVISOR],
    },
    "/penstock/v1/tasks": {
        "counts": {"waiting": 1, "pending": 120, "running": 2},
        "activeFound": 121,
        "hasMoreEnded": False,
        "tasks": [
            {**TASK, "statusCode": "RUNNING", "runnerStatusCode": "WAITING"},
            {**TASK, "id": "bad", "statusCode": "FAILED", "errorMsg": HOSTILE},
        ],
    },
    "/penstock/v1/datasources": {
        # That of a datasource that is not in the page.
        "sums": {
            "datasources": 1,
            "segments": 1_000_000,
            "bytes": 5 << 30,
            "newestRow": "2026-11-29T10:00:00.000Z",
        },
        "found": 1,
        "datasources": [
            {
                "name": HOSTILE,
                "isLimited": False,
                "segments": 1_000_000,
                "bytes": 5 << 30,
                "maxTime": "2026-11-29T00:00:00.000Z",
                "publishedTime": "2026-11-28T10:00:00.000Z",
                "newestRow": None,
            }
        ],
    },
    "/penstock/v1/queries": [],
    "/penstock/v1/resources": {
        "disk": {"totalBytes": 100 << 30, "freeBytes": 3 << 30},
        "parts": [{"name": "segments", "bytes": 90 << 30}],
        "isComplete": False,
        "memory": {"totalBytes": 8 << 30, "availableBytes": 4 << 30},
    },
}
HOURS = pa.table(
    {
        "t": [dt.datetime(2026, 1, 1, hour, tzinfo=dt.UTC) for hour in (0, 0, 1)],
        "place": ["a", HOSTILE, "a"],
        "n": pa.array([1, 5, 3], pa.int64()),
    }
)
EVENTS = pa.table(
    # The name of the last column cannot be a part of a line NAME=VALUE.
    {"__time": HOURS["t"], "place": HOURS["place"], "n": HOURS["n"], "a=b": HOURS["place"]}
)
LONG = 2**53 + 1
LONGS = pa.table({"id": pa.array([LONG], pa.int64()), "more": [[-LONG, 7]]})
MEASURED = pa.table(
    {
        "id": pa.array([9, 7], pa.int64()),
        "parent": pa.array([None, 9], pa.int64()),
        "operator": ["HashAggregate", "Scan parquet clicks"],
        "rows": pa.array([2, 12_345], pa.int64()),
        "ms": pa.array([None, 41.5], pa.float64()),
        "bytes": pa.array([None, 2_048], pa.int64()),
        "metrics": ["{}", '{"scanTime": 41.5, "numFiles": 3}'],
    }
)
MANY = pa.table({"id": pa.array(range(5_000), pa.int64())})
FORMATTED = """== Physical Plan ==
* HashAggregate (4)
+- Exchange (3)
   +- * Project (2)
      +- Scan parquet clicks (1)


(1) Scan parquet clicks
Output [1]: [n#1L]

(3) Exchange
Arguments: hashpartitioning(n#1L, 2)
"""


class StubSql:
    """Answers statements by their first words, in place of Spark."""

    def timeout_ms(self, query: SqlQuery) -> int:
        del query
        return 60_000

    def cancel(self, query_id: str) -> bool:
        del query_id
        return False

    @contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        yield RegisteredQuery(lambda: self.answer(query), lambda: None)

    def answer(self, query: SqlQuery) -> SqlResult:
        sql = query.sql
        if sql.startswith("SELECT wrong"):
            raise InvalidRequest("no column wrong, line 1, column 8")
        if sql.startswith("EXPLAIN ANALYZE\nSELECT wrong"):
            raise InvalidRequest("no column wrong, line 2, column 8")
        tables = {"SELECT many": MANY, "SELECT longs": LONGS}
        table = EVENTS if "FROM clicks" in sql else tables.get(sql, HOURS)
        if sql.startswith("EXPLAIN ANALYZE"):
            table = MEASURED
        elif sql.startswith("EXPLAIN"):
            table = pa.table({"plan": [FORMATTED]})
        elif not sql.startswith("SELECT"):
            table = pa.table({"tableName": pa.array([], pa.string())})
        return SqlResult(
            table,
            ("string",) * table.num_columns,
            truncated=False,
            engine="spark" if query.engine in {"", "spark"} else "fast",
        )


REFUSED = "user:x may not read system:status"


@contextmanager
def served_sql(below: str = "") -> Iterator[str]:
    """The console over SQL; gives its address.

    Args:
        below: Path of a proxy below which it is served; empty: there is no proxy.
    """
    live = LiveAnswers()
    routes = [
        *ConsoleRoutes().routes(),
        *LoginRoutes().routes(),
        *live.routes(),
        *SqlRoutes(StubSql(), MetricRegistry(), KeptEvents(), SystemClock()).routes(),
    ]
    app = application(routes, access=with_token(None))
    server = HttpServer(ProxiedApp(app, below), listen(HostPort("127.0.0.1", 0), "--http"))
    server.start()
    yield f"http://127.0.0.1:{server.port}{below}"
    live.close()
    server.stop()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served_sql() as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def console(browser: Browser, address: str) -> Iterator[Console]:
    made = Console(browser, address)
    yield made
    made.close()


def answer_live(
    console: Console,
    refused: frozenset[str] = frozenset(),
    away: frozenset[str] = frozenset(),
    others: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Answer the stream of the page.

    Args:
        console: The page.
        refused: Paths that the principal may not see.
        away: Paths whose process does not answer.
        others: Answers instead of those above.
    """

    def stream(route: Route) -> None:
        watched = parse_qs(urlsplit(route.request.url).query)["watch"]
        events = []
        for number, path in enumerate(watched):
            name = path.partition("?")[0]
            status, body = 200, others.get(name, ANSWERS.get(name))
            if name in away:
                status, body = 503, {"error": "no overlord is running"}
            if name in refused:
                status, body = 403, {"error": REFUSED}
            elif body is None:
                status, body = 404, {"error": f"no answer for {name}"}
            event = {"watch": number, "status": status, "body": body}
            events.append(f"data: {json.dumps(event)}\n\n")
        route.fulfill(body="".join(events), content_type="text/event-stream")

    console.page.route("**/penstock/v1/live?**", stream)


def test_home_shows_what_waits_and_for_what(console: Console) -> None:
    answer_live(console)
    console.open("")
    console.shows("Not everything works")
    rows = console.page.get_by_role("region", name="what waits").locator("tbody tr")
    expect(rows).to_have_count(4)
    component = rows.filter(has_text="component Ingest/Send")
    expect(component).to_contain_text("it lost a right")
    expect(component.get_by_role("link")).to_have_attribute("href", "#/flow?part=u1")
    expect(rows.filter(has_text="supervisor")).to_contain_text(HOSTILE)
    expect(rows.filter(has_text="task waiter")).to_contain_text("a lock")
    console.shows("121 tasks")  # more than the list has
    failed = console.page.get_by_role("region", name="what failed")
    expect(failed).to_contain_text("task bad")
    expect(console.page.locator("main img")).to_have_count(0)


def test_numbers_of_home_lead_to_their_pages(console: Console) -> None:
    answer_live(console)
    console.open("")
    pipe = console.page.locator(".pipe")
    expect(pipe).to_contain_text("1 datasource")
    expect(pipe).not_to_contain_text("1 datasources")
    expect(pipe).to_contain_text(re.compile("newest row .* ago"))
    numbers = {
        "5,000 supervisors": "#/supervisors",
        "2 running": "#/tasks?state=RUNNING",
        "1 datasource": "#/datasources",
        "1 in flight": "#/topics?order=in_flight",
    }
    for text, href in numbers.items():
        link = pipe.get_by_role("link", name=text, exact=True)
        expect(link).to_have_attribute("href", href)
    console.shows("3.0 GiB of 100 GiB")
    console.shows("at least (there are very many files)")
    data = console.page.get_by_role("region", name="datasources")
    expect(data).to_contain_text("before 2026-11-29 00:00:00")
    expect(data).to_contain_text("1,000,000")


def test_what_a_principal_may_not_see_is_no_alarm(console: Console) -> None:
    answer_live(console, frozenset({"/status", "/penstock/v1/resources"}))
    console.open("")
    console.shows("You may not see this")
    console.shows("it lost a right")
    expect(console.page.get_by_role("alert")).to_have_count(0)
    expect(console.page.get_by_role("heading", level=1)).to_contain_text("Home")


def test_a_process_that_starts_is_no_alarm(console: Console) -> None:
    router = {"service": "router", "instance": "r", "address": "127.0.0.1:1", "memoryBytes": 1}
    starting = {"ready": False, "starting": True, "reasons": ["no answer of Spark"]}
    status = {"version": "1", **starting, "waits": [], "services": [{**router, **starting}]}
    away = frozenset({"/penstock/v1/supervisors", "/penstock/v1/tasks"})
    answer_live(console, away=away, others={"/status": status})
    console.open("")
    console.shows("Penstock is starting")
    expect(console.page.locator("h1 .state")).to_have_class("state busy")
    processes = console.page.get_by_role("region", name="processes")
    expect(processes.locator(".state")).to_have_text(re.compile("starting$"))
    expect(console.page.locator(".pipe li.bad")).to_have_text(re.compile("Flow"))  # as above
    expect(console.page.locator(".pipe li.idle")).to_have_count(2)
    expect(console.page.get_by_role("alert")).to_have_count(0)


def test_a_wrong_clock_of_the_browser_is_corrected(browser: Browser, address: str) -> None:
    """A failure of ten minutes ago is listed although the browser is a day ahead."""
    made = Console(browser, address)
    now = dt.datetime.now(dt.UTC)
    failed = (now - dt.timedelta(minutes=10)).isoformat()
    error = {"number": 1, "time": failed, "level": "ERROR", "component": "u1", "name": "Send"}
    bulletins = {"count": 1, "bulletins": [{**error, "message": "it lost a right"}]}
    answer_live(made, others={"/flow/bulletins": bulletins})
    made.page.clock.set_fixed_time(now + dt.timedelta(days=1))
    made.open("")
    rows = made.page.get_by_role("region", name="what failed").locator("tbody tr")
    expect(rows.filter(has_text="component Send")).to_contain_text(re.compile("(9|1[0-9]) min ago"))
    made.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_home_is_accessible(browser: Browser, address: str, theme: str) -> None:
    size = {"width": 390, "height": 800}
    made = Console(browser, address, color_scheme=theme, viewport=size, bypass_csp=True)
    answer_live(made)
    made.open("")
    made.shows("it lost a right")
    assert violations(made) == []
    assert made.page.evaluate("document.documentElement.scrollWidth") <= 390
    # Two rows, or three without an answer; the last one scrolls.
    assert made.page.locator("header.top").bounding_box()["height"] < 120  # type: ignore[index]
    links = made.page.get_by_role("navigation", name="pages").get_by_role("link")
    links.last.focus()
    expect(links.last).to_be_in_viewport(ratio=1)
    made.open("locks")
    expect(links.filter(has_text="Tasks")).to_have_attribute("aria-current", "true")
    expect(links.filter(has_text="Tasks")).to_be_in_viewport(ratio=1)
    made.close()


def run(console: Console, statement: str) -> None:
    console.write(statement)
    console.page.get_by_role("button", name="run", exact=True).click()


SCROLLS_AT_ONCE = """() => {
    new MutationObserver((_, itself) => {
        const box = document.querySelector("[aria-label=rows]");
        if (box === null) return;
        itself.disconnect();
        box.scrollTop = box.scrollHeight;
    }).observe(document.body, {childList: true, subtree: true});
}"""


def test_rows_can_be_scrolled_as_soon_as_they_are_drawn(console: Console) -> None:
    console.open("sql")
    console.page.evaluate(SCROLLS_AT_ONCE)
    run(console, "SELECT many")
    rows = console.page.get_by_role("region", name="rows")
    expect(rows.get_by_text("4999", exact=True)).to_be_visible()


def test_tabs_are_kept_and_a_link_opens_one(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT 1")
    tabs = console.page.get_by_role("tab")
    console.page.get_by_role("button", name="new tab").click()
    console.write("SELECT 2")
    expect(tabs).to_have_count(2)
    expect(console.page.get_by_role("region", name="rows")).to_have_count(0)
    tabs.first.click()
    expect(console.page.get_by_role("region", name="rows")).to_be_visible()  # of the first tab
    expect(console.page.get_by_label("statement", exact=True)).to_contain_text("SELECT 1")
    tabs.first.press("ArrowRight")
    expect(tabs.last).to_be_focused()
    expect(console.page.get_by_label("statement", exact=True)).to_contain_text("SELECT 2")
    console.page.goto(f"{console.address}/?again#/sql?query=SELECT%203")
    expect(tabs).to_have_count(3)
    expect(console.page.get_by_label("statement", exact=True)).to_contain_text("SELECT 3")
    console.page.get_by_role("button", name="close tab").click()
    expect(tabs).to_have_count(2)
    console.page.reload()


def texts_of_tabs(console: Console, number: int) -> set[str]:
    """Wait for a number of tabs, and return their statements."""
    tabs = console.page.get_by_role("tab")
    expect(tabs).to_have_count(number)
    return set(tabs.evaluate_all("tabs => tabs.map(tab => tab.title)"))


KEPT = """([number, limitMs]) => new Promise((done, failed) => {
    const end = performance.now() + limitMs;
    const look = () => {
        const kept = JSON.parse(localStorage["penstock-sql-tabs"]).tabs.length;
        if (kept === number) done();
        else if (performance.now() > end) failed(new Error(`${kept} tabs are kept`));
        else setTimeout(look, 20);
    };
    look();
})"""


def await_kept(console: Console, number: int) -> None:
    """Wait until the browser keeps a number of tabs: a page sees changes of another one later."""
    console.page.evaluate(KEPT, [number, TIMEOUT_MS])


def test_tabs_of_two_pages_are_kept_beside_each_other(browser: Browser, console: Console) -> None:
    console.open("sql?query=SELECT%201")
    console.write("SELECT 1")
    console.page.reload()  # kept
    other = Console(browser, console.address, beside=console)
    other.open("sql")
    expect(other.page.get_by_role("tab")).to_have_text(["1: SELECT 1"])
    for page, text in ((console, "SELECT 2"), (other, "SELECT 3")):
        page.page.get_by_role("button", name="new tab").click()
        page.write(text)
    # Of the tab that both have, both texts.
    for page, text in ((console, "SELECT 4"), (other, "SELECT 5")):
        page.page.get_by_role("tab").first.click()
        page.write(text)
    for page in (console, other):
        page.open("topics")  # leaves the page, which keeps its tabs
    await_kept(console, 4)
    console.open("sql")
    wanted = {f"SELECT {number}" for number in (2, 3, 4, 5)}
    assert texts_of_tabs(console, 4) == wanted
    await_kept(other, 4)
    # What one page closes does not come back with the other one.
    other.open("sql")
    assert texts_of_tabs(other, 4) == wanted
    console.page.get_by_role("button", name="close tab").click()
    left = texts_of_tabs(console, 3)
    console.open("topics")
    await_kept(other, 3)
    other.page.get_by_role("button", name="new tab").click()
    other.write("SELECT 6")
    other.open("topics")
    await_kept(console, 4)
    console.open("sql")
    assert texts_of_tabs(console, 4) == {*left, "SELECT 6"}


def test_a_link_is_followed_while_the_page_is_shown(console: Console) -> None:
    console.open("sql?query=SELECT%201")
    editor = console.page.get_by_label("statement", exact=True)
    expect(editor).to_contain_text("SELECT 1")
    console.page.evaluate("location.hash = '#/sql?query=SELECT%202&engine=fast'")
    expect(editor).to_contain_text("SELECT 2")
    expect(console.page.get_by_label("engine")).to_have_value("fast")
    console.page.go_back()
    expect(editor).to_contain_text("SELECT 1")
    expect(console.page.get_by_role("tab")).to_have_count(2)


def test_a_query_that_may_not_be_cancelled_is_not_called_cancelled(console: Console) -> None:
    reason = {"error": "the router restarts"}
    console.expect("DELETE", 503, "/druid/v2/sql/.*", "the router restarts")
    console.open("sql")
    console.write("SELECT 7")
    with console.page.expect_request("**/druid/v2/sql"):
        console.page.route("**/druid/v2/sql", lambda route: None)
        console.page.get_by_role("button", name="run", exact=True).click()
    console.page.route("**/druid/v2/sql/*", lambda route: route.fulfill(status=503, json=reason))
    console.page.get_by_role("button", name="cancel", exact=True).click()
    expect(console.page.get_by_role("alert")).to_have_text(
        "the query may still run: the router restarts"
    )


def test_an_editor_that_cannot_be_loaded_is_an_error(console: Console) -> None:
    console.expect("GET", 503, "/console/editors.js", "the router restarts")
    console.page.route("**/console/editors.js", lambda route: route.fulfill(status=503))
    console.open("sql")
    expect(console.page.get_by_role("alert")).to_contain_text("the editor cannot be loaded")


def test_integers_keep_their_digits(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT longs")
    rows = console.page.get_by_role("region", name="rows")
    expect(rows.locator("td").first).to_have_text(str(LONG))
    expect(rows.locator("td").nth(1)).to_have_text(f"[-{LONG},7]")
    # A number and its heading are at the same side of the column.
    expect(rows.locator("th").first).to_have_class("right")
    files = {}
    for name in ("CSV", "JSON"):
        with console.page.expect_download() as found:
            console.page.get_by_role("button", name=name, exact=True).click()
        files[name] = Path(found.value.path()).read_text()
    assert json.loads(files["JSON"]) == [{"id": LONG, "more": [-LONG, 7]}]
    assert files["CSV"].splitlines()[1] == f'{LONG},"[-{LONG},7]"'
    console.page.get_by_role("button", name="numbers").click()
    expect(console.page.locator("dl.large")).to_contain_text(f"{LONG:,}")


def test_columns_of_the_named_datasource_are_completed(console: Console) -> None:
    answers = {
        "SHOW TABLES": [{"tableName": "orders"}, {"tableName": "parcels"}],
        "SHOW FUNCTIONS": [{"function": "abs"}],
        "DESCRIBE `orders`": [{"col_name": "order_id"}, {"col_name": "order day"}],
        "DESCRIBE `parcels`": [{"col_name": "order_of_parcel"}],
    }

    def answer(route: Route) -> None:
        route.fulfill(json=answers[route.request.post_data_json["query"]])

    console.page.route("**/druid/v2/sql", answer)
    console.open("sql")
    console.write("SELECT count(*) FROM orders WHERE ord")
    console.page.get_by_label("statement", exact=True).press_sequentially("e")
    expect(console.page.get_by_role("option", name="order_id")).to_be_visible()
    expect(console.page.get_by_role("option", name="order_of_parcel")).to_have_count(0)
    # A name with a space is quoted.
    console.page.get_by_role("option", name="order day").click()
    editor = console.page.get_by_label("statement", exact=True)
    expect(editor).to_have_text("SELECT count(*) FROM orders WHERE `order day`")


def test_an_answer_that_is_cut_off_is_an_error(console: Console) -> None:
    console.open("sql")
    console.page.route(
        "**/druid/v2/sql",
        lambda route: route.fulfill(body='[["n"],["BIGINT"],[1]', content_type="application/json"),
    )
    run(console, "SELECT 1")
    expect(console.page.get_by_role("alert")).to_contain_text("ended before it was complete")


def test_a_chart_has_the_colours_of_the_theme(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT hours")
    console.page.get_by_role("button", name="bars", exact=True).click()
    expect(console.page.get_by_role("img", name="rows as a chart")).to_be_visible()
    drawn = "document.querySelector('.chart canvas').toDataURL()"
    light = console.page.evaluate(drawn)
    console.page.get_by_role("button", name="theme: system").click()
    console.page.get_by_role("button", name="theme: light").click()
    console.page.wait_for_function(f"(before) => {drawn} !== before", arg=light)
    console.page.emulate_media(color_scheme="dark")
    dark = console.page.evaluate(drawn)
    console.page.get_by_role("button", name="theme: dark").click()
    assert console.page.evaluate(drawn) == dark  # as the system


def test_a_page_that_cannot_show_an_answer_leaves_the_others(
    browser: Browser, address: str
) -> None:
    made = Console(browser, address)
    made.page.route("**/penstock/v1/trace/message?**", lambda route: route.fulfill(json={}))
    made.open("trace?topic=t&offset=0")
    expect(made.page.get_by_role("alert")).to_contain_text("cannot show an answer of the server")
    made.page.get_by_role("link", name="SQL", exact=True).click()
    made.shows("Statement")
    made.context.close()  # the error is in the console of the browser


def test_earlier_statements_are_found(console: Console) -> None:
    console.open("sql")
    for statement in ("SELECT apples", f"SELECT '{HOSTILE}'", "SELECT pears"):
        run(console, statement)
        expect(console.page.get_by_role("region", name="rows")).to_be_visible()
    console.page.get_by_text("earlier statements").click()
    console.page.get_by_label("search").fill("APPLE")
    entries = console.page.locator(".earlier li")
    expect(entries).to_have_count(1)
    entries.get_by_role("button").click()
    expect(console.page.get_by_label("statement", exact=True)).to_contain_text("SELECT apples")
    console.page.get_by_label("search").fill("")
    expect(entries).to_have_count(3)
    expect(console.page.locator("main img")).to_have_count(0)
    console.page.get_by_role("button", name="forget all").click()
    expect(entries).to_have_count(0)


def test_rows_become_pictures_with_one_click(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT hours")
    for name in ("chart", "bars"):
        console.page.get_by_role("button", name=name, exact=True).click()
        expect(console.page.get_by_role("img", name="rows as a chart")).to_be_visible()
    console.page.get_by_role("button", name="heat map").click()
    cells = console.page.locator(".heat rect")
    expect(cells).to_have_count(3)
    expect(cells.nth(1)).to_contain_text(HOSTILE)
    console.page.get_by_role("button", name="numbers").click()
    expect(console.page.locator("dl.large")).to_contain_text("1")


def test_the_engine_that_answered_is_shown_and_chosen(console: Console) -> None:
    console.open("sql")
    status = console.page.get_by_role("status").filter(has_text="row")
    run(console, "SELECT hours")
    expect(status).to_contain_text("by Spark")
    console.page.get_by_label("engine").select_option("fast")
    run(console, "SELECT hours")
    expect(status).to_contain_text("by the fast engine")
    expect(console.page).to_have_url(re.compile("engine=fast"))
    console.page.reload()
    expect(console.page.get_by_label("engine")).to_have_value("fast")
    # The plan is Spark's, whatever was chosen.
    with console.page.expect_request(lambda one: "EXPLAIN" in (one.post_data or "")) as asked:
        console.page.get_by_role("button", name="explain", exact=True).click()
    assert "engine" not in json.loads(asked.value.post_data or "")["context"]


def until_held(console: Console, held: list[Route]) -> None:
    """Wait for a request, of which the browser may tell later than of what it shows."""
    clock = SystemClock()
    end_s = clock.monotonic_s() + TIMEOUT_MS / 1_000
    while not held:
        assert clock.monotonic_s() < end_s
        console.page.wait_for_timeout(20)  # in which the route is called


def test_a_statement_that_runs_is_not_sent_again(console: Console) -> None:
    console.open("sql")
    console.write("SELECT 7")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    console.page.route("**/druid/v2/sql", hold)
    editor = console.page.get_by_label("statement", exact=True)
    editor.press("Control+Enter")
    console.shows("running …")
    editor.press("Control+Enter")
    until_held(console, held)
    [only] = held
    only.continue_()
    expect(console.page.get_by_role("region", name="rows")).to_be_visible()
    assert len(held) == 1


def test_names_of_a_heat_map_are_whole(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT hours")
    console.page.get_by_role("button", name="heat map").click()
    picture = console.page.locator("svg.heat")
    expect(picture).to_be_visible()
    cut = picture.evaluate(
        """svg => {
          const all = svg.getBoundingClientRect();
          return [...svg.querySelectorAll("text")].filter((one) => {
            const { left, right, top, bottom } = one.getBoundingClientRect();
            const isAcross = left < all.left || right > all.right;
            const isDown = top < all.top || bottom > all.bottom;
            return isAcross || isDown || one.textContent.includes("…");
          }).length;
        }"""
    )
    assert cut == 0


def test_rows_of_one_datasource_lead_to_their_trace(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT * FROM clicks WHERE n > 0")
    rows = console.page.get_by_role("region", name="rows")
    links = rows.get_by_role("link", name="trace")
    expect(links).to_have_count(3)
    place = re.compile(
        r"^#/trace/row\?datasource=clicks&time=2026-01-01.*&columns=place%3Da%0An%3D1$"
    )
    expect(links.first).to_have_attribute("href", place)
    for other in (" JOIN users", ", users"):
        run(console, f"SELECT * FROM clicks{other}")
        expect(links).to_have_count(0)
        expect(rows).to_be_visible()


def test_rows_are_downloaded_as_parquet(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT hours")
    with console.page.expect_download() as found:
        console.page.get_by_role("button", name="Parquet").click()
    table = pq.read_table(Path(found.value.path()))
    assert table.column("n").to_pylist() == [1, 5, 3]


def test_a_plan_is_a_tree_with_rows_and_times(console: Console) -> None:
    console.open("sql")
    console.write("SELECT hours")
    console.page.get_by_role("button", name="explain", exact=True).click()
    plan = console.page.get_by_role("region", name="plan of the query")
    # Each operator is within the one that reads it.
    expect(plan.locator("ul ul ul ul")).to_contain_text("Scan parquet clicks")
    plan.get_by_text("Exchange").click()
    expect(plan.get_by_text("hashpartitioning")).to_be_visible()
    console.page.get_by_role("button", name="explain with times").click()
    expect(plan.locator("ul ul").first).to_contain_text("12,345 rows, 42 ms, 2.0 KiB")
    expect(plan.get_by_role("meter")).to_have_count(1)
    console.page.get_by_role("button", name="table", exact=True).click()
    expect(console.page.get_by_role("region", name="rows")).to_contain_text("HashAggregate")


def test_statements_are_answered_below_a_path_of_a_proxy(browser: Browser) -> None:
    with served_sql("/below/a/path") as url:
        console = Console(browser, url)
        answer_live(console)
        console.open("sql")
        console.write("SELECT 1")
        console.page.get_by_role("button", name="run", exact=True).click()
        expect(console.page.get_by_role("region", name="rows")).to_contain_text(HOSTILE)
        paths = {urlsplit(one).path for one in console.requests}
        assert "/below/a/path/druid/v2/sql" in paths
        assert {one for one in paths if not one.startswith("/below/a/path/")} == set()
        console.context.close()


def test_errors_are_marked_at_their_place(console: Console) -> None:
    console.open("sql")
    run(console, "SELECT wrong")
    expect(console.page.locator(".cm-error")).to_have_text("wrong")
    console.page.get_by_role("button", name="explain with times").click()
    expect(console.page.get_by_role("alert")).to_contain_text("line 1")
    expect(console.page.locator(".cm-error")).to_have_text("wrong")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_sql_is_accessible(browser: Browser, address: str, theme: str) -> None:
    size = {"width": 390, "height": 800}
    made = Console(browser, address, color_scheme=theme, viewport=size, bypass_csp=True)
    made.open("sql")
    made.write("SELECT hours")
    made.page.get_by_role("button", name="explain with times").click()
    made.shows("12,345 rows")
    made.page.get_by_text("earlier statements").click()
    assert violations(made) == []
    for view in ("heat map", "numbers", "bars", "chart"):
        made.page.get_by_role("button", name="run", exact=True).click()
        made.page.get_by_role("button", name=re.compile(f"^{view}$")).click()
        assert violations(made) == []
    assert made.page.evaluate("document.documentElement.scrollWidth") <= 390
    made.close()
