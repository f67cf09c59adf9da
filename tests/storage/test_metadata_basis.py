"""What a replacing task has read and somebody marks meanwhile, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    PublishBasis,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    segment_id,
)

DAY_MS = 86_400_000
OLD, NEW, NEWER = "2019", "2020", "2021"


def day(first: int, last: int | None = None) -> Interval:
    return Interval(first * DAY_MS, ((last or first) + 1) * DAY_MS)


def row(interval=None, version=OLD, number=0, core=0) -> SegmentRow:
    interval = interval or day(0)
    name = segment_id("d", interval, version, number)
    spec = {"type": "numbered", "partitionNum": number, "partitions": core}
    return SegmentRow(name, "d", interval, version, number, core, {"shardSpec": spec})


def insert(store, *rows, task="before", kind="insert", **more):
    return store.publish(PublishRequest(task, "d", rows, kind=kind, **more))


def compact(store, basis, *rows, kind="replace"):
    request = PublishRequest("compact", "d", rows, sequence_name="compact", kind=kind, basis=basis)
    return store.publish(request)


def used(store) -> set[str]:
    return {one.id for one in store.snapshot("d").segments}


@pytest.mark.parametrize("kind", ["replace", "insert"])
def test_what_was_read_and_is_unused_by_now_does_not_come_back(store, kind) -> None:
    read = [row(number=0), row(number=1)]
    insert(store, *read)
    basis = PublishBasis((day(0),), {one.id for one in read})
    store.segments.mark_unused([read[1].id])
    outcome = compact(store, basis, row(version=NEW), kind=kind)
    assert not outcome.ok
    assert not outcome.retryable
    assert outcome.outdated_by == (read[1].id,)
    assert read[1].id in outcome.reason
    assert "submit it again" in outcome.reason
    assert used(store) == {read[0].id}
    # Brought back it is as it was.
    store.segments.mark_used([read[1].id])
    assert compact(store, basis, row(version=NEW), kind=kind).ok


def test_what_was_read_and_is_killed_by_now_does_not_come_back(store) -> None:
    insert(store, row())
    store.segments.mark_unused([row().id])
    store.segments.kill([row().id])
    outcome = compact(store, PublishBasis((day(0),), {row().id}), row(version=NEW))
    assert outcome.outdated_by == (row().id,)


def test_what_was_not_read_and_is_used_by_now_is_not_lost(store) -> None:
    insert(store, row(number=0), row(number=1))
    store.segments.mark_unused([row(number=1).id])
    basis = PublishBasis((day(0),), {row(number=0).id})
    store.segments.mark_used([row(number=1).id])
    outcome = compact(store, basis, row(version=NEW))
    assert outcome.outdated_by == (row(number=1).id,)
    assert "would be hidden" in outcome.reason


def test_marks_elsewhere_do_not_matter(store) -> None:
    insert(store, row(day(0)), row(day(1)))
    basis = PublishBasis((day(0),), {row(day(0)).id})
    store.segments.mark_unused([row(day(1)).id])
    insert(store, row(day(2)))
    assert compact(store, basis, row(day(0), NEW)).ok


def test_what_is_appended_meanwhile_does_not_matter(store) -> None:
    """Neither the segment, nor its copies under the version of an earlier replace."""
    read, late = row(number=0), row(number=1)
    insert(store, read)
    basis = PublishBasis((day(0),), {read.id})
    cover = {late.id: ReplaceLock("compact", NEW)}
    assert insert(store, late, task="stream", kind="append", covering=cover).ok
    outcome = compact(store, basis, row(version=NEW, core=1))
    assert outcome.ok, outcome.reason
    assert row(version=NEW, number=1).id in used(store)


def test_what_was_taken_out_does_not_come_back_below_what_was_appended_since(store) -> None:
    """A time chunk that was taken out whole is begun anew, with a version above the old one."""
    read, anew = row(version=OLD), row(version=f"{OLD}S")
    insert(store, read)
    basis = PublishBasis((day(0),), {read.id})
    store.segments.mark_unused([read.id])
    cover = {anew.id: ReplaceLock("compact", NEW)}
    assert insert(store, anew, task="stream", kind="append", covering=cover).ok
    outcome = compact(store, basis, row(version=NEW, core=1))
    assert outcome.outdated_by == (read.id,)
    assert used(store) == {anew.id}


def test_what_newer_segments_hide_may_be_marked_and_killed(store) -> None:
    """The janitor works beside a task that listed a hidden segment, or one hidden since."""
    insert(store, row(version=OLD, core=1))
    insert(store, row(version=NEW, core=1))
    basis = PublishBasis((day(0),), {row(version=NEW).id}, {row(version=OLD).id})
    at = store.snapshot().segments_revision
    assert store.segments.mark_overshadowed_unused([row(version=OLD).id], at) == 1
    store.segments.kill([row(version=OLD).id])
    # As if it had been read before the newer one came.
    insert(store, row(version="2018", core=1))
    store.segments.mark_unused([row(version="2018").id])
    wider = replace(basis, shown={*basis.shown, row(version="2018").id})
    assert compact(store, wider, row(version=NEWER, core=1)).ok


def test_a_publish_that_went_through_says_so_whatever_was_marked_since(store) -> None:
    insert(store, row())
    basis = PublishBasis((day(0),), {row().id})
    assert compact(store, basis, row(version=NEW)).ok
    store.segments.mark_unused_within("d")
    assert compact(store, basis, row(version=NEW)).already_published


def test_what_adds_rows_has_no_basis(store) -> None:
    with pytest.raises(InvalidRequest, match="basis"):
        compact(store, PublishBasis((day(0),), set()), row(), kind="append")


def test_many_segments_are_compared_at_once(store) -> None:
    read = [row(number=n) for n in range(3_000)]
    insert(store, *read)
    basis = PublishBasis((day(0),), {one.id for one in read})
    store.segments.mark_unused([one.id for one in read])
    outcome = compact(store, basis, row(version=NEW))
    assert len(outcome.outdated_by) == 10
    assert "2999 more" in outcome.reason
    store.segments.mark_used([one.id for one in read])
    assert compact(store, basis, row(version=NEW)).ok
