"""The console's page of topics in a browser: each action, messages, dead letters."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from penstock.broker.options import BrokerOptions
from penstock.core.access.access_control import AccessControl
from penstock.services.api.asgi import application
from penstock.services.api.live_answers import LiveAnswers
from penstock.services.api.login import LoginRoutes
from penstock.services.api.router import RouterParts, RouterRoutes
from penstock.services.api.static_pages import ConsoleRoutes
from penstock.services.host.process import listen
from penstock.services.http_server import HttpServer
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.services.readiness import ReadyState
from penstock.testing.clock import VirtualClock
from tests.broker.broker_kit import RunningBroker
from tests.harness.access_kit import with_token
from tests.harness.metadata_kit import open_metadata
from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import HOSTILE, Console, violations
from tests.services.places_kit import FixedPlaces

pytestmark = pytest.mark.system


class ServedTopics:
    """A broker, and a router before it that serves the console."""

    def __init__(self, folder: Path) -> None:
        options = BrokerOptions(folder=str(folder / "topics"), http_port=0)
        self.broker = RunningBroker(options, access=AccessControl.open())
        self.broker.__enter__()
        clock = VirtualClock()
        self.store = open_metadata(folder, clock)
        here = HostPort("127.0.0.1", self.broker.server.http_port)
        parts = RouterParts(
            self.store,
            LeaseDirectory(self.store.leases),
            here,
            FixedPlaces(here),  # type: ignore[arg-type]
            lambda: ReadyState("router", ()),
            clock,
        )
        self.live = LiveAnswers()
        console = [*ConsoleRoutes().routes(), *LoginRoutes().routes()]
        routes = [*console, *self.live.routes(), *RouterRoutes(parts).routes()]
        app = application(routes, access=with_token(None))
        self.server = HttpServer(app, listen(HostPort("127.0.0.1", 0), "--http"))
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.port}"

    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            assert self.broker.ask("POST", f"/pub?topic={topic}", body).status == 200

    def create(self, topic: str, *channels: str) -> None:
        self.broker.ask("POST", f"/topic/create?topic={topic}")
        for channel in channels:
            self.broker.ask("POST", f"/channel/create?topic={topic}&channel={channel}")

    def stored(self, topic: str) -> list[bytes]:
        return [message for part in self.broker.stored(topic) for message in part]

    def close(self) -> None:
        self.live.close()
        self.server.stop()
        self.store.close()
        self.broker.__exit__()


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedTopics]:
    made = ServedTopics(tmp_path_factory.mktemp("topics"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture
def console(browser: Browser, topics: ServedTopics) -> Iterator[Console]:
    made = Console(browser, topics.url)
    yield made
    made.close()


def confirm(console: Console, *texts: str, yes: bool = True) -> None:
    """Answer the dialog, which has these texts."""
    dialog = console.page.get_by_role("dialog")
    for text in texts:
        expect(dialog).to_contain_text(text)
    dialog.get_by_role("button").nth(int(yes)).click()


def press(console: Console, name: str) -> None:
    console.page.get_by_role("button", name=name, exact=True).click()


def letter(number: int, topic: str = "orders") -> bytes:
    message = base64.b64encode(b'{"order": %d, "page": "/%d"}' % (number, number % 3)).decode()
    document = {"topic": topic, "partition": 0, "offset": number, "reason": f"no time: {HOSTILE}"}
    return json.dumps({**document, "message_base64": message}).encode()


def test_a_topic_and_a_channel_are_made_paused_emptied_and_deleted(
    console: Console, topics: ServedTopics
) -> None:
    console.open("topics")
    console.page.get_by_text("create a topic").click()
    console.page.get_by_label("name", exact=True).fill("made/wrong")
    press(console, "create the topic")
    expect(console.page.get_by_role("alert")).to_contain_text("made/wrong")
    console.page.get_by_label("name", exact=True).fill("made")
    console.page.get_by_label("stream partitions").fill("2")
    console.page.get_by_label("stream partitions").press("Enter")
    console.page.get_by_role("link", name="made", exact=True).press("Enter")
    # The link is gone with its page.
    expect(console.page.locator("main")).to_be_focused()
    console.page.get_by_label("new channel").fill("archive")
    press(console, "create the channel")
    channels = console.page.get_by_role("region", name="channels")
    expect(channels).to_contain_text("archive")
    topic = topics.broker.server.broker.topics.get("made")
    assert len(topic.queues) == 2

    topics.publish("made", b"1", b"2", b"3")
    press(console, "pause the channel archive")
    expect(channels).to_contain_text("paused")
    assert topic.channels["archive"].paused
    press(console, "unpause the channel archive")
    press(console, "empty the channel archive")
    confirm(console, "Finish all messages of the channel archive?", "3 messages", yes=False)
    assert topic.channels["archive"].counts().fresh == 3
    press(console, "empty the channel archive")
    confirm(console, "3 messages that it has not delivered")
    expect(channels.locator("tbody tr td").nth(2)).to_have_text("0")
    # The focus is where it was before the dialog.
    emptied = console.page.get_by_role("button", name="empty the channel archive", exact=True)
    expect(emptied).to_be_focused()
    press(console, "delete the channel archive")
    confirm(console, "Its position is lost")
    console.shows("There is no channel")
    expect(console.page.locator("main")).to_be_focused()

    press(console, "pause the topic made")
    expect(console.page.get_by_role("button", name="unpause the topic made")).to_be_visible()
    press(console, "unpause the topic made")
    expect(
        console.page.get_by_role("button", name="pause the topic made", exact=True)
    ).to_be_visible()
    assert not topic.paused
    press(console, "empty the topic made")
    confirm(console, "Delete all messages of the topic made?", "3 messages")
    console.shows("emptied")
    assert topics.stored("made") == []
    # Escape answers no, and gives the focus back.
    press(console, "delete the topic made")
    expect(console.page.get_by_role("dialog")).to_be_visible()
    console.page.keyboard.press("Escape")
    expect(console.page.get_by_role("dialog")).to_have_count(0)
    expect(console.page.get_by_role("button", name="delete the topic made")).to_be_focused()
    assert topics.broker.server.broker.topics.get("made") is topic
    press(console, "delete the topic made")
    confirm(console, "Delete the topic made?", "0 channels with 0 consumers")
    console.shows("There is no topic made")


def test_two_tabs_act_at_once(browser: Browser, console: Console, topics: ServedTopics) -> None:
    topics.create("shared", "c")
    other = Console(browser, topics.url)
    for tab in (console, other):
        tab.open("topics/shared")
        press(tab, "delete the channel c")
    confirm(console)
    console.shows("There is no channel")
    # The dialog of the other tab goes away with the channel, or its answer is an error.
    dialog = other.page.get_by_role("dialog")
    expect(dialog).to_have_count(0)
    other.shows("There is no channel")
    other.close()


def test_a_message_is_published(console: Console, topics: ServedTopics) -> None:
    topics.create("sent", "c")
    console.open("topics/sent")
    console.page.get_by_text("publish a message").click()
    text = console.page.get_by_label("message", exact=True)
    text.fill("{broken")
    press(console, "publish to sent")
    expect(console.page.get_by_role("alert")).to_contain_text("JSON")
    assert topics.stored("sent") == []
    text.fill('{"a": "ä"}')
    console.page.get_by_label(re.compile("deliver after")).fill("3600")
    press(console, "publish to sent")
    console.shows("published at offset 0 of stream partition 0")
    trace = console.page.locator(".action").get_by_role("link", name="trace")
    expect(trace).to_have_attribute("href", "#/trace?topic=sent&partition=0&offset=0")
    assert topics.stored("sent") == ['{"a": "ä"}'.encode()]
    press(console, "read")
    expect(messages(console)).to_contain_text("deferred until 20")
    # Not only JSON.
    text.fill("{broken")
    console.page.get_by_label("only if it is valid JSON").uncheck()
    console.page.get_by_label(re.compile("deliver after")).fill("")
    press(console, "publish to sent")
    console.shows("published at offset 1 of stream partition 0")
    assert topics.stored("sent")[1:] == [b"{broken"]


def test_a_channel_is_replayed(console: Console, topics: ServedTopics) -> None:
    topics.create("again", "c")
    topics.publish("again", b"1", b"2", b"3")
    topics.broker.ask("POST", "/channel/empty?topic=again&channel=c")
    console.open("topics/again")
    console.page.get_by_text("replay a channel").click()
    place = console.page.get_by_role("combobox", name="to", exact=True)
    place.select_option("offset")
    console.page.get_by_label("offset", exact=True).fill("1")
    press(console, "replay the channel c")
    confirm(
        console, "2 messages that it has finished will come again", "0 messages that it has not"
    )
    console.shows("c continues at offset 1")
    assert topics.broker.server.broker.topics.get("again").channels["c"].counts().fresh == 2
    console.page.get_by_label("offset", exact=True).fill("9")
    press(console, "replay the channel c")
    confirm(console, "use 0 to 3")
    expect(console.page.get_by_role("alert").last).to_contain_text("use 0 to 3")
    channel = topics.broker.server.broker.topics.get("again").channels["c"]
    for chosen, repeated, skipped, offset in (
        ("beginning", 1, 0, 0),
        ("end", 0, 3, 3),
        ("timestamp", 3, 0, 0),
    ):
        place.select_option(chosen)
        if chosen == "timestamp":
            console.page.get_by_label("time in UTC", exact=True).fill("2000-01-01T00:00:00")
        press(console, "replay the channel c")
        confirm(
            console,
            f"{repeated} message{'' if repeated == 1 else 's'} that it has finished will come",
            f"{skipped} messages that it has not finished will be skipped",
        )
        console.shows(f"c continues at offset {offset}")
        assert channel.counts().fresh == 3 - offset


@pytest.fixture(scope="module")
def searched(topics: ServedTopics) -> ServedTopics:
    bodies = [b'{"n": %d, "user": {"id": "u%d"}}' % (n, n % 5) for n in range(200)]
    topics.publish("searched", *bodies, b"\xff\x00", HOSTILE.encode(), b"x" * 1_000_000)
    return topics


def messages(console: Console) -> Locator:
    return console.page.locator(".message")


def test_messages_are_searched_by_the_server(console: Console, searched: ServedTopics) -> None:
    console.open("topics/searched")
    press(console, "read")
    expect(messages(console)).to_have_count(50)
    console.page.get_by_label("JSON path").fill("$.user.id")
    console.page.get_by_label("value at the path").fill("u3")
    expect(messages(console)).to_have_count(40)
    console.shows("40 of 203 messages match")
    console.page.get_by_label("body contains").fill('"n": 19')
    expect(messages(console)).to_have_count(2)
    with console.page.expect_download() as found:
        press(console, "download these messages as JSON lines")
    lines = [json.loads(line) for line in Path(found.value.path()).read_text().splitlines()]
    assert [json.loads(line["body"])["n"] for line in lines] == [193, 198]
    # The address has the filter.
    console.page.reload()
    expect(messages(console)).to_have_count(2)
    expect(console.page.get_by_label("body contains")).to_have_value('"n": 19')
    console.page.get_by_label("JSON path").fill("user")
    expect(console.page.get_by_role("alert")).to_contain_text("not a JSON path")


def test_a_search_goes_on_where_its_answer_ended(console: Console, topics: ServedTopics) -> None:
    """One answer reads at most 20,000 messages."""
    topics.publish("long", *(b"%d" % number for number in range(20_003)))
    console.open("topics/long")
    press(console, "read")
    expect(messages(console)).to_have_count(50)
    console.page.get_by_label("body contains").fill("20002")
    console.shows("0 of 20,000 messages match")
    expect(messages(console)).to_have_count(0)
    press(console, "search on")
    expect(messages(console)).to_have_count(1)
    console.shows("1 of 3 messages match")


def test_large_binary_and_hostile_messages_are_shown(
    console: Console, searched: ServedTopics
) -> None:
    console.open("topics/searched")
    press(console, "newest")
    expect(messages(console)).to_have_count(50)
    expect(messages(console).nth(2)).to_contain_text("binary, as base64")
    expect(messages(console).nth(1)).to_contain_text(HOSTILE)
    expect(messages(console).nth(0)).to_contain_text("the first 19.5 KiB are shown")
    expect(console.page.locator("main img")).to_have_count(0)
    for offset, body in ((200, b"\xff\x00"), (202, b"x" * 1_000_000)):
        with console.page.expect_download() as found:
            press(console, f"download the message at offset {offset}")
        assert Path(found.value.path()).read_bytes() == body
    console.page.get_by_label("or from the time").fill("2100-01-01T00:00:00")
    press(console, "read")
    console.shows("0 of 0 messages")


def test_json_is_shown_with_its_own_numbers(console: Console, topics: ServedTopics) -> None:
    deep = b"[" * 5_000 + b"]" * 5_000
    long = b'{"id": 9007199254740993, "price": 1.10, "a\\u00e4": [], "b": [{"c": "[,]"}]}'
    topics.publish("numbers", long, deep)
    console.open("topics/numbers")
    press(console, "read")
    shown = messages(console).locator("pre")
    lines = ["{", '  "id": 9007199254740993,', '  "price": 1.10,', '  "aä": [],', '  "b": [']
    lines += ["    {", '      "c": "[,]"', "    }", "  ]", "}"]
    expect(shown).to_have_count(2)
    assert shown.first.inner_text() == "\n".join(lines)
    # Indented, it would have 50 MB.
    assert len(shown.last.inner_text()) == len(deep)


def test_messages_are_those_of_the_chosen_partition(console: Console, topics: ServedTopics) -> None:
    topics.broker.ask("POST", "/topic/create?topic=parted&partitions=2")
    for partition, number in ((0, 60), (1, 3)):
        for at in range(number):
            path = f"/pub?topic=parted&partition={partition}"
            assert topics.broker.ask("POST", path, b"%d of %d" % (at, partition)).status == 200
    console.open("topics/parted")
    press(console, "read")
    expect(messages(console)).to_have_count(50)
    press(console, "next messages")
    expect(messages(console)).to_have_count(10)
    expect(messages(console).first).to_contain_text("50 of 0")
    expect(console.page.get_by_role("button", name="next messages")).to_have_count(0)
    press(console, "read")
    expect(messages(console)).to_have_count(50)
    console.page.get_by_role("combobox", name="partition", exact=True).select_option("1")
    # Its offsets are not those of the messages that were shown.
    expect(messages(console)).to_have_count(0)
    expect(console.page.get_by_role("button", name="next messages")).to_have_count(0)
    press(console, "read")
    expect(messages(console)).to_have_count(3)
    expect(messages(console).first).to_contain_text("0 of 1")
    expect(console.page).to_have_url(re.compile("partition=1"))


def test_what_ends_later_leaves_the_address_of_another_page(
    console: Console, topics: ServedTopics
) -> None:
    topics.create("later")
    topics.publish("later.dead-letter", letter(1, "later"))
    page = console.page
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/topic/redrive?*", hold)
    console.open("topics/later.dead-letter")
    with page.expect_request("**/topic/redrive?*"):
        messages(console).first.get_by_role("button", name="redrive the dead letter").click()
    page.evaluate("location.hash = '#/topics/later'")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics / later")
    with page.expect_response("**/topic/redrive?*"):
        held[0].continue_()
    page.evaluate("() => new Promise((ended) => setTimeout(ended, 100))")
    assert page.url.endswith("#/topics/later")
    # The same for a text that is not reported yet.
    console.open("topics")
    left = page.evaluate(
        """async () => {
          const field = document.querySelector("input[type=search]");
          field.value = "x";
          field.dispatchEvent(new Event("input", { bubbles: true }));
          location.hash = "#/topics/later";
          await new Promise((ended) => setTimeout(ended, 500));
          return location.hash;
        }"""
    )
    assert left == "#/topics/later"


def test_a_link_to_a_list_changes_the_text_that_is_searched(console: Console) -> None:
    console.open("topics?search=nothing")
    field = console.page.get_by_role("searchbox")
    expect(field).to_have_value("nothing")
    console.page.get_by_role("link", name="Topics", exact=True).click()
    expect(field).to_have_value("")


def test_a_redrive_that_fails_reports_what_was_redriven(
    console: Console, topics: ServedTopics
) -> None:
    topics.broker.ask("POST", "/topic/create?topic=half.dead-letter&partitions=2")
    topics.create("constructor")  # as a property of every object is called
    for partition in range(2):
        path = f"/pub?topic=half.dead-letter&partition={partition}"
        body = letter(partition, "constructor")
        assert topics.broker.ask("POST", path, body).status == 200
    console.open("topics/half.dead-letter")
    expect(messages(console)).to_have_count(1)
    busy = {"message": "the broker is busy"}
    console.expect("POST", 503, "/penstock/v1/broker/topic/redrive", "the broker is busy")

    def refuse_second(route: Route) -> None:
        if "partition=1" in route.request.url and "preview" not in route.request.url:
            route.fulfill(status=503, json=busy)
        else:
            route.continue_()

    console.page.route("**/topic/redrive?*", refuse_second)
    press(console, "redrive all dead letters")
    confirm(console, "2 to constructor")
    expect(console.page.get_by_role("alert")).to_have_text(
        "redriven: 1 to constructor. Then: the broker is busy. Redrive again: nothing is done twice"
    )
    console.page.unroute_all()


def test_dead_letters_are_redriven(console: Console, topics: ServedTopics) -> None:
    topics.create("orders")
    topics.publish("orders.dead-letter", *map(letter, range(12)), letter(3, "gone"))
    console.open("topics/orders.dead-letter")
    expect(messages(console)).to_have_count(13)
    first = messages(console).last  # the newest is the first of the page
    expect(first).to_contain_text(f"no time: {HOSTILE}")
    expect(first).to_contain_text('"order": 0')
    for name, place in (
        ("trace the message at offset 0", "#/trace?topic=orders.dead-letter&partition=0&offset=0"),
        ("offset 0", "#/trace?topic=orders&partition=0&offset=0"),
    ):
        link = first.get_by_role("link", name=name, exact=True)
        expect(link).to_have_attribute("href", place)
    first.get_by_role("button", name="edit the dead letter").click()
    first.get_by_label("changed message").fill("given up")
    first.get_by_role("button", name="do not change").click()
    expect(first.get_by_label("changed message")).to_have_count(0)
    first.get_by_role("button", name="edit the dead letter").click()
    expect(first.get_by_label("changed message")).to_have_value('{"order": 0, "page": "/0"}')
    first.get_by_label("changed message").fill("repaired")
    first.get_by_role("button", name="redrive changed").click()
    confirm(console, "offset 0 of orders.dead-letter")
    expect(first.locator("header")).to_contain_text("redriven")
    messages(console).nth(11).get_by_role("button", name="redrive the dead letter").click()
    expect(messages(console).nth(11).locator("header")).to_contain_text("redriven")
    assert topics.stored("orders") == [b"repaired", b'{"order": 1, "page": "/1"}']

    console.page.get_by_label("JSON path").fill("$.page")
    console.page.get_by_label("value at the path").fill("/2")
    expect(messages(console)).to_have_count(4)
    press(console, "redrive the matching dead letters")
    confirm(console, "4 to orders", "0 were published before")
    console.shows("redriven: 4 to orders")
    console.page.get_by_label("JSON path").fill("")
    press(console, "redrive all dead letters")
    confirm(console, "6 to orders", "6 were published before", "'gone' does not exist")
    console.shows("redriven: 6 to orders; 6 were before; 1 cannot be")
    found = sorted(json.loads(one)["order"] for one in topics.stored("orders")[1:])
    assert found == list(range(1, 12))


def test_the_answer_to_an_earlier_filter_does_not_replace_that_to_a_later_one(
    console: Console, topics: ServedTopics
) -> None:
    topics.create("overtaken")
    topics.publish("overtaken", *(json.dumps({"page": number}).encode() for number in range(3)))
    console.open("topics/overtaken")
    press(console, "read")
    expect(messages(console)).to_have_count(3)
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if "equals=" in route.request.url:
            route.continue_()
        else:
            held.append(route)

    page = console.page
    page.route("**/peek?*json_path=*", hold_first)
    with page.expect_request("**/peek?*json_path=*"):
        page.get_by_label("JSON path").fill("$.page")
    # The page no longer waits for the earlier answer.
    with page.expect_event("requestfailed", lambda one: "equals=" not in one.url):
        page.get_by_label("value at the path").fill("2")
    expect(messages(console)).to_have_count(1)
    for route in held:
        route.continue_()
    page.evaluate("() => new Promise((drawn) => setTimeout(drawn, 100))")
    console.shows("1 of 3 messages match")
    expect(messages(console)).to_have_count(1)
    page.unroute_all()


def test_messages_of_unknown_origin_are_published_after_the_topic_is_named_twice(
    console: Console, topics: ServedTopics
) -> None:
    topics.create("target")
    topics.publish("old.dead-letter", letter(1, "old"), b"plain")
    console.open("topics/old.dead-letter")
    expect(messages(console)).to_have_count(2)
    console.page.get_by_label("to another topic").first.fill("target")
    press(console, "redrive all dead letters")
    confirm(console, "1 to target", "name this topic as confirm, too")
    console.shows("redriven: 1 to target")
    assert len(topics.stored("target")) == 1
    console.page.get_by_label("its name again").fill("target")
    press(console, "redrive all dead letters")
    confirm(console, "1 to target")
    expect(console.page.get_by_text("redriven: 1 to target; 1 were before")).to_be_visible()
    assert topics.stored("target")[1:] == [b"plain"]
    # One letter, to a topic of its own.
    topics.create("elsewhere")
    topics.publish("old.dead-letter", letter(2, "old"))
    press(console, "newest")
    expect(messages(console)).to_have_count(3)
    newest = messages(console).first
    newest.get_by_label("to another topic").fill("elsewhere")
    newest.get_by_role("button", name="redrive the dead letter").click()
    expect(newest.locator("header")).to_contain_text("redriven")
    assert topics.stored("elsewhere") == [b'{"order": 2, "page": "/2"}']


def test_two_tabs_redrive_each_once(
    browser: Browser, console: Console, topics: ServedTopics
) -> None:
    topics.create("twice")
    topics.publish("twice.dead-letter", *(letter(number, "twice") for number in range(40)))
    other = Console(browser, topics.url)
    for tab in (console, other):
        tab.open("topics/twice.dead-letter")
        press(tab, "redrive all dead letters")
        expect(tab.page.get_by_role("dialog")).to_contain_text("40 to twice")
    for tab in (console, other):
        confirm(tab)
    for tab in (console, other):
        tab.shows("redriven")
    other.close()
    assert len(topics.stored("twice")) == 40


def test_dead_letters_of_a_channel_name_their_topic(console: Console, topics: ServedTopics) -> None:
    topics.create("jobs", "c")
    topics.create("failed-jobs")
    path = "/topic/configure?topic=jobs&max_attempts=3&dead_letter_topic=failed-jobs"
    assert topics.broker.ask("POST", path).status == 200
    topics.publish("failed-jobs", b"a job")
    console.open("topics/failed-jobs")
    press(console, "read")
    console.shows("A channel of jobs delivered it as often as max_attempts allows.")
    messages(console).first.get_by_role("button", name="redrive the dead letter").click()
    expect(messages(console).first.locator("header")).to_contain_text("redriven")
    assert topics.stored("jobs") == [b"a job"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible_and_fits(
    browser: Browser, topics: ServedTopics, theme: str
) -> None:
    topics.create("seen", "archive")
    topics.publish("seen.dead-letter", letter(1, "seen"), b"\xff", b"y" * 100_000)
    size = {"width": 390, "height": 800}
    console = Console(browser, topics.url, color_scheme=theme, viewport=size, bypass_csp=True)
    for place, forms in (("topics", 1), ("topics/seen", 2), ("topics/seen.dead-letter", 1)):
        console.open(place)
        console.shows("seen")
        summaries = console.page.locator("details.form > summary")
        expect(summaries).to_have_count(forms)
        for form in summaries.all():
            form.click()
        if place.endswith("letter"):  # the newest message comes first
            letter_shown = messages(console).last
            letter_shown.get_by_role("button", name="edit the dead letter").click()
            expect(letter_shown.get_by_label("changed message")).to_be_visible()
        assert violations(console) == []
        assert console.page.evaluate("document.documentElement.scrollWidth") <= 390, place
    console.page.get_by_role("button", name="delete the topic").click()
    assert violations(console) == []
    console.close()
