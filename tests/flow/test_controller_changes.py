"""A flow changed while it runs, from several threads, and started again with something missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Closed, Conflict, NotFound, PenstockError, Unavailable
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.processor import ProcessContext, Processor, ProcessSession, Relationship
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import (
    CHANGED,
    KINDS,
    LINE,
    ControllerWorld,
    apply,
    check_conserved,
    id_of,
    number_in,
    queued,
    settled,
    state_of,
    states,
    wait_counted,
)

DAY_MS = 86_400_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ControllerWorld]:
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    yield world
    world.close()


def test_commands_of_many_threads_lose_nothing(world: ControllerWorld) -> None:
    total = 2_000
    flow = LINE.replace("{type: Numbers}", f"{{type: Numbers, properties: {{total: {total}}}}}")
    controller = world.open()
    apply(controller, flow)
    failures: list[BaseException] = []

    def hammer(seed: int) -> None:
        chance = random.Random(seed)
        for turn in range(12):
            word = flow.replace("{type: Pass}", f"{{type: Pass, properties: {{word: w{turn}}}}}")
            command = chance.choice(
                [
                    lambda word=word: apply(controller, word),
                    lambda: controller.start(chance.choice([None, "Make", "End"])),
                    lambda: controller.stop(chance.choice([None, "Pass", "End"])),
                    lambda: controller.run_once("Pass"),
                    lambda: controller.queue("Make.success -> Pass").listing.first(5),
                    controller.status,
                ]
            )
            try:
                command()
            except (Conflict, NotFound):
                continue  # another thread was faster
            except BaseException as error:
                failures.append(error)
                raise

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    controller.stop()
    check_conserved(controller, total)
    controller.start()
    wait_counted(controller, total)
    assert check_conserved(controller, total) == total


class Hooked(OsFileSystem):
    """Does something before the applied flow is written."""

    before_write: Callable[[], None] = staticmethod(lambda: None)

    def write_atomically(self, path: str, data: bytes) -> None:
        if path.endswith("/flow.json"):
            self.before_write()
        super().write_atomically(path, data)


class Held(Processor):
    """Is in its trigger until it is let go."""

    success = Relationship("All.")
    entered = threading.Event()
    go_on = threading.Event()

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        self.entered.set()
        assert self.go_on.wait(60)
        session.transfer(session.get_many(10), self.success)


def test_one_run_does_not_begin_in_the_middle_of_a_change(tmp_path: Path) -> None:
    fs = Hooked()
    world = ControllerWorld(fs, str(tmp_path), kinds={**KINDS, "Pass": Held})
    controller = world.open()
    apply(controller, LINE)
    controller.run_once("Make")
    once = threading.Thread(target=controller.run_once, args=("Pass",))

    def run_once() -> None:
        fs.before_write = lambda: None
        once.start()
        Held.entered.wait(0.1)  # it must not, so this decides nothing where all is well

    fs.before_write = run_once
    apply(controller, LINE.replace("{type: Pass}", "{type: Pass, penalty_duration: 1 sec}"))
    Held.go_on.set()
    once.join(60)
    controller.start()
    wait_counted(controller, 10)
    world.close()


def test_what_fills_the_disk_can_be_stopped(tmp_path: Path) -> None:
    fs = Hooked()
    world = ControllerWorld(fs, str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    wait_counted(controller, 10)

    def full() -> None:
        raise Unavailable("no space left on the device")

    fs.before_write = full
    with pytest.raises(Unavailable, match="stopped, but this could not be stored"):
        controller.stop()
    assert set(states(controller).values()) == {"stopped"}
    fs.before_write = lambda: None
    apply(controller, LINE.replace("{type: Pass}", "{type: Pass, properties: {word: x}}"))
    assert set(states(controller).values()) == {"stopped"}
    controller.close()
    assert set(states(world.open()).values()) == {"stopped"}
    world.close()


def test_it_is_closed_by_several_threads_while_others_use_it(world: ControllerWorld) -> None:
    controller = world.open()
    apply(controller, LINE.replace("{type: Numbers}", "{type: Numbers, properties: {total: 500}}"))
    controller.start()
    strange: list[BaseException] = []
    go = threading.Event()

    def use() -> None:
        go.wait(120)
        for turn in range(20):
            word = f"{{type: Pass, properties: {{word: w{turn % 3}}}}}"
            try:
                apply(controller, LINE.replace("{type: Pass}", word))
                controller.stop("Pass")
                controller.start()
            except PenstockError:
                continue
            except BaseException as error:  # noqa: BLE001 - the test's thread raises it
                strange.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    threads += [threading.Thread(target=controller.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert not strange
    for command in (controller.start, controller.stop, controller.status):
        with pytest.raises(Closed):
            command()
    again = world.open()
    again.stop()
    check_conserved(again, 500)


def test_order_and_limits_change_under_a_running_flow(world: ControllerWorld) -> None:
    controller = world.open()
    apply(controller, LINE)
    controller.run_once("Make")
    ordered = LINE.replace(
        "to: Pass}",
        "to: Pass, prioritizers: [NewestFlowFileFirstPrioritizer], back_pressure_count: 5}",
    )
    controller.start("End")
    assert apply(controller, ordered)
    assert settled(controller)["End"] == "running"
    way = controller.queue("Make.success → Pass")
    assert [one.attributes["n"] for one in way.listing.first()] == [
        str(n) for n in reversed(range(10))
    ]
    assert way.is_full
    controller.start("Make")
    assert number_in(state_of(controller, "Make"), "made") == 10
    apply(controller, ordered.replace("count: 5", "count: 50"))
    assert not way.is_full
    controller.start()
    wait_counted(controller, 10)


def test_a_limit_of_a_group_and_a_name_change_without_a_stop(world: ControllerWorld) -> None:
    given = "8f14e45f-ceea-467f-9b1d-5f0d3a1c2b10"
    flow = LINE.replace("{type: Numbers}", f"{{type: Numbers, id: {given}}}")
    controller = world.open()
    apply(controller, flow)
    controller.start()
    wait_counted(controller, 10)
    runs = {given: 0}
    while not runs[given]:  # a run is counted after its FlowFiles are in the queue
        runs = {one.id: one.scheduling.runs for one in controller.status().components}
    renamed = flow.replace("Make:", "Begin:").replace("Make.success", "Begin.success")
    apply(controller, renamed.replace("name: line", "name: line\nmax_concurrent_tasks: 2"))
    after = {one.id: one for one in controller.status().components}
    assert after[given].name == "Begin"
    assert after[given].scheduling.runs >= runs[given] > 0
    assert settled(controller) == dict.fromkeys(["Begin", "Pass", "End"], "running")


def test_what_only_people_see_is_kept_too(world: ControllerWorld) -> None:
    controller = world.open()
    apply(controller, LINE)
    assert apply(controller, LINE + "labels: [{text: look here}]\n") == []
    assert controller.applied.revision == 2
    controller.close()
    [label] = world.open().applied.flow.labels
    assert label.text == "look here"


def test_a_connection_with_an_id_keeps_its_queue_where_it_leads_elsewhere(
    world: ControllerWorld,
) -> None:
    given = "8f14e45f-ceea-467f-9b1d-5f0d3a1c2b11"
    flow = LINE.replace("to: Pass}", f"to: Pass, id: {given}}}")
    controller = world.open()
    apply(controller, flow)
    controller.run_once("Make")
    controller.start("End")
    moved = flow.replace("to: Pass,", "to: End,").replace("  Pass: {type: Pass}\n", "")
    moved = moved.replace("  - {from: Pass.success, to: End}\n", "")
    apply(controller, moved)
    wait_counted(controller, 10)
    assert controller.queue("Make.success -> End").size.is_empty
    apply(controller, flow)
    assert check_conserved(controller, 10) == 10


def test_a_funnel_that_runs_learns_of_new_connections(world: ControllerWorld) -> None:
    flow = """
