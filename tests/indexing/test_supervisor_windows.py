"""Which rows are late or early: of a fresh task, of one that waits, of one in place of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from penstock.core.intervals import parse_time
from penstock.indexing.read_plan import SeenTopic
from penstock.indexing.supervisor.stream_watch import StreamWatch
from penstock.indexing.supervisor.supervisor_state import SupervisorState
from penstock.indexing.supervisor.task_groups import StartPlan
from penstock.indexing.supervisor.time_windows import PastTasks, RowTimeLimits, limits_of
from penstock.indexing.task_spec import (
    TASK_TYPE,
    MessageTimes,
    StreamTaskSpec,
    make_task,
    message_times,
)
from penstock.mailbox.background_calls import CallDispatcher
from penstock.storage.metadata import TaskRow
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.indexing.indexing_kit import DAY_MS, OneTask, make_spec
from tests.indexing.simulation_kit import Simulation
from tests.indexing.story_kit import ask, fail, running, until

MINUTE_MS = 60_000
NOW_MS = parse_time("2013-02-03T04:05:06")


@pytest.mark.parametrize(
    ("io", "first_ms", "end_ms"),
    [
        ({}, None, None),
        ({"lateMessageRejectionPeriod": "PT1H"}, NOW_MS - 60 * MINUTE_MS, None),
        (
            {"lateMessageRejectionStartDateTime": "2013-02-01T02:00:00Z"},
            parse_time("2013-02-01T02:00:00"),
            None,
        ),
        # The duration counts: the task reads so long.
        (
            {"earlyMessageRejectionPeriod": "PT1H", "taskDuration": "PT10M"},
            None,
            NOW_MS + 70 * MINUTE_MS,
        ),
    ],
)
def test_what_a_spec_says_becomes_the_limits_of_its_task(
    io: dict[str, Any], first_ms: int | None, end_ms: int | None
) -> None:
    spec = make_spec(**io)
    times = message_times(spec.io, NOW_MS)
    assert times == MessageTimes(first_ms, end_ms)
    task = make_task(spec, 0, {0: 5}, None, topic_id="", times=times, token="t")
    assert (task.min_time_ms, task.max_time_ms) == (first_ms, end_ms)


def test_no_fresh_row_is_early_however_long_a_task_reads_and_what_is_late_stays() -> None:
    hour_ms = 60 * MINUTE_MS
    spec = make_spec(
        earlyMessageRejectionPeriod="PT1H",
        lateMessageRejectionPeriod="PT1H",
        taskDuration="PT10M",
    )
    times = message_times(spec.io, NOW_MS)
    task = make_task(spec, 0, {0: 5}, None, topic_id="", times=times, token="t")
    assert task.times_at(NOW_MS + 10 * MINUTE_MS) == times
    later = task.times_at(NOW_MS + 5 * hour_ms)
    assert later == MessageTimes(NOW_MS - hour_ms, NOW_MS + 6 * hour_ms)


def test_wider_times_take_what_either_takes() -> None:
    one, other = MessageTimes(5, 10), MessageTimes(3, 8)
    assert one.or_wider(other) == other.or_wider(one) == MessageTimes(3, 10)
    assert one.or_wider(MessageTimes(None, 20)) == MessageTimes(None, 20)


def rows(clock: VirtualClock, *minutes: int) -> list[bytes]:
    """Return messages of so many minutes from now; each has its minutes as its number."""
    now_ms = clock.now_ms()
    return [
        orjson.dumps({"time": now_ms + m * MINUTE_MS, "carrier": "UA", "n": m}) for m in minutes
    ]


def test_a_task_that_reads_on_takes_rows_of_its_own_day(tmp_path: Path) -> None:
    world = OneTask(tmp_path)
    now_ms = world.clock.now_ms()
    times = {"max_time_ms": now_ms + DAY_MS, "early_period_ms": DAY_MS}
    world.spec = world.spec.model_copy(update=times)
    world.kill()
    world.start()
    world.clock.advance(ms=5 * DAY_MS)
    world.broker.add("flights", 0, rows(world.clock, 0, 23 * 60, 25 * 60))
    world.run(lambda: world.report().persisted == {0: 3, 1: 0})
    counts = world.report().counts
    assert (counts["processed"], counts["thrownAwayEarly"]) == (2, 1)
    world.metadata.close()


# with a whole overlord

LATE = {"lateMessageRejectionPeriod": "PT10M", "taskDuration": "PT8H"}


def send(sim: Simulation, *minutes: int, partition: int = 0) -> None:
    sim.broker.add("flights", partition, rows(sim.clock, *minutes))


def lose(sim: Simulation, task: str) -> None:
    ask(sim, sim.overlord.shutdown_task(task))


def later(sim: Simulation, minutes: int) -> None:
    """Let time pass, in steps that leave nobody for lost."""
    for _ in range(minutes):
        sim.run(60)


def publish(sim: Simulation) -> None:
    ask(sim, sim.overlord.supervisor_service.hand_off("flights"))


def read(sim: Simulation, *, processed: int, late: int) -> None:
    """Wait until so much is published, and that is all."""
    until(sim, lambda: sim.metadata.counts("flights").processed == processed)
    assert sim.metadata.counts("flights").thrown_away_late == late


def test_late_and_early_rows_of_a_supervisor_are_thrown_away(
    make: Callable[..., Simulation],
) -> None:
    sim = make(
        lateMessageRejectionPeriod="PT1H", earlyMessageRejectionPeriod="PT1H", taskDuration="PT30M"
    )
    running(sim)
    send(sim, -70, -50, 0, 80, 100)
    until(sim, lambda: len(sim.visible()) == 3)
    publish(sim)
    read(sim, processed=3, late=1)
    assert sim.published() == [-50, 0, 80]
    assert sim.metadata.counts("flights").thrown_away_early == 1


@pytest.mark.parametrize("overlord_dies", [False, True])
def test_rows_in_time_for_a_lost_task_are_in_time_for_its_follower(
    make: Callable[..., Simulation], overlord_dies: bool
) -> None:
    sim = make(**LATE)
    (lost,) = running(sim)
    send(sim, -8)
    until(sim, lambda: sim.visible() == [-8])
    later(sim, 4)
    lose(sim, lost)
    if overlord_dies:
        sim.kill_overlord()
    (second,) = running(sim)
    assert second != lost
    until(sim, lambda: sim.visible() == [-8])
    # And of the follower's follower.
    lose(sim, second)
    running(sim)
    until(sim, lambda: sim.visible() == [-8])
    publish(sim)
    read(sim, processed=1, late=0)


def test_an_overlord_that_begins_after_the_loss_knows_the_limits(
    make: Callable[..., Simulation],
) -> None:
    sim = make(**LATE)
    (lost,) = running(sim)
    send(sim, -8)
    until(sim, lambda: sim.visible() == [-8])
    later(sim, 4)
    sim.overlord_lanes.close()
    sim.metadata.tasks.set_status(lost, "FAILED", {"errorMsg": "the worker burned"})
    sim.start_overlord()
    (second,) = running(sim)
    assert second != lost
    until(sim, lambda: sim.visible() == [-8])


def test_the_successor_of_a_task_that_published_judges_by_its_own_begin(
    make: Callable[..., Simulation],
) -> None:
    sim = make(**LATE)
    (lost,) = running(sim)
    lose(sim, lost)
    (first,) = running(sim)
    send(sim, -8)
    until(sim, lambda: sim.visible() == [-8])
    later(sim, 4)
    publish(sim)
    until(sim, lambda: sim.overlord.task(first).row.state == "SUCCESS")
    running(sim)
    send(sim, -12, -1)
    until(sim, lambda: sim.visible() == [-8, -1])
    publish(sim)
    read(sim, processed=2, late=1)


def test_a_gap_is_read_again_with_the_limits_of_the_task_that_was_lost(
    make: Callable[..., Simulation],
) -> None:
    sim = make(**LATE)
    (lost,) = running(sim)
    send(sim, -8)
    until(sim, lambda: sim.visible() == [-8])
    later(sim, 4)
    push, sim.deep_store.push = sim.deep_store.push, lambda *_: fail("the store is full")  # type: ignore[method-assign]
    publish(sim)
    until(sim, lambda: len(sim.overlord.active_tasks()) == 2)
    send(sim, -8, -1)
    until(sim, lambda: -1 in sim.visible())
    sim.deep_store.push = push  # type: ignore[method-assign]
    lose(sim, lost)
    publish(sim)
    until(sim, lambda: sim.metadata.counts("flights").processed == 3)
    assert sim.published() == [-8, -8, -1]


def test_other_limits_hold_at_once(make: Callable[..., Simulation]) -> None:
    sim = make(taskDuration="PT8H")
    (first,) = running(sim)
    changed: dict[str, Any] = sim.spec.to_json()
    changed["spec"]["ioConfig"]["lateMessageRejectionPeriod"] = "PT10M"
    ask(sim, sim.overlord.supervisor_service.submit(changed))
    until(sim, lambda: sim.overlord.task(first).row.state == "SUCCESS")
    running(sim)
    send(sim, -12, -1)
    until(sim, lambda: sim.visible() == [-1])


def test_a_lost_task_leaves_its_limits_to_its_own_stream_partitions(
    make: Callable[..., Simulation],
) -> None:
    sim = make(taskCount=2, **LATE)
    running(sim, 2)
    later(sim, 2)
    first = limits(sim)
    lose(sim, next(name for name, (partition, _) in first.items() if partition == 1))
    until(sim, lambda: len(set(limits(sim)) | set(first)) == 3 and len(limits(sim)) == 2)
    assert set(limits(sim).values()) == set(first.values())


def limits(sim: Simulation) -> dict[str, tuple[int, int]]:
    """Return, by task, its stream partition and from when on rows are in time."""
    found = {}
    for row in sim.metadata.tasks.list(active=True):
        payload: Any = row.payload
        (partition,) = payload["startOffsets"]
        found[row.id] = (int(partition), payload["minTimeMs"])
    return found


class PastOfOne:
    """A supervisor with a metadata store to which tasks are written as they ended."""

    def __init__(self, tmp_path: Path) -> None:
        self.spec = make_spec(lateMessageRejectionPeriod="PT10M")
        self.clock = clock = VirtualClock()
        self.store = open_metadata(tmp_path, clock)
        self.asked: list[int] = []
        tasks = SimpleNamespace(summaries=self.store.tasks.summaries, rows_of=self.rows_of)
        ports = SimpleNamespace(clock=clock, metadata=SimpleNamespace(tasks=tasks))
        self.state = SimpleNamespace(id=self.spec.supervisor_id, spec=self.spec, ports=ports)

    @property
    def fresh(self) -> MessageTimes:
        return message_times(self.spec.io, self.clock.now_ms())

    def rows_of(self, ids: Sequence[str]) -> Sequence[TaskRow]:
        self.asked.append(len(ids))
        return self.store.tasks.rows_of(ids)

    def ended(self, *tasks: tuple[StreamTaskSpec, str]) -> None:
        self.clock.advance(ms=1)  # the newest are told by when they were made
        self.store.tasks.insert_new(
            [
                TaskRow(
                    id=task.id,
                    datasource=task.datasource,
                    type=task.type,
                    group_id=f"{TASK_TYPE}_{self.spec.supervisor_id}",
                    payload=task.to_json(),
                    state=state,
                )
                for task, state in tasks
            ]
        )

    def task(
        self,
        start: Mapping[int, int],
        times: MessageTimes,
        until: Mapping[int, int] | None = None,
        *,
        end: Mapping[int, int] | None = None,
        token: str = "t",
    ) -> StreamTaskSpec:
        return make_task(
            *(self.spec, 0, start, end),
            topic_id="",
            times=times,
            token=token,
            retaken_until=until,
        )

    def limits(
        self,
        start: Mapping[int, int],
        latest: Mapping[int, int],
        end: Mapping[int, int] | None = None,
    ) -> RowTimeLimits:
        past = PastTasks(cast("SupervisorState", self.state))
        return limits_of(
            cast("SupervisorState", self.state), StartPlan(0, start, end), past, latest
        )


@pytest.fixture
def past(tmp_path: Path) -> Iterator[PastOfOne]:
    made = PastOfOne(tmp_path)
    yield made
    made.store.close()


def test_rows_of_a_lost_follower_are_in_time_for_whoever_reads_them_again(past: PastOfOne) -> None:
    first, follower = past.task({0: 0}, MessageTimes(5)), past.task({0: 10}, MessageTimes(7))
    past.ended((first, "FAILED"))
    past.ended((follower, "FAILED"))
    instead = past.limits({0: 0}, {0: 15})
    assert (instead.times, instead.until) == (MessageTimes(5), {0: 15})
    # It publishes as far as the follower's first row, or not even to there.
    past.ended((past.task({0: 0}, instead.times, instead.until, token="u"), "SUCCESS"))
    for offset in (7, 10, 14):
        found = past.limits({0: offset}, {0: 40})
        assert (found.times, found.until) == (instead.times, {0: 15})
    # Nothing of what came later was taken by one that was lost.
    assert past.limits({0: 15}, {0: 40}).times == past.fresh
    assert past.limits({0: 15}, {0: 40}).until == {}


def test_a_lost_follower_with_wider_limits_than_the_first_widens_those_of_the_next(
    past: PastOfOne,
) -> None:
    # As after a clock was set back.
    first, follower = past.task({0: 0}, MessageTimes(7)), past.task({0: 10}, MessageTimes(5))
    past.ended((first, "FAILED"))
    past.ended((follower, "FAILED"))
    assert past.limits({0: 0}, {0: 15}).times == MessageTimes(5)
    # A task that reads the gap alone reads no row of the follower's.
    assert past.limits({0: 0}, {0: 15}, end={0: 10}).times == MessageTimes(7)


def test_what_was_published_since_is_nobodys_to_take_again(past: PastOfOne) -> None:
    lost, instead = (
        past.task({0: 10}, MessageTimes(5)),
        past.task({0: 10}, MessageTimes(5), {0: 15}, token="u"),
    )
    past.ended((past.task({0: 0}, past.fresh), "SUCCESS"))
    past.ended((lost, "FAILED"))
    past.ended((instead, "SUCCESS"))
    # After a reset to the earliest.
    assert past.limits({0: 0}, {0: 40}).times == past.fresh


def test_how_far_a_lost_task_may_have_read_is_told_by_a_look_that_began_later() -> None:
    looks: list[Callable[[SeenTopic], object]] = []
    calls = SimpleNamespace(call=lambda _lane, _what, done, _failed: looks.append(done))
    source = SimpleNamespace(available=None)
    stream = StreamWatch(source, "hold", cast("CallDispatcher", calls), "lane")

    def look() -> None:
        stream.poll(lambda: None, lambda _error: None)

    assert not stream.is_newer_than_losses
    look()
    stream.note_loss()
    looks.pop()(SeenTopic("id", {}))
    assert not stream.is_newer_than_losses
    look()
    looks.pop()(SeenTopic("id", {}))
    assert stream.is_newer_than_losses


def test_groups_that_start_together_read_the_past_once(past: PastOfOne) -> None:
    done = [past.task({p: 0}, MessageTimes(p)) for p in range(250)]
    past.ended(*((task, "FAILED" if p == 7 else "SUCCESS") for p, task in enumerate(done)))
    shared = PastTasks(cast("SupervisorState", past.state))
    # The last one never had a task: all there are is looked through for it.
    found = [
        limits_of(cast("SupervisorState", past.state), StartPlan(0, {p: 0}), shared, {p: 3}).times
        for p in [7, *range(249), 1_000]
    ]
    assert found[0] == MessageTimes(7)
    assert {found[at] for at in (1, 100, -1)} == {past.fresh}
    assert sum(past.asked) == 250
    assert len(past.asked) <= 4
