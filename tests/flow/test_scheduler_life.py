"""Starting, stopping, running once, terminating: the life of a component."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import pytest

from penstock.core.errors import Closed, Conflict, InvalidRequest, NotFound, PenstockError
from penstock.flow.errors import ProcessError
from penstock.flow.scheduling.component import ScheduledComponent
from penstock.flow.scheduling.component_lifecycle import ComponentState
from penstock.flow.scheduling.cron import CronExpression
from penstock.flow.scheduling.dispatcher import SchedulerOptions
from penstock.flow.scheduling.strategy import ComponentSchedule, SchedulingStrategy, every
from tests.flow.scheduling_kit import Part, SchedulerWorld
from tests.harness.call_faults_kit import Faults

S = ComponentState
SCHEDULING = ("penstock.flow.scheduling", "penstock.mailbox")


def test_a_component_is_validated_made_ready_run_and_let_go() -> None:
    world = SchedulerWorld()
    part = world.started("one")
    world.put("one")
    world.advance(0)
    world.done(world.scheduler.stop("one"))
    assert part.calls == ["problems", "on_scheduled", "on_unscheduled", "on_stopped"]
    assert [state for _, state in world.states] == [S.STARTING, S.RUNNING, S.STOPPING, S.STOPPED]
    assert part.taken == 1


def test_starting_twice_is_starting_once_and_stopping_what_is_stopped_is_nothing() -> None:
    world = SchedulerWorld()
    part = world.started("one")
    world.done(world.scheduler.start("one"))
    assert part.calls.count("on_scheduled") == 1
    for _ in range(2):
        world.done(world.scheduler.stop("one"))
    assert part.calls.count("on_stopped") == 1


def test_a_stop_waits_for_the_run_and_unschedules_at_once() -> None:
    world = SchedulerWorld()
    part = world.started("one", takes_s=5)
    world.put("one", 2)
    world.advance(1)
    stopped = world.scheduler.stop("one")
    world.advance(0)
    assert world.state("one") is S.STOPPING
    assert part.calls[-1] == "on_unscheduled"
    assert not stopped.done()
    world.put("one")
    world.advance(4)
    assert stopped.done()
    assert part.calls[-1] == "on_stopped"
    world.advance(100)
    assert len(part.starts_s) == 1


def test_a_start_that_comes_while_it_stops_is_remembered() -> None:
    world = SchedulerWorld()
    part = world.started("one", takes_s=5)
    world.put("one")
    world.advance(1)
    stopped = world.scheduler.stop("one")
    world.done(world.scheduler.start("one"))
    assert world.state("one") is S.STOPPING
    world.advance(5)
    assert stopped.done()
    assert world.state("one") is S.RUNNING
    assert part.calls.count("on_scheduled") == 2


def test_a_stop_during_a_start_undoes_it() -> None:
    world = SchedulerWorld()
    part = world.add("one", method_takes_s=2)
    world.done(world.scheduler.start("one"))
    stopped = world.scheduler.stop("one")
    world.advance(10)
    assert stopped.done()
    assert part.calls == ["problems", "on_scheduled", "on_unscheduled", "on_stopped"]
    assert S.RUNNING not in [state for _, state in world.states]


def test_an_invalid_component_is_tried_again_more_and_more_rarely_or_when_it_was_mended() -> None:
    world = SchedulerWorld()
    part = world.started("one", wrong=["property Url is required"])
    world.advance(0.5 + 1 + 2 + 4 + 0.1)
    assert part.calls == ["problems"] * 5
    assert world.statistics("one").problems == ("property Url is required",)
    assert world.state("one") is S.STARTING
    part.wrong = []
    world.done(world.scheduler.recheck("one"))
    assert world.state("one") is S.RUNNING
    assert world.statistics("one").problems == ()


def test_the_same_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = SchedulerWorld()
    with caplog.at_level(logging.WARNING):
        world.started("one", wrong=["property Url is required"])
        world.advance(1_000)
    assert len([each for each in caplog.records if "Url" in each.getMessage()]) == 1


def test_a_start_that_raises_lets_go_and_is_tried_after_30_s() -> None:
    world = SchedulerWorld()
    part = world.started("one", fails={"on_scheduled": OSError("no route")})
    assert part.calls == ["problems", "on_scheduled", "on_unscheduled", "on_stopped"]
    assert world.statistics("one").problems == ("on_scheduled raised OSError: no route",)
    world.advance(29)
    part.fails = {}
    assert world.state("one") is S.STARTING
    world.advance(1)
    assert world.state("one") is S.RUNNING


def test_a_stop_while_it_waits_to_be_tried_again_is_done_at_once() -> None:
    world = SchedulerWorld()
    part = world.started("one", fails={"on_scheduled": OSError("no route")})
    world.done(world.scheduler.stop("one"))
    world.advance(1_000)
    assert world.state("one") is S.STOPPED
    assert part.calls.count("on_scheduled") == 1


def test_a_start_that_hangs_is_given_up_and_tried_with_a_new_instance() -> None:
    world = SchedulerWorld()
    part = world.started("one", method_takes_s=10_000)
    world.advance(60)
    assert part.calls == ["on_terminated"]  # the methods themselves never came back
    assert [each.abandoned for each in world.flights] == [True]
    found = world.statistics("one")
    assert (found.terminated_tasks, found.active_tasks) == (1, 0)
    assert "longer than 60,000 ms" in found.problems[0]
    part.method_takes_s = 0
    world.advance(30)
    assert world.state("one") is S.RUNNING


def test_a_start_that_hangs_again_and_again_does_not_take_ever_more_threads() -> None:
    world = SchedulerWorld()
    world.started("one", method_takes_s=1_000_000)
    world.advance(10_000)
    assert len(world.flights) == 3


def test_run_once_runs_once() -> None:
    world = SchedulerWorld()
    part = world.add("one", is_source=True, takes_s=2)
    once = world.scheduler.run_once("one")
    world.advance(1)
    assert world.state("one") is S.RUN_ONCE
    assert not once.done()
    world.advance(100)
    assert once.result(0) is None
    assert part.starts_s == [0]
    assert world.state("one") is S.STOPPED


@pytest.mark.parametrize(
    "schedule",
    [
        ComponentSchedule(SchedulingStrategy.CRON, cron=CronExpression.parse("0 0 0 1 1 ?")),
        every("1 hour"),
        ComponentSchedule(concurrent_tasks=5),
    ],
)
def test_run_once_waits_for_no_schedule_and_takes_one_thread(schedule: ComponentSchedule) -> None:
    world = SchedulerWorld()
    part = world.add("one", schedule, is_source=True)
    world.done(world.scheduler.run_once("one"))
    assert part.starts_s == [0]
    world.advance(10_000)
    assert part.starts_s == [0]


def test_run_once_without_work_stops_without_a_run() -> None:
    world = SchedulerWorld()
    part = world.add("one")
    world.done(world.scheduler.run_once("one"))
    assert part.starts_s == []
    assert part.calls[-1] == "on_stopped"


def test_run_once_of_what_is_not_valid_says_so() -> None:
    world = SchedulerWorld()
    world.add("one", wrong=["property Url is required"])
    with pytest.raises(Conflict, match="did not run: property Url is required"):
        world.done(world.scheduler.run_once("one"))
    assert world.state("one") is S.STOPPED


def test_a_start_during_the_one_run_is_remembered() -> None:
    world = SchedulerWorld()
    part = world.add("one", is_source=True, takes_s=2)
    once = world.scheduler.run_once("one")
    world.advance(1)
    world.done(world.scheduler.start("one"))
    world.advance(2.5)
    assert once.done()
    assert world.state("one") is S.RUNNING
    assert part.starts_s == [0, 2]


def test_terminate_gives_threads_up_and_others_take_their_place() -> None:
    world = SchedulerWorld(threads=2)
    part = world.started("stuck", ComponentSchedule(concurrent_tasks=1), takes_s=1_000)
    world.put("stuck", 1)
    world.advance(10)
    assert world.statistics("stuck").longest_active_ms > 5_000
    with pytest.raises(Conflict, match="stop it before"):
        world.done(world.scheduler.terminate("stuck"))
    stopped = world.scheduler.stop("stuck")
    world.advance(1)
    assert world.state("stuck") is S.STOPPING
    world.done(world.scheduler.terminate("stuck"))
    assert stopped.done()
    assert world.state("stuck") is S.STOPPED
    assert part.calls[-1] == "on_terminated"
    whole = world.done(world.scheduler.statistics())
    assert (whole.busy_threads, whole.terminated_threads) == (0, 1)
    none_of_it = world.done(world.scheduler.statistics(["unknown"]))
    assert (none_of_it.components, none_of_it.terminated_threads) == ((), 1)
    some = world.done(world.scheduler.statistics(["unknown", "stuck"]))
    assert [one.id for one in some.components] == ["stuck"]
    part.takes_s = 0
    world.done(world.scheduler.start("stuck"))
    assert world.statistics("stuck").runs == 1
    world.advance(2_000)  # the thread comes back: what it did counts for nothing
    found = world.statistics("stuck")
    assert (found.runs, found.terminated_tasks) == (1, 0)


def test_a_start_remembered_before_a_terminate_begins_again() -> None:
    world = SchedulerWorld()
    world.started("stuck", is_source=True, takes_s=1_000)
    world.scheduler.stop("stuck")
    world.done(world.scheduler.start("stuck"))
    assert world.state("stuck") is S.STOPPING
    world.done(world.scheduler.terminate("stuck"))
    assert world.state("stuck") is S.RUNNING


def test_disable_and_enable() -> None:
    world = SchedulerWorld()
    world.add("one")
    world.done(world.scheduler.disable("one"))
    assert world.state("one") is S.DISABLED
    for request in (world.scheduler.start, world.scheduler.run_once):
        with pytest.raises(Conflict, match="is disabled: enable it"):
            world.done(request("one"))
    world.done(world.scheduler.stop("one"))
    world.done(world.scheduler.enable("one"))
    world.done(world.scheduler.start("one"))
    assert world.state("one") is S.RUNNING
    with pytest.raises(Conflict, match="stop it before it is disabled"):
        world.done(world.scheduler.disable("one"))
    with pytest.raises(Conflict, match="stop it before it runs once"):
        world.done(world.scheduler.run_once("one"))


def test_methods_that_raise_at_the_end_keep_nothing_from_ending() -> None:
    world = SchedulerWorld()
    part = world.started("one")
    part.fails = {name: RuntimeError("x") for name in ("on_unscheduled", "on_stopped")}
    world.done(world.scheduler.stop("one"))
    assert world.state("one") is S.STOPPED


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("name", ["on_unscheduled", "on_stopped"])
def test_what_ends_a_program_ends_only_the_method_that_raised_it(
    name: str, error: BaseException
) -> None:
    world = SchedulerWorld()
    part = world.started("one")
    part.fails = {name: error}
    world.done(world.scheduler.stop("one"))
    assert world.state("one") is S.STOPPED
    part.fails = {"on_scheduled": error}
    world.done(world.scheduler.start("one"))
    assert world.state("one") is S.STARTING
    assert "on_scheduled raised" in world.statistics("one").problems[0]


class Unsaid(Exception):
    """Raises when it is to say what it is."""

    def __str__(self) -> str:
        raise SystemExit(3)


def test_an_exception_that_cannot_be_told_does_not_end_the_scheduler() -> None:
    world = SchedulerWorld()
    part = world.started("one")
    part.outcomes = [Unsaid(), ProcessError("no")]
    part.fails = {"on_stopped": Unsaid()}
    world.put("one", 2)
    world.advance(5)
    assert (world.statistics("one").failures, part.taken) == (2, 2)
    world.done(world.scheduler.stop("one"))
    assert world.state("one") is S.STOPPED


def test_ids_are_known_once_and_unknown_ones_are_named() -> None:
    world = SchedulerWorld()
    world.started("one")
    with pytest.raises(Conflict, match="component one is already scheduled"):
        world.add("one")
    with pytest.raises(Conflict, match="stop it before it is removed"):
        world.done(world.scheduler.remove("one"))
    world.done(world.scheduler.stop("one"))
    world.done(world.scheduler.remove("one"))
    scheduler = world.scheduler
    for request in (scheduler.start, scheduler.stop, scheduler.run_once, scheduler.terminate):
        with pytest.raises(NotFound, match="component one"):
            world.done(request("one"))
    with pytest.raises(NotFound):
        scheduler.waker("one")
    scheduler.wake("one")
    scheduler.yield_for("one", 5)
    world.settle()


def test_who_waits_hears_of_the_close() -> None:
    world = SchedulerWorld()
    world.started("one", is_source=True, takes_s=100)
    stopped = world.scheduler.stop("one")
    world.done(world.scheduler.close())
    with pytest.raises(Closed):
        stopped.result(0)
    late = world.scheduler.stop("one")
    world.mailbox.close()
    assert late.cancelled()


@pytest.mark.parametrize("name", ["threads", "lifecycle_threads"])
def test_options_are_checked(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        SchedulerOptions(**{name: 0})


COMMANDS: dict[str, Callable[[SchedulerWorld], Future[None]]] = {
    "add": lambda world: world.scheduler.add("two", Part(world), ComponentSchedule()),
    "remove": lambda world: world.scheduler.remove("one"),
    "reschedule": lambda world: world.scheduler.reschedule("one", ComponentSchedule()),
    "start": lambda world: world.scheduler.start("one"),
    "stop": lambda world: world.scheduler.stop("one"),
    "run_once": lambda world: world.scheduler.run_once("one"),
    "terminate": lambda world: world.scheduler.terminate("one"),
    "enable": lambda world: world.scheduler.enable("one"),
    "disable": lambda world: world.scheduler.disable("one"),
    "recheck": lambda world: world.scheduler.recheck("one"),
    "limit_group": lambda world: world.scheduler.limit_group("group", 2),
    "resize": lambda world: world.scheduler.resize(2),
    "close": lambda world: world.scheduler.close(),
}


REFUSED: dict[str, Callable[[SchedulerWorld], Future[None]]] = {
    "add": lambda world: world.scheduler.add("one", Part(world), ComponentSchedule()),
    "remove": lambda world: world.scheduler.remove("none"),
    "reschedule": lambda world: world.scheduler.reschedule("none", ComponentSchedule()),
    "start": lambda world: world.scheduler.start("none"),
    "stop": lambda world: world.scheduler.stop("none"),
    "run_once": lambda world: world.scheduler.run_once("none"),
    "limit_group": lambda world: world.scheduler.limit_group("group", 0),
    "resize": lambda world: world.scheduler.resize(0),
}


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unexpected_error_of_a_command_goes_to_its_future_and_ends_the_loop(
    name: str, error: type[BaseException]
) -> None:
    """The scheduler went on with state that was half changed."""
    world, faults, ended = SchedulerWorld(), Faults(), list[BaseException]()
    world.add("one")
    command = COMMANDS[name](world)
    # At the second call, as the first is that of the command.
    with faults.armed_inside(["penstock.flow.scheduling"], error, 1):
        try:
            world.mailbox.drain()
        except error as caught:
            ended.append(caught)
    assert ended == [command.exception(0)], faults.raised


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_command_does_not_end_the_loop(name: str) -> None:
    world = SchedulerWorld()
    part = world.started("one")
    command = REFUSED[name](world)
    world.mailbox.drain()
    assert isinstance(command.exception(0), PenstockError)
    world.put("one")
    world.settle()
    assert part.taken == 1


def test_a_question_that_fails_does_not_end_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SchedulerWorld()
    part = world.started("one")
    with monkeypatch.context() as patch:
        patch.setattr(ScheduledComponent, "statistics", None)  # which cannot be called
        with pytest.raises(TypeError):
            world.done(world.scheduler.statistics())
    world.put("one")
    world.settle()
    assert part.taken == 1


def test_those_who_wait_for_a_stop_hear_of_the_end_of_the_loop() -> None:
    """They waited until their time was over."""
    world = SchedulerWorld()
    world.started("one", takes_s=5)
    world.put("one")
    world.add("two", method_takes_s=5)
    stopped, ran = world.scheduler.stop("one"), world.scheduler.run_once("two")
    world.settle()
    assert not stopped.done()
    assert not ran.done()
    world.scheduler.loop_failed()
    for one in (stopped, ran):
        with pytest.raises(Closed, match="restart the flow service"):
            one.result(0)
    assert not world.flights  # the pool is closed


class EndingWorld(SchedulerWorld):
    """Notes that an exception ended the loop, or a thread of the pool, and so the process."""

    has_ended = False

    def settle(self) -> None:
        try:
            super().settle()
        except MemoryError:
            self.has_ended = True
            raise


def put(world: SchedulerWorld) -> None:
    world.put("one")


def run(world: SchedulerWorld) -> None:
    world.put("one")
    world.settle()


def stop_and_start(world: SchedulerWorld) -> None:
    for request in (world.scheduler.stop, world.scheduler.start):
        request("one")
        world.settle()


def run_after_a_yield(world: SchedulerWorld) -> None:
    world.scheduler.yield_for("one", 1_000)
    world.put("one")
    world.advance(1.0)


@pytest.mark.parametrize("operation", [put, run, stop_and_start, run_after_a_yield])
def test_without_memory_the_scheduler_goes_on_or_its_loop_ends(
    operation: Callable[[SchedulerWorld], None],
) -> None:
    """A component whose event was lost never ran again."""
    faults, goes_on = Faults(), 0
    for at in itertools.count():
        world = EndingWorld()
        part = world.started("one")
        with faults.armed_inside(SCHEDULING, MemoryError, at):
            operation(world)
        raised = faults.raised
        if not world.has_ended:
            with suppress(MemoryError):
                world.settle()
        if world.has_ended:
            continue
        before = part.taken
        world.scheduler.start("one")  # as a caller does whose request raised
        world.put("one")
        world.advance(2.0)
        assert part.taken > before, raised
        assert not part.queue, raised
        goes_on += 1
        if not raised:
            break
    assert at > 5
    assert goes_on