name: line
processors:
  Make: {type: Numbers}
  More: {type: Numbers, properties: {total: 20}}
  End: {type: Tally}
funnels: [both]
connections:
  - {from: Make.success, to: both}
  - {from: both, to: End}
"""
    controller = world.open()
    without = flow.replace("  More: {type: Numbers, properties: {total: 20}}\n", "")
    apply(controller, without)
    controller.start()
    wait_counted(controller, 10)
    apply(controller, flow + "  - {from: More.success, to: both}\n")
    wait_counted(controller, 30)
    with pytest.raises(InvalidFlow):
        apply(controller, flow)
    apply(controller, without)
    assert set(states(controller)) == {"Make", "End", "both"}


def test_queues_that_no_flow_has_come_back_with_it(world: ControllerWorld, tmp_path: Path) -> None:
    controller = world.open()
    apply(controller, LINE)
    controller.run_once("Make")
    way = id_of_connection(controller)
    controller.close()
    (tmp_path / "flow.json").unlink()  # as the error of a damaged one says
    again = world.open()
    assert again.applied.revision == 0
    assert again.status().orphaned_queues == [way]
    apply(again, LINE)
    assert again.status().orphaned_queues == []
    assert len(queued(again)) == 10
    again.start()
    wait_counted(again, 10)


def id_of_connection(controller: FlowController) -> str:
    return next(one.id for one in controller.status().connections if one.size.count)


def test_a_lost_parameter_keeps_only_those_from_running_that_need_it(
    world: ControllerWorld,
) -> None:
    flow = LINE.replace("{type: Pass}", "{type: Pass, properties: {word: '#{word}'}}")
    flow = flow.replace("{type: Tally}", "{type: Tally, yield_duration: '#{rest}'}")
    flow += "parameters: {word: {env: WORD, sensitive: false}, "
    flow += "rest: {env: REST, sensitive: false}}\n"
    controller = world.open()
    with pytest.raises(InvalidFlow, match=r"flow.yaml:10:20: parameters.word: .*'WORD' is not set"):
        apply(controller, flow)
    controller.close()
    controller = world.open(WORD="a", REST="soon")
    with pytest.raises(InvalidFlow, match=r"flow.yaml:6:8: processors.End: 'soon'"):
        apply(controller, flow)
    assert controller.applied.revision == 0
    controller.close()
    controller = world.open(WORD="a", REST="1 sec")
    apply(controller, flow)
    controller.start()
    wait_counted(controller, 10)
    controller.close()

    lost = world.open()
    assert settled(lost, "Make")["Make"] == "running"
    problems = {one.name: problems_of(lost, one.name) for one in lost.status().components}
    assert problems["Make"] == ""
    assert "parameter 'word': environment variable 'WORD' is not set" in problems["Pass"]
    assert "'REST' is not set" in problems["End"]
    assert any("'REST' is not set" in one.message for one in lost.bulletins.read())
    lost.close()
    again = world.open(WORD="b", REST="1 sec")
    assert problems_of(again, "Pass", 0) == ""
    assert set(states(again).values()) <= {"running", "starting"}


def problems_of(controller: FlowController, name: str, wait_s: float = 0.5) -> str:
    """What keeps a processor from starting, when its start was tried."""
    [plan] = [
        unit for one, unit in controller._parts._units.items() if one == id_of(controller, name)
    ]
    return "; ".join(plan.problems())


def test_a_class_that_is_gone_keeps_only_its_processors_from_running(
    world: ControllerWorld,
) -> None:
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    wait_counted(controller, 10)
    controller.close()
    world.kinds = {name: kind for name, kind in KINDS.items() if name != "Pass"}
    lost = world.open()
    assert "unknown processor 'Pass'" in problems_of(lost, "Pass")
    assert states(lost)["End"] in {"running", "starting"}


def test_a_disabled_processor_says_so(world: ControllerWorld) -> None:
    controller = world.open()
    disabled = LINE.replace("{type: Pass}", "{type: Pass, enabled: false}")
    apply(controller, disabled)
    controller.start()
    assert states(controller)["Pass"] == "disabled"
    with pytest.raises(Conflict, match="Pass is disabled"):
        controller.start("Pass")
    apply(controller, LINE)
    wait_counted(controller, 10)
    controller.close()
    again = world.open()
    apply(again, disabled)
    assert states(again)["Pass"] == "disabled"


@dataclass
class Shifted(SystemClock):
    """The machine's clock, some days ahead."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


