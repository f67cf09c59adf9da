"""The pages of supervisors, tasks and datasources in a browser: each action, and its refusals."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from penstock.core.errors import Dependency
from penstock.core.intervals import Interval
from penstock.core.waits import DependencyWait
from penstock.indexing.overlord import task_service
from penstock.indexing.overlord.wait_reasons import WaitReason
from penstock.indexing.ports import TaskPhase, TaskReport
from penstock.segments.segment import Segment
from penstock.services.api.coordinator.datasource_pages import DatasourcePageRoutes
from penstock.services.api.coordinator.rules import RuleRoutes
from penstock.services.api.coordinator.segment_sums import SegmentSums
from penstock.services.api.coordinator.segment_timeline import SegmentTimelineRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.lookups import LookupTableRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.lookup_service import LookupService
from penstock.storage.lookup_rows import LookupTables, written_rows
from penstock.storage.metadata import PublishRequest
from penstock.storage.metadata.tables.lookups import LookupContent
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.services.overlord_kit import OverlordWorld, noop, served, supervisor_spec

pytestmark = pytest.mark.system

S = "/druid/indexer/v1/supervisor"
TASK = "/druid/indexer/v1/task"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OverlordWorld]:
    """An overlord with a supervisor that has read, and has met messages that it cannot parse."""
    made = OverlordWorld(tmp_path_factory.mktemp("data"), slots=8).start()
    spec = supervisor_spec(context={"useConcurrentLocks": True})
    assert made.api.post(S, json=spec).status_code == 200
    made.until(lambda: bool(made.peons))
    (task,) = made.peons
    made.runs(task)
    bad: dict[str, str | int] = {
        "partition": 0,
        "offset": 3,
        "reason": "<b>no JSON</b>",
        "input": HOSTILE,
    }
    made.reports[task] = TaskReport(
        *(TaskPhase.READING, {0: 5, 1: 5}, {0: 4, 1: 5}, None, {0: {0: 0, 1: 0}}),
        {"processed": 8, "unparseable": 1},
        unparseable=(bad,),
    )
    made.until(lambda: "processed" in made.api.get(f"{S}/flights/stats").text)
    own = "/penstock/v1/supervisors/flights/lag"
    made.until(lambda: len(made.api.get(own).json()["times"]) > 2)
    yield made
    made.close()


class ShopFiles:
    """The file of a lookup, which has one more row with each time that it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def lookup(self, spec: Mapping[str, object]) -> LookupContent:
        del spec
        self.reads += 1
        keys = [str(number) for number in range(self.reads)]
        return written_rows(pa.table({"k": keys, "v": keys}))


def lookup_routes(world: OverlordWorld) -> LookupTableRoutes:
    store = world.metadata.lookups
    return LookupTableRoutes(LookupService(store, ShopFiles(), world.clock), LookupTables(store))


@pytest.fixture(scope="module")
def address(world: OverlordWorld) -> Iterator[str]:
    live = LiveAnswers()
    store = world.metadata
    sums = SegmentSums(store)
    app = world.make_app(
        more=[
            *(*ConsoleRoutes().routes(), *LoginRoutes().routes(), *live.routes()),
            *(*RuleRoutes(store).routes(), *SegmentTimelineRoutes(store, sums).routes()),
            *DatasourcePageRoutes(store, world.clock, sums).routes(),
            *lookup_routes(world).routes(),
        ],
    )
    with served(world, app) as found:
        yield found.url
        live.close()


@pytest.fixture
def console(browser: Browser, address: str) -> Iterator[Console]:
    made = Console(browser, address)
    without_sql(made)
    yield made
    made.close()


def without_sql(console: Console) -> None:
    console.expect("POST", 404, "/druid/v2/sql", "this server has no SQL")


@pytest.fixture(scope="module")
def days(world: OverlordWorld) -> None:
    """Four days of a datasource, of which the last is unused."""
    place = {"type": "local", "path": "/none"}
    for day in range(1, 5):
        one = Segment(
            "days",
            Interval.parse(f"2026-01-0{day}/2026-01-0{day + 1}"),
            *("v1", place),
            size=1_000 * day,
            total_rows=10 * day,
        ).to_row()
        assert world.metadata.publish(PublishRequest(f"p{day}", "days", (one,))).ok
    assert world.metadata.segments.mark_unused([one.id]) == 1


