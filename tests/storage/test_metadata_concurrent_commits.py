"""Appends and replaces beside each other, and what their commits share, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    OccupiedChunks,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    TaskRow,
    segment_id,
)
from penstock.storage.metadata.chunk_summaries import chunks_of, enclosing_interval, visible_chunks
from penstock.storage.metadata.sql_database import ITEMS_PER_STATEMENT
from tests.storage.replacing_kit import comparisons_in, left_for

HOUR_MS = 3_600_000
DAY = Interval(0, 24 * HOUR_MS)
OLD, NEW, NEWER = "1970-01-01T00:00:00.000Z", "2020", "2021"


def hour(number: int) -> Interval:
    return Interval(number * HOUR_MS, (number + 1) * HOUR_MS)


def row(interval=DAY, version=OLD, number=0, core=0, **changes) -> SegmentRow:
    name = segment_id("d", interval, version, number)
    payload = {
        "interval": str(interval),
        "version": version,
        "loadSpec": {"type": "local", "path": f"/{name}"},
        "shardSpec": {"type": "numbered", "partitionNum": number, "partitions": core},
        "identifier": name,
    }
    return structs.replace(
        SegmentRow(name, "d", interval, version, number, core, payload), **changes
    )


def allocate(store, sequence, interval=DAY, version=OLD, allocator="stream"):
    [place] = store.allocate_segments(
        [AllocateRequest("d", interval, sequence, version, allocator_id=allocator)]
    )
    assert place is not None
    return place


def append(store, *rows, task="stream", covering=None, **more):
    return store.publish(
        PublishRequest(task, "d", rows, kind="append", covering=covering or {}, **more)
    )


def replaced(store, *rows, task="batch", **more):
    return store.publish(PublishRequest(task, "d", rows, kind="replace", **more))


def visible_files(store) -> list[str]:
    rows = store.snapshot("d").segments
    if not rows:
        return []
    seen = {
        (c.interval, c.version)
        for c in visible_chunks(chunks_of(rows).values(), enclosing_interval(rows))
    }
    return sorted(r.payload["loadSpec"]["path"] for r in rows if (r.interval, r.version) in seen)


def files(*rows) -> list[str]:
    return sorted(r.payload["loadSpec"]["path"] for r in rows)


def test_what_was_appended_during_a_replace_goes_on_under_its_version(store) -> None:
    before, appended = row(number=0), row(number=1)
    append(store, before)
    cover = {appended.id: ReplaceLock("batch", NEW)}
    assert append(store, appended, covering=cover).inserted == (appended.id,)
    assert left_for(store, "batch") == {appended.id}
    written = [row(version=NEW, number=n, core=2) for n in (0, 1)]
    outcome = replaced(store, *written)
    assert visible_files(store) == files(appended, *written)
    copy = row(version=NEW, number=2).id
    assert outcome.inserted == (*(r.id for r in written), copy)
    rows = {r.id: r for r in store.snapshot("d").segments}
    assert rows[copy].upgraded_from == appended.id
    # One core set of three, in the columns and in the payload.
    for name in outcome.inserted:
        assert rows[name].core_partitions == 3
        assert rows[name].payload["shardSpec"]["partitions"] == 3
        assert rows[name].payload["identifier"] == name
    assert rows[copy].payload["shardSpec"]["partitionNum"] == 2
    assert left_for(store, "batch") == set()


def test_what_is_appended_after_a_replace_appears_under_both_versions(store) -> None:
    place = allocate(store, "s0", hour(3))
    written = row(version=NEW, core=1)
    outcome = replaced(store, written)
    [twin] = outcome.upgraded
    assert (twin.interval, twin.version, twin.partition_number) == (DAY, NEW, 1)
    assert (twin.upgraded_from, twin.previous_id, twin.allocator_id) == (
        place.id,
        place.id,
        "stream",
    )
    assert twin.sequence_name == f"upgraded_to_version__{NEW}"
    appended = row(hour(3), number=place.partition_number)
    assert appended.id == place.id
    assert append(store, appended, sequence_name="s0").inserted == (place.id, twin.id)
    assert visible_files(store) == files(written, appended)
    assert store.segments.pending("d") == []


def test_places_survive_two_replaces(store) -> None:
    place = allocate(store, "s0", hour(3))
    first, second = row(version=NEW, core=1), row(version=NEWER, core=1)
    replaced(store, first)
    [twin] = replaced(store, second, task="batch2").upgraded
    assert (twin.version, twin.upgraded_from) == (NEWER, place.id)
    appended = row(hour(3), number=place.partition_number)
    assert len(append(store, appended, sequence_name="s0").inserted) == 3
    assert visible_files(store) == files(second, appended)


def test_a_replace_lists_again_what_it_was_told_to_keep(store) -> None:
    read, kept, dropped = (row(number=number) for number in range(3))
    append(store, read, kept, dropped)
    store.upgrades.add("batch", {kept.id: NEW, dropped.id: NEW})
    store.upgrades.add("batch", {kept.id: NEW})
    store.segments.mark_unused([dropped.id])
    replaced(store, row(version=NEW, core=1))
    copy = segment_id("d", DAY, NEW, 1)
    assert visible_files(store) == files(row(version=NEW), kept)
    [shared] = store.segments.by_ids([copy])
    assert (shared.upgraded_from, shared.core_partitions) == (kept.id, 2)
    # Two rows, one file: it goes with the last of them.
    store.segments.mark_unused([read.id, kept.id])
    free = store.segments.kill([read.id, kept.id, dropped.id]).files_free
    assert {one.id for one in free} == {read.id, dropped.id}


@pytest.mark.parametrize("killed", [False, True])
def test_an_append_between_two_replaces_is_not_read_twice(store, killed) -> None:
    """The second replace began before the append, whose copy under the first one is hidden."""
    place = allocate(store, "s0", hour(3))
    first, second = row(version=NEW, core=1), row(version=NEWER, core=1)
    replaced(store, first)
    appended = row(hour(3), number=place.partition_number)
    cover = {appended.id: ReplaceLock("batch2", NEWER)}
    append(store, appended, covering=cover, sequence_name="s0")
    # Neither the segment nor its copy is input of the task whose commit lists it again.
    assert [r.id for r in store.segments.used("d", replaced_by="batch2")] == [first.id]
    # The janitor takes the first row of the file out of view; the copy keeps it in.
    store.segments.mark_unused([appended.id])
    if killed:
        assert store.segments.kill([appended.id]).files_free == ()
    replaced(store, second, task="batch2")
    assert visible_files(store) == files(second, appended)


def test_what_a_user_took_out_of_view_does_not_come_back(store) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    store.segments.mark_unused([appended.id])
    written = row(version=NEW, core=1)
    assert replaced(store, written).inserted == (written.id,)
    assert visible_files(store) == files(written)


def test_where_a_replace_wrote_nothing_everything_stays(store) -> None:
    """A copy under the new version would hide what was there before."""
    before, appended = row(hour(3), number=0), row(hour(3), number=1)
    append(store, before)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    written = row(hour(4), version=NEW, core=1)
    replaced(store, written)
    assert visible_files(store) == files(before, appended, written)


def test_a_replace_finer_than_an_append_is_refused(store) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    outcome = replaced(store, row(hour(3), version=NEW, core=1))
    assert (outcome.ok, outcome.retryable) == (False, False)
    assert "finer granularity than that of a concurrent append is unsupported" in outcome.reason
    assert visible_files(store) == files(appended)
    assert left_for(store, "batch") == {appended.id}


def test_a_replace_finer_than_a_place_is_refused(store) -> None:
    allocate(store, "s0")
    outcome = replaced(store, row(hour(3), version=NEW, core=1))
    assert not outcome.ok
    assert "finer granularity" in outcome.reason


def test_numbers_that_are_taken_are_not_given_to_copies(store) -> None:
    gone = row(version=NEW, number=1, used=False)
    store.publish(PublishRequest("x", "d", (gone,)))
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    written = row(version=NEW, number=0, core=1)
    assert replaced(store, written).inserted == (written.id, row(version=NEW, number=2).id)
    # A core set with a hole would never be seen.
    assert {r.core_partitions for r in store.snapshot().segments if r.version == NEW} == {1}
    assert visible_files(store) == files(written, appended)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"type": "hashed", "partitionNum": 0, "partitions": 1}, {"partitions": 2}),
        ({"type": "range", "partitionNum": 0, "numCorePartitions": 1}, {"numCorePartitions": 2}),
    ],
)
def test_shard_specs_of_other_kinds_join_the_core_set(store, spec, expected) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    written = row(version=NEW, core=1)
    written = structs.replace(written, payload={**written.payload, "shardSpec": spec})
    replaced(store, written)
    [found] = store.segments.by_ids([written.id])
    assert found.payload["shardSpec"] == {**spec, **expected}
    assert found.core_partitions == 2


def test_copies_beside_a_tombstone_have_no_core_set(store) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    tombstone = row(version=NEW)
    tombstone = structs.replace(
        tombstone, payload={**tombstone.payload, "shardSpec": {"type": "tombstone"}}
    )
    replaced(store, tombstone)
    found = [r for r in store.snapshot().segments if r.version == NEW]
    assert [(r.partition_number, r.core_partitions) for r in found] == [(0, 0), (1, 0)]


def test_a_streams_append_moves_its_offsets_once(store) -> None:
    place = allocate(store, "s0")
    store.announce("stream", "d", "s0", [AnnouncedFile("/f", DAY, 3)])
    request = PublishRequest(
        "stream",
        "d",
        (row(number=place.partition_number),),
        "sup",
        {0: 0},
        {0: 5},
        "s0",
        kind="append",
        covering={place.id: ReplaceLock("batch", NEW)},
    )
    assert store.publish(request).ok
    assert store.offsets("sup") == {0: 5}
    assert store.publish(replace(request, task_id="replica")).already_published
    ahead = replace(
        request,
        segments=(),
        covering={},
        start_offsets={0: 9},
        end_offsets={0: 10},
        sequence_name="s2",
    )
    assert store.publish(ahead).retryable
    assert store.snapshot().announced == ()
    replaced(store, row(version=NEW, core=1))
    assert len(visible_files(store)) == 2


def test_a_replace_of_a_task_that_ended_is_refused(store) -> None:
    store.tasks.insert_new([TaskRow("batch", "d", "compact", "g", {})])
    store.tasks.set_status("batch", "FAILED")
    outcome = replaced(store, row(version=NEW))
    assert (outcome.ok, outcome.retryable) == (False, False)
    assert "has ended" in outcome.reason


@pytest.mark.parametrize("kind", ["insert", "append", "replace"])
def test_a_batch_task_publishes_once(store, kind) -> None:
    """After a kill it may have other files, and even other segments, for the same events."""
    first = PublishRequest("batch", "d", (row(version=NEW),), sequence_name="batch", kind=kind)
    assert store.publish(first).ok
    again = replace(first, segments=(row(version=NEWER), row(version=NEWER, number=1)))
    outcome = store.publish(again)
    assert (outcome.ok, outcome.already_published) == (False, True)
    assert visible_files(store) == files(*first.segments)


def test_what_covers_must_be_of_an_append_and_of_its_segments(store) -> None:
    cover = {row().id: ReplaceLock("batch", NEW)}
    with pytest.raises(InvalidRequest, match="kind append"):
        store.publish(PublishRequest("t", "d", (row(),), covering=cover))
    with pytest.raises(InvalidRequest, match="is not one of those published"):
        append(store, row(number=1), covering=cover)


def test_files_are_free_when_the_last_row_that_names_them_is_gone(store) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    written = row(version=NEW, core=1)
    copy = replaced(store, written).inserted[1]
    store.segments.mark_unused([appended.id, written.id])
    killed = store.segments.kill([appended.id, written.id, copy])
    assert {r.id for r in killed.rows} == {appended.id, written.id}
    assert [r.id for r in killed.files_free] == [written.id]
    store.segments.mark_unused([copy])
    assert [r.id for r in store.segments.kill([copy]).files_free] == [copy]
    assert store.segments.every() == []


def test_rows_of_one_file_that_go_together_free_it_once(store) -> None:
    appended = row(number=0)
    append(store, appended, covering={appended.id: ReplaceLock("batch", NEW)})
    copy = replaced(store, row(version=NEW, core=1)).inserted[1]
    store.segments.mark_unused([appended.id, copy])
    killed = store.segments.kill([copy, appended.id])
    assert (len(killed.rows), len(killed.files_free)) == (2, 1)


# used and unused


def test_only_what_nothing_hides_is_brought_back(store) -> None:
    old = [row(hour(h), version="v1") for h in (1, 2)]
    store.publish(PublishRequest("t", "d", (*old, row(hour(1), version="v2"))))
    middle = [row(hour(1), version="v15"), row(hour(2), version="v15", number=1, core=2)]
    store.publish(PublishRequest("t2", "d", tuple(middle)))
    assert store.segments.mark_unused_within("d") == 4  # one went in hidden
    assert store.segments.mark_used([r.id for r in (*old, *middle)]) == 3
    used = {r.id for r in store.snapshot().segments}
    assert used == {old[1].id, *(r.id for r in middle)}
    assert store.segments.mark_used_within("d", hour(1)) == 1
    assert {r.version for r in store.segments.used("d", hour(1))} == {"v15", "v2"}


def test_marking_by_time_and_version(store) -> None:
    rows = [row(hour(h), version=v) for h in (1, 2, 3) for v in ("v1", "v2")]
    for one in rows:
        store.publish(PublishRequest("t", "d", (one,)))
    other = structs.replace(row(hour(2)), id="e", datasource="e")
    store.publish(PublishRequest("t", "e", (other,)))
    segments = store.segments
    assert segments.mark_unused_within("d", Interval(HOUR_MS, 2 * HOUR_MS + 1)) == 2
    assert segments.mark_unused_within("d", versions=["v2"]) == 2
    assert [r.version for r in segments.used("d")] == ["v1", "v1"]
    before = store.revision()
    assert segments.mark_unused_within("d", hour(9)) == 0
    assert store.revision() == before
    assert segments.mark_used_within("d", versions=["v1"]) == 1
    assert segments.mark_used_within("d", hour(2)) == 1
    assert len(segments.used("e")) == 1


def test_unused_segments_are_found_by_age_time_and_version(store, clock) -> None:
    rows = [row(hour(h), version=f"v{h}") for h in (1, 2, 3)]
    store.publish(PublishRequest("t", "d", tuple(rows)))
    for one in rows:
        store.segments.mark_unused([one.id])
        clock.ms += 10

    def found(age=0, **wanted) -> list[str]:
        return [
            r.version for r in store.segments.unused(changed_before_ms=clock.ms - age, **wanted)
        ]

    assert found() == ["v1", "v2", "v3"]
    assert found(20) == ["v1"]
    assert found(versions=["v2", "v9"]) == ["v2"]
    assert found(interval=Interval(HOUR_MS, 3 * HOUR_MS), limit=1) == ["v1"]


def test_used_segments_are_found_by_overlap_also_beside_very_long_ones(store) -> None:
    forever = row(Interval(-(10**12), 10**12), version="0")
    store.publish(PublishRequest("t", "d", (forever, *(row(hour(h)) for h in range(5)))))
    assert len(store.segments.used("d")) == 6
    assert [r.interval for r in store.segments.used("d", hour(2))] == [
        forever.interval,
        hour(2),
    ]
    beside, alone = store.segments.occupied("d", [hour(2), hour(9)])
    assert (beside.visible, alone.visible) == ((hour(2),), (forever.interval,))
    store.segments.mark_unused([forever.id])
    assert store.segments.occupied("d", [hour(9)])[0].visible == ()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_look_at_many_intervals_compares_as_many_times_and_not_their_square(store) -> None:
    def comparisons(count: int) -> int:
        asked = [hour(h) for h in range(count)]
        found: list[OccupiedChunks] = []
        calls = comparisons_in(lambda: found.extend(store.segments.occupied("d", asked)))
        assert [(one.visible, one.pending) for one in found] == [((h,), (h,)) for h in asked]
        return calls

    most = 200
    store.publish(PublishRequest("t", "d", tuple(row(hour(h)) for h in range(most))))
    store.allocate_segments([AllocateRequest("d", hour(h), "s", OLD) for h in range(most)])
    assert comparisons(most) < 3 * comparisons(most // 2)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_replace_of_many_chunks_compares_as_many_times_and_not_their_square(store) -> None:
    def comparisons(first: int, count: int) -> int:
        hours, task = [hour(first + n) for n in range(count)], f"t{first}"
        append(store, *(row(h, number=n) for h in hours for n in (0, 1)), task=f"a{first}")
        store.upgrades.add(task, {row(h, number=1).id: NEW for h in hours})
        new = tuple(row(h, NEW, core=1) for h in hours)
        calls = comparisons_in(lambda: replaced(store, *new, task=task))
        time = Interval(hours[0].start_ms, hours[-1].end_ms)
        assert len(store.segments.used("d", time)) == 4 * count
        return calls

    assert comparisons(1_000, 200) < 3 * comparisons(2_000, 100)


def test_a_very_long_chunk_is_seen_whole_however_many_segments_it_has(store) -> None:
    """Of as many as no one statement names: what is one chunk must not be read as several."""
    count = ITEMS_PER_STATEMENT + 1
    rows = tuple(row(ETERNITY, number=n, core=count) for n in range(count))
    store.publish(PublishRequest("t", "d", rows))
    assert store.segments.occupied("d", [hour(2)])[0].visible == (ETERNITY,)
    place = allocate(store, "s", ETERNITY, NEW)
    assert (place.version, place.partition_number) == (rows[0].version, count)


def test_places_are_freed_by_time_age_and_allocator(store, clock) -> None:
    born = clock.ms
    for number in range(4):
        clock.ms = born + number
        allocate(store, f"s{number}", hour(number), allocator=f"a{number % 2}")
    replaced(store, row(version=NEW, core=1))
    assert len(store.segments.pending("d", DAY)) == 8
    assert store.segments.delete_pending("d", allocator_id="a1") == 4
    assert store.segments.delete_pending("d", interval=hour(0)) == 1
    assert store.segments.delete_pending(created_from_ms=born + 3) == 2  # its twins are younger
    assert [p.interval for p in store.segments.pending("d")] == [hour(2)]
    assert store.segments.delete_pending("e") == 0
    assert store.segments.delete_pending("d", created_before_ms=born + 3) == 1
