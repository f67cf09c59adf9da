"""The console's page of flows in a browser: actions, queues, state, YAML, hostile names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.kits.browser_kit import started_browser
from tests.kits.console_kit import Console, violations
from tests.kits.flow_console_kit import BINARY, FLOW, MARKUP, ServedFlow

pytestmark = pytest.mark.system

QUEUE = "Make.success → Refuse"
WAIT_S = 120
ADDRESS_CHARACTERS_MAX = 8_000  # as common proxies accept


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFlow]:
    made = ServedFlow(tmp_path_factory.mktemp("flows"))
    yield made
    made.close()


@pytest.fixture
def shop(served: ServedFlow) -> ServedFlow:
    """The flow as it was applied, stopped, with three FlowFiles in its first queue."""
    served.flow.stop()
    for name in ("Make.success → Refuse", "Refuse.failure → End"):
        assert served.flow.queue(name).drop().wait(WAIT_S)
    served.apply(FLOW)
    served.flow.run_once("Make")
    return served


@pytest.fixture
def console(browser: Browser, shop: ServedFlow) -> Iterator[Console]:
    made = Console(browser, shop.url)
    yield made
    made.close()


def node(console: Console, name: str) -> Locator:
    return console.page.locator(".graph .node", has_text=name)


def card(console: Console, title: str) -> Locator:
    heading = console.page.get_by_role("heading", name=title, exact=True)
    return console.page.locator("section.card").filter(has=heading)


def button(place: Locator, name: str) -> Locator:
    return place.get_by_role("button", name=name, exact=True)


def confirm(console: Console, label: str) -> Locator:
    """The open dialog, whose button with this label carries the action out."""
    dialog = console.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name=label, exact=True)).to_be_visible()
    return dialog


def test_a_processor_is_started_stopped_and_run_once(console: Console) -> None:
    console.open("flow")
    node(console, "Refuse").click()
    own = card(console, "Refuse")
    button(own, "run once Refuse").click()
    expect(own).to_contain_text("1 component ran once")
    expect(own.locator(".figure", has_text="penalized").locator("dd")).to_have_text("1")
    button(own, "start Refuse").click()
    expect(own.locator(".state")).to_contain_text("running")
    button(own, "stop Refuse").click()
    expect(own.locator(".state")).to_contain_text("stopped")
    expect(button(own, "stop Refuse")).to_be_disabled()


def test_a_processor_that_hangs_is_terminated(console: Console) -> None:
    console.open("flow")
    node(console, "Hang").click()
    own = card(console, "Hang")
    button(own, "start Hang").click()
    expect(own.locator(".figure", has_text="running now").locator("dd")).to_have_text("1")
    button(own, "stop Hang").click()
    expect(own.get_by_role("alert")).to_contain_text("did not stop")
    expect(own.locator(".state")).to_contain_text("stopping")
    button(own, "terminate Hang").click()
    dialog = confirm(console, "terminate")
    expect(dialog).to_contain_text("FlowFiles return to their queues")
    button(dialog, "terminate").click()
    expect(own).to_contain_text("1 component terminated")
    expect(own.locator(".state")).to_contain_text("stopped")
    # The same for everything: of seven that were started and stopped, one hangs.
    graph = card(console, "Graph")
    button(graph, "start the whole flow").click()
    expect(graph).to_contain_text("7 components started")
    expect(own.locator(".figure", has_text="running now").locator("dd")).to_have_text("1")
    button(graph, "stop the whole flow").click()
    expect(graph.get_by_role("alert")).to_contain_text("Hang did not stop")
    expect(own.locator(".state")).to_contain_text("stopping")
    button(graph, "terminate the whole flow").click()
    dialog = confirm(console, "terminate")
    expect(dialog).to_contain_text("Terminate the whole flow?")
    button(dialog, "terminate").click()
    expect(graph).to_contain_text("1 component terminated")
    expect(own.locator(".state")).to_contain_text("stopped")


def test_a_group_and_everything_run(console: Console, shop: ServedFlow) -> None:
    console.open("flow")
    # With all groups open, the group has no node: its button closes it, and its node opens it.
    button(console.page.locator("main"), f"close {MARKUP}").click()
    node(console, "group of 2").click()
    own = card(console, f"Group {MARKUP}")
    button(own, "close").click()
    expect(node(console, "group of 2")).to_be_visible()
    expect(node(console, "Two")).to_have_count(0)
    button(own, "open").click()
    expect(node(console, "Two")).to_be_visible()
    button(own, f"start the group {MARKUP}").click()
    expect(own).to_contain_text("2 components started")
    expect(node(console, "One")).to_contain_text("FlowFiles/s")
    button(own, f"stop the group {MARKUP}").click()
    expect(own).to_contain_text("2 components stopped")
    expect(node(console, "One")).to_contain_text("stopped")
    graph = card(console, "Graph")
    button(graph, "stop the whole flow").click()
    expect(graph).to_contain_text("7 components stopped")
    button(own, f"run once the group {MARKUP}").click()
    expect(own).to_contain_text("2 components ran once")
    button(own, f"terminate the group {MARKUP}").click()
    button(confirm(console, "terminate"), "terminate").click()
    expect(own.get_by_role("alert")).to_contain_text("is stopping: stop it first")
    # Another group has a card of its own.
    console.page.evaluate("location.hash = '#/flow?group=none'")
    expect(card(console, "Group none").get_by_role("alert")).to_have_count(0)
    expect(card(console, "Group none")).not_to_contain_text("ran once")
    # The page is left and found again: the group is still open.
    console.open("topics")
    console.open("flow")
    expect(button(graph, f"close {MARKUP}")).to_be_visible()
    assert shop.flow.applied.wanted.all_running is False


QUIET = """\
name: shop
processors:
  Make: {type: GenerateFlowFile, properties: {batch_size: 1000}}
  End: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Make.success, to: End}