@pytest.fixture(scope="module")
def dated(world: OverlordWorld) -> None:
    """Sixty days of a datasource: a later day has more rows, in fewer bytes."""
    first = dt.date(2026, 1, 1)
    days = [first + dt.timedelta(number) for number in range(61)]
    rows = [
        Segment(
            *("dated", Interval.parse(f"{day}/{days[number + 1]}"), "v1"),
            {"type": "local", "path": "/none"},
            size=60_000 - 1_000 * number,
            total_rows=1 + number,
        ).to_row()
        for number, day in enumerate(days[:-1])
    ]
    assert world.metadata.publish(PublishRequest("dates", "dated", tuple(rows))).ok


@pytest.fixture
def datasource(console: Console, days: None) -> Console:
    """The page of the datasource, with SQL that knows its columns."""

    def answer(route: Route) -> None:
        query = json.loads(route.request.post_data or "{}")["query"]
        counted = [{"newest": "2026-01-03T23:00:00.000Z", "n": 60, "c0": 7, "c1": 3}]
        columns = [("__time", "timestamp"), (HOSTILE, "string"), ("tags", "array<string>")]
        listed = [{"col_name": name, "data_type": kind} for name, kind in columns]
        route.fulfill(json=listed if query.startswith("DESCRIBE") else counted)

    console.page.route("**/druid/v2/sql", answer)
    console.open("datasources/days")
    console.page.get_by_text("Within it:").wait_for()
    return console


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def confirm(page: Page, name: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=name, exact=True).click()


def test_a_supervisor_shows_its_lag_its_rows_and_what_it_could_not_parse(console: Console) -> None:
    console.open("supervisors/flights")
    expect(
        console.page.get_by_role("img", name=re.compile("messages that were not"))
    ).to_be_visible()
    expect(console.page.get_by_role("img", name=re.compile("in seconds"))).to_be_visible()
    bad = console.page.get_by_role("region", name="messages that could not be parsed")
    expect(bad).to_contain_text("<b>no JSON</b>")
    expect(bad).to_contain_text(HOSTILE)
    console.page.get_by_text("show the spec as JSON").click()
    console.shows('"useEarliestOffset": true')


def test_task_groups_are_handed_off_and_reading_continues_elsewhere(console: Console) -> None:
    page = console.page
    offsets = [{"partition": number, "offset": 3 + number} for number in range(2)]
    page.route(
        "**/penstock/v1/broker/offsets?*", lambda route: route.fulfill(json={"partitions": offsets})
    )
    console.open("supervisors/flights")
    press(page, "hand off task group 0")
    expect(page.get_by_role("status").filter(has_text="a hand-off begins")).to_be_visible()
    page.get_by_label("from the time").fill("noon")
    press(page, "find their offsets")
    expect(page.get_by_role("alert")).to_contain_text("noon is not a time")
    page.get_by_label("from the time").fill("2026-11-29 14:00")
    with page.expect_request("**/penstock/v1/broker/offsets?*") as asked:
        press(page, "find their offsets")
    at = dt.datetime(2026, 11, 29, 14, tzinfo=dt.UTC)
    assert f"timestamp={at.timestamp() * 1000:.0f}" in asked.value.url
    for number in range(2):
        field = page.get_by_label(f"from offset of partition {number}")
        expect(field).to_have_value(str(3 + number))
    press(page, "continue at “from”")
    expect(page.get_by_role("dialog")).to_contain_text("7 messages that are not published")
    confirm(page, "continue at “from”")
    console.shows("it continues at these offsets")


def test_a_supervisor_is_suspended_in_one_tab_and_reset_in_another(
    console: Console, browser: Browser, address: str, world: OverlordWorld
) -> None:
    other = Console(browser, address)
    before = world.api.get(f"{S}/flights/status").json()

    def stay(route: Route) -> None:
        """The other tab has not heard anything since."""
        watched = parse_qs(urlsplit(route.request.url).query)["watch"]
        at = next(n for n, path in enumerate(watched) if path.endswith("/status"))
        event = f"data: {json.dumps({'watch': at, 'status': 200, 'body': before})}\n\n"
        route.fulfill(body=event, content_type="text/event-stream")

    other.page.route("**/penstock/v1/live?**", stay)
    for one in (console, other):
        one.open("supervisors/flights")
        expect(one.page.get_by_role("button", name="suspend flights")).to_be_visible()
    press(console.page, "suspend flights")
    expect(console.page.get_by_role("status").filter(has_text="suspended")).to_be_visible()
    console.page.get_by_role("button", name="resume flights").wait_for()
    press(other.page, "suspend flights")
    expect(other.page.get_by_role("alert").first).to_contain_text("already suspended")
    press(other.page, "reset flights")
    expect(other.page.get_by_role("dialog")).to_contain_text("first message that the topic holds")
    confirm(other.page, "reset")
    expect(other.page.get_by_role("status").filter(has_text="forgotten")).to_be_visible()
    press(console.page, "resume flights")
    console.page.get_by_role("button", name="suspend flights").wait_for()
    other.context.close()


