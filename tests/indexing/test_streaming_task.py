"""Stories of one streaming task: it is fed, asked, killed, and its rows are there once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.indexing.ports import TaskPhase, TaskState
from penstock.indexing.task.commit_file import CommitFile
from penstock.indexing.task.streaming_state import TaskOptions
from tests.indexing.indexing_kit import DAY_MS, START_MS, OneTask, event, make_spec


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OneTask]:
    made = OneTask(tmp_path)
    yield made
    made.metadata.close()


def feed(world: OneTask, count: int, *, start: int = 0) -> None:
    for n in range(start, start + count):
        world.broker.add("flights", n % 2, [event(n)])


def shown(world: OneTask, count: int) -> None:
    world.run(lambda: len(world.announced()) == count)


def finish(world: OneTask, *, succeed: bool = True) -> dict[int, int]:
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: world.task.result.state is not TaskState.RUNNING)
    assert (world.task.result.state is TaskState.SUCCESS) == succeed, world.task.result
    return offsets


def restart(world: OneTask) -> None:
    world.kill()
    world.start()


def test_rows_are_shown_soon_and_published_at_the_end(world: OneTask) -> None:
    feed(world, 10)
    shown(world, 10)
    assert world.published() == []
    assert finish(world) == {0: 5, 1: 5}
    assert world.published() == list(range(10))
    assert world.announced() == []
    assert world.metadata.offsets("flights") == {0: 5, 1: 5}
    assert world.metadata.counts("flights").processed == 10


def test_what_came_while_one_batch_was_persisted_is_the_next(world: OneTask) -> None:
    feed(world, 2)
    world.run(lambda: "persist" in world.lanes.waiting())
    feed(world, 6, start=2)
    shown(world, 8)
    assert [sum(r.end - r.start for r in p.ranges) for p in world.engine.persists] == [2, 6]


def test_a_backlog_is_read_in_large_batches_within_the_limit(tmp_path: Path) -> None:
    world = OneTask(tmp_path)
    world.spec = world.spec.model_copy(
        update={
            "tuning_config": world.spec.tuning_config.model_copy(
                update={"max_rows_per_persist": 40}
            )
        }
    )
    restart(world)
    feed(world, 100)
    shown(world, 100)
    assert [sum(r.end - r.start for r in p.ranges) for p in world.engine.persists] == [40, 40, 20]
    world.metadata.close()


def test_a_batch_has_no_more_bytes_than_the_spec_says(tmp_path: Path) -> None:
    tuning = make_spec({"maxBytesPerPersist": 2048}).tuning
    world = OneTask(tmp_path, tuning_config=tuning)
    world.broker.message_bytes = 100
    feed(world, 50)
    shown(world, 50)
    assert [sum(r.end - r.start for r in p.ranges) for p in world.engine.persists] == [20, 20, 10]
    world.metadata.close()


def test_a_finished_empty_task_publishes_nothing(world: OneTask) -> None:
    assert finish(world) == {0: 0, 1: 0}
    assert world.published() == []


def test_a_sequence_is_published_while_reading_goes_on(world: OneTask) -> None:
    feed(world, 10)
    shown(world, 10)
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=False))
    feed(world, 6, start=10)
    world.run(lambda: len(world.published()) == 10 and len(world.announced()) == 6)
    assert world.metadata.offsets("flights") == {0: 5, 1: 5}
    finish(world)
    assert world.published() == list(range(16))


# control


def test_a_pause_counts_what_is_being_persisted_as_read(world: OneTask) -> None:
    feed(world, 4)
    world.run(lambda: "persist" in world.lanes.waiting())
    feed(world, 4, start=4)
    assert world.ask(world.task.pause()) == {0: 2, 1: 2}
    assert world.report().phase is TaskPhase.PAUSED
    assert world.report().persisted == {0: 0, 1: 0}
    world.ask(world.task.set_end_offsets({0: 2, 1: 2}, finish=True))
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert world.published() == [0, 1, 2, 3]


def test_a_pause_ends_by_itself(world: OneTask) -> None:
    world.ask(world.task.pause())
    feed(world, 4)
    before_s = world.clock.monotonic_s()
    shown(world, 4)
    assert world.clock.monotonic_s() - before_s == pytest.approx(60)
    assert world.report().phase is TaskPhase.READING


def test_resuming_ends_a_pause_at_once(world: OneTask) -> None:
    world.ask(world.task.pause())
    feed(world, 4)
    world.ask(world.task.resume())
    shown(world, 4)
    assert world.clock.monotonic_s() < 1


def test_end_offsets_need_a_pause_and_are_not_moved(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    with pytest.raises(InvalidRequest, match="pause the task"):
        world.ask(world.task.set_end_offsets({0: 2, 1: 2}, finish=True))
    world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets({0: 2, 1: 2}, finish=True))
    with pytest.raises(Conflict, match="agreed already"):
        world.ask(world.task.pause())
    assert world.report().end == {0: 2, 1: 2}


def test_a_full_sequence_asks_for_a_checkpoint_until_it_is_closed(tmp_path: Path) -> None:
    world = OneTask(tmp_path, options=TaskOptions(checkpoint_repeat_ms=1_000))
    world.spec = world.spec.model_copy(
        update={"tuning_config": world.spec.tuning_config.model_copy(update={"max_total_rows": 5})}
    )
    restart(world)
    feed(world, 4)
    shown(world, 4)
    assert world.notices.checkpoints == []
    feed(world, 2, start=4)
    world.run(lambda: len(world.notices.checkpoints) == 1)
    assert world.notices.checkpoints == [("task-1", {0: 0, 1: 0})]
    world.clock.advance(2)
    feed(world, 2, start=6)
    world.run(lambda: len(world.notices.checkpoints) == 2)
    world.metadata.close()


# trouble


def test_an_engine_that_is_lost_is_asked_again_into_new_folders(world: OneTask) -> None:
    outages = iter([EngineUnavailable("no"), None, EngineUnavailable("lost"), None, None])

    def at(moment: str) -> None:
        error = next(outages, None) if "persist" in moment else None
        if error:
            raise error

    world.engine.at = at
    feed(world, 4)
    world.run(lambda: bool(world.report().error))
    assert "persisting: no" in world.report().error
    shown(world, 4)
    assert world.report().error == ""
    finish(world)
    assert world.published() == [0, 1, 2, 3]


def test_a_request_that_fails_for_good_ends_the_task(world: OneTask) -> None:
    def at(_moment: str) -> None:
        raise EngineFailure("the expression 'x +' does not parse")

    world.engine.at = at
    feed(world, 2)
    world.run(lambda: world.task.result.state is TaskState.FAILED)
    assert "does not parse" in world.task.result.error


def test_messages_that_are_not_kept_any_more_end_the_task(world: OneTask) -> None:
    feed(world, 10)
    world.broker.earliest["flights", 1] = 3
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert "no longer stored from offset 0 on, only from 3" in world.report().error
    assert world.metadata.offsets("flights") == {0: 0, 1: 0}


def test_a_broker_that_is_down_is_waited_for(world: OneTask) -> None:
    world.broker.down = True
    feed(world, 4)
    world.run(lambda: "asking the broker" in world.report().error)
    world.broker.down = False
    shown(world, 4)


def test_a_task_that_the_overlord_counts_as_ended_gives_up(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    world.active = False
    finish(world, succeed=False)
    assert "not active" in world.task.result.error
    assert world.published() == []


def test_an_earlier_sequence_is_waited_for(world: OneTask) -> None:
    """Start is ahead of what is committed: retried until the other has published."""
    world.metadata.reset_offsets("flights", {0: 0, 1: 0})
    world.spec = world.spec.model_copy(
        update={"start_offsets": {0: 2, 1: 2}, "base_sequence_name": "later", "id": "task-2"}
    )
    world.actions.task_id = "task-2"
    restart(world)
    feed(world, 10)
    shown(world, 6)
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: "ahead of the last committed" in world.report().error)
    world.metadata.reset_offsets("flights", {0: 2, 1: 2})
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert world.published() == [4, 5, 6, 7, 8, 9]


def test_a_publish_behind_others_fails_and_leaves_no_file(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    world.metadata.reset_offsets("flights", {0: 9, 1: 9})
    finish(world, succeed=False)
    assert "again from the committed offsets" in world.task.result.error
    assert world.published() == []
    assert world.deep_store.files() == set()


# files


def test_many_small_persists_are_folded_and_nothing_changes_for_queries(tmp_path: Path) -> None:
    world = OneTask(tmp_path, options=TaskOptions(fold_fan_in=3, drop_delay_ms=1_000))
    for n in range(20):
        feed(world, 1, start=n)
        shown(world, n + 1)
    world.run(lambda: len(world.task._context.state.commit.persists) <= 5)
    assert world.announced() == list(range(20))
    assert finish(world) == {0: 10, 1: 10}
    assert world.published() == list(range(20))
    world.metadata.close()


def test_a_fold_that_is_tried_again_when_its_sequence_is_published_already_is_given_up(
    tmp_path: Path,
) -> None:
    """Simulation, seed 10296: it failed the task, as its files were gone."""
    slow = RetryPolicy(initial_ms=60_000, max_ms=60_000)
    world = OneTask(tmp_path, options=TaskOptions(fold_fan_in=2, drop_delay_ms=1_000, retry=slow))
    lost: list[object] = []

    def at(moment: str) -> None:
        if moment == "before merge" and not lost:
            lost.append(moment)
            raise EngineUnavailable("lost")

    world.engine.at = at
    for n in range(4):
        feed(world, 1, start=n)
        shown(world, n + 1)
    world.run(lambda: bool(lost))
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=False))
    world.run(lambda: world.published() == [0, 1, 2, 3])
    feed(world, 2, start=4)
    shown(world, 2)
    later_s = world.clock.monotonic_s() + 120
    world.run(lambda: world.clock.monotonic_s() > later_s)
    finish(world)
    assert world.published() == [0, 1, 2, 3, 4, 5]
    world.metadata.close()


def test_one_file_is_published_as_it_is_and_several_are_merged(world: OneTask) -> None:
    for n in range(3):  # one time chunk each, the first with two files
        world.broker.add("flights", 0, [event(n, day=n)])
    shown(world, 3)
    world.broker.add("flights", 0, [event(3, day=0)])
    shown(world, 4)
    finish(world)
    assert len(world.engine.merges) == 1
    assert [len(request.files) for request in world.engine.merges] == [2]
    assert len(world.deep_store.files()) == 3


def test_files_are_kept_for_queries_under_way_then_dropped(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    files = [f.path for f in world.task._context.state.commit.files("base_0")]
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=False))
    world.run(lambda: len(world.published()) == 4)
    assert all(Path(path).exists() for path in files)
    published_s = world.clock.monotonic_s()
    world.run(lambda: world.clock.monotonic_s() > published_s + 31)
    assert not any(Path(path).exists() for path in files)


# messages that are no rows


def bad_offsets(world: OneTask) -> list[tuple[int, int]]:
    import orjson

    lines = world.broker.topics["flights.dead-letter"][0]
    return sorted((v["partition"], v["offset"]) for v in map(orjson.loads, lines))


def test_what_cannot_be_parsed_goes_to_the_dead_letters_and_is_counted(world: OneTask) -> None:
    feed(world, 2)
    world.broker.add("flights", 0, [b"{", b"[]"])
    world.broker.add("flights", 1, [b'{"carrier": "UA"}'])
    finish_at = {0: 3, 1: 2}
    world.run(lambda: world.report().persisted == finish_at)
    finish(world)
    assert world.published() == [0, 1]
    counts = world.metadata.counts("flights")
    assert (counts.processed, counts.unparseable, counts.dead_letters) == (2, 3, 3)
    assert bad_offsets(world) == [(0, 1), (0, 2), (1, 1)]


def test_a_dead_letter_whose_answer_was_lost_is_there_once(world: OneTask) -> None:
    answers = iter([True, True, False])
    world.broker.lose_answers = lambda: next(answers, False)
    world.broker.add("flights", 0, [b"{", b"["])
    world.run(lambda: world.report().persisted == {0: 2, 1: 0})
    finish(world)
    assert bad_offsets(world) == [(0, 0), (0, 1)]


def test_a_publish_waits_until_its_bad_messages_are_delivered(world: OneTask) -> None:
    world.broker.add("flights", 0, [b"{", event(1)])
    world.run(lambda: len(world.announced()) == 1)
    offsets = world.ask(world.task.pause())

    def refuse(*_args: str | Sequence[bytes], **_more: JsonValue) -> None:
        raise Unavailable("full")

    publish, world.broker.publish = world.broker.publish, refuse  # type: ignore[assignment,method-assign]
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: "sending dead letters" in world.report().error)
    assert world.published() == []
    world.broker.publish = publish  # type: ignore[method-assign]
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert bad_offsets(world) == [(0, 0)]


def test_late_and_early_rows_are_thrown_away_and_counted(tmp_path: Path) -> None:
    world = OneTask(tmp_path, min_time_ms=START_MS + DAY_MS, max_time_ms=START_MS + 2 * DAY_MS)
    feed(world, 9)
    world.run(lambda: world.report().persisted == {0: 5, 1: 4})
    finish(world)
    counts = world.metadata.counts("flights")
    assert (counts.processed, counts.thrown_away_late, counts.thrown_away_early) == (3, 3, 3)
    assert world.published() == [1, 4, 7]
    world.metadata.close()


# the process ends


def test_a_stopped_task_goes_on_where_it_was(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    world.task.stop()
    world.run(lambda: not world.task.processor.is_mailbox_loop_running)
    assert world.task.result.state is TaskState.RUNNING
    restart(world)
    feed(world, 4, start=4)
    shown(world, 8)
    assert len(world.engine.persists) == 2
    finish(world)
    assert world.published() == list(range(8))


def test_killed_before_the_commit_it_reads_the_same_again(world: OneTask) -> None:
    feed(world, 4)
    world.run(lambda: "persist" in world.lanes.waiting())
    world.lanes.run_one("persist")  # the files are there, nobody knows
    restart(world)
    shown(world, 4)
    assert len(world.engine.persists) == 2
    finish(world)
    assert world.published() == [0, 1, 2, 3]


def test_killed_after_the_transaction_it_finds_its_rows_published(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    offsets = world.ask(world.task.pause())
    world.ask(world.task.set_end_offsets(offsets, finish=True))
    world.run(lambda: len(world.published()) == 4)  # committed; the task has not heard of it
    restart(world)
    assert world.report().end == offsets
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert world.published() == [0, 1, 2, 3]
    assert world.metadata.counts("flights").processed == 4
    rows = world.metadata.segments.every()
    kept = {
        Path(world.deep_store.location(cast("dict[str, Any]", row.payload["loadSpec"])))
        for row in rows
    }
    assert world.deep_store.files() == kept


def test_a_damaged_file_is_found_at_the_start_and_its_rows_are_read_again(world: OneTask) -> None:
    feed(world, 4)
    shown(world, 4)
    feed(world, 4, start=4)
    shown(world, 8)
    path = world.task._context.state.commit.persists[1].files[0].path
    Path(path).write_bytes(b"")
    restart(world)
    assert world.report().persisted == {0: 2, 1: 2}
    world.run(lambda: world.report().persisted == {0: 4, 1: 4})
    shown(world, 8)
    finish(world)
    assert world.published() == list(range(8))


def test_a_file_that_was_cut_meanwhile_is_never_published(world: OneTask) -> None:
    feed(world, 1)
    shown(world, 1)
    path = Path(world.task._context.state.commit.persists[0].files[0].path)
    path.write_bytes(b"")
    finish(world, succeed=False)
    assert str(path) in world.task.result.error
    assert world.published() == []
    assert world.metadata.offsets("flights") == {0: 0, 1: 0}
    assert world.deep_store.files() == set()


def test_a_full_disk_is_waited_for_and_nothing_is_read_twice(world: OneTask) -> None:
    feed(world, 4)
    folder = world.task._context.folder
    write, fails = folder.write_commit, iter([True, True])

    def full(commit: CommitFile) -> None:
        if next(fails, False):
            raise Unavailable("no space left on the device")
        write(commit)

    folder.write_commit = full  # type: ignore[method-assign]
    shown(world, 4)
    assert len(world.engine.persists) == 1


@pytest.mark.parametrize("left", [0, 3])
def test_a_topic_that_ends_before_what_was_read_ends_the_task(world: OneTask, left: int) -> None:
    """It lost its end: waiting would skip what comes to it first. What was read is published."""
    feed(world, 10)
    shown(world, 10)
    world.broker.topics["flights"][1] = [event(900 + n) for n in range(left)]
    world.run(lambda: world.task.result.state is TaskState.SUCCESS)
    assert f"stored only up to offset {left}, but 5 was reached" in world.report().error
    assert world.published() == list(range(10))
    assert world.metadata.offsets("flights") == {0: 5, 1: 5}
