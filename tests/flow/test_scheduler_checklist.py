"""What NiFi does when, row by row, and where waiting for events makes it better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.controller.component_connections import (
    Input,
    Output,
    funnel_has_work,
    has_work,
    is_open,
)
from penstock.flow.errors import ProcessError
from penstock.flow.scheduling.component_protocol import RunOutcome
from penstock.flow.scheduling.cron import CronExpression
from penstock.flow.scheduling.strategy import (
    ComponentSchedule,
    MissedRunPolicy,
    SchedulingStrategy,
    every,
)
from tests.flow.scheduling_kit import SchedulerWorld

TIMER_0 = ComponentSchedule(SchedulingStrategy.TIMER)
EVENT = ComponentSchedule()


def cron(text: str, missed: MissedRunPolicy = MissedRunPolicy.SKIP) -> ComponentSchedule:
    return ComponentSchedule(
        SchedulingStrategy.CRON, cron=CronExpression.parse(text), missed=missed
    )


def test_a_period_of_2_s_and_work_of_3_s_start_5_s_apart() -> None:
    world = SchedulerWorld()
    part = world.started("source", every("2 sec"), is_source=True, takes_s=3)
    world.advance(16)
    assert part.starts_s == [0, 5, 10, 15]


@pytest.mark.parametrize("schedule", [TIMER_0, EVENT])
def test_an_empty_input_is_not_triggered_and_not_even_looked_at_again(
    schedule: ComponentSchedule,
) -> None:
    world = SchedulerWorld()
    part = world.started("idle", schedule)
    looks = part.looks
    world.advance(3_600)
    assert part.starts_s == []
    assert part.looks == looks
    assert world.statistics("idle").active_tasks == 0


def test_a_long_period_waits_for_work_and_is_counted_from_the_end_of_the_run() -> None:
    world = SchedulerWorld()
    part = world.started("slow", every("1000 sec"), takes_s=1)
    world.advance(1_500)
    world.put("slow")
    world.advance(0)
    assert part.starts_s == [1_500]
    world.advance(1)
    world.put("slow")
    world.advance(999.9)
    assert part.starts_s == [1_500]
    world.advance(0.2)
    assert part.starts_s == [1_500, 2_501]


def test_a_component_fed_by_itself_alone_is_a_source() -> None:
    assert has_work([Input(available=False, is_loop=True)])
    assert has_work([])
    assert not has_work([Input(available=False, is_loop=True), Input(available=False)])
    assert has_work([Input(available=True, is_loop=True), Input(available=False)])
    assert has_work([Input(available=False)], when_empty=True)


def test_a_funnel_is_never_a_source() -> None:
    out = [Output(is_full=False)]
    assert not funnel_has_work([], out)
    assert not funnel_has_work([Input(available=True, is_loop=True)], out)
    assert not funnel_has_work([Input(available=True)], [])
    assert not funnel_has_work([Input(available=False)], out)
    assert funnel_has_work([Input(available=True)], out)


def test_room_is_asked_of_all_relationships_or_of_one_and_loops_do_not_count() -> None:
    full, free = Output(is_full=True), Output(is_full=False)
    assert is_open([])
    assert is_open([[], [free]])
    assert not is_open([[free], [free, full]])
    assert is_open([[free], [full]], any_is_enough=True)
    assert not is_open([[full], [full]], any_is_enough=True)
    assert is_open([[Output(is_full=True, is_loop=True)]])


def test_a_full_destination_holds_the_component_back_until_there_is_room() -> None:
    world = SchedulerWorld()
    part = world.started("source", EVENT, is_full=True)
    world.put("source")
    world.advance(100)
    assert part.starts_s == []
    assert world.statistics("source").waits_for == "room"
    part.is_full = False
    world.scheduler.wake("source")
    world.advance(0)
    assert part.starts_s == [100]


def test_cron_every_5_s_with_work_of_10_s_starts_every_15_s() -> None:
    world = SchedulerWorld()
    part = world.started("cron", cron("0/5 * * * * ?"), is_source=True, takes_s=10)
    world.advance(60)
    assert part.starts_s == [5, 20, 35, 50]


def test_cron_every_10_min_with_work_of_15_min_skips_what_passed() -> None:
    world = SchedulerWorld()
    part = world.started("cron", cron("0 0/10 * * * ?"), is_source=True, takes_s=900)
    world.advance(2_400)
    assert part.starts_s == [600, 1_800]


def test_cron_with_catch_up_runs_once_for_all_that_passed() -> None:
    world = SchedulerWorld()
    schedule = cron("0/5 * * * * ?", MissedRunPolicy.ONCE)
    part = world.started("cron", schedule, is_source=True, takes_s=12)
    world.advance(20)
    # 10 and 15 passed while it ran from 5 on: one run for both as soon as it is back.
    assert part.starts_s == [5, 17]


def test_cron_without_input_at_its_time_waits_for_the_next_time() -> None:
    world = SchedulerWorld()
    part = world.started("cron", cron("0 * * * * ?"))
    world.advance(61)
    world.put("cron")
    world.advance(58)
    assert part.starts_s == []
    world.advance(1)
    assert part.starts_s == [120]


def test_cron_catches_up_what_passed_while_nothing_ran() -> None:
    world = SchedulerWorld()
    now_ms = world.clock.now_ms()
    expression = CronExpression.parse("0 0 * * * ?")
    for missed, name in ((MissedRunPolicy.ONCE, "once"), (MissedRunPolicy.SKIP, "skip")):
        schedule = ComponentSchedule(
            SchedulingStrategy.CRON,
            cron=expression,
            missed=missed,
            last_fired_ms=now_ms - 5 * 3_600_000,
        )
        world.started(name, schedule, is_source=True)
    world.advance(1)
    assert len(world.parts["once"].starts_s) == 1
    assert world.parts["skip"].starts_s == []
    world.advance(3_600)
    assert len(world.parts["once"].starts_s) == 2
    assert len(world.parts["skip"].starts_s) == 1


@pytest.mark.parametrize("missed", MissedRunPolicy)
def test_cron_goes_on_after_the_clock_was_set_back(missed: MissedRunPolicy) -> None:
    world = SchedulerWorld()
    part = world.started("cron", cron("0 * * * * ?", missed), is_source=True)
    world.advance(600)
    assert len(part.starts_s) == 10
    world.clock.ahead_ms = -24 * 3_600_000
    world.advance(600)
    assert 19 <= len(part.starts_s) <= 20
    # What was kept may be of a clock that was set back while nothing ran.
    kept = replace(cron("0 * * * * ?", missed), last_fired_ms=world.clock.now_ms() + 3_600_000)
    other = world.started("other", kept, is_source=True)
    world.advance(600)
    assert len(other.starts_s) == 10


def test_cron_goes_on_after_an_exception_and_without_a_next_time_it_stays() -> None:
    world = SchedulerWorld()
    part = world.started("cron", cron("0/5 * * * * ?"), is_source=True)
    part.outcomes = [RuntimeError("boom")]
    world.advance(11)
    assert part.starts_s == [5, 10]
    never = world.started("never", cron("0 0 0 30 2 ?"), is_source=True)
    world.advance(10_000)
    assert never.starts_s == []
    assert world.statistics("never").next_firing_ms is None


@pytest.mark.parametrize(("schedule", "expected"), [(TIMER_0, 1), (EVENT, 1), (every("10 s"), 10)])
def test_after_a_yield_it_runs_when_yield_and_period_are_over(
    schedule: ComponentSchedule, expected: float
) -> None:
    world = SchedulerWorld()
    part = world.started("yields", schedule)
    part.outcomes = [RunOutcome(yield_ms=1_000)]
    world.put("yields")
    world.advance(0)
    world.put("yields")
    world.advance(30)
    assert part.starts_s[:2] == [0, expected]


def test_an_unexpected_exception_keeps_it_from_running_for_1_s() -> None:
    world = SchedulerWorld()
    part = world.started("fails", TIMER_0)
    part.outcomes = [RuntimeError("boom")]
    world.put("fails")
    world.advance(5)
    assert part.starts_s == [0, 1]
    assert world.statistics("fails").failures == 1


@pytest.mark.parametrize(
    ("error", "lines", "traces"),
    [
        (Unavailable("the disk is full"), 2, 0),
        (OSError(28, "No space left on device"), 2, 2),
        (RuntimeError("boom"), 90, 2),
    ],
    ids=["penstock", "system", "code"],
)
def test_a_failure_that_comes_with_each_run_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, lines: int, traces: int
) -> None:
    world = SchedulerWorld()
    part = world.started("fails", TIMER_0)
    part.outcomes = [error] * 90
    world.put("fails", 90)
    world.advance(100)
    assert world.statistics("fails").failures == 90
    logged = [one for one in caplog.records if "it yields for" in one.getMessage()]
    assert len(logged) == lines
    assert sum(one.exc_info is not None for one in logged) == traces
    assert str(error) in logged[0].getMessage()
    if lines == 2:
        assert "(and 59 more like it before)" in logged[1].getMessage()


def test_after_an_unexpected_exception_penalized_flowfiles_wait_for_their_time() -> None:
    world = SchedulerWorld()
    part = world.started("fails", TIMER_0)
    world.put("fails", penalty_ms=30_000)  # as the rollback leaves it
    world.advance(60)
    assert part.starts_s == [30]


def test_an_expected_failure_does_not_keep_others_waiting() -> None:
    world = SchedulerWorld()
    part = world.started("fails", TIMER_0, takes_s=0.5)
    part.outcomes = [ProcessError("not now")]
    world.put("fails", 2)
    world.advance(0)
    part.queue[0] += 30_000
    world.advance(60)
    assert part.starts_s == [0, 0.5, 30]


def test_the_earliest_of_many_penalties_rings() -> None:
    world = SchedulerWorld()
    part = world.started("waits", EVENT)
    world.put("waits", penalty_ms=30_000)
    world.advance(1)
    world.put("waits", penalty_ms=5_000)
    world.put("waits", penalty_ms=50_000)
    world.advance(100)
    assert part.starts_s == [6, 30, 51]
