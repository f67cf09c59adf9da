"""The console's page of lineage in a browser: the tree, the events, a replay, refused requests."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.repository.commit_spool import SpoolOptions
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.host.provenance_service import ProvenanceLookups
from penstock.services.http_server import HttpServer
from penstock.services.options.option_values import HostPort
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import with_token
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations

pytestmark = pytest.mark.system


class Receive(Processor):
    """Makes one FlowFile with a hostile name, as if it came from a topic."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        one = session.create(attributes={"filename": HOSTILE})
        one = session.write(one, b"hello")
        session.topics.received([one], "clicks", 0, 7)
        session.transfer(one, self.success)


class Split(Processor):
    """Makes three children, and removes their parent."""

    input = InputRequirement.REQUIRED
    success = Relationship("Children.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        for parent in session.get_many(10):
            session.transfer([session.clone(parent, n, 1) for n in range(3)], self.success)
            session.remove(parent)


class End(Processor):
    """Removes."""

    input = InputRequirement.REQUIRED

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        session.remove(session.get_many(10))


FLOW = """
name: traced
processors:
  Receive: {type: Receive}
  Split: {type: Split}
  End: {type: End}
connections:
  - {from: Receive.success, to: Split}
  - {from: Split.success, to: End}
"""


class Traced:
    """The console over a flow with provenance, in this process."""

    def __init__(self, folder: Path) -> None:
        numbers = itertools.count()
        kinds = {kind.__name__: kind for kind in (Receive, Split, End)}
        self.flow = FlowController.open(
            str(folder),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry(kinds),
            new_uuid=lambda: f"u{next(numbers)}",
            environment={},
            options=ControllerOptions(provenance=SpoolOptions()),
        )
        self.flow.apply(read_flow(FLOW).flow)
        for name in ("Receive", "Split", "End"):
            self.flow.run_once(name)
        self.settle()
        assert self.flow.spool is not None
        lookups = ProvenanceLookups(ProvenanceReader(OsFileSystem(), self.flow.spool.folder))
        self.live = LiveAnswers()
        routes = [
            *ConsoleRoutes().routes(),
            *LoginRoutes().routes(),
            *self.live.routes(),
            *FlowRoutes(lambda: self.flow, SystemClock(), lambda: lookups, "traced").routes(),
        ]
        self.server = HttpServer(
            application(routes, access=with_token(None)),
            listen(HostPort("127.0.0.1", 0), "--http"),
        )
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def settle(self) -> None:
        """Make the commits up to now part of the record."""
        self.flow._repository.sync()
        assert self.flow.spool is not None
        self.flow.spool.flush()

    def close(self) -> None:
        self.live.close()
        self.server.stop()
        self.flow.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    made = Traced(tmp_path_factory.mktemp("traced"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def console(browser: Browser, traced: Traced) -> Iterator[Console]:
    made = Console(browser, traced.url)
    yield made
    made.close()


def test_a_message_leads_to_its_flowfile_and_what_became_of_it(console: Console) -> None:
    console.open("lineage")
    console.page.get_by_label("topic").fill("clicks")
    console.page.get_by_label("offset").fill("7")
    console.page.get_by_role("button", name="show the FlowFiles of this message").click()
    console.shows(HOSTILE)
    events = console.page.get_by_role("region", name="events of the FlowFiles")
    expect(events).to_contain_text("RECEIVE")
    expect(events).to_contain_text("clicks, partition 0, offset 7")
    expect(events).to_contain_text("Split.success → End")
    below = console.page.get_by_role("list", name="into: FlowFiles")
    expect(below.get_by_role("listitem")).to_have_count(3)
    below.get_by_role("link").first.press("Enter")
    expect(console.page).to_have_url(re.compile("#/lineage/[0-9]+$"))
    parents = console.page.get_by_role("list", name="from: FlowFiles")
    expect(parents).to_contain_text("FlowFile")
    # By its number, a FlowFile is found, too.
    child = console.page.url.rpartition("/")[2]
    console.open("lineage")
    expect(parents).to_have_count(0)
    console.page.get_by_role("textbox", name="FlowFile", exact=True).fill(child)
    console.page.get_by_role("button", name="show its lineage").click()
    expect(console.page).to_have_url(re.compile(f"#/lineage/{child}$"))
    expect(parents).to_contain_text("FlowFile")


def test_a_replay_is_confirmed_and_becomes_a_child(console: Console, traced: Traced) -> None:
    console.open("lineage?topic=clicks&partition=0&offset=7")
    console.page.get_by_role("button", name=re.compile("^replay FlowFile")).first.click()
    dialog = console.page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 B of content enters Receive.success → Split again")
    dialog.get_by_role("button", name="replay").click()
    console.shows("it is FlowFile")
    assert traced.flow.queue("Receive.success -> Split").size.count == 1
    traced.settle()
    events = console.page.get_by_role("region", name="events of the FlowFiles")
    expect(events).to_contain_text("REPLAY")


def test_many_flowfiles_are_counted_confirmed_and_replayed(
    console: Console, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.provenance.provenance_reader.STEP_MAX", 2)
    before = traced.flow.queue("Split.success -> End").size.count
    console.open("lineage")
    console.page.get_by_role("link", name="replay many FlowFiles").click()
    console.page.get_by_label("processor").fill("End")
    console.page.get_by_role("combobox", name="event").select_option("DROP")
    console.page.get_by_label("from (UTC)").fill("2026-01-31T08:00:00")
    console.page.get_by_role("button", name="count them").press("Enter")
    console.shows("3 FlowFiles chosen, 3 of them can be replayed")
    console.page.get_by_role("button", name="replay 3 FlowFiles").click()
    dialog = console.page.get_by_role("dialog")
    expect(dialog).to_contain_text("messages may be published twice")
    dialog.get_by_role("button", name="replay").click()
    console.shows("3 FlowFiles replayed")
    console.shows("3 of 3 done, 3 replayed")
    assert traced.flow.queue("Split.success -> End").size.count == before + 3
    # A second attempt, as after a lost answer, or of another user.
    console.page.get_by_role("button", name="replay 3 FlowFiles").click()
    console.page.get_by_role("dialog").get_by_role("button", name="replay").click()
    console.shows("0 FlowFiles replayed")
    expect(console.page.get_by_role("list", name="not replayed")).to_have_text(
        "3 were replayed before"
    )
    assert traced.flow.queue("Split.success -> End").size.count == before + 3


def test_a_replay_that_a_restart_has_stopped_says_what_to_do(console: Console) -> None:
    step: dict[str, object] = {
        "outcomes": {"replayed": 3},
        "examples": [],
        "next": None,
        "until": 9,
        "time": None,
    }
    answers = {
        "GET": iter([None, step]),
        "POST": iter([{**step, "outcomes": {"replayed": 2}, "next": "2"}, None]),
    }

    def answer(route: Route) -> None:
        found = next(answers[route.request.method])
        if found is None:
            route.fulfill(status=503, json={"error": "no flow is running"})
        else:
            route.fulfill(json=found)

    console.expect("GET", 503, "/penstock/v1/flow/replays", "the flow is started again")
    console.expect("POST", 503, "/penstock/v1/flow/replays", "the flow is started again")
    console.page.route("**/penstock/v1/flow/replays?*", answer)
    console.open("replays?event=DROP")
    console.shows("3 FlowFiles chosen, 3 of them can be replayed")
    console.page.get_by_role("button", name="replay 3 FlowFiles").click()
    console.page.get_by_role("dialog").get_by_role("button", name="replay").click()
    expect(console.page.get_by_role("alert")).to_have_text(
        "2 FlowFiles replayed. Then: no flow is running. Replay again: nothing is done twice"
    )
    expect(console.page.get_by_role("progressbar")).to_have_count(0)
    console.page.unroute_all()


def test_a_selection_without_flowfiles_and_wrong_filters(console: Console) -> None:
    console.open("replays?event=EXPIRE")
    console.shows("0 FlowFiles chosen, 0 of them can be replayed")
    console.open(f"replays?event=any&component={'<script>' * 9}")
    expect(console.page.get_by_role("alert")).to_contain_text("unknown component")
    console.open("replays?event=DROP&from=2026-02-01&to=2026-01-01")
    expect(console.page.get_by_role("alert")).to_contain_text("it must be later than from")


def test_a_flowfile_that_never_existed_and_a_wrong_id(console: Console) -> None:
    console.open("lineage/999999")
    console.shows("There is no event of FlowFile 999999")
    console.open(f"lineage/{'x' * 300}")
    expect(console.page.get_by_role("alert")).to_contain_text("is not a whole number")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_page_is_accessible(browser: Browser, traced: Traced, theme: str, width: int) -> None:
    size = {"width": width, "height": 800}
    console = Console(browser, traced.url, color_scheme=theme, viewport=size, bypass_csp=True)
    console.open("lineage?topic=clicks&partition=0&offset=7")
    console.shows(HOSTILE)
    assert violations(console) == []
    assert console.page.evaluate("document.documentElement.scrollWidth") <= width
    console.open("replays?event=any")
    console.shows("can be replayed")
    assert violations(console) == []
    assert console.page.evaluate("document.documentElement.scrollWidth") <= width
    console.close()