CRON = """
name: daily
processors:
  Make: {type: Numbers, properties: {total: 100, batch: 1}, schedule: SCHEDULE}
  End: {type: Tally}
connections:
  - {from: Make.success, to: End}
"""


@pytest.mark.parametrize("catch_up", [True, False])
def test_firing_times_missed_while_it_was_down_are_caught_up(
    world: ControllerWorld, catch_up: bool
) -> None:
    clock = Shifted()
    # So that no run of this test is at the time of firing.
    noon_ms = DAY_MS // 2
    clock.ahead_ms = noon_ms - clock.now_ms() % DAY_MS
    world.clock = clock
    schedule = "{strategy: cron, period: 0 0 3 * * ?, catch_up: true}"
    if not catch_up:
        schedule = schedule.replace("true", "false")
    controller = world.open()
    apply(controller, CRON.replace("SCHEDULE", schedule))
    controller.start()
    wait_running(controller)
    controller.close()

    clock.ahead_ms += 3 * DAY_MS
    controller = world.open()
    if catch_up:  # once, for three
        wait_counted(controller, 1)
    wait_running(controller)
    controller.close()

    clock.ahead_ms += DAY_MS // 4
    controller = world.open()
    wait_running(controller)
    controller.stop()
    assert number_in(state_of(controller, "End"), "count") == int(catch_up)
    controller.close()

    # What was stopped has missed nothing.
    clock.ahead_ms += 3 * DAY_MS
    controller = world.open()
    controller.start()
    wait_running(controller)
    controller.stop()
    assert number_in(state_of(controller, "Make"), "made") == int(catch_up)


def wait_running(controller: FlowController) -> None:
    with CHANGED:
        while set(states(controller).values()) != {"running"}:
            CHANGED.wait(0.01)
