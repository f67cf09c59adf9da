"""What the janitor removes, and what it leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.core.errors import Fenced
from penstock.core.intervals import Interval
from penstock.indexing.overlord.duties.janitor import JanitorDuty
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId, ShardSpec
from penstock.storage.metadata import AllocateRequest, PublishRequest, QueryBatch, TaskRow
from penstock.storage.metadata.metadata_store import MetadataStore
from penstock.storage.metadata.rows.cluster import Term
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata

DAY = Interval(0, 86_400_000)
HOUR_MS = 3_600_000


@pytest.fixture
def world(
    tmp_path: Path,
) -> Iterator[tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]]]:
    clock = VirtualClock()
    metadata = open_metadata(tmp_path, clock)
    store = DeepStore(str(tmp_path / "segments"))
    store.make_root()
    file = tmp_path / "part.parquet"
    file.write_bytes(b"rows")

    def push(version: str, age_ms: int) -> Segment:
        name = SegmentId("flights", DAY, version)
        pushed = store.push(str(file), name, "u")
        modified_s = (clock.now_ms() - age_ms) / 1000
        os.utime(store.location(pushed.load_spec), (modified_s, modified_s))
        return Segment("flights", DAY, version, pushed.load_spec, ShardSpec(), pushed.size, 1)

    yield clock, metadata, store, push
    metadata.close()


def publish(metadata: MetadataStore, *segments: Segment) -> None:
    metadata.publish(PublishRequest("t", "flights", tuple(s.to_row() for s in segments)))


def test_files_of_no_segment_go_when_they_are_old(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, push = world
    published, old, young = push("v1", 9 * HOUR_MS), push("v2", 9 * HOUR_MS), push("v3", HOUR_MS)
    publish(metadata, published)
    report = JanitorDuty(metadata, store, clock).sweep()
    assert report.files_deleted == 1
    there = [Path(store.location(s.load_spec)).exists() for s in (published, old, young)]
    assert there == [True, False, True]


def test_overshadowed_segments_are_marked_and_keep_their_files(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, push = world
    old, new = push("v1", 9 * HOUR_MS), push("v2", 9 * HOUR_MS)
    publish(metadata, old)
    publish(metadata, new)
    janitor = JanitorDuty(metadata, store, clock)
    # A new leader leaves them for a quarter of an hour.
    clock.advance(899)
    assert janitor.sweep().marked_unused == 0
    clock.advance(1)
    assert janitor.sweep().marked_unused == 1
    assert janitor.sweep().marked_unused == 0
    used = {row.version: row.used for row in metadata.segments.every()}
    assert used == {"v1": False, "v2": True}
    assert Path(store.location(old.load_spec)).exists()


def test_places_that_nobody_came_for_are_freed(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, push = world
    publish(metadata, push("v1", 0))
    metadata.allocate_segments([AllocateRequest("flights", DAY, "lost_0", "v1")])
    janitor = JanitorDuty(metadata, store, clock)
    assert janitor.sweep().places_freed == 0
    clock.advance(7 * 3600)
    assert janitor.sweep().places_freed == 1
    assert metadata.segments.pending("flights") == []


def test_places_of_a_datasource_that_was_never_published_are_freed_too(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, _push = world
    metadata.allocate_segments([AllocateRequest("other", DAY, "lost_0", "v1")])
    clock.advance(7 * 3600)
    assert JanitorDuty(metadata, store, clock).sweep().places_freed == 1


def test_what_an_active_task_may_yet_publish_is_left(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    """A publish may wait for an earlier sequence for longer than orphans are kept."""
    clock, metadata, store, push = world
    metadata.tasks.insert_new([TaskRow("t", "flights", "index_penstock", "g", {})])
    clock.advance(9 * 3600)
    pushed = push("v1", 8 * HOUR_MS)
    janitor = JanitorDuty(metadata, store, clock)
    assert janitor.sweep().files_deleted == 0
    metadata.tasks.set_status("t", "FAILED")
    assert janitor.sweep().files_deleted == 1
    assert not Path(store.location(pushed.load_spec)).exists()


def test_a_file_that_seems_older_than_its_active_task_is_left(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    """The overlord's clock is ahead of the worker's."""
    clock, metadata, store, push = world
    metadata.tasks.insert_new([TaskRow("t", "flights", "index_parallel", "t", {})])
    clock.advance(9 * 3600)
    pushed = push("v1", 9 * HOUR_MS + 30_000)
    assert JanitorDuty(metadata, store, clock).sweep().files_deleted == 0
    assert Path(store.location(pushed.load_spec)).exists()


def test_a_file_that_spark_wrote_before_its_task_is_left_while_the_task_is_active(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    """A task accepts files of up to five hours, and may then wait for its locks."""
    clock, metadata, store, push = world
    pushed = push("v1", 5 * HOUR_MS)
    metadata.tasks.insert_new([TaskRow("t", "flights", "index_spark", "t", {})])
    clock.advance(9 * 3600)
    assert JanitorDuty(metadata, store, clock).sweep().files_deleted == 0
    metadata.tasks.set_status("t", "FAILED")
    assert JanitorDuty(metadata, store, clock).sweep().files_deleted == 1
    assert not Path(store.location(pushed.load_spec)).exists()


def test_tasks_that_ended_long_ago_are_forgotten(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, _push = world
    for name in ("ended", "active"):
        metadata.tasks.insert_new([TaskRow(name, "flights", "index_penstock", "g", {})])
    metadata.tasks.set_status("ended", "SUCCESS")
    janitor = JanitorDuty(metadata, store, clock)
    clock.advance(89 * 86_400)
    assert janitor.sweep().tasks_forgotten == 0
    clock.advance(2 * 86_400)
    assert janitor.sweep().tasks_forgotten == 1
    assert [row.id for row in metadata.tasks.list()] == ["active"]


def test_batches_of_a_query_are_recognized_for_400_days_and_then_forgotten(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, _push = world

    def publish_batch(number: int, task: str, owner: str) -> bool:
        batch = QueryBatch(f"query-of-{owner[5:]}", number, owner)
        request = PublishRequest(task, "flights", sequence_name=task, batch=batch)
        return metadata.publish(request).ok

    janitor = JanitorDuty(metadata, store, clock)
    assert publish_batch(1, "t1", "")
    assert publish_batch(1, "t2", "user:ann")
    clock.advance(200 * 86_400)
    assert publish_batch(2, "t3", "user:ann")
    clock.advance(200 * 86_400 - 1)
    # A driver that was killed long ago repeats its last batch in time; then its task has to wait.
    metadata.tasks.insert_new([TaskRow("late", "flights", "index_spark", "g", {})])
    clock.advance(2)
    assert janitor.sweep().batches_forgotten == 0
    assert not publish_batch(1, "late", "")
    metadata.tasks.set_status("late", "SUCCESS")
    assert janitor.sweep().batches_forgotten == 1
    assert publish_batch(1, "t4", "")
    assert not publish_batch(2, "t5", "user:ann")
    clock.advance(200 * 86_400)
    assert janitor.sweep().batches_forgotten == 1
    assert publish_batch(2, "t6", "user:ann")


def test_an_overlord_that_leads_no_more_deletes_nothing(
    world: tuple[VirtualClock, MetadataStore, DeepStore, Callable[..., Segment]],
) -> None:
    clock, metadata, store, push = world
    pushed = push("v1", 9 * HOUR_MS)
    metadata.allocate_segments([AllocateRequest("flights", DAY, "lost_0", "v1")])
    term = metadata.terms.take("overlord", "here", 10_000)
    deposed = JanitorDuty(metadata.under(cast("Term", term)), store, clock)
    clock.advance(9 * 3600)
    assert metadata.terms.take("overlord", "there", 10_000) is not None
    with pytest.raises(Fenced):
        deposed.run()
    assert Path(store.location(pushed.load_spec)).exists()
    assert len(metadata.segments.pending("flights")) == 1
