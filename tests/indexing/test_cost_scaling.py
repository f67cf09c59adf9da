"""The costBased scaler: which number of groups costs least, when it is taken, what tasks measure.

Wrong numbers here would stop and start tasks for ever, or leave a lag to grow, so the choice is
held against its promises with any load: within bounds, one way only, and its answer is its rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.indexing.ports import Throughput
from penstock.indexing.specs.stream_config import CostAutoScalerConfig
from penstock.indexing.supervisor.autoscaler import (
    CostScaler,
    GroupLoad,
    cheapest,
    costs_of,
    load_of,
)
from penstock.indexing.task.meters import ThroughputMeter
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, counts, feed, slowed, status, until

SCALER = {
    "enableTaskAutoScaler": True,
    "autoScalerStrategy": "costBased",
    "taskCountMin": 1,
    "taskCountMax": 8,
}


def config(**more: Any) -> CostAutoScalerConfig:
    return CostAutoScalerConfig.model_validate({**SCALER, **more}, by_alias=True)


def load(**more: Any) -> GroupLoad:
    told = {"lag": 0, "partitions": 16, "groups": 4, "per_second": 5_000.0, "idle": 0.25}
    return GroupLoad(**{**told, **more})


def after(one: GroupLoad, groups: int) -> GroupLoad:
    """Return the load when so many groups do the same work; what is not known stays so."""
    if one.idle is None:
        return replace(one, groups=groups)
    work = (1 - one.idle) * one.groups
    return replace(one, groups=groups, idle=max(0.0, 1 - work / groups))


configs = st.builds(
    config,
    taskCountMin=st.integers(1, 6),
    taskCountMax=st.integers(6, 40),
    lagWeight=st.floats(0.01, 10),
    idleWeight=st.floats(0, 10),
    optimalTaskIdleRatio=st.floats(0.05, 0.95),
    criticalLagThreshold=st.none() | st.integers(1, 10_000_000),
    useTaskCountBoundariesOnScaleUp=st.booleans(),
    useTaskCountBoundariesOnScaleDown=st.booleans(),
)
loads = st.builds(
    GroupLoad,
    lag=st.integers(0, 50_000_000),
    partitions=st.integers(1, 64),
    groups=st.integers(1, 50),
    per_second=st.sampled_from([0.0, 10.0, 900.0, 1_000.0, 30_000.0, 1e6]),
    idle=st.none() | st.floats(0, 1),
)


@given(how=configs, one=loads, drop=st.integers(0, 100))
def test_it_stays_within_its_bounds(how: CostAutoScalerConfig, one: GroupLoad, drop: int) -> None:
    how = how.model_copy(update={"min_cost_drop_percent_for_scaling": drop})
    most = max(how.task_count_min, min(how.task_count_max, one.partitions))
    assert how.task_count_min <= cheapest(how, one) <= most


@given(how=configs, one=loads, more=st.integers(0, 50_000_000))
def test_more_lag_never_asks_for_fewer_groups(
    how: CostAutoScalerConfig, one: GroupLoad, more: int
) -> None:
    assert cheapest(how, replace(one, lag=one.lag + more)) >= cheapest(how, one)


@given(how=configs, one=loads)
def test_idle_tasks_without_a_lag_never_become_more(
    how: CostAutoScalerConfig, one: GroupLoad
) -> None:
    one = replace(one, lag=0)
    assume(one.idle is None or one.idle >= how.optimal_task_idle_ratio)
    assert cheapest(how, one) <= max(one.groups, how.task_count_min)


@given(how=configs, one=loads)
def test_what_is_not_known_takes_no_task_away(how: CostAutoScalerConfig, one: GroupLoad) -> None:
    most = max(how.task_count_min, min(how.task_count_max, one.partitions))
    unknown = replace(one, idle=None)
    assert cheapest(how, unknown) >= min(one.groups, most)


@given(how=configs, one=loads, drop=st.integers(0, 100))
def test_the_number_moves_one_way_and_comes_to_rest(
    how: CostAutoScalerConfig, one: GroupLoad, drop: int
) -> None:
    # Where it begins outside its bounds, the first step only leads inside.
    how = how.model_copy(update={"min_cost_drop_percent_for_scaling": drop})
    one = after(one, cheapest(how, one))
    counts = [one.groups]
    while (wanted := cheapest(how, one)) != one.groups:
        counts.append(wanted)
        assert len(counts) <= one.partitions + 1
        one = after(one, wanted)
    assert len({b > a for a, b in itertools.pairwise(counts)}) <= 1


@given(how=configs, one=loads)
def test_without_steps_the_first_answer_is_the_last(
    how: CostAutoScalerConfig, one: GroupLoad
) -> None:
    free = {
        "use_task_count_boundaries_on_scale_up": False,
        "use_task_count_boundaries_on_scale_down": False,
    }
    how = how.model_copy(update=free)
    assume(how.task_count_min <= one.groups <= min(how.task_count_max, one.partitions))
    wanted = cheapest(how, one)
    assert cheapest(how, after(one, wanted)) == wanted


def test_costs_are_druids() -> None:
    # 100,000 messages by 4 groups of 5,000 a second are 5 seconds; a rest as wished costs itself.
    assert costs_of(config(), load(lag=100_000), 4).lag == pytest.approx(0.4 * 5)
    assert costs_of(config(), load(), 4).idle == pytest.approx(0.6 * 4 * 0.25)
    # No rest at all costs 2 more for each group, nothing to do 1 more.
    assert costs_of(config(), load(idle=0.0), 4).idle == pytest.approx(0.6 * 4 * 2.25)
    assert costs_of(config(), load(idle=1.0), 4).idle == pytest.approx(0.6 * 4 * 1.25)
    # Half as many groups rest half as long: from 50 % to none.
    assert costs_of(config(), load(idle=0.5), 2).idle == pytest.approx(0.6 * 2 * 2.25)
    # A task that is slower than 1,000 a second is measured wrong more often than slow.
    assert costs_of(config(), load(lag=100_000, per_second=10.0), 4).lag == pytest.approx(10)
    high = config(criticalLagThreshold=100_000)
    assert costs_of(high, load(lag=80_000), 4).lag == pytest.approx(
        0.4 * 4 * (1 + 6 * 8.517193191416238)
    )
    assert costs_of(high, load(lag=70_000), 4).lag == pytest.approx(0.4 * 3.5)


@pytest.mark.parametrize(
    ("more", "told", "wanted"),
    [
        ({}, {}, 4),
        ({}, {"lag": 3_000_000}, 8),
        ({}, {"lag": 30_000}, 4),
        # Work for one group; a step is two more stream partitions for each group.
        ({}, {"idle": 0.9}, 3),
        ({"useTaskCountBoundariesOnScaleDown": False}, {"idle": 0.9}, 1),
        ({"taskCountMin": 2, "useTaskCountBoundariesOnScaleDown": False}, {"idle": 0.9}, 2),
        # Busy without any rest, and yet without a lag: more of them rest a little.
        ({}, {"idle": 0.0}, 6),
        # Tasks that seem slow may be on a slow worker: no reason for more, nor for fewer.
        ({}, {"idle": 0.0, "per_second": 100.0}, 4),
        ({}, {"idle": 0.5, "per_second": 100.0}, 3),
        # From 16 for each group down to 14 at least: two groups.
        ({"useTaskCountBoundariesOnScaleUp": True}, {"groups": 1, "lag": 9_000_000}, 2),
        # Nearly the lag that must not be: all that there may be, whatever they cost.
        ({"criticalLagThreshold": 1_000}, {"lag": 960, "idle": 0.9}, 8),
        # As many as there are stream partitions.
        ({"criticalLagThreshold": 1_000}, {"lag": 960, "partitions": 5}, 5),
        # 4 instead of 3 would be cheaper, but not by so much.
        ({"minCostDropPercentForScaling": 60}, {"groups": 4, "idle": 0.5}, 4),
        ({}, {"groups": 12, "idle": 0.25}, 8),
        ({}, {"groups": 4, "lag": 9_000_000, "per_second": 0.0, "idle": None}, 4),
    ],
)
def test_what_a_load_leads_to(more: Mapping[str, int], told: dict[str, Any], wanted: int) -> None:
    assert cheapest(config(**more), load(**told)) == wanted


def decisions(
    scaler: CostScaler, told: GroupLoad, *, seconds: int = 7_200, rolls_every_s: int = 3_600
) -> list[tuple[int, int, int]]:
    """Ask a scaler each second; return what it decided, and when."""
    found = []
    for second in range(seconds):
        rolls = second > 0 and second % rolls_every_s == 0
        wanted = scaler.decide(told, float(second), rolls=rolls)
        if wanted is not None:
            found.append((second, told.groups, wanted))
            scaler.changed(float(second))
            told = after(told, wanted)
    return found


def test_changes_keep_their_distance() -> None:
    lagging = load(groups=1, lag=9_000_000, idle=None, partitions=8)
    steps = config(useTaskCountBoundariesOnScaleUp=True)
    assert decisions(CostScaler(steps, 0), lagging) == [(120, 1, 2), (1080, 2, 4), (2040, 4, 8)]
    idle = load(groups=8, idle=0.95, partitions=8)
    assert [s for s, _, _ in decisions(CostScaler(config(), 0), idle)] == [120, 1320]


def test_fewer_only_when_tasks_end_anyway_if_so_wished() -> None:
    when_rolling = config(scaleDownDuringTaskRolloverOnly=True)
    idle = load(groups=8, idle=0.95, partitions=8)
    assert decisions(CostScaler(when_rolling, 0), idle)[0] == (3600, 8, 3)
    # More come at once nevertheless, and so does what the bounds ask for.
    assert decisions(CostScaler(when_rolling, 0), load(lag=9_000_000))[0] == (120, 4, 8)
    assert decisions(CostScaler(when_rolling, 0), load(groups=12))[0] == (120, 12, 8)


def test_a_wish_for_fewer_is_forgotten_when_work_comes() -> None:
    scaler = CostScaler(config(scaleDownDuringTaskRolloverOnly=True), 0)
    idle = load(groups=8, idle=0.95, partitions=8)
    assert scaler.decide(idle, 120, rolls=False) is None
    assert scaler.decide(replace(idle, idle=0.25), 240, rolls=False) is None
    assert scaler.decide(replace(idle, idle=0.25), 250, rolls=True) is None


def test_the_tasks_speak_for_all() -> None:
    known, unknown = Throughput(1_000.0, 0.5), Throughput(3_000.0, None)
    assert load_of([known, known], lag=1, partitions=2, groups=2).idle == 0.5
    mixed = load_of([known, unknown], lag=1, partitions=2, groups=2)
    assert (mixed.per_second, mixed.idle) == (2_000.0, None)
    assert load_of([], lag=0, partitions=2, groups=2) == GroupLoad(0, 2, 2, 0.0, None)


# what tasks measure


def worked(
    batches: Sequence[tuple[int, float]] | zip[tuple[int, float]], *, pause_s: float = 0.0
) -> Throughput:
    """Return what a task measured that took batches of (messages, seconds), one after the other."""
    meter, now_s = ThroughputMeter(0), 0.0
    for messages, seconds in batches:
        meter.begin(now_s)
        now_s += seconds
        meter.end(messages, now_s)
        now_s += pause_s
    return meter.measure(now_s)


@given(
    sizes=st.lists(st.integers(1, 100_000), min_size=60, max_size=120),
    batch_s=st.floats(0.5, 3),
    message_us=st.floats(1, 50),
)
def test_what_a_message_takes_is_told_apart_from_what_a_batch_takes(
    sizes: Sequence[int], batch_s: float, message_us: float
) -> None:
    assume(max(sizes) >= 10 * min(sizes) and len(set(sizes)) > 10)
    seconds = [batch_s + n * message_us / 1e6 for n in sizes]
    throughput = worked(zip(sizes, seconds, strict=True))
    assume(throughput.idle is not None)
    assert throughput.idle is not None
    assert throughput.per_second is not None
    # The average fades, so it is that of the last batches.
    assert throughput.per_second <= 1e6 / message_us * 1.01 or throughput.idle >= 0.98
    assert 0 <= throughput.idle <= 1
    busy = sum(sizes) * message_us / 1e6 / sum(seconds)
    assert throughput.idle == pytest.approx(1 - max(busy, 0.01), abs=0.15)


def test_a_task_that_always_does_a_little_is_idle() -> None:
    throughput = worked([(20 + n % 30, 0.5 + (20 + n % 30) * 1e-5) for n in range(300)])
    assert throughput.per_second is not None
    assert throughput.per_second > 5_000
    assert throughput.idle is not None
    assert throughput.idle > 0.98


def test_a_task_that_works_off_a_backlog_is_not_called_idle() -> None:
    throughput = worked([(100_000, 10.0)] * 30)
    assert throughput.per_second == pytest.approx(10_000)
    assert throughput.idle is None


def test_batches_of_one_size_with_long_pauses_are_idle() -> None:
    assert worked([(1, 0.5)] * 60, pause_s=4.5).idle == pytest.approx(0.9, abs=0.02)


def test_nothing_is_told_before_a_minute_is_over_nor_of_nothing() -> None:
    assert worked([(10, 1.0)] * 5).idle is None
    meter = ThroughputMeter(0)
    assert meter.measure(59.0) == Throughput()
    assert meter.measure(61.0) == Throughput(0.0, 1.0)
    # A batch that was dropped is no work.
    meter.begin(61.0)
    meter.end(0, 71.0)
    assert meter.measure(71.0) == Throughput(0.0, 1.0)


# with a whole overlord

QUICK = {**SCALER, "scaleActionPeriodMillis": 1_000, "minScaleUpDelay": 5_000}


def reading(sim: Simulation) -> set[str]:
    return {task["id"] for task in status(sim)["activeTasks"]}


def test_a_lag_brings_tasks_at_once_and_idle_ones_go_when_they_end_anyway(
    make: Callable[..., Simulation],
) -> None:
    wishes = {**QUICK, "criticalLagThreshold": 10, "scaleDownDuringTaskRolloverOnly": True}
    sim = make(taskDuration="PT80S", autoScalerConfig=wishes, slots=8)
    go_on = slowed(sim)
    feed(sim, 40)
    until(sim, lambda: counts(sim)[0] == 2)
    go_on()
    until(sim, lambda: len(reading(sim)) == 2)
    first = reading(sim)
    # Within a minute they have been seen to be idle, and one would do.
    sim.run(65, lambda: False)
    assert (counts(sim), reading(sim)) == ([2, 1], first)
    stats = ask(sim, sim.overlord.supervisor_service.stats("flights"))
    told = [one["autoscalerMetrics"]["pollIdleRatio"] for one in by_task(stats)]
    assert all(idle is not None and idle > 0.5 for idle in told)
    until(sim, lambda: counts(sim) == [1, 2, 1])
    sim.run(5, lambda: False)
    assert len(reading(sim)) == 1
    until(sim, lambda: sim.published() == sim.good)


def by_task(
    stats: Any,
) -> list[dict[str, dict[str, Any]]]:
    return [told for tasks in stats.values() for told in tasks.values()]