def test_all_task_groups_are_handed_off_and_the_list_is_sorted_and_filtered(
    console: Console, world: OverlordWorld
) -> None:
    world.topics.ends["much"] = {0: 1_000}
    spec = json.dumps(supervisor_spec("zebras")).replace('"topic": "flights"', '"topic": "much"')
    assert world.api.post(S, json=json.loads(spec)).status_code == 200
    world.until(lambda: any("zebras" in task for task in world.peons))
    (task,) = (task for task in world.peons if "zebras" in task)
    world.runs(task)
    read = {0: 5}
    world.reports[task] = TaskReport(
        *(TaskPhase.READING, read, read, None, {0: {0: 0}}), {"processed": 5}
    )
    status = f"{S}/zebras/status"
    world.until(lambda: world.api.get(status).json()["payload"]["aggregateLag"] == 995)
    page = console.page
    console.open("supervisors/zebras")
    with page.expect_request("**/zebras/taskGroups/handoff") as asked:
        press(page, "hand off now all task groups of zebras")
    assert asked.value.post_data_json == {"taskGroupIds": [0]}
    expect(page.get_by_role("status").filter(has_text="a hand-off begins")).to_be_visible()
    console.open("supervisors")
    table = page.get_by_role("region", name="supervisors", exact=True)
    rows = table.locator("tbody tr")
    expect(rows.first).to_contain_text("flights")
    page.get_by_label("sorted by").select_option("lag")
    expect(rows.first).to_contain_text("zebras")
    assert world.api.post(f"{S}/zebras/suspend").status_code == 200
    page.get_by_label("state").select_option("suspended")
    expect(table.get_by_role("link", name="flights")).to_have_count(0)
    expect(rows.first).to_contain_text("zebras")
    console.open("supervisors?skip=1")
    expect(rows.first).to_contain_text("zebras")
    press(page, "previous")
    expect(rows.first).to_contain_text("flights")
    assert world.api.post(f"{S}/zebras/terminate").status_code == 200


def test_a_range_is_read_again(console: Console, world: OverlordWorld) -> None:
    console.open("supervisors/flights")
    page = console.page
    page.get_by_label("from offset of partition 0").fill("x")
    expect(page.get_by_role("alert")).to_contain_text("from of partition 0: x is not an offset")
    page.get_by_label("from offset of partition 0").fill("2")
    page.get_by_label("until offset of partition 0").fill("9")
    press(page, "read from … until again")
    expect(page.get_by_role("dialog")).to_contain_text("Read 7 messages beside flights?")
    confirm(page, "read from … until again")
    expect(page.get_by_role("alert")).to_contain_text("partition 0 holds offsets 0 to 7")
    page.get_by_label("until offset of partition 0").fill("5")
    press(page, "read from … until again")
    confirm(page, "read from … until again")
    expect(
        page.get_by_text(re.compile("supervisor flights_backfill_.* reads them"))
    ).to_be_visible()
    (name,) = [one for one in world.api.get(S).json() if "backfill" in one]
    console.open(f"supervisors?search={name}")
    table = console.page.get_by_role("region", name="supervisors")
    expect(table.locator("tbody tr")).to_have_count(1)
    console.open(f"supervisors/{name}")
    console.shows("messages of its range")
    press(console.page, f"terminate {name}")
    confirm(console.page, "terminate")
    console.shows("there is no supervisor")


def test_values_of_columns_are_counted_when_asked_for_and_kept_with_the_state_of_the_segments(
    datasource: Console, world: OverlordWorld
) -> None:
    press(datasource.page, "count values with SQL of days")
    row = datasource.page.get_by_role("row").filter(has_text=HOSTILE)
    expect(row).to_contain_text("3")
    datasource.shows("2026-01-03 23:00:00")
    datasource.page.reload()
    expect(row).to_contain_text("3")
    datasource.shows("The segments are the same since.")
    first = world.metadata.segment_overviews.read(
        lambda one: one.texts("days", Interval.parse("2026-01-01/2026-01-02"))
    )[0].id
    assert world.metadata.segments.mark_unused([first]) == 1
    datasource.shows("The segments have changed since")
    assert world.metadata.segments.mark_used([first])
    datasource.page.evaluate("localStorage.setItem('penstock-counted-values', '[3')")
    datasource.page.reload()
    datasource.shows("count values with SQL")
    expect(datasource.page.get_by_text("The segments")).to_have_count(0)
    datasource.open("datasources")
    listed = datasource.page.get_by_role("region", name="datasources")
    expect(listed).to_contain_text("60")


