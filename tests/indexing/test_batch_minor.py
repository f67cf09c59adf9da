"""Minor compaction: some segments are written anew, and the others stay by the same files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.core.errors import Conflict
from penstock.core.intervals import ETERNITY, Interval
from penstock.indexing.actions import MarkSegmentsToUpgrade
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.errors import SpecError
from penstock.segments.segment import Segment
from tests.harness import engine_kit
from tests.indexing.batch_kit import BatchWorld, Cut, day, index, lines, world_of

CONCURRENT = {"useConcurrentLocks": True}
ROWS = [(1, "x", 1), (1, "y", 2), (1, "z", 3), (2, "other", 4)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[BatchWorld]:
    with world_of(tmp_path, ROWS) as made:
        yield made


def minor(chosen: Iterable[Segment], interval: str = day(1, 2), **more: object) -> dict[str, Any]:
    given = [
        {"itvl": str(one.interval), "ver": one.version, "part": one.shard_spec.partition_number}
        for one in chosen
    ]
    return {
        "type": "compact",
        "dataSource": "d",
        "ioConfig": {
            "type": "compact",
            "inputSpec": {"type": "minor", "interval": interval, "segments": given},
            "dropExisting": True,
        },
        "context": CONCURRENT,
        **more,
    }


def of_day(world: BatchWorld, number: int) -> list[Segment]:
    return [one for one in world.visible() if str(one.interval) == day(number)]


def paths(segments: Iterable[Segment]) -> set[str]:
    return {str(one.load_spec["path"]) for one in segments}


def test_the_named_ones_become_one_and_the_others_keep_their_files(world: BatchWorld) -> None:
    first, second, third = of_day(world, 1)
    other_day = of_day(world, 2)
    assert world.run(minor([first, second])).state is TaskState.SUCCESS
    assert world.rows() == ROWS
    now = of_day(world, 1)
    assert len(now) == 2
    assert paths(now) & paths([first, second, third]) == paths([third])
    assert len({one.version for one in now}) == 1
    # Seen together or not at all.
    assert {one.shard_spec.core_partitions for one in now} == {2}
    assert of_day(world, 2) == other_day
    assert world.lockboxes.locks("d").result() == []


def test_what_is_left_of_it_is_no_reason_to_delete_files_that_are_shared(world: BatchWorld) -> None:
    first, second, third = of_day(world, 1)
    world.run(minor([first, second]))
    visible = {str(one.id) for one in world.visible()}
    world.store.segments.mark_unused(
        [row.id for row in world.store.segments.used("d") if row.id not in visible]
    )
    world.run({"type": "kill", "dataSource": "d", "interval": day(1, 2)})
    assert world.rows() == ROWS
    files = world.files()
    place = world.deep_store.location
    assert place(third.load_spec) in files
    assert not {place(one.load_spec) for one in (first, second)} & files
    assert all(row.used for row in world.store.segments.every())


def test_it_may_be_done_again_and_again(world: BatchWorld) -> None:
    for _ in range(3):
        assert world.run(minor(of_day(world, 1)[:1])).state is TaskState.SUCCESS
        assert world.rows() == ROWS
    world.run(index(lines((1, "more", 9)), mode="append"))
    assert world.run(minor(of_day(world, 1)[1:3])).state is TaskState.SUCCESS
    assert world.rows() == sorted([*ROWS, (1, "more", 9)])


def test_a_coarser_granularity_takes_all_of_its_chunks_along(world: BatchWorld) -> None:
    (second,) = of_day(world, 2)
    month = str(Interval.parse("2026-01-01/P1M"))
    task = minor([second], month, granularitySpec={"segmentGranularity": "month"})
    assert world.run(task).state is TaskState.SUCCESS
    assert world.rows() == ROWS
    assert {str(one.interval) for one in world.visible()} == {month}
    assert len(world.visible()) == 4


def test_rows_that_are_filtered_out_go_and_the_others_stay(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _, _ = of_day(world, 1)
    monkeypatch.setattr(engine_kit, "_wanted", lambda _row, _request: False)
    result = world.run(minor([first]))
    assert result.state is TaskState.SUCCESS
    assert world.rows() == ROWS[1:]


def test_what_is_appended_meanwhile_stays_too(world: BatchWorld) -> None:
    appended = index(lines((1, "meanwhile", 7)), mode="append", context=CONCURRENT)

    def append(_moment: str) -> None:
        world.engine.at = lambda _moment: None
        world.run(appended)

    world.engine.at = append
    assert world.run(minor(of_day(world, 1)[:2])).state is TaskState.SUCCESS
    assert world.rows() == sorted([*ROWS, (1, "meanwhile", 7)])
    assert len(of_day(world, 1)) == 3


@pytest.mark.parametrize("chosen", [True, False])
def test_what_is_marked_meanwhile_stays_as_it_was_marked(world: BatchWorld, chosen: bool) -> None:
    first, second, third = of_day(world, 1)
    gone = second if chosen else third

    def mark(_moment: str) -> None:
        world.engine.at = lambda _moment: None
        world.store.segments.mark_unused([str(gone.id)])

    world.engine.at = mark
    result = world.run(minor([first, second]))
    assert result.state is (TaskState.FAILED if chosen else TaskState.SUCCESS)
    assert ("was marked unused" in result.error) is chosen
    assert world.rows() == [row for row in ROWS if row != (ROWS[1] if chosen else ROWS[2])]


@pytest.mark.parametrize(
    "moment",
    [
        "before markSegmentsToUpgrade",
        "after markSegmentsToUpgrade",
        "before segmentTransactionalReplace",
        "after segmentTransactionalReplace",
    ],
)
def test_a_cut_anywhere_changes_nothing_or_all(world: BatchWorld, moment: str) -> None:
    task = world.add(minor(of_day(world, 1)[:2]))

    def cut(at: str) -> None:
        if at == moment:
            world.at = lambda _kind: None
            raise Cut

    world.at = cut
    with pytest.raises(Cut):
        world.make(task).run()
    assert world.rows() == ROWS
    assert world.make(task).run().state is TaskState.SUCCESS
    assert world.rows() == ROWS
    assert len(of_day(world, 1)) == 2
    world.end(task)
    assert world.store.locks.every() == {}


@pytest.mark.parametrize("chosen", [0, -1])
def test_segments_that_were_rewritten_under_locks_of_their_own_go_or_stay(
    world: BatchWorld, chosen: int
) -> None:
    by_segment = {"forceTimeChunkLock": False}
    given = {"type": "interval", "interval": day(1)}
    rewrite = {"type": "compact", "dataSource": "d", "context": by_segment}
    world.run({**rewrite, "ioConfig": {"type": "compact", "inputSpec": given}})
    world.run(index(lines((1, "after", 5)), mode="append", context=by_segment))
    one = of_day(world, 1)[chosen]
    assert world.run(minor([one])).state is TaskState.SUCCESS
    assert world.rows() == sorted([*ROWS, (1, "after", 5)])
    assert len(of_day(world, 1)) == 2


def test_an_id_that_was_killed_comes_again_with_a_file_of_its_own(world: BatchWorld) -> None:
    """Rewrites may get the number of a killed one, whose file may yet be deleted, or be shared."""
    given = {"type": "interval", "interval": day(1)}
    rewrite = {
        "type": "compact",
        "dataSource": "d",
        "context": {"forceTimeChunkLock": False},
        "ioConfig": {"type": "compact", "inputSpec": given},
    }
    segments = world.store.segments
    world.run(rewrite)
    (first,) = of_day(world, 1)
    # Kept beside another one, so that two rows name its file; and then only the copy does.
    world.run(index(lines((1, "after", 5)), mode="append", context=rewrite["context"]))
    added = of_day(world, 1)[0]
    world.run(minor([added]))
    rows = world.rows()
    copies = of_day(world, 1)
    assert paths([first]) < paths(copies)
    segments.mark_unused([str(first.id)])
    assert segments.kill([str(first.id)]).files_free == ()
    # What it had rewritten is back, and is rewritten under the same id again.
    segments.mark_unused([str(one.id) for one in copies])
    segments.mark_unused([str(added.id)])
    world.run(rewrite)
    (second,) = of_day(world, 1)
    assert (second.id, paths([second]) & paths(copies)) == (first.id, set())
    free = segments.kill([str(one.id) for one in copies]).files_free
    freed = [Segment.from_row(row) for row in free]
    assert not paths(freed) & paths([second])
    for segment in freed:
        world.deep_store.kill(segment.load_spec)
    assert world.rows() == [row for row in rows if row[1] != "after"]
    # The file that the two had shared is nobody's any more: the janitor finds it.
    known = [Segment.from_row(row).load_spec for row in segments.every()]
    orphans = world.deep_store.list_orphans(known, modified_before_ms=1 << 60)
    assert paths([first]) <= {str(one["path"]) for one in orphans}


def test_a_segment_partly_hidden_cannot_stay(world: BatchWorld) -> None:
    hour = str(Interval.parse("2026-01-01T00:00:00Z/PT1H"))
    newer = index(
        lines((1, "new", 5)), intervals=[hour], granularity={"segmentGranularity": "hour"}
    )
    assert world.run(newer).state is TaskState.SUCCESS
    rows = world.rows()
    day_segments = of_day(world, 1)
    result = world.run(minor(day_segments[:1]))
    assert result.state is TaskState.FAILED
    assert "hide a part of it" in result.error
    assert world.rows() == rows
    # The hour goes into the day as it is, and its old rows stay hidden.
    assert world.run(minor(dict.fromkeys(day_segments))).state is TaskState.SUCCESS
    assert world.rows() == rows
    assert {str(one.interval) for one in world.visible()} == {day(1), day(2)}


def test_a_finer_granularity_must_not_cut_what_stays(world: BatchWorld) -> None:
    task = minor(of_day(world, 1)[:1], granularitySpec={"segmentGranularity": "hour"})
    result = world.run(task)
    assert result.state is TaskState.FAILED
    assert "coarser segmentGranularity" in result.error
    task = minor(of_day(world, 1), granularitySpec={"segmentGranularity": "hour"})
    assert world.run(task).state is TaskState.SUCCESS
    assert world.rows() == ROWS


def test_a_segment_that_is_not_visible_is_refused(world: BatchWorld) -> None:
    chosen = of_day(world, 1)[:1]
    world.store.segments.mark_unused_within("d", ETERNITY)
    result = world.run(minor(chosen))
    assert result.state is TaskState.FAILED
    assert "is not visible" in result.error


def test_it_needs_a_replace_lock(world: BatchWorld) -> None:
    result = world.run(minor(of_day(world, 1)[:1], context={}))
    assert result.state is TaskState.FAILED
    assert "useConcurrentLocks" in result.error
    assert world.rows() == ROWS


def test_the_action_wants_a_replace_lock_around_used_segments(world: BatchWorld) -> None:
    task = world.add(minor(of_day(world, 1)[:1]))
    ids = [str(one.id) for one in of_day(world, 1)]

    def ask(*names: str) -> object:
        return world.handler.perform(task.id, MarkSegmentsToUpgrade(names).to_json())

    with pytest.raises(Conflict, match="no lock"):
        ask(*ids)
    world.handler.perform(
        task.id, {"type": "lockTryAcquire", "intervals": [day(1)], "appends": False}
    )
    assert ask(*ids) == 3
    assert ask(*ids) == 3
    with pytest.raises(Conflict, match="no longer used"):
        ask("d_unknown")
    world.store.segments.mark_unused(ids[:1])
    with pytest.raises(Conflict, match="no longer used"):
        ask(*ids)
    exclusive = world.add(index(lines((2, "e", 1)), intervals=[day(2)]))
    world.handler.perform(
        exclusive.id, {"type": "lockTryAcquire", "intervals": [day(2)], "appends": False}
    )
    name = str(of_day(world, 2)[0].id)
    with pytest.raises(Conflict, match="no REPLACE lock"):
        world.handler.perform(exclusive.id, MarkSegmentsToUpgrade((name,)).to_json())


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"dropExisting": False}, "ioConfig.dropExisting"),
        ({"segments": []}, "ioConfig.inputSpec.segments"),
        (
            {"segments": [{"itvl": day(9), "ver": "v", "part": 0}]},
            "ioConfig.inputSpec.segments[0].itvl",
        ),
        (
            {"segments": [{"itvl": day(1), "ver": "v", "part": -1}]},
            "ioConfig.inputSpec.segments[0].part",
        ),
        ({"segments": ["d_1"]}, "ioConfig.inputSpec.segments[0]"),
    ],
)
def test_wrong_specs_are_refused_with_their_place(
    world: BatchWorld, changes: dict[str, Any], place: str
) -> None:
    task = minor(of_day(world, 1)[:1])
    io = task["ioConfig"]
    assert isinstance(io, dict)
    for name, value in changes.items():
        (io if name in io else io["inputSpec"])[name] = value
    with pytest.raises(SpecError) as caught:
        world.add(task)
    assert place in {one.place for one in caught.value.mistakes}
