"""What is appended where somebody brings other segments back into view, on both databases."""

from __future__ import annotations

import pytest

from penstock.core.intervals import Interval
from penstock.storage.metadata import AllocateRequest, PublishRequest, SegmentRow, segment_id
from penstock.storage.metadata.chunk_summaries import chunks_of, enclosing_interval, visible_chunks

DAY = Interval(0, 86_400_000)
NEXT_DAY = Interval(DAY.end_ms, 2 * DAY.end_ms)
APPENDS, OLD, NEW = "1970-01-01T00:00:00.000Z", "2019", "2020"


def row(version, number=0, core=0, interval=DAY) -> SegmentRow:
    name = segment_id("d", interval, version, number)
    spec = {"type": "numbered", "partitionNum": number, "partitions": core}
    return SegmentRow(name, "d", interval, version, number, core, {"shardSpec": spec})


def place(store, sequence, version=APPENDS, interval=DAY) -> SegmentRow:
    """Return the segment of a place that is given for a sequence."""
    asked = AllocateRequest("d", interval, sequence, version, allocator_id="stream")
    [found] = store.allocate_segments([asked])
    return row(found.version, found.partition_number, found.core_partitions, found.interval)


def insert(store, *rows, kind="insert"):
    return store.publish(PublishRequest("batch", "d", rows, kind=kind))


def read(store, *rows, start=0, kind="append"):
    """Publish what a stream has read from an offset to the next."""
    request = PublishRequest(
        *("stream", "d", rows, "sup", {0: start}, {0: start + 1}, f"s{start}"), kind=kind
    )
    return store.publish(request)


def seen(store) -> set[str]:
    rows = store.snapshot("d").segments
    chunks = chunks_of(rows).values()
    shown = {(c.interval, c.version) for c in visible_chunks(chunks, enclosing_interval(rows))}
    return {one.id for one in rows if (one.interval, one.version) in shown}


@pytest.mark.parametrize("kind", ["append", "insert"])
def test_an_append_does_not_hide_what_came_back_after_its_place_was_given(store, kind) -> None:
    store.begin_offsets("sup", {0: 0})
    first = place(store, "s0")
    assert read(store, first).ok
    store.segments.mark_unused_within("d", DAY)
    late, other = place(store, "s1"), place(store, "s1", interval=NEXT_DAY)
    assert late.version > first.version
    assert store.segments.mark_used_within("d", DAY) == 1
    outcome = read(store, late, other, start=1, kind=kind)
    assert (outcome.ok, outcome.retryable) == (False, False)
    assert "were hidden; they are visible again, and they would be hidden by it" in outcome.reason
    assert (seen(store), store.offsets("sup")) == ({first.id}, {0: 1})
    again = place(store, "s1 once more")
    assert read(store, again, start=1, kind=kind).ok
    assert seen(store) == {first.id, again.id}


def test_an_append_is_not_hidden_by_what_came_back_after_its_place_was_given(store) -> None:
    store.begin_offsets("sup", {0: 0})
    whole = [row(NEW, 0, 2), row(NEW, 1, 2)]
    insert(store, *whole)
    store.segments.mark_unused_within("d", DAY)
    late = place(store, "s0")
    store.segments.mark_used_within("d", DAY)
    outcome = read(store, late)
    assert not outcome.ok
    assert "were hidden; they are visible again, and they would hide it" in outcome.reason
    again = place(store, "s0 once more")
    assert read(store, again).ok
    assert seen(store) == {*(one.id for one in whole), again.id}


def test_a_batch_task_does_not_hide_it_either(store) -> None:
    insert(store, row(OLD))
    store.segments.mark_unused_within("d", DAY)
    late = place(store, "batch", NEW)
    assert late.version == NEW
    store.segments.mark_used_within("d", DAY)
    assert "would be hidden by it" in insert(store, late).reason
    assert seen(store) == {row(OLD).id}


def test_what_replaces_hides_what_came_back(store) -> None:
    insert(store, row(OLD))
    store.segments.mark_unused_within("d", DAY)
    store.segments.mark_used_within("d", DAY)
    assert insert(store, row(NEW, core=1)).ok
    assert seen(store) == {row(NEW).id}


def test_an_append_goes_on_where_others_have_appended_or_all_is_out_of_view(store) -> None:
    store.begin_offsets("sup", {0: 0})
    first, second, third = (place(store, f"s{number}") for number in range(3))
    assert read(store, first).ok
    assert read(store, second, start=1).ok
    store.segments.mark_unused_within("d", DAY)
    assert read(store, third, start=2).ok
    assert seen(store) == {third.id}
    store.segments.mark_used_within("d", DAY)
    assert seen(store) == {first.id, second.id, third.id}


def test_an_append_goes_on_under_the_version_of_a_replace(store) -> None:
    store.begin_offsets("sup", {0: 0})
    first, second = place(store, "s0"), place(store, "s1")
    assert read(store, first).ok
    assert insert(store, row(NEW, core=1), kind="replace").ok
    outcome = read(store, second, start=1)
    assert outcome.ok
    [copy] = set(outcome.inserted) - {second.id}
    assert seen(store) == {row(NEW).id, copy}


def test_a_copy_under_the_version_of_a_replace_does_not_hide_what_came_back(store) -> None:
    store.begin_offsets("sup", {0: 0})
    first, second = place(store, "s0"), place(store, "s1")
    assert read(store, first).ok
    whole = row(NEW, core=1)
    assert insert(store, whole, kind="replace").ok
    store.segments.mark_unused([first.id, whole.id])
    store.segments.mark_used([first.id])
    assert "would be hidden by it" in read(store, second, start=1).reason
    assert seen(store) == {first.id}