def test_rules_are_saved_once_their_effect_was_shown(
    datasource: Console, browser: Browser, address: str, world: OverlordWorld
) -> None:
    page = datasource.page
    datasource.shows("Nothing is dropped. 3 segments with 60 rows stay.")
    press(page, "add a rule")
    page.get_by_label("rule 1", exact=True).select_option("dropBeforeByPeriod")
    page.get_by_label("period of rule 1").fill("x")
    expect(page.get_by_role("alert")).to_contain_text("period")
    expect(page.get_by_role("button", name="save the rules of days")).to_be_disabled()
    page.get_by_label("rule 1", exact=True).select_option("dropByInterval")
    page.get_by_label("interval of rule 1").fill("2026-01-01/2026-01-03")
    dropped = page.get_by_role("region", name="intervals that are dropped")
    expect(dropped).to_contain_text("2026-01-01 to 2026-01-03")
    datasource.shows("30 rows")
    # Another tab saves others first.
    world.metadata.rules.put("days", [{"type": "loadForever"}], author="other", comment="")
    press(page, "save the rules of days")
    expect(page.get_by_role("dialog")).to_contain_text("30 rows")
    confirm(page, "save the rules")
    expect(page.get_by_role("alert")).to_contain_text("changed meanwhile")
    press(page, "load them again")
    expect(page.get_by_label("rule 1", exact=True)).to_have_value("loadForever")
    press(page, "remove rule 1")
    press(page, "save the rules of days")
    confirm(page, "save the rules")
    datasource.shows("saved: they are applied within seconds")
    assert "days" not in world.metadata.rules.every()


def test_rules_of_all_datasources_are_saved_in_their_order(
    console: Console, world: OverlordWorld
) -> None:
    page = console.page

    def save() -> None:
        press(page, "save the rules of all datasources")
        expect(page.get_by_role("dialog")).to_contain_text("Set the rules of all datasources?")
        with page.expect_response(
            lambda one: one.request.method == "POST" and one.url.endswith("/rules/_default")
        ):
            confirm(page, "save the rules")
        console.shows("saved: they are applied within seconds")

    def saved() -> list[tuple[object, object]]:
        rules = world.metadata.rules.every()["_default"].rules
        return [(one["type"], one.get("includeFuture")) for one in rules]

    console.open("datasources")
    page.get_by_text("retention rules of all datasources").click()
    expect(page.get_by_label("rule 1", exact=True)).to_have_value("loadForever")
    press(page, "add a rule")
    page.get_by_label("rule 2", exact=True).select_option("loadByPeriod")
    page.get_by_label("and the future").uncheck()
    press(page, "move rule 2 up")
    expect(page.get_by_label("rule 1", exact=True)).to_have_value("loadByPeriod")
    save()
    assert saved() == [("loadByPeriod", False), ("loadForever", None)]
    page.get_by_label("and the future").check()
    save()
    assert saved() == [("loadByPeriod", True), ("loadForever", None)]
    press(page, "remove rule 1")
    save()
    assert saved() == [("loadForever", None)]


def test_the_answer_to_an_earlier_interval_does_not_replace_that_to_a_later_one(
    datasource: Console,
) -> None:
    page = datasource.page
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if "01-09" in route.request.url:
            route.continue_()
        else:
            held.append(route)

    page.route("**/sums?*", hold_first)
    with page.expect_request("**/sums?*"):
        page.get_by_label("interval", exact=True).fill("2026-01-02/2026-01-03")
    # The page no longer waits for the earlier answer.
    with page.expect_event("requestfailed", lambda one: "01-03" in one.url):
        page.get_by_label("interval", exact=True).fill("2026-01-02/2026-01-09")
    datasource.shows("Within it: 2 segments with 50 rows")
    for route in held:
        route.continue_()
    page.evaluate("() => new Promise((drawn) => setTimeout(drawn, 100))")
    datasource.shows("Within it: 2 segments with 50 rows")
    page.unroute("**/sums?*")
    page.get_by_label("interval", exact=True).fill("2026-01")  # as it is typed
    expect(page.get_by_role("alert")).to_contain_text("interval")


