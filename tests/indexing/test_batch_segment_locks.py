"""Batch tasks that lock single segments: what they write, who runs beside them, what kills cost."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures._base import Future
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from penstock.core.intervals import Interval
from penstock.indexing.lockbox.task_locks import LockOutcome, LockRequest
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.ports import TaskState
from penstock.indexing.task_spec import TaskSpec
from tests.indexing.batch_kit import START_MS, BatchWorld, Cut, day, index, lines

SEGMENTS = {"forceTimeChunkLock": False}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    made = BatchWorld(tmp_path)
    yield made
    made.close()


def compact(
    *days: int, ids: Sequence[str] | tuple[object, ...] = (), **more: JsonValue
) -> dict[str, Any]:
    given = (
        {"type": "segments", "segments": list(ids)}
        if ids
        else {"type": "interval", "interval": day(*days)}
    )
    return {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {"type": "compact", "inputSpec": given},
        "context": {**SEGMENTS, **cast("dict[str, JsonValue]", more.pop("context", {}))},
        **more,
    }


def put(data: str, mode: str, **context: int) -> dict[str, Any]:
    return index(data, mode=mode, context={**SEGMENTS, **context})


def numbers(world: BatchWorld) -> list[int]:
    return [one.shard_spec.partition_number for one in world.visible()]


def locks(world: BatchWorld, spec: TaskSpec) -> set[tuple[str, int | None]]:
    held = world.lockboxes.locks_of(lock_task(spec)).result()
    return {(str(one.lock.type), one.lock.partition_number) for one in held}


def stop_before(world: BatchWorld, spec: TaskSpec, kind: str) -> None:
    """Run a task until it is about to ask for something, and let its process die there."""

    def cut(what: str) -> None:
        if what == f"before {kind}":
            raise Cut

    world.at = cut
    with contextlib.suppress(Cut):
        world.make(spec).run()
    world.at = lambda _what: None


def finish(world: BatchWorld, spec: TaskSpec) -> TaskState:
    state = world.make(spec).run().state
    world.end(spec)
    return state


def test_two_appends_to_a_day_run_beside_each_other(world: BatchWorld) -> None:
    first = world.add(put(lines((1, "x", 1)), "append"))
    second = world.add(put(lines((1, "y", 2)), "append"))
    stop_before(world, first, "segmentTransactionalInsert")
    assert locks(world, first) == {("EXCLUSIVE", 0)}
    assert finish(world, second) is TaskState.SUCCESS
    assert finish(world, first) is TaskState.SUCCESS
    assert world.rows() == [(1, "x", 1), (1, "y", 2)]
    assert numbers(world) == [0, 1]
    assert len({one.version for one in world.visible()}) == 1


@pytest.mark.parametrize("kind", ["overwrite", "compact"])
def test_an_append_beside_a_rewrite_stays(world: BatchWorld, kind: str) -> None:
    for n in range(3):
        world.run(put(lines((1, "x", n)), "append"))
    version = world.visible()[0].version
    spec = world.add(put(lines((1, "z", 9)), "legacy") if kind == "overwrite" else compact(1))
    stop_before(world, spec, "segmentTransactionalInsert")
    assert world.run(put(lines((1, "y", 5)), "append")).state is TaskState.SUCCESS
    assert locks(world, spec) == {("EXCLUSIVE", n) for n in (0, 1, 2, 32_768)}
    assert finish(world, spec) is TaskState.SUCCESS
    old = [(1, "z", 9)] if kind == "overwrite" else [(1, "x", n) for n in range(3)]
    assert world.rows() == sorted([*old, (1, "y", 5)])
    assert numbers(world) == [3, 32_768]
    assert {one.version for one in world.visible()} == {version}
    # And once more, with all of it.
    assert world.run(compact(1)).state is TaskState.SUCCESS
    assert numbers(world) == [32_769]
    assert world.visible()[0].shard_spec.minor_version == 2
    assert world.rows() == sorted([*old, (1, "y", 5)])


def test_an_append_beside_a_compaction_of_days_of_a_zone_stays(world: BatchWorld) -> None:
    zoned = {"type": "period", "period": "P1D", "timeZone": "America/New_York"}

    def put_zoned(n: int) -> None:
        data = lines((1, "x", n), (2, "x", n))
        given = {"segmentGranularity": zoned}
        result = world.run(index(data, mode="append", context=SEGMENTS, granularity=given))
        assert result.state is TaskState.SUCCESS

    put_zoned(0)
    put_zoned(1)
    spec = world.add(compact(0, 3))
    stop_before(world, spec, "segmentTransactionalInsert")
    put_zoned(2)
    assert finish(world, spec) is TaskState.SUCCESS
    assert numbers(world) == [2, 32_768] * 2
    assert world.rows() == sorted((d, "x", n) for d in (1, 2) for n in range(3))


def test_compactions_of_other_segments_of_a_day_run_beside_each_other(world: BatchWorld) -> None:
    for n in range(4):
        world.run(put(lines((1, "x", n)), "append"))
    ids = [str(one.id) for one in world.visible()]
    first = world.add(compact(ids=ids[:2]))
    stop_before(world, first, "segmentTransactionalInsert")
    assert world.run(compact(ids=ids[2:])).state is TaskState.SUCCESS
    assert finish(world, first) is TaskState.SUCCESS
    assert world.rows() == [(1, "x", n) for n in range(4)]
    assert numbers(world) == [32_768, 32_769]


def test_two_overwrites_of_a_day_come_one_after_the_other(world: BatchWorld) -> None:
    world.run(put(lines((1, "x", 1)), "append"))
    first = world.add(put(lines((1, "y", 2)), "legacy"))
    stop_before(world, first, "segmentTransactionalInsert")
    refused = world.run(put(lines((1, "z", 3)), "legacy", taskLockTimeout=5_000))
    assert refused.state is TaskState.FAILED
    assert "segment partition 0" in refused.error
    assert finish(world, first) is TaskState.SUCCESS
    assert world.run(put(lines((1, "z", 3)), "legacy")).state is TaskState.SUCCESS
    assert world.rows() == [(1, "z", 3)]


def test_who_waited_for_a_rewrite_takes_what_it_made(world: BatchWorld) -> None:
    world.run(put(lines((1, "x", 1)), "append"))
    first = world.add(put(lines((1, "y", 2)), "legacy"))
    stop_before(world, first, "segmentTransactionalInsert")
    asked = []

    def ends_meanwhile(what: str) -> None:
        asked.append(what)
        if asked.count("after lockTryAcquire") == 1 and first.id in world.tasks:
            world.at = lambda _what: None
            assert finish(world, first) is TaskState.SUCCESS

    second = world.add(put(lines((1, "z", 3)), "legacy"))
    world.at = ends_meanwhile
    assert finish(world, second) is TaskState.SUCCESS
    assert world.rows() == [(1, "z", 3)]
    assert world.visible()[0].shard_spec.minor_version == 2


def test_a_day_without_segments_is_locked_whole(world: BatchWorld) -> None:
    world.run(put(lines((1, "x", 1)), "append"))
    spec = world.add(put(lines((1, "y", 2), (2, "y", 3)), "legacy", useConcurrentLocks=True))
    stop_before(world, spec, "segmentTransactionalInsert")
    assert locks(world, spec) == {("EXCLUSIVE", 0), ("EXCLUSIVE", 32_768), ("EXCLUSIVE", None)}
    other = put(lines((2, "z", 4)), "append", taskLockTimeout=5_000)
    assert world.run(other).state is TaskState.FAILED
    assert finish(world, spec) is TaskState.SUCCESS
    assert world.rows() == [(1, "y", 2), (2, "y", 3)]


@pytest.mark.parametrize(
    ("reason", "prepare", "more"),
    [
        ("granularity", [], {"granularity": {"segmentGranularity": "month"}}),
        ("root numbers", [1], {}),
        ("part of segment", [], {"granularity": {"segmentGranularity": "hour"}}),
    ],
)
def test_what_cannot_be_rewritten_is_locked_by_time(
    world: BatchWorld,
    caplog: pytest.LogCaptureFixture,
    reason: str,
    prepare: list[int],
    more: dict[str, Any],
) -> None:
    for n in range(3):
        world.run(put(lines((1, "x", n)), "append"))
    rows = world.visible()
    world.store.segments.mark_unused([str(rows[number].id) for number in prepare])
    with caplog.at_level(logging.INFO):
        if reason == "part of segment":
            # An hour of the day is newer than the rest of it.
            world.run(index(lines((1, "h", 7)), **more))
            result = world.run(put(lines((1, "z", 9)), "legacy"))
        else:
            result = world.run(index(lines((1, "z", 9)), context=SEGMENTS, **more))
    assert result.state is TaskState.SUCCESS
    assert world.rows() == [(1, "z", 9)]
    assert any(
        "locks time chunks" in one.getMessage() and reason in one.getMessage()
        for one in caplog.records
    )
    assert all(one.shard_spec.minor_version == 0 for one in world.visible())


def test_what_cannot_be_rewritten_any_more_is_locked_by_time(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n), (2, "x", n)), "append"))
    other = world.add(put(lines((1, "o", 7)), "append"))
    stop_before(world, other, "segmentTransactionalInsert")
    looks = 0

    def leave_a_gap(what: str) -> None:
        nonlocal looks
        looks += what == "before segmentListUsed"
        if looks == 2:  # The first locks are held.
            world.at = lambda _what: None
            world.run(put(lines((1, "y", 5)), "append"))
            world.end(other)

    world.at = leave_a_gap
    result = world.run(compact(1, 2, context={"taskLockTimeout": 5_000}))
    assert result.state is TaskState.SUCCESS, result
    assert world.rows() == [*((1, "x", n) for n in range(2)), (1, "y", 5), (2, "x", 0), (2, "x", 1)]
    assert numbers(world) == [0, 0]


def test_perfect_roll_up_and_replace_lock_time_chunks(world: BatchWorld) -> None:
    hashed = {"type": "index_parallel", "partitionsSpec": {"type": "hashed", "numShards": 1}}
    whole = world.add(
        index(lines((1, "x", 1)), intervals=[day(1)], tuning=hashed, context=SEGMENTS)
    )
    assert [wish.interval for wish in whole.lock_intents()] == [Interval.parse(day(1))]
    dropping = world.add(
        index(lines((1, "x", 1)), mode="replace", intervals=[day(1)], context=SEGMENTS)
    )
    assert dropping.lock_intents()
    assert not world.add(
        index(lines((1, "x", 1)), intervals=[day(1)], context=SEGMENTS)
    ).lock_intents()


def test_a_rewrite_whose_lock_was_taken_publishes_nothing(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n)), "append"))
    spec = world.add(compact(1))
    stop_before(world, spec, "segmentTransactionalInsert")
    taker = put(lines((1, "z", 9)), "legacy", priority=90)
    assert world.run(taker).state is TaskState.SUCCESS
    assert finish(world, spec) is TaskState.FAILED
    assert world.rows() == [(1, "z", 9)]


def test_locks_of_segments_outlive_an_overlord(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n)), "append"))
    spec = world.add(compact(1))
    stop_before(world, spec, "segmentTransactionalInsert")
    before = locks(world, spec)
    world.lead_again()
    assert locks(world, spec) == before
    other = put(lines((1, "z", 9)), "legacy", taskLockTimeout=5_000, priority=25)
    refused = world.run(other)
    assert refused.state is TaskState.FAILED
    assert finish(world, spec) is TaskState.SUCCESS
    assert world.rows() == [(1, "x", n) for n in range(2)]
    assert not world.store.segments.pending("d")


def test_marks_of_what_is_rewritten_refuse_it(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n)), "append"))
    spec = world.add(compact(1))
    stop_before(world, spec, "segmentTransactionalInsert")
    world.store.segments.mark_unused([str(world.visible()[0].id)])
    result = world.make(spec).run()
    assert "marked unused since" in result.error
    world.end(spec)
    assert world.rows() == [(1, "x", 1)]


@pytest.mark.parametrize("kind", ["append", "overwrite", "compact"])
@pytest.mark.parametrize("between", [False, True])
def test_a_task_that_dies_anywhere_goes_on_and_counts_once(
    world: BatchWorld, kind: str, between: bool
) -> None:
    steps: list[str] = []
    world.at = steps.append
    _prepare(world)
    steps.clear()
    _run_kind(world, kind)
    count = len(steps)
    assert count >= 6
    for cut_at in range(count):
        world.store.segments.mark_unused([row.id for row in world.store.segments.used("d")])
        world.clock.advance(1)
        world.at = lambda _what: None
        _prepare(world)
        spec = world.add(_kind(kind))
        seen = 0

        def cut(_what: str, cut_at: int = cut_at) -> None:
            nonlocal seen
            seen += 1
            if seen == cut_at + 1:
                raise Cut

        world.at = cut
        with contextlib.suppress(Cut):
            world.make(spec).run()
        world.at = lambda _what: None
        more = []
        if between:
            assert world.run(put(lines((1, "b", 8)), "append")).state is TaskState.SUCCESS
            more = [(1, "b", 8)]
        assert finish(world, spec) is TaskState.SUCCESS, (cut_at, steps[cut_at])
        found = world.rows()
        base = [(1, "x", 0), (1, "x", 1)]
        if kind == "append":
            expected = [sorted([*base, (1, "z", 9), *more])]
        elif kind == "compact":
            expected = [sorted([*base, *more])]
        else:  # What came between is older than the overwrite, or newer.
            expected = [[(1, "z", 9)], sorted([(1, "z", 9), *more])]
        assert found in expected, (cut_at, steps[cut_at])
        assert not world.store.segments.pending("d"), (cut_at, steps[cut_at])
        assert not world.store.locks.every()


def _prepare(world: BatchWorld) -> None:
    for n in range(2):
        assert world.run(put(lines((1, "x", n)), "append")).state is TaskState.SUCCESS


def _kind(kind: str) -> dict[str, Any]:
    return {
        "append": put(lines((1, "z", 9)), "append"),
        "overwrite": put(lines((1, "z", 9)), "legacy"),
        "compact": compact(1),
    }[kind]


def _run_kind(world: BatchWorld, kind: str) -> None:
    assert world.run(_kind(kind)).state is TaskState.SUCCESS


def test_a_datasource_is_rewritten_from_itself(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n)), "append"))
    value = put("", "legacy")
    parts = value["spec"]
    assert isinstance(parts, dict)
    parts["ioConfig"]["inputSource"] = {"type": "druid", "dataSource": "d", "interval": day(1)}
    del parts["ioConfig"]["inputFormat"]
    parts["dataSchema"]["timestampSpec"] = {"column": "__time", "format": "millis"}
    spec = world.add(value)
    stop_before(world, spec, "segmentTransactionalInsert")
    world.run(put(lines((1, "y", 5)), "append"))
    assert finish(world, spec) is TaskState.SUCCESS
    assert world.rows() == [(1, "x", 0), (1, "x", 1), (1, "y", 5)]


def test_what_comes_between_two_reads_of_a_day_stays(world: BatchWorld) -> None:
    """It has rows of both halves, and only the second is still to be read."""

    def hours(a: str) -> str:
        rows = [{"t": START_MS + h * 3_600_000, "a": a, "n": h} for h in (1, 20)]
        return "\n".join(map(json.dumps, rows))

    world.run(put(hours("x"), "append"))
    value = put("", "legacy")
    parts = value["spec"]
    assert isinstance(parts, dict)
    halves = ["2026-01-01T00:00Z/PT12H", "2026-01-01T12:00Z/PT12H"]
    parts["ioConfig"]["inputSource"] = {
        "type": "combining",
        "delegates": [{"type": "druid", "dataSource": "d", "interval": half} for half in halves],
    }
    del parts["ioConfig"]["inputFormat"]
    parts["dataSchema"]["timestampSpec"] = {"column": "__time", "format": "millis"}
    claims = 0

    def append(what: str) -> None:
        nonlocal claims
        claims += what == "before lockList"
        if claims == 2:
            world.at = lambda _what: None
            assert world.run(put(hours("y"), "append")).state is TaskState.SUCCESS

    spec = world.add(value)
    world.at = append
    assert finish(world, spec) is TaskState.SUCCESS
    assert world.rows() == [(1, a, h) for a in "xy" for h in (1, 20)]


@pytest.mark.parametrize("before", [1, 2])
def test_an_append_whose_day_is_replaced_before_it_has_its_lock_goes_beside_the_new(
    world: BatchWorld, before: int
) -> None:
    """Its place under the new version may have the number of the one that it had locked before.

    If it has another, that lock is given back: it is of no use.
    """
    for _ in range(before):
        world.run(put(lines((1, "x", 1)), "append"))
    acquire, held = world.lockboxes.acquire, []

    def look(what: str) -> None:
        if what == "before segmentTransactionalInsert":
            held.append(locks(world, spec))

    def too_late(requests: Sequence[LockRequest], **given: bool) -> Future[list[LockOutcome]]:
        if any(one.partition_number is not None for one in requests):
            world.lockboxes.acquire = acquire  # type: ignore[method-assign]
            assert world.run(index(lines((1, "new", 2)))).state is TaskState.SUCCESS
            world.at = look
        return acquire(requests, **given)

    spec = world.add(put(lines((1, "y", 3)), "append"))
    world.lockboxes.acquire = too_late  # type: ignore[method-assign]
    result = world.make(spec).run()
    assert result.state is TaskState.SUCCESS, result.error
    assert held == [{("EXCLUSIVE", 1)}]
    assert world.rows() == [(1, "new", 2), (1, "y", 3)]
    assert numbers(world) == [0, 1]


def test_an_append_whose_day_is_locked_before_it_has_its_lock_asks_again(world: BatchWorld) -> None:
    world.run(put(lines((1, "x", 1)), "append"))
    other, spec = (world.add(put(lines((1, a, 2)), "append")) for a in "oy")
    acquire, asked = world.lockboxes.acquire, []

    def too_late(requests: Sequence[LockRequest], **given: bool) -> Future[list[LockOutcome]]:
        if any(one.partition_number is not None for one in requests):
            world.lockboxes.acquire = acquire  # type: ignore[method-assign]
            acquire([lock_task(other).request(Interval.parse(day(1)))]).result()
        return acquire(requests, **given)

    def ends_meanwhile(what: str) -> None:
        asked.append(what)
        if asked.count("before segmentAllocate") == 2 and other.id in world.tasks:
            world.end(other)

    world.lockboxes.acquire, world.at = too_late, ends_meanwhile  # type: ignore[method-assign]
    result = world.make(spec).run()
    assert result.state is TaskState.SUCCESS, result.error
    assert asked.count("before segmentAllocate") == 2
    assert world.rows() == [(1, "x", 1), (1, "y", 2)]


def test_an_append_has_its_lock_on_the_version_that_it_goes_beside(world: BatchWorld) -> None:
    """Its day comes back into view while nobody leads: its place there has the same number."""
    world.run(put(lines((1, "x", 1)), "append"))
    world.store.segments.mark_unused_within("d", Interval.parse(day(1)))
    other, spec = (world.add(put(lines((1, a, 2)), "append")) for a in "yz")
    stop_before(world, other, "segmentTransactionalInsert")
    acquire = world.lockboxes.acquire

    def gone(requests: Sequence[LockRequest], **given: bool) -> None:
        acquire(requests, **given).result()
        raise Cut

    world.lockboxes.acquire = gone  # type: ignore[assignment,method-assign]
    with contextlib.suppress(Cut):
        world.make(spec).run()
    world.store.segments.mark_used([one.id for one in world.store.segments.every()])
    world.lead_again()
    stop_before(world, spec, "segmentTransactionalInsert")
    (held,) = world.lockboxes.locks_of(lock_task(spec)).result()
    assert finish(world, spec) is TaskState.SUCCESS
    assert {one.id.version for one in world.visible()} == {held.lock.version}
    assert numbers(world) == [0, 1]


def test_automatic_compaction_knows_what_was_rewritten(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n), (2, "x", n)), "append"))
    assert world.run(compact(1)).state is TaskState.SUCCESS
    assert world.run(compact(2, context={"forceTimeChunkLock": True})).state is TaskState.SUCCESS
    rewritten, replaced = world.visible()
    assert (rewritten.shard_spec.minor_version, replaced.shard_spec.minor_version) == (1, 0)
    assert rewritten.last_compaction_state is not None
    assert rewritten.last_compaction_state == replaced.last_compaction_state


def test_a_member_of_a_group_that_goes_brings_back_what_was_there(world: BatchWorld) -> None:
    for n in range(2):
        world.run(put(lines((1, "x", n)), "append"))
    world.run(put(lines((1, "z", 9)), "legacy"))
    world.store.segments.mark_unused([str(world.visible()[0].id)])
    assert world.rows() == [(1, "x", 0), (1, "x", 1)]
    # What is written next is newer than the group that is out of view.
    assert world.run(put(lines((1, "y", 5)), "legacy")).state is TaskState.SUCCESS
    assert world.visible()[0].shard_spec.minor_version == 2
    world.store.segments.mark_used_within("d")
    assert world.rows() == [(1, "y", 5)]
