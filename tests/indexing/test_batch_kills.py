"""Kill tasks: what is unused goes with its files, nothing else does, and a cut kill goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from penstock.core.errors import Unavailable
from penstock.core.intervals import Interval
from penstock.indexing.ports import TaskState
from penstock.indexing.task.task_folder import TaskFolder
from tests.indexing.batch_kit import ABC, BatchWorld, Cut, day, index, lines


def test_kill_deletes_unused_segments_and_their_files_alone(world: BatchWorld) -> None:
    world.run(index(lines(*ABC)))
    doomed = [str(s.id) for s in world.visible() if str(s.interval) == day(1)]
    before = world.files()
    world.store.segments.mark_unused(doomed)
    world.clock.advance(10)
    result = world.run({"type": "kill", "dataSource": "d", "interval": day(1, 5)})
    assert result.state is TaskState.SUCCESS, result.error
    assert world.store.segments.by_ids(doomed) == []
    assert len(world.files()) == len(before) - 1
    assert world.rows() == ABC[2:]


@pytest.mark.parametrize(
    ("context", "kind"), [({}, "EXCLUSIVE"), ({"useConcurrentLocks": True}, "REPLACE")]
)
def test_a_kill_holds_its_lock_until_the_last_file_is_gone(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, context: dict[str, Any], kind: str
) -> None:
    world.run(index(lines(*ABC)))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    seen: list[list[tuple[str, str]]] = []
    kill = world.deep_store.kill

    def noting(load_spec: Mapping[str, object]) -> None:
        held = world.lockboxes.locks("d").result()
        seen.append([(one.lock.type, str(one.lock.interval)) for one in held])
        kill(load_spec)

    monkeypatch.setattr(world.deep_store, "kill", noting)
    task = {"type": "kill", "dataSource": "d", "interval": day(1, 5), "context": context}
    assert world.run(task).state is TaskState.SUCCESS
    assert seen == [[(kind, str(Interval.parse(day(1, 5))))]] * len(seen)
    assert seen
    assert world.lockboxes.locks("d").result() == []


def test_kill_leaves_what_was_marked_later(world: BatchWorld) -> None:
    """Druid's maxUsedStatusLastUpdatedTime is the last moment that still counts."""
    world.run(index(lines(*ABC)))
    segments = {str(s.interval): str(s.id) for s in world.visible()}
    world.store.segments.mark_unused([segments[day(1)]])
    marked_ms = world.clock.now_ms()
    world.clock.advance(ms=1)
    world.store.segments.mark_unused([segments[day(2)]])
    world.clock.advance(10)
    for earlier_ms, left in ((1, 2), (0, 1)):
        task = {"type": "kill", "dataSource": "d", "interval": day(1, 5)}
        last = str(Interval(marked_ms - earlier_ms, marked_ms + 1)).partition("/")[0]
        result = world.run({**task, "maxUsedStatusLastUpdatedTime": last})
        assert result.state is TaskState.SUCCESS, result.error
        assert len(world.store.segments.every()) == left


def test_kill_keeps_to_the_versions_that_it_names(world: BatchWorld) -> None:
    world.run(index(lines((1, "x", 1))))
    (old,) = world.visible()
    world.run(index(lines((1, "y", 2))))
    (new,) = world.visible()
    world.store.segments.mark_unused([str(old.id), str(new.id)])
    world.clock.advance(10)
    task = {"type": "kill", "dataSource": "d", "interval": day(1)}
    result = world.run({**task, "versions": [old.version, "1999-01-01T00:00:00.000Z"]})
    assert result.state is TaskState.SUCCESS, result.error
    assert [row.id for row in world.store.segments.every()] == [str(new.id)]


def test_kill_keeps_to_its_limit(world: BatchWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.run(index(lines(*ABC)))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    task = world.add(
        {"type": "kill", "dataSource": "d", "interval": day(1, 5), "limit": 1, "batchSize": 1}
    )
    kill = world.make(task)
    caplog.set_level("INFO")
    assert kill.run().state is TaskState.SUCCESS
    assert kill.report().more == {"segmentsKilled": 1, "filesDeleted": 1}
    assert f"task {task.id}: 1 segment removed, and 1 file of them" in caplog.messages


@pytest.mark.parametrize(("limit", "times"), [(None, 1), (None, 2), (1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("cut_at", ["before segmentNuke", "after segmentNuke"])
def test_a_kill_that_is_started_again_removes_what_it_is_to_and_tells_all_of_it(
    world: BatchWorld, limit: int | None, times: int, cut_at: str
) -> None:
    """Whether what was under way when its process died had been done or not."""
    world.run(index(lines(*ABC, (3, "c", 3))))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)
    kill = {"type": "kill", "dataSource": "d", "interval": day(1, 5), "batchSize": 1}
    spec = world.add(kill if limit is None else {**kill, "limit": limit})
    asked: list[str] = []

    def cut(kind: str) -> None:
        asked.append(kind)
        if asked.count(cut_at) == times:
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(spec).run()
    world.at = lambda _kind: None
    task = world.make(spec)
    assert task.run().state is TaskState.SUCCESS
    removed = 3 if limit is None else limit
    # A file whose row went when the process died is the janitor's.
    files = removed if cut_at.startswith("before") else removed - 1
    assert task.report().more == {"segmentsKilled": removed, "filesDeleted": files}
    assert len(world.store.segments.every()) == 3 - removed


def test_a_kill_frees_a_disk_that_is_full(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it keeps of its count has no room: that must not end what makes room."""
    world.run(index(lines(*ABC)))
    world.store.segments.mark_unused([str(s.id) for s in world.visible()])
    world.clock.advance(10)

    def full(*_given: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(TaskFolder, "write_json", full)
    result = world.run({"type": "kill", "dataSource": "d", "interval": day(1, 5)})
    assert result.state is TaskState.SUCCESS, result.error
    assert world.files() == set()
    assert (
        "after a restart, this kill will report fewer segments: the disk is full" in caplog.messages
    )
