"""Duties of the overlord: what retention drops, what automatic compaction submits."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.waits import WaitTable
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs, CompactionDuty
from penstock.indexing.overlord.compaction.planner import CompactionUnits
from penstock.indexing.overlord.duties.duty import DutyRounds, DutyTools
from penstock.indexing.overlord.duties.retention import RetentionDuty
from penstock.indexing.overlord.task_index import TaskIndex
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.compaction import parse_cluster_compaction, parse_compaction
from penstock.indexing.task_spec import TaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.storage.metadata import TaskRow
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import StepLanes, settle
from tests.indexing.batch_kit import DAY_MS, BatchWorld, day, index, lines, world_of

ROWS = [(1, "x", 1), (1, "y", 2), (2, "z", 3), (5, "new", 4)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    with world_of(tmp_path, ROWS) as made:
        yield made


# Retention


def test_the_first_rule_that_matches_wins(world: BatchWorld) -> None:
    """It is the 10th of February: the rows are 40 days old at most."""
    duty = RetentionDuty(world.store, world.clock)
    duty.run()
    assert world.rows() == ROWS  # without rules everything is kept
    world.store.rules.put(
        "d",
        [
            {"type": "loadByInterval", "interval": day(2)},
            {"type": "dropBeforeByPeriod", "period": "P37D"},
        ],
    )
    duty.run()
    assert world.rows() == ROWS[2:]
    world.store.rules.put("_default", [{"type": "dropForever"}])
    duty.run()
    assert world.rows() == [ROWS[2]]


def test_rules_that_cannot_be_read_drop_nothing(world: BatchWorld) -> None:
    world.store.rules.put("d", [{"type": "dropWhenever"}])
    world.store.rules.put("_default", [{"type": "dropForever"}])
    RetentionDuty(world.store, world.clock).run()
    assert world.rows() == ROWS


# Compaction


class Submitting:
    """The task queue, as duties see it: what is submitted is run when the test says."""

    def __init__(
        self, world: BatchWorld, slots: int = 10, task_context: Mapping[str, object] | None = None
    ) -> None:
        self.world = world
        self.slots = slots
        self.tasks: list[TaskSpec] = []
        self.index = TaskIndex()
        numbers = itertools.count()
        self.duty = CompactionDuty(
            DutyTools(
                world.store,
                world.lockboxes,
                self.index,
                self._submit,
                lambda: _done(self.slots),
                world.clock,
                lambda: str(next(numbers)),
                task_context or {},
            )
        )

    def _submit(self, task: TaskSpec) -> Future[None]:
        self.tasks.append(task)
        return _done(None)

    def run_all(self) -> list[str]:
        """Run what was submitted; return the intervals in order."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            result = self.world.run(task.to_json())
            self.world.store.tasks.insert_new(
                [TaskRow(task.id, task.datasource, task.type, task.id, task.to_json())]
            )
            self.world.store.tasks.set_status(task.id, result.state)
        return [str(task.interval) for task in tasks]  # type: ignore[attr-defined]


def _done(value: object) -> Future:  # type: ignore[type-arg]
    future: Future[object] = Future()
    future.set_result(value)
    return future


def configure(world: BatchWorld, **more: object) -> None:
    config = parse_compaction({"dataSource": "d", **more})  # type: ignore[dict-item]
    CompactionConfigs.change(
        world.store,
        lambda known: CompactionConfigs(
            {"d": config}, parse_cluster_compaction({"compactionTaskSlotRatio": 1})
        ),
    )


def fail(_moment: str) -> None:
    raise InvalidRequest("no")


def test_what_is_not_as_configured_is_compacted_once_the_newest_first(world: BatchWorld) -> None:
    submitting = Submitting(world)
    submitting.duty.run()
    assert submitting.tasks == []  # nothing is configured
    configure(world)
    submitting.duty.run()
    # The newest day of the data is left alone.
    assert submitting.run_all() == [day(2), day(1)]
    assert world.rows() == ROWS
    submitting.duty.run()
    assert submitting.tasks == []
    world.run(index(lines((2, "more", 5)), mode="append"))
    submitting.duty.run()
    assert submitting.run_all() == [day(2)]


def test_other_partitions_or_time_chunks_are_a_reason(world: BatchWorld) -> None:
    submitting = Submitting(world)
    configure(world)
    submitting.duty.run()
    submitting.run_all()
    configure(world, tuningConfig={"partitionsSpec": {"type": "hashed", "numShards": 2}})
    submitting.duty.run()
    assert submitting.run_all() == [day(2), day(1)]
    configure(
        world,
        granularitySpec={"segmentGranularity": "month"},
        skipOffsetFromLatest="PT1M",
    )
    submitting.duty.run()
    assert submitting.tasks == []  # the month is not over
    assert world.rows() == ROWS