def test_sums_of_another_interval_are_gone_at_once(datasource: Console) -> None:
    now = datasource.page.evaluate(
        """async () => {
          const field = document.querySelector("input.interval");
          field.value = "2026-01-02/2026-01-03";
          field.dispatchEvent(new Event("input", { bubbles: true }));
          for (let turn = 0; turn < 20; turn += 1) await null;  // what was drawn, before any effect
          return document.querySelector("main").innerText;
        }"""
    )
    assert "2026-01" in now
    assert "Within it:" not in now


def test_a_log_is_continued_byte_by_byte(console: Console, world: OverlordWorld) -> None:
    (task, *_) = world.peons
    pieces = [b"one\ntw\xc3", b"\xa9 \xff\nthree", b"\n"]
    offsets: list[int] = []

    def answer(route: Route) -> None:
        wanted = int(parse_qs(urlsplit(route.request.url).query)["offset"][0])
        offsets.append(wanted)
        at = max(wanted, 0)
        piece = pieces.pop(0) if pieces else b""
        route.fulfill(body=piece, headers={"X-Penstock-Log-Offset": str(at)})

    console.page.route("**/log?offset=*&optional=true", answer)
    console.open(f"tasks/{task}")
    log = console.page.locator("section", has=console.page.get_by_role("heading", name="Log"))
    expect(log.locator("pre")).to_have_text("one\ntwé \ufffd\nthree\n", use_inner_text=False)
    while len(offsets) < 4:
        console.page.wait_for_event("request")
    assert offsets[:4] == [-65536, 7, 16, 17]
    with console.page.expect_download() as kept:
        console.page.get_by_role("link", name="download").click()
    assert kept.value.suggested_filename == f"{task}.log"
    assert Path(kept.value.path()).read_text() == f"the log of {task}\n"


def test_a_lookup_is_shown_refreshed_and_deleted(console: Console) -> None:
    spec = {
        "name": "shops",
        "inputSource": {"type": "http", "uris": ["https://h/x?token=abc"]},
        "inputFormat": {"type": "json"},
        "key": "k",
        "columns": [{"name": "v"}],
    }
    own = f"{console.address}/penstock/v1/lookups"
    for one in (spec, {"name": "fixed", "map": {"a": HOSTILE}}):
        assert console.page.request.post(own, data=one).ok
    rows = [["k", "v"], ["VARCHAR", "VARCHAR"], ["0", HOSTILE]]
    console.page.route("**/druid/v2/sql", lambda route: route.fulfill(json=rows))
    console.open("datasources")
    console.page.get_by_role("link", name="lookups").click()
    listed = console.page.get_by_role("region", name="lookups")
    expect(listed.locator("tbody tr")).to_have_count(2)
    listed.get_by_role("link", name="shops").click()
    expect(console.page.get_by_role("region", name="rows")).to_contain_text(HOSTILE)
    console.page.get_by_text("show the spec").click()
    console.shows('"key": "k"')
    expect(console.page.get_by_text("token=abc")).to_have_count(0)
    press(console.page, "refresh shops")
    console.shows("2 rows loaded")
    press(console.page, "delete shops")
    expect(console.page.get_by_role("dialog")).to_contain_text("cannot be restored")
    confirm(console.page, "delete")
    console.shows("There is no lookup shops")
    console.open("lookups/fixed")
    press(console.page, "refresh fixed")
    expect(console.page.get_by_role("alert")).to_contain_text("map")


def test_sums_leave_out_hidden_segments(console: Console, world: OverlordWorld) -> None:
    for version, times in (("v1", ("01/2026-01-02", "02/2026-01-03")), ("v2", ("01/2026-01-03",))):
        for time in times:
            one = Segment(
                *("folded", Interval.parse(f"2026-01-{time}"), version),
                {"type": "local", "path": "/none"},
                size=900,
                total_rows=7,
            ).to_row()
            assert world.metadata.publish(PublishRequest(one.id, "folded", (one,))).ok
    console.open("datasources/folded")
    console.shows("Within it: 1 segment with 7 rows")
    console.shows("2 more used segments are hidden or incomplete.")
    console.shows("Nothing is dropped. 1 segment with 7 rows stay.")
    press(console.page, "mark unused the segments of folded in the interval")
    expect(console.page.get_by_role("dialog")).to_contain_text("1 segment with 7 rows")