"""


@pytest.fixture
def quiet(shop: ServedFlow) -> Iterator[ServedFlow]:
    """Another flow, of which a processor runs that gets nothing."""
    assert shop.flow.queue(QUEUE).drop().wait(10)
    shop.apply(QUIET)
    shop.flow.start("End")
    yield shop
    shop.flow.stop()
    assert shop.flow.queue("Make.success → End").drop().wait(10)
    shop.apply(FLOW)


def test_rates_become_zero_when_nothing_moves(console: Console, quiet: ServedFlow) -> None:
    console.page.clock.install()
    console.open("flow")
    end = node(console, "End")
    expect(end).to_contain_text("FlowFiles/s")
    quiet.flow.run_once("Make")
    expect(end).to_contain_text(re.compile("[1-9][0-9.,K]* FlowFiles/s"))
    # The server does not send the same answer again.
    console.page.clock.fast_forward(60_000)
    expect(end).to_contain_text(re.compile("[^0-9.,]0 FlowFiles/s"))


def test_an_error_stands_where_it_arose(console: Console, shop: ServedFlow) -> None:
    shop.flow.start("Fail")
    console.open("flow")
    expect(node(console, "Fail").locator(".sign")).to_be_visible()
    # Its name is known, although its group may be closed.
    expect(card(console, "Warnings and errors").get_by_role("link").first).to_have_text("Fail")
    node(console, "Fail").click()
    expect(card(console, "Fail")).to_contain_text(f"cannot read {MARKUP}")
    expect(console.page.locator("main img")).to_have_count(0)


def test_an_error_in_a_closed_group_stands_at_the_group(console: Console, shop: ServedFlow) -> None:
    failing = "Two: {type: Fails, schedule: every 1 hour"
    shop.apply(FLOW.replace("Two: {type: GenerateFlowFile", failing))
    shop.flow.start(f"{MARKUP}/Two")
    console.open("flow")
    expect(node(console, "Two").locator(".sign")).to_be_visible()
    button(console.page.locator("main"), f"close {MARKUP}").click()
    group = node(console, "group of 2")
    expect(group.locator(".sign")).to_be_visible()
    expect(group).to_have_accessible_name(re.compile("with warnings or errors"))


def test_a_definition_has_its_firings_and_no_secret(console: Console) -> None:
    console.open("flow")
    node(console, "Make").press("Enter")
    own = card(console, "Make")
    expect(own).to_contain_text(f"Makes {MARKUP}")
    expect(own).to_contain_text("It would fire at")
    expect(own).to_contain_text("#{password}")
    assert "hunter2" not in console.page.content()


def test_state_is_shown_and_cleared(console: Console, shop: ServedFlow) -> None:
    console.open("flow")
    node(console, "Make").click()
    own = card(console, "Make")
    button(own, "show the state").click()
    expect(own.get_by_role("region", name="state of Make")).to_contain_text(MARKUP)
    button(own, "clear the state of Make").click()
    dialog = confirm(console, "clear")
    expect(dialog).to_contain_text("Deletes 2 entries")
    # Started in another tab meanwhile: the error is shown, and nothing is lost.
    shop.flow.start("Make")
    button(dialog, "clear").click()
    expect(own.get_by_role("alert")).to_contain_text("stop it first")
    assert shop.flow.inspection.state_of("Make")["made"] == "3"
    shop.flow.stop("Make")
    expect(own.locator(".state")).to_contain_text("stopped")
    button(own, "clear the state of Make").click()
    button(confirm(console, "clear"), "clear").click()
    expect(own).to_contain_text("2 entries cleared")
    assert shop.flow.inspection.state_of("Make") == {}


def test_flowfiles_are_read_and_dropped(console: Console, shop: ServedFlow) -> None:
    shop.flow.run_once("Refuse")
    console.open("flow")
    console.page.get_by_label(re.compile("in the queue Make")).click()
    own = card(console, QUEUE)
    expect(own.locator(".figure", has_text="in memory").locator("dd")).to_contain_text("3")
    button(own, "show the FlowFiles").click()
    rows = own.get_by_role("region", name="FlowFiles of the queue").locator("tbody tr")
    expect(rows).to_have_count(3)
    # The penalized one is the last.
    expect(rows.last).to_contain_text("until")
    content = own.locator("pre")
    rows.filter(has_text="binary").get_by_role("button").click()
    lineage = own.get_by_role("link", name="lineage")
    expect(lineage).to_have_attribute("href", re.compile("^#/lineage/[0-9]+$"))
    expect(content).to_contain_text("00000000  00 01 02 03")
    button(own, "next part").click()
    expect(content).to_contain_text("00010000  00 01 02 03")
    button(own, "previous part").click()
    expect(content).to_contain_text("00000000  00 01 02 03")
    expect(button(own, "previous part")).to_be_disabled()
    with console.page.expect_download() as found:
        own.get_by_role("button", name=re.compile("download")).click()
    assert Path(found.value.path()).read_bytes() == BINARY
    assert found.value.suggested_filename == "binary"
    rows.filter(has_text="lines.json").get_by_role("button").click()
    button(own, "JSON").click()
    expect(content).to_contain_text('{ "page": "<b>" }')
    button(own, "text").click()
    expect(content).to_have_text('{"page": "/1"} {"page": "<b>"}')
    button(own, "hex").click()
    expect(content).to_contain_text("00000000  7b 22 70 61")
    rows.filter(has_text="filename=<img").get_by_role("button").click()
    expect(content).to_have_text(MARKUP)
    button(own, "all 67,200 characters").click()
    expect(console.page.locator("main img")).to_have_count(0)
    assert console.page.evaluate("document.documentElement.scrollWidth") <= 1280
    # Two tabs: the FlowFile is gone when its content is read.
    assert shop.flow.queue(QUEUE).drop(lambda one: one["filename"] == "binary").wait(WAIT_S)
    rows.filter(has_text="binary").get_by_role("button").click()
    expect(own.get_by_role("alert")).to_contain_text("was taken, dropped")
    own.get_by_label("attribute", exact=True).fill("filename")
    own.get_by_label("value", exact=True).fill("lines.json")
    button(own, "show the FlowFiles").click()
    expect(rows).to_have_count(1)
    # The address has the filter.
    console.page.reload()
    expect(rows).to_have_count(1)
    expect(own.get_by_label("value", exact=True)).to_have_value("lines.json")
    own.get_by_role("button", name=re.compile("drop these")).click()
    button(confirm(console, "drop these"), "drop these").click()
    expect(own).to_contain_text("1 FlowFile with 31 B dropped")
    own.get_by_label("attribute", exact=True).fill("")
    expect(own.locator(".figure", has_text="waiting").locator("dd")).to_have_text("1")
    own.get_by_role("button", name=re.compile("drop all")).click()
    dialog = confirm(console, "drop all")
    expect(dialog).to_contain_text("1 FlowFile with 28 B wait")
    button(dialog, "drop all").click()
    expect(own).to_contain_text("The queue is empty")


def drop_all(console: Console) -> Locator:
    """Drop all FlowFiles of the first queue, and return its card."""
    console.open("flow")
    console.page.get_by_label(re.compile("in the queue Make")).click()
    own = card(console, QUEUE)
    own.get_by_role("button", name=re.compile("drop all")).click()
    button(confirm(console, "drop all"), "drop all").click()
    return own


def begin_slowly(route: Route) -> None:
    """Let the page believe that the drop it has begun goes on."""
    if route.request.method == "POST":
        answer = route.fetch()
        route.fulfill(json={**answer.json(), "state": "dropping"})
    else:
        route.fallback()


def test_a_drop_is_followed_while_the_router_restarts(browser: Browser, shop: ServedFlow) -> None:
    console = Console(browser, shop.url)
    failures = iter(["reset", "unavailable"])

    def restart(route: Route) -> None:
        failure = next(failures, None)
        if failure == "reset":
            route.abort("connectionreset")
        elif failure is not None:
            route.fulfill(status=503, json={"error": "no flow is running"})
        else:
            route.continue_()

    console.page.route("**/flow/queue/drop?*", restart)
    console.page.route("**/flow/queue/drop?*", begin_slowly)
    own = drop_all(console)
    expect(own).to_contain_text(re.compile("3 FlowFiles with .* dropped"))
    assert next(failures, None) is None
    console.context.close()  # the browser reports the connection that was reset


def test_a_drop_that_a_restart_of_the_flow_has_ended_says_what_to_do(
    console: Console, shop: ServedFlow
) -> None:
    console.expect("GET", 404, "/flow/queue/drop", "the flow was started again")
    console.page.route(
        "**/flow/queue/drop?*",
        lambda route: route.fulfill(status=404, json={"error": "there is no drop request 7"}),
    )
    console.page.route("**/flow/queue/drop?*", begin_slowly)
    own = drop_all(console)
    expect(own.get_by_role("alert")).to_have_text(
        "the process of the flow was started again meanwhile. Perhaps not all were dropped: see how"
        " many FlowFiles wait, and drop these again"
    )
    assert button(own, f"drop all FlowFiles of {QUEUE}").get_attribute("aria-busy") == "false"
    console.page.unroute_all()


GROUPS = [f"Collect and clean the messages of the {number}th area" for number in range(100)]
LONG_FLOW = "name: long\ngroups:\n" + "".join(
    f"  {name}:\n    processors:\n"
    "      Made: {type: GenerateFlowFile, auto_terminated: success}\n"
    for name in GROUPS
)


def test_a_hundred_open_groups_have_a_short_address(browser: Browser, tmp_path: Path) -> None:
    served = ServedFlow(tmp_path, LONG_FLOW)
    console = Console(browser, served.url)
    console.page.add_init_script(
        f"sessionStorage.setItem('penstock-flow-open', {json.dumps(json.dumps(GROUPS[:99]))})"
    )
    console.open("flow")
    nodes = console.page.locator(".graph .node")
    expect(nodes.filter(has_text="Made")).to_have_count(99)
    nodes.filter(has_text="group of 1").click()
    expect(nodes.filter(has_text="Made")).to_have_count(100)
    assert max(map(len, console.requests)) < ADDRESS_CHARACTERS_MAX
    button(card(console, "Graph"), "run once the whole flow").click()
    expect(card(console, "Graph")).to_contain_text("100 components ran once")
    console.close()
    served.close()


def yaml(console: Console) -> Locator:
    return console.page.get_by_label("YAML of the flow")


def replace_yaml(console: Console, old: str, new: str) -> None:
    """Replace a line of the text but its indentation, as by typing."""
    line = console.page.locator(".cm-line", has_text=old).first
    line.click()
    console.page.keyboard.press("Home")
    console.page.keyboard.press("Shift+End")
    console.page.keyboard.insert_text(new)


def test_yaml_is_checked_compared_and_applied(console: Console, shop: ServedFlow) -> None:
    console.open("flow")
    shown = button(card(console, "Graph"), "YAML")
    shown.click()
    expect(shown).to_have_attribute("aria-pressed", "true")
    own = card(console, "YAML of shop")
    expect(own).to_contain_text("this is what runs")
    expect(button(own, "apply the YAML")).to_be_disabled()
    replace_yaml(console, "type: Refuses", "type: Refuse")
    expect(own).to_contain_text("1 problem")
    expect(own.get_by_role("list", name="problems of the YAML")).to_contain_text("Refuse")
    expect(own.locator(".cm-error")).to_have_count(1)
    # The problem leads to its line, which is corrected there.
    yaml(console).press("Control+Home")
    own.get_by_role("button", name=re.compile("^line [0-9]+$")).click()
    for key in ("End", "Home", "Shift+End"):
        console.page.keyboard.press(key)
    console.page.keyboard.insert_text("type: Refuses")
    expect(own).to_contain_text("this is what runs")
    replace_yaml(console, "penalty_duration: 1 h", "penalty_duration: 2 h")
    difference = own.get_by_label("difference to what runs")
    expect(difference).to_contain_text("penalty_duration: '1 h' → '2 h'")
    assert shop.flow.applied.flow.processors["Refuse"].penalty_duration == "1 h"
    # What was written is given up for what runs, after a question.
    button(own, "load what runs").click()
    dialog = confirm(console, "load what runs")
    expect(dialog).to_contain_text("What you have written here is replaced")
    button(dialog, "cancel").click()
    expect(own.locator(".cm-line", has_text="penalty_duration: 2 h")).to_be_visible()
    button(own, "load what runs").click()
    button(confirm(console, "load what runs"), "load what runs").click()
    expect(own.locator(".cm-line", has_text="penalty_duration: 1 h")).to_be_visible()
    expect(difference).to_have_count(0)
    expect(button(own, "load what runs")).to_be_disabled()
    # What is written stays while the text is hidden.
    replace_yaml(console, "penalty_duration: 1 h", "penalty_duration: 2 h")
    shown.click()
    expect(own).to_have_count(0)
    shown.click()
    expect(difference).to_contain_text("penalty_duration: '1 h' → '2 h'")
    before = shop.flow.applied.revision
    button(own, "apply the YAML").click()
    dialog = confirm(console, "apply")
    expect(dialog).to_contain_text("1 processor stops for it")
    button(dialog, "apply").click()
    expect(own).to_contain_text(f"applied as revision {before + 1}")
    expect(own).to_contain_text("this is what runs")
    assert shop.flow.applied.flow.processors["Refuse"].penalty_duration == "2 h"
    replace_yaml(console, "name: shop", "name: shop  # ours")
    expect(own).to_contain_text("correct, only comments differ")
    button(own, "apply the YAML").click()
    button(confirm(console, "apply"), "apply").click()
    expect(own).to_contain_text(f"applied as revision {before + 2}")
    console.page.reload()
    expect(own.locator(".cm-content")).to_contain_text("name: shop  # ours")


def test_yaml_is_not_applied_before_it_is_checked(console: Console) -> None:
    console.open("flow?view=yaml")
    own = card(console, "YAML of shop")
    expect(own).to_contain_text("this is what runs")
    replace_yaml(console, "penalty_duration: 1 h", "penalty_duration: 2 h")
    expect(own).to_contain_text("1 difference")
    expect(button(own, "apply the YAML")).to_be_enabled()
    console.page.clock.install()
    console.page.clock.pause_at(console.page.evaluate("Date.now() / 1000 + 60"))
    console.page.keyboard.insert_text(" # 2")  # the check begins after a rest, which never ends
    expect(button(own, "apply the YAML")).to_be_disabled()
    expect(own).to_contain_text("checking …")


def test_yaml_that_removes_a_queue_with_flowfiles_is_refused(
    console: Console, shop: ServedFlow
) -> None:
    console.open("flow?view=yaml")
    own = card(console, "YAML of shop")
    expect(own).to_contain_text("this is what runs")
    yaml(console).press("Control+A")
    kept = "End: {type: GenerateFlowFile, auto_terminated: success}"
    console.page.keyboard.insert_text(f"name: shop\nprocessors: {{{kept}}}\n")
    expect(own).to_contain_text("3 FlowFiles with 75.1 KiB wait in")
    button(own, "apply the YAML").click()
    dialog = confirm(console, "apply")
    expect(dialog).to_contain_text(f"removes the connection {QUEUE}, in which 3 FlowFiles")
    button(dialog, "apply").click()
    expect(own.locator(".action .error")).to_contain_text("must be empty before it is removed")
    assert "Make" in shop.flow.applied.flow.processors


def test_of_two_tabs_that_edit_the_second_gets_a_conflict(
    browser: Browser, console: Console, shop: ServedFlow
) -> None:
    other = Console(browser, shop.url)
    for one in (console, other):
        one.open("flow?view=yaml")
        expect(card(one, "YAML of shop")).to_contain_text("this is what runs")
    replace_yaml(other, "penalty_duration: 1 h", "penalty_duration: 3 h")
    replace_yaml(console, "comments: Makes", "comments: Mine")
    button(card(other, "YAML of shop"), "apply the YAML").click()
    button(confirm(other, "apply"), "apply").click()
    expect(card(other, "YAML of shop")).to_contain_text("applied as revision")
    own = card(console, "YAML of shop")
    expect(own).to_contain_text("Somebody has changed the flow")
    button(own, "apply the YAML").click()
    button(confirm(console, "apply"), "apply").click()
    expect(own.locator(".action .error")).to_contain_text("it was changed meanwhile")
    assert shop.flow.applied.flow.processors["Refuse"].penalty_duration == "3 h"
    # Seen the difference, this tab goes on with its own text.
    button(own, "go on with mine").click()
    button(own, "apply the YAML").click()
    button(confirm(console, "apply"), "apply").click()
    expect(own).to_contain_text("applied as revision")
    assert shop.flow.applied.flow.processors["Make"].comments == "Mine"
    # The first tab, without changes of its own, loads what runs.
    first = card(other, "YAML of shop")
    expect(first).to_contain_text("Somebody has changed the flow")
    button(first, "load what runs").click()
    expect(first.locator(".cm-line", has_text="Mine")).to_be_visible()
    other.close()


COUNTING = """
window.layouts = 0;
window.Worker = class extends Worker {
  postMessage(message) { window.layouts += 1; super.postMessage(message); }
};
"""


def test_a_layout_is_made_once_and_within_the_picture(browser: Browser, shop: ServedFlow) -> None:
    console = Console(browser, shop.url)
    console.page.add_init_script(COUNTING)
    console.open("flow")
    waiting = console.page.get_by_label(re.compile("in the queue Make"))
    expect(waiting).to_contain_text("3 ·")
    assert console.page.evaluate("window.layouts") == 1
    shop.flow.run_once("Make")
    expect(waiting).to_contain_text("6 ·")
    assert console.page.evaluate("window.layouts") == 1
    inner = """[...document.querySelectorAll('.graph rect')].every(one => {
      const box = one.getBBox(), all = one.ownerSVGElement;
      return box.x >= 0 && box.y >= 0 && box.x + box.width <= all.viewBox.baseVal.width
        && box.y + box.height <= all.viewBox.baseVal.height; })"""
    assert console.page.evaluate(inner)
    # What is searched stays when a part is chosen; groups that open again need no new layout.
    console.page.get_by_label("find a component").fill("refu")
    expect(console.page.locator(".node.found")).to_have_count(1)
    node(console, "Refuse").click()
    expect(card(console, "Refuse")).to_be_visible()
    expect(console.page.locator(".node.found")).to_have_count(1)
    for act, nodes in (("close", 6), ("open", 7), ("close", 6)):
        button(console.page.locator("main"), f"{act} {MARKUP}").click()
        expect(console.page.locator(".graph .node")).to_have_count(nodes)
    assert console.page.evaluate("window.layouts") == 2
    # With a low threshold, FlowFiles are swapped to disk.
    shop.apply(FLOW.replace("to: Refuse}", "to: Refuse, swap_threshold: 2}"))
    expect(waiting).to_contain_text("▼")
    expect(waiting).to_have_accessible_name(re.compile("[1-9] on disk"))
    waiting.click()
    swapped = card(console, QUEUE).locator(".figure", has_text="swapped to disk").locator("dd")
    expect(swapped).to_have_text(re.compile("^[1-9] · .* in [1-9] files?$"))
    console.close()


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_the_parts_are_accessible(
    browser: Browser, shop: ServedFlow, theme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    console = Console(browser, shop.url, color_scheme=theme, viewport=size, bypass_csp=True)
    console.open("flow?view=yaml")
    expect(card(console, "YAML of shop")).to_contain_text("this is what runs")
    node(console, "Make").click()
    button(card(console, "Make"), "show the state").click()
    expect(console.page.get_by_role("region", name="state of Make")).to_be_visible()
    wrong = violations(console)
    console.page.get_by_label(re.compile("in the queue Make")).click()
    button(card(console, QUEUE), "show the FlowFiles").click()
    card(console, QUEUE).locator("tbody button").first.click()
    expect(console.page.locator(".content pre")).to_be_visible()
    wrong += violations(console)
    assert wrong == []
    assert console.page.evaluate("document.documentElement.scrollWidth") <= width
    console.close()


def test_the_console_works_below_a_path_of_a_proxy(browser: Browser, tmp_path: Path) -> None:
    served = ServedFlow(tmp_path / "flow", below="/below/a/path")
    console = Console(browser, served.url)
    console.open("flow?view=yaml")  # with the editor, the worker of the layout, and live answers
    expect(card(console, "YAML of shop")).to_contain_text("this is what runs")
    node(console, "Make").click()
    own = card(console, "Make")
    button(own, "run once Make").click()
    expect(own).to_contain_text("1 component ran once")
    expect(console.page.get_by_label(re.compile("in the queue Make"))).to_contain_text("3 ·")
    assert console.reports == []
    paths = {urlsplit(one).path for one in console.requests}
    assert {one for one in paths if not one.startswith("/below/a/path/")} == set()
    console.context.close()
    served.close()