@pytest.mark.parametrize(
    "wish",
    [
        {"metricsSpec": [{"type": "longSum", "name": "n", "fieldName": "n"}]},
        {
            "metricsSpec": [{"type": "longSum", "name": "n", "fieldName": "n"}],
            "dimensionsSpec": {"dimensions": ["a"]},
            "granularitySpec": {"rollup": True, "queryGranularity": "hour"},
        },
        {"dimensionsSpec": {"dimensions": ["a", {"type": "long", "name": "n"}]}},
        {"transformSpec": {"filter": {"type": "selector", "dimension": "a", "value": "x"}}},
        {"maxRowsPerSegment": 1_000, "skipOffsetFromLatest": "PT0S"},
    ],
)
def test_each_wish_is_done_once(world: BatchWorld, wish: dict[str, Any]) -> None:
    submitting = Submitting(world)
    configure(world)
    submitting.duty.run()
    submitting.run_all()
    configure(world, **wish)
    submitting.duty.run()
    submitting.run_all()
    submitting.duty.run()
    assert submitting.tasks == []
    plan = submitting.duty.plans(CompactionConfigs.read(world.store))["d"]
    assert plan.awaiting.intervals == 0


def test_a_filter_is_a_reason(world: BatchWorld) -> None:
    submitting = Submitting(world)
    configure(world)
    submitting.duty.run()
    submitting.run_all()
    keep = {"type": "selector", "dimension": "a", "value": "x"}
    configure(world, transformSpec={"filter": keep})
    submitting.duty.run()
    assert submitting.run_all() == [day(2), day(1)]


def test_no_more_than_the_slots_and_not_what_is_locked(world: BatchWorld) -> None:
    configure(world)
    submitting = Submitting(world, slots=1)
    submitting.duty.run()
    assert submitting.run_all() == [day(2)]
    locked = world.add(index(lines((1, "busy", 1)), intervals=[day(1)]))
    world.make(locked).run()
    submitting.duty.run()
    assert submitting.tasks == []


def test_what_is_too_large_is_skipped_and_the_rest_has_the_wanted_priority(
    world: BatchWorld,
) -> None:
    size = max(s.size for s in world.visible())
    world.run(index(lines(*((1, f"more{n}", n) for n in range(50))), mode="append"))
    null = {"priority": None}
    configure(world, inputSegmentSizeBytes=size, taskPriority=33, taskContext=null)
    submitting = Submitting(world)
    plan = submitting.duty.plans(CompactionConfigs.read(world.store))["d"]
    # The first day is too large, the newest too new.
    assert (plan.skipped.intervals, plan.awaiting.intervals) == (2, 1)
    assert plan.skipped.bytes > size
    submitting.duty.run()
    assert [task.priority for task in submitting.tasks] == [33]
    assert submitting.run_all() == [day(2)]


@pytest.mark.parametrize(
    ("context", "by_default", "due"),
    [
        ({"useConcurrentLocks": "true"}, False, [day(2), day(1)]),
        ({"useConcurrentLocks": "false"}, True, [day(2)]),
        ({"useConcurrentLocks": False}, True, [day(2)]),
        ({}, True, [day(2), day(1)]),
        ({"useConcurrentLocks": None}, True, [day(2), day(1)]),
        ({}, False, [day(2)]),
    ],
)
def test_concurrent_locks_may_be_wished_for_in_text_and_for_all_tasks(
    world: BatchWorld, context: dict[str, Any], by_default: bool, due: list[str]
) -> None:
    """Beside somebody who appends a compaction may run, if both have concurrent locks."""
    configure(world, taskContext=context)
    appends = {"useConcurrentLocks": True}
    task = world.add(index(lines((1, "a", 1)), mode="append", intervals=[day(1)], context=appends))
    world.make(task).run()
    submitting = Submitting(world, task_context={"useConcurrentLocks": by_default})
    plan = submitting.duty.plans(CompactionConfigs.read(world.store))["d"]
    assert [str(interval) for interval in plan.due] == due


def test_what_fails_is_left_alone_for_longer_each_time(world: BatchWorld) -> None:
    configure(world)
    submitting = Submitting(world)
    world.engine.at = fail
    rounds = []
    for _ in range(20):
        submitting.duty.run()
        rounds.append(bool(submitting.tasks))
        submitting.run_all()
    assert [number for number, tried in enumerate(rounds) if tried] == [0, 3, 8, 17]
    world.engine.at = lambda _moment: None
    for _ in range(20):
        submitting.duty.run()
        submitting.run_all()
    assert all(s.last_compaction_state for s in world.visible() if s.interval.end_ms < 5 * DAY_MS)
    assert TaskState.SUCCESS in {row.state for row in world.store.tasks.list()}


def kept() -> list[CompactionUnits]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, CompactionUnits)]