def test_segments_of_an_interval_are_marked_and_compacted(
    browser: Browser, address: str, datasource: Console, world: OverlordWorld
) -> None:
    page = datasource.page
    page.get_by_label("interval", exact=True).fill("2026-01-02/2026-01-09")
    datasource.shows("Within it: 2 segments with 50 rows")
    press(page, "compact days in the interval")
    task = page.get_by_role("link", name=re.compile("compact_days"))
    expect(task).to_be_visible()
    name = task.inner_text()
    press(page, "mark unused the segments of days in the interval")
    expect(page.get_by_role("dialog")).to_contain_text("2 segments with 50 rows")
    confirm(page, "mark unused")
    datasource.shows("2 segments changed")
    datasource.shows("0 segments with 0 rows, 0 B in use; 3 segments with 90 rows")
    press(page, "use again the unused segments of days in the interval")
    datasource.shows("3 segments changed")
    single = page.get_by_role("region", name="single segments")
    expect(single.locator("tbody tr")).to_have_count(4)
    last = single.locator("tbody tr").last
    last.get_by_role("button", name=re.compile("mark unused")).click()
    confirm(page, "mark unused")
    expect(last).to_contain_text("unused")
    # A task is stopped in one tab, and again in another that has not heard of it.
    other = Console(browser, address)
    other.cut_stream()
    other.open(f"tasks/{name}")
    expect(other.page.get_by_role("button", name=f"stop {name}")).to_be_visible()
    datasource.open(f"tasks/{name}")
    press(page, f"stop {name}")
    expect(page.get_by_role("dialog")).to_contain_text("visible to queries")
    confirm(page, "stop")
    datasource.shows("failed")
    expect(page.get_by_role("button", name=f"stop {name}")).to_have_count(0)
    press(other.page, f"stop {name}")
    confirm(other.page, "stop")
    other.shows("it is being stopped")
    other.close()
    ended = world.api.get(f"/druid/indexer/v1/task/{name}/status").json()["status"]
    assert ended["statusCode"] == "FAILED"


def test_segments_and_the_task_that_published_them_lead_to_each_other(
    console: Console, world: OverlordWorld
) -> None:
    task = {"type": "noop", "id": "writer", "dataSource": "linked"}
    assert world.api.post("/druid/indexer/v1/task", json=task).status_code == 200
    world.runs("writer")
    place = {"type": "local", "path": "/none"}
    one = Segment(
        *("linked", Interval.parse("2026-01-01/2026-01-02"), "v1", place), size=9, total_rows=3
    ).to_row()
    assert world.metadata.publish(PublishRequest("writer", "linked", (one,))).ok
    console.open("datasources/linked")
    single = console.page.get_by_role("region", name="single segments")
    single.get_by_role("link", name="writer").click()
    written = console.page.get_by_role("region", name="segments that the task published")
    expect(written).to_contain_text("2026-01-01 to 2026-01-02")
    expect(written).to_contain_text("in use")
    console.shows("1 publish, the newest")
    world.end("writer")


def test_a_running_batch_task_shows_its_progress(console: Console, world: OverlordWorld) -> None:
    (task, *_) = world.peons
    payload: dict[str, object] = {
        "ingestionState": "BUILD_SEGMENTS",
        "partsDone": 3,
        "partsTotal": 8,
        "filesRead": 1,
        "filesTotal": 5,
        "rowsRead": 120_000,
        "rowsWritten": 0,
        "rowStats": {"buildSegments": {"processed": 0}},
    }

    def answer(route: Route) -> None:
        watched = parse_qs(urlsplit(route.request.url).query)["watch"]
        answers = [
            {
                "watch": number,
                "status": 200,
                "body": {"ingestionStatsAndErrors": {"payload": payload}},
            }
            for number, path in enumerate(watched)
            if path.endswith("/reports")
        ]
        body = "".join(f"data: {json.dumps(one)}\n\n" for one in answers)
        route.fulfill(body=body, content_type="text/event-stream")

    console.page.route("**/penstock/v1/live?**", answer)
    console.open(f"tasks/{task}")
    rows = console.page.locator("section", has=console.page.get_by_role("heading", name="Rows"))
    for text in ("build segments", "120,000", "1 of 5", "3 of 8"):
        expect(rows).to_contain_text(text)
    bar = rows.get_by_role("progressbar")
    expect(bar).to_have_attribute("value", "3")
    rows.get_by_text("the whole report as JSON").click()
    expect(rows.locator("pre")).to_contain_text('"rowsRead": 120000')
    payload |= {"ingestionState": "COMPLETED", "rowsWritten": 7}
    expect(bar).to_have_count(0)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[OverlordWorld, str]]:
    """An overlord whose only slot has the holder of a lock, and the address of its console."""
    world = OverlordWorld(tmp_path, slots=1).start()
    kill = {"type": "kill", "dataSource": "clicks", "interval": "2024-01-01/2024-01-02"}
    for task in ("holder", "second", "third"):
        assert world.api.post(TASK, json={**kill, "id": task}).status_code == 200
        if task == "holder":
            world.runs(task)
    assert world.api.post(TASK, json=noop("unplaced")).status_code == 200
    world.until(lambda: "line" in waits(world, "third") and waits(world, "unplaced") == ["slots"])
    live = LiveAnswers()
    more = [*ConsoleRoutes().routes(), *LoginRoutes().routes(), *live.routes()]
    with served(world, world.make_app(more=more)) as found:
        yield world, found.url
        live.close()
    world.close()


