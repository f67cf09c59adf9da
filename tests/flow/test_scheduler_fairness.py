"""Who gets threads when there are few, and what components rest when they do nothing."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.errors import ProcessError
from penstock.flow.scheduling.component_protocol import NOTHING_DONE, TimedRun
from penstock.flow.scheduling.cron import CronExpression
from penstock.flow.scheduling.strategy import ComponentSchedule, SchedulingStrategy, every
from penstock.testing.clock import VirtualClock
from tests.flow.scheduling_kit import SchedulerWorld


def test_components_take_turns_and_tasks_of_one_do_not_pass_the_others() -> None:
    world = SchedulerWorld(threads=2)
    for name, tasks in (("greedy", 8), ("b", 1), ("c", 1)):
        world.started(name, ComponentSchedule(concurrent_tasks=tasks), is_source=True, takes_s=1)
    world.advance(30)
    runs = {name: len(part.starts_s) for name, part in world.parts.items()}
    assert max(runs.values()) - min(runs.values()) <= 2
    assert world.most == 2


def test_a_component_cannot_have_all_threads() -> None:
    world = SchedulerWorld(threads=4)
    world.started("stuck", ComponentSchedule(concurrent_tasks=50), is_source=True, takes_s=10_000)
    other = world.started("other", is_source=True, takes_s=1)
    world.advance(10.5)
    assert len(world.parts["stuck"].starts_s) == 3
    assert len(other.starts_s) == 11
    assert world.statistics("stuck").longest_active_ms == 10_500


def test_concurrent_tasks_bound_threads_in_a_component() -> None:
    world = SchedulerWorld(threads=10)
    part = world.started("two", ComponentSchedule(concurrent_tasks=2), takes_s=1, takes_flowfiles=1)
    world.put("two", 6)
    world.advance(0.5)
    assert world.statistics("two").active_tasks == 2
    world.advance(10)
    assert part.starts_s == [0, 0, 1, 1, 2, 2]


def test_a_group_has_no_more_threads_than_its_limit_and_others_go_on() -> None:
    world = SchedulerWorld(threads=10)
    world.done(world.scheduler.limit_group("g", 2))
    for number in range(5):
        schedule = ComponentSchedule(groups=("root", "g"))
        world.started(f"in {number}", schedule, is_source=True, takes_s=1)
    out = world.started("out", ComponentSchedule(groups=("root",)), is_source=True, takes_s=1)
    world.advance(20)
    runs = [len(world.parts[f"in {number}"].starts_s) for number in range(5)]
    assert max(runs) - min(runs) <= 1
    assert sum(runs) == 42
    assert len(out.starts_s) == 21
    world.done(world.scheduler.limit_group("g", None))
    world.advance(1)
    assert world.done(world.scheduler.statistics()).busy_threads == 6


def test_room_in_a_group_is_not_kept_by_one_that_an_inner_group_holds_back() -> None:
    world = SchedulerWorld(threads=10)
    world.done(world.scheduler.limit_group("outer", 2))
    world.done(world.scheduler.limit_group("inner", 1))
    for name in ("a", "b", "c"):
        world.started(
            name, ComponentSchedule(groups=("outer", "inner")), is_source=True, takes_s=100
        )
    free = world.started("free", ComponentSchedule(groups=("outer",)), is_source=True, takes_s=1)
    world.advance(10)
    assert len(free.starts_s) == 11


@pytest.mark.parametrize("threads", [0, -1])
def test_limits_are_1_or_more(threads: int) -> None:
    world = SchedulerWorld()
    for request in (
        world.scheduler.limit_group("g", threads),
        world.scheduler.resize(threads),
    ):
        with pytest.raises(InvalidRequest, match="use 1 or more"):
            world.done(request)


def test_the_pool_grows_and_shrinks() -> None:
    world = SchedulerWorld(threads=1)
    for name in "abcd":
        world.started(name, is_source=True, takes_s=1)
    world.done(world.scheduler.resize(4))
    world.advance(0.5)
    assert world.done(world.scheduler.statistics()).busy_threads == 4
    world.done(world.scheduler.resize(1))
    world.advance(2)
    assert world.done(world.scheduler.statistics()).busy_threads == 1


def test_more_threads_are_used_at_once_by_one_that_was_held_by_its_share() -> None:
    world = SchedulerWorld(threads=2)
    world.started("a", ComponentSchedule(concurrent_tasks=3), is_source=True, takes_s=100)
    assert world.statistics("a").active_tasks == 1
    world.done(world.scheduler.resize(8))
    assert world.statistics("a").active_tasks == 3


def test_one_that_has_work_and_does_nothing_rests_longer_and_longer() -> None:
    world = SchedulerWorld()
    part = world.started("picky", outcomes=[NOTHING_DONE] * 100, is_source=True)
    world.advance(10)
    gaps = [later - earlier for earlier, later in pairwise(part.starts_s)]
    assert gaps[:7] == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])
    assert gaps[7:] == pytest.approx([1.0] * len(gaps[7:]))
    assert world.statistics("picky").idle_runs == len(part.starts_s)


def test_an_event_ends_a_rest_and_work_done_forgets_it() -> None:
    world = SchedulerWorld()
    part = world.started("picky", outcomes=[NOTHING_DONE] * 9)
    world.put("picky")
    world.advance(2)
    before = len(part.starts_s)
    world.advance(0.1)
    world.put("picky")
    world.advance(0)
    assert part.starts_s[before:] == [pytest.approx(2.1)]
    part.outcomes = []
    world.advance(1)
    part.outcomes = [NOTHING_DONE]
    world.put("picky")
    world.advance(0.02)
    assert part.queue == []


def test_an_event_during_a_run_that_does_nothing_is_not_lost() -> None:
    world = SchedulerWorld()
    part = world.started("picky", outcomes=[NOTHING_DONE] * 4, takes_s=1)
    world.put("picky")
    world.advance(0.5)
    world.put("picky")
    world.advance(1)
    assert part.starts_s == [0, 1]


def test_a_burst_of_events_is_one_mail_and_none_while_it_runs() -> None:
    world = SchedulerWorld()
    world.started("busy", takes_s=1)
    for _ in range(1_000):
        world.put("busy")
    assert world.mailbox.mailbox.size == 1
    world.advance(0.5)
    for _ in range(1_000):
        world.put("busy")
    assert world.mailbox.mailbox.size == 0
    world.advance(1)
    assert world.parts["busy"].taken == 2_000


def test_what_a_question_raises_does_not_end_the_scheduler() -> None:
    world = SchedulerWorld()
    part = world.started("odd")
    part.has_work = lambda now_ms: 1 // 0  # type: ignore[method-assign,assignment]
    world.scheduler.wake("odd")
    world.advance(0.5)
    del part.has_work
    world.put("odd")
    world.advance(1)
    assert part.taken == 1


def test_a_yield_asked_from_elsewhere_holds_for_all_tasks() -> None:
    world = SchedulerWorld()
    part = world.started("one", ComponentSchedule(concurrent_tasks=3))
    world.scheduler.yield_for("one", 5_000)
    world.put("one")
    world.scheduler.yield_for("one", 1_000)
    world.advance(2)
    assert part.starts_s == []
    assert world.statistics("one").yielded_until_ms == world.clock.now_ms() + 3_000
    world.advance(4)
    assert part.starts_s[0] == 5


def test_a_running_component_gets_another_schedule() -> None:
    world = SchedulerWorld()
    part = world.started("one", every("1 hour"), is_source=True)
    world.advance(10)
    world.done(world.scheduler.reschedule("one", every("1 sec")))
    world.advance(2.5)
    assert part.starts_s == [0, 10, 11, 12]
    assert world.statistics("one").next_firing_ms == world.clock.now_ms() + 500


def test_fewer_tasks_hold_when_the_runs_under_way_end() -> None:
    world = SchedulerWorld()
    world.started("one", ComponentSchedule(concurrent_tasks=4), is_source=True, takes_s=1)
    world.done(world.scheduler.reschedule("one", ComponentSchedule(concurrent_tasks=1)))
    assert world.statistics("one").active_tasks == 4
    world.advance(1.5)
    assert world.statistics("one").active_tasks == 1


def test_numbers_of_a_component() -> None:
    world = SchedulerWorld()
    part = world.started("one", every("10 sec"), takes_s=2)
    part.outcomes = [ProcessError("x"), NOTHING_DONE]
    world.put("one")
    world.advance(1)
    found = world.statistics("one")
    assert (found.active_tasks, found.longest_active_ms, found.runs) == (1, 1_000, 0)
    world.advance(100)
    found = world.statistics("one")
    assert (found.runs, found.failures, found.idle_runs) == (3, 1, 1)
    assert found.waits_for == "work"


def test_a_wall_clock_that_is_set_moves_cron_times() -> None:
    world = SchedulerWorld()
    schedule = ComponentSchedule(SchedulingStrategy.CRON, cron=CronExpression.parse("0 0 * * * ?"))
    part = world.started("cron", schedule, is_source=True)
    world.clock._start_ms += 50 * 60_000
    world.advance(10 * 60)
    assert part.starts_s == [600]


@pytest.mark.parametrize(
    ("elapsed_ms", "answers", "expected"),
    [
        (0, {}, True),
        (100, {}, True),
        (101, {}, False),
        (0, {"yielded": True}, False),
        (4, {"loop_is_full": True}, True),
        (5, {"loop_is_full": True}, False),
    ],
)
def test_how_long_a_run_goes_on(elapsed_ms: int, answers: dict[str, bool], expected: bool) -> None:
    clock = VirtualClock()
    run = TimedRun(clock, 100)
    clock.advance(ms=elapsed_ms)
    assert run.may_continue(**answers) is expected


def test_a_run_ends_when_nobody_wants_it() -> None:
    run = TimedRun(VirtualClock(), 100)
    assert run.may_continue()
    run.is_wanted = False
    assert not run.may_continue()
    run.is_wanted = True
    run.is_terminated = True
    assert not run.may_continue()
    assert not TimedRun(VirtualClock(), 0).may_continue()


def test_a_run_repeats_for_a_short_time() -> None:
    clock = VirtualClock()

    def run(repeat_ms: int = 5) -> TimedRun:
        return TimedRun(clock, 0, repeat_ms)

    assert run().repeats()
    assert not run().repeats(yielded=True)
    assert not run(0).repeats()
    late = run()
    clock.advance(ms=5)
    assert not late.repeats()
    endless = run()
    assert sum(endless.repeats() for _ in range(1_000)) == 100
    given_up = run()
    given_up.is_terminated = True
    assert not given_up.repeats()
    unwanted = run()
    unwanted.is_wanted = False
    assert not unwanted.repeats()


@given(seed=st.integers(0, 2**32), threads=st.integers(1, 4))
def test_whatever_happens_all_work_is_done_within_bounds(seed: int, threads: int) -> None:
    """Random puts, penalties, failures, yields, stops and starts; then quiet: nothing is left."""
    chance = random.Random(seed)
    world = SchedulerWorld(threads=threads)
    world.done(world.scheduler.limit_group("g", 2))
    names = ["a", "b", "c", "d"]
    for name in names:
        schedule = chance.choice(
            [
                ComponentSchedule(
                    concurrent_tasks=chance.randint(1, 3), groups=("g",) * (name < "c")
                ),
                every(f"{chance.randint(0, 3)} sec"),
            ]
        )
        world.started(name, schedule, takes_s=chance.choice([0, 0.3, 2]), takes_flowfiles=2)
    puts = 0
    for _ in range(40):
        name = chance.choice(names)
        part = world.parts[name]
        match chance.randint(0, 6):
            case 0:
                world.scheduler.stop(name)
            case 1:
                world.scheduler.start(name)
            case 2:
                part.outcomes.append(
                    chance.choice([ProcessError("x"), RuntimeError("x"), NOTHING_DONE])
                )
            case 3:
                part.is_full = not part.is_full
                world.scheduler.wake(name)
            case _:
                count = chance.randint(1, 3)
                puts += count
                world.put(name, count, chance.choice([0, 0, 1_500]))
        world.advance(chance.choice([0, 0.01, 0.5, 2]))
        busy = world.done(world.scheduler.statistics()).busy_threads
        assert busy <= threads
        for each in names:
            found = world.statistics(each)
            assert found.active_tasks <= max(1, threads - 1) + 1
    for name in names:
        world.parts[name].is_full = False
        world.scheduler.start(name)
        world.scheduler.wake(name)
    world.advance(300)
    assert sum(part.taken for part in world.parts.values()) == puts
    assert not any(part.queue for part in world.parts.values())
    quiet = {name: part.looks for name, part in world.parts.items()}
    world.advance(3_600)
    assert {name: part.looks for name, part in world.parts.items()} == quiet