def test_nothing_is_kept_of_what_is_not_compacted_any_more(world: BatchWorld) -> None:
    """Else an overlord that sees many datasources come and go has more to hold with each."""
    before = kept()  # by tests that failed or are not collected yet
    configure(world)
    submitting = Submitting(world, slots=1)
    sound, world.engine.at = world.engine.at, fail
    submitting.duty.run()
    assert submitting.run_all() == [day(2)]
    submitting.duty.run()
    assert submitting.run_all() == [day(1)]
    CompactionConfigs.drop(world.store, ["d"])
    submitting.duty.run()
    assert not [one for one in kept() if all(one is not other for other in before)]
    world.engine.at = sound
    configure(world)
    submitting.duty.run()
    assert submitting.run_all() == [day(2)], "its failures are forgotten, too"


def test_who_only_asks_for_plans_keeps_nothing_of_what_is_gone_either(world: BatchWorld) -> None:
    before = kept()
    configure(world)
    duty = Submitting(world).duty
    assert duty.plans(CompactionConfigs.read(world.store), ["d"])["d"].due
    CompactionConfigs.drop(world.store, ["d"])
    assert duty.plans(CompactionConfigs.read(world.store), []) == {}
    assert not [one for one in kept() if all(one is not other for other in before)]


def test_a_failure_long_ago_counts_no_more(world: BatchWorld) -> None:
    configure(world)
    submitting = Submitting(world, slots=1)
    world.engine.at = fail

    def rounds_until_tried(interval: str) -> int:
        for number in range(1, 100):
            submitting.duty.run()
            if interval in submitting.run_all():
                return number
        raise AssertionError

    assert [rounds_until_tried(day(2)) for _ in range(3)] == [1, 3, 5]
    configure(world, skipOffsetFromLatest="P10D")
    for _ in range(100):
        submitting.duty.run()
    configure(world)
    assert [rounds_until_tried(day(2)) for _ in range(2)] == [1, 3]


def test_what_is_left_open_does_not_matter(world: BatchWorld) -> None:
    configure(world, skipOffsetFromLatest="PT1M", granularitySpec={"segmentGranularity": "day"})
    submitting = Submitting(world)
    submitting.duty.run()
    assert submitting.run_all() == [day(2), day(1)]
    configure(world, skipOffsetFromLatest="PT1M")
    submitting.duty.run()
    assert submitting.tasks == []
    plan = submitting.duty.plans(CompactionConfigs.read(world.store))["d"]
    assert (plan.compacted.intervals, plan.skipped.intervals, plan.awaiting.intervals) == (2, 1, 0)


# Rounds


class Failing:
    """A duty that fails while it is told to."""

    name, runs, fails = "failing", 0, True

    def __init__(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms

    def run(self) -> None:
        self.runs += 1
        if self.fails:
            raise Unavailable("nobody answers")


def test_a_round_that_failed_is_not_tried_again_after_the_term() -> None:
    clock, lanes, duty = VirtualClock(), StepLanes(), Failing(60_000)
    processor = MailboxProcessor(name="overlord", clock=clock)
    rounds = DutyRounds([duty], lanes, processor, WaitTable(clock))

    rounds.start()
    settle(processor, clock, 60, lanes)
    assert duty.runs == 1
    settle(processor, clock, 60, lanes)
    assert duty.runs == 2
    rounds.stop()
    settle(processor, clock, 3_600, lanes)
    assert duty.runs == 2


@pytest.mark.parametrize(("interval_ms", "again_s"), [(3_000, 30), (600_000, 600)])
def test_what_is_due_often_is_tried_again_soon(interval_ms: int, again_s: int) -> None:
    """However long nobody answered: who changed a rule waits for what follows from it."""
    clock, lanes, duty = VirtualClock(), StepLanes(), Failing(interval_ms)
    processor = MailboxProcessor(name="overlord", clock=clock)
    rounds = DutyRounds([duty], lanes, processor, WaitTable(clock))
    rounds.start()
    settle(processor, clock, interval_ms // 1_000, lanes)
    assert duty.runs == 1
    settle(processor, clock, min(interval_ms // 1_000, 60), lanes)
    assert duty.runs == 2
    settle(processor, clock, 3_600, lanes)
    assert duty.runs >= 3_600 // again_s
    duty.fails, failed = False, duty.runs
    settle(processor, clock, again_s, lanes)
    assert duty.runs > failed
    rounds.stop()


def test_a_failure_counts_though_it_could_not_be_read_at_once(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was forgotten, and the interval was tried again in the next round."""
    configure(world)
    submitting = Submitting(world, slots=1)
    world.engine.at = fail
    submitting.duty.run()
    assert submitting.run_all() == [day(2)]

    def unread(_task_id: str) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(world.store.tasks, "get", unread)
        with pytest.raises(MemoryError):
            submitting.duty.run()
    submitting.duty.run()
    assert submitting.run_all() == [day(1)], "the one that failed is left alone"