def waits(world: OverlordWorld, task: str) -> list[str]:
    """The kinds of what a task waits for."""
    return [one["kind"] for one in world.api.get(f"{TASK}/{task}/why").json()["waits"]]


def test_why_a_task_waits_is_said_in_words(
    browser: Browser, waiting: tuple[OverlordWorld, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, address = waiting
    console = Console(browser, address)
    console.open("tasks/third")
    console.shows("It waits behind others for a lock")
    console.shows("1 earlier task that requests the same locks; second is next")
    console.open("tasks/unplaced")
    console.shows("It waits for a worker with a free slot")
    workers = console.page.get_by_role("region", name="workers that cannot run the task now")
    expect(workers.get_by_role("link", name="holder")).to_be_visible()
    console.open("tasks/holder")
    console.shows("running")
    failed = {
        "failedWork": "writing segments",
        "failedTries": 4,
        "failedTriesMax": 20,
        "lastFailure": HOSTILE,
        "nextTry": "2026-11-22T16:00:00.000Z",
    }
    world.live["holder"] = {"ingestionStatsAndErrors": {"payload": failed}}
    console.shows("It waits for its next try")
    console.shows(f"4 failed; with 20 it fails; last reason: {HOSTILE}")
    wait = DependencyWait(Dependency.STORAGE, "publish", world.clock.now_ms(), 3, HOSTILE)
    told = Path(world.peons["holder"].folder, "waits.json")
    told.write_text(json.dumps({"waits": [wait.to_json()]}))
    world.worker.check("holder")
    world.until(lambda: waits(world, "holder") == ["dependency"])
    console.shows("It waits for another service")
    console.shows(f"3 tries (publish): {HOSTILE}")
    earlier = [WaitReason("publish", "an earlier sequence to be published")]
    monkeypatch.setattr(task_service, "reasons_of", lambda facts: earlier)
    console.shows("It waits for a publish")
    console.shows("an earlier sequence to be published")
    expect(console.page.locator("main img")).to_have_count(0)
    console.close()


def test_segments_over_time_are_walked_by_keys(console: Console, dated: None) -> None:
    page = console.page
    console.open("datasources/dated")
    picture = page.get_by_role("group", name=re.compile("segments over time"))
    bars = picture.get_by_role("button")
    sight = page.locator(".sight")
    expect(bars).to_have_count(60)
    bars.first.focus()
    for key, number in (
        *(("End", 59), ("ArrowRight", 59), ("ArrowLeft", 58)),
        *(("Home", 0), ("ArrowLeft", 0), ("ArrowRight", 1)),
    ):
        page.keyboard.press(key)
        expect(bars.nth(number)).to_be_focused()
    expect(page.locator(".pointed")).to_contain_text("2026-01-02 to 2026-01-03")
    for key, text in (
        ("Enter", "2026-01-02 to 2026-01-03"),
        ("Backspace", "2026-01-01 to 2026-01-07 12:00"),
        ("-", "2026-01-01 to 2026-02-06"),
        ("Backspace", "2026-01-01 to 2026-03-02"),
    ):
        page.keyboard.press(key)
        expect(sight).to_contain_text(f"{text},")
        expect(bars.first).to_be_focused()
    expect(page).not_to_have_url(re.compile("interval="))


def test_the_shown_interval_is_moved_and_widened_by_buttons(console: Console, dated: None) -> None:
    page = console.page
    console.open("datasources/dated?interval=2026-01-31/2026-02-02")
    sight = page.locator(".sight")
    expect(sight).to_contain_text("2026-01-31 to 2026-02-02,")
    # Of the two segments, one is marked as unused, and used again.
    single = page.get_by_role("region", name="single segments")
    used = single.get_by_role("button", name=re.compile("^mark unused the segment"))
    unused = single.get_by_role("button", name=re.compile("^use again the segment"))
    expect(used).to_have_count(2)
    used.last.click()
    confirm(page, "mark unused")
    expect(used).to_have_count(1)
    unused.click()
    expect(used).to_have_count(2)
    expect(unused).to_have_count(0)
    # Another interval for changes than that of the picture.
    interval = page.get_by_label("interval", exact=True)
    interval.fill("2026-02-01/2026-02-02")
    console.shows("Within it: 1 segment with 32 rows")
    press(page, "as in the picture")
    expect(interval).to_have_value("2026-01-31/2026-02-02")
    console.shows("Within it: 2 segments with 63 rows")
    for name, text in (
        ("later", "2026-02-02 to 2026-02-04"),
        ("earlier", "2026-01-31 to 2026-02-02"),
        ("zoom out", "2026-01-22 to 2026-02-11"),
        ("all", "2026-01-01 to 2026-03-02"),
    ):
        press(page, name)
        expect(sight).to_contain_text(f"{text},")
    for name in ("earlier", "later", "zoom out", "all"):
        expect(page.get_by_role("button", name=name, exact=True)).to_be_disabled()


def test_bars_show_sizes_rows_or_segments_and_the_list_has_pages(
    console: Console, dated: None
) -> None:
    page = console.page
    timeline = "/penstock/v1/datasources/dated/segments/timeline"
    console.expect("GET", 400, timeline, "a link with a wrong interval")
    console.open("datasources/dated?interval=nonsense")
    press(page, "show all of the time")
    expect(page.locator(".sight")).to_contain_text("2026-01-01 to 2026-03-02,")
    expect(page.get_by_role("button", name="show all of the time")).to_have_count(0)
    bars = page.get_by_role("group", name=re.compile("segments over time")).get_by_role("button")
    legend = page.locator(".legend")

    def taller() -> float:
        """By how much the first bar is taller than the last one, in pixels."""
        parts = [bar.locator(".part") for bar in (bars.first, bars.last)]
        first, last = (float(part.get_attribute("height") or 0) for part in parts)
        return first - last

    expect(bars).to_have_count(60)
    assert taller() > 0
    page.get_by_label("bars by").select_option("rows")
    expect(legend).to_contain_text("1,830 rows")
    assert taller() < 0
    page.get_by_label("bars by").select_option("segments")
    expect(legend).not_to_contain_text("1,830 rows")
    assert taller() == 0
    rows = page.get_by_role("region", name="single segments").locator("tbody tr")
    expect(rows).to_have_count(50)
    press(page, "next")
    console.shows("51 to 60 of 60")
    expect(rows).to_have_count(10)
    expect(rows.last).to_contain_text("2026-03-01 to 2026-03-02")
    press(page, "previous")
    expect(rows).to_have_count(50)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit(
    browser: Browser, address: str, world: OverlordWorld, days: None, theme: str
) -> None:
    size = {"width": 390, "height": 800}
    console = Console(browser, address, color_scheme=theme, viewport=size, bypass_csp=True)
    without_sql(console)
    lookups = f"{address}/penstock/v1/lookups"
    lookup = {"name": "named", "map": {"a": HOSTILE}}
    assert console.page.request.post(lookups, data=lookup).ok
    rows = [["k", "v"], ["VARCHAR", "VARCHAR"], ["a", HOSTILE]]

    def answer(route: Route) -> None:
        if "lookup." in (route.request.post_data or ""):
            route.fulfill(json=rows)
        else:
            route.continue_()

    console.page.route("**/druid/v2/sql", answer)
    for place, text in (
        ("supervisors", "flights"),
        ("supervisors/flights", "show the spec"),
        ("datasources", "60"),
        ("datasources/days", "What they drop now"),
        ("lookups", "lookup"),
        ("lookups/named", HOSTILE),
        (f"tasks/{next(iter(world.peons))}", "the log of"),
    ):
        console.open(place)
        console.page.get_by_text(text).first.wait_for(state="attached")
        assert violations(console) == []
        assert console.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert console.page.request.delete(f"{lookups}/named").ok
    console.close()
