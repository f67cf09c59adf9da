"""The contract of the history of segments, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import pytest

from penstock.core.errors import NotFound
from penstock.core.intervals import Interval
from penstock.storage.metadata import MetadataStore, PublishRequest, SegmentRow, segment_id
from penstock.storage.metadata import migrations as migrations_module
from penstock.storage.metadata.copies import read_copy, write_copy


def publish(store: MetadataStore, *hours: int) -> list[str]:
    rows = [
        SegmentRow(segment_id("d", time, "v1", 0), "d", time, "v1", 0, 1, {})
        for time in (Interval(hour * 10, hour * 10 + 10) for hour in hours)
    ]
    store.publish(PublishRequest("t", "d", segments=tuple(rows)))
    return [row.id for row in rows]


def used(store: MetadataStore, revision: int) -> list[str]:
    return [row.id for row in store.history.at("d", revision)]


def test_a_segment_is_known_at_each_revision_in_which_it_was_used(store) -> None:
    first, second = publish(store, 0, 1)
    published = store.revision()
    store.segments.mark_unused([first])
    one_unused = store.revision()
    store.segments.mark_used([first])
    both = store.revision()
    store.segments.mark_unused_at([("d", Interval(0, 10)), ("d", Interval(10, 20))])
    none = store.revision()
    store.segments.mark_used_within("d", Interval(0, 10))
    again = store.revision()
    assert used(store, 0) == []
    assert used(store, published) == used(store, both) == [first, second]
    assert used(store, one_unused) == [second]
    assert used(store, none) == []
    assert used(store, again) == [first]
    between = store.history.between("d", published, one_unused)
    assert between.times == (Interval(0, 10),)
    assert ([row.id for row in between.before], between.after) == ([first], [])
    # Its state is the same at both ends.
    assert store.history.between("d", published, both).times == (Interval(0, 10),)


def test_revisions_with_changes_of_a_datasource_are_listed(store) -> None:
    first, second = publish(store, 0, 1)
    published = store.revision()
    other = SegmentRow(
        segment_id("e", Interval(0, 10), "v1", 0), "e", Interval(0, 10), "v1", 0, 1, {}
    )
    store.publish(PublishRequest("t", "e", segments=(other,)))
    store.segments.mark_unused([first])
    unused = store.revision()
    store.segments.mark_used([first])
    again = store.revision()
    (third,) = publish(store, 2)
    last = store.revision()
    assert store.history.changed("d", 0, 9) == ([published, unused, again, last], last)
    assert store.history.changed("d", 0, 2) == ([published, unused], last)
    assert store.history.changed("d", unused, 9) == ([again, last], last)
    assert store.history.changed("d", last, 9) == ([], last)
    everything = [first, second, third]
    assert store.history.inserted(everything, published) == {first, second}
    assert store.history.inserted(everything, again) == set()
    assert store.history.inserted(everything, last) == {third}


def test_the_time_of_a_change_is_that_of_its_transaction(store, clock) -> None:
    first, _ = publish(store, 0, 1)
    published, published_ms = store.revision(), clock.now_ms()
    assert store.history.changed_ms("d", published - 1) is None
    clock.ms += 60_000
    store.segments.mark_unused([first])
    marked, marked_ms = store.revision(), clock.now_ms()
    clock.ms += 60_000
    time = Interval(0, 10)
    other = SegmentRow(segment_id("e", time, "v1", 0), "e", time, "v1", 0, 1, {})
    store.publish(PublishRequest("t", "e", segments=(other,)))
    last = store.revision()
    assert store.history.changed_ms("d", published) == published_ms
    assert store.history.changed_ms("d", marked) == marked_ms
    assert store.history.changed_ms("d", last) == marked_ms
    assert store.history.changed_ms("e", last) == clock.now_ms()
    store.segments.kill([first])
    assert store.history.changed_ms("d", last) == published_ms, "the last change that is left"


def test_many_changed_times_are_joined_across_the_smallest_gaps(store) -> None:
    hours = [*range(0, 220, 2), 1000, 1002, 2000]
    publish(store, *hours)
    found = store.history.between("d", 0, store.revision())
    assert len(found.times) == 100
    assert len(found.after) == len(hours)
    for hour in hours:
        time = Interval(hour * 10, hour * 10 + 10)
        (one,) = (one for one in found.times if one.overlaps(time))
        assert one.intersection(time) == time
    assert not any(one.overlaps(Interval(5000, 6000)) for one in found.times)


def test_a_kill_forgets_older_revisions_of_its_datasource_only(store) -> None:
    first, second = publish(store, 0, 1)
    published = store.revision()
    store.segments.mark_unused([first])
    marked = store.revision()
    store.segments.mark_unused([second])
    store.segments.kill([first])
    assert (store.history.oldest("d"), store.history.oldest("e")) == (marked, 0)
    assert used(store, marked) == [second]
    with pytest.raises(NotFound, match=f"use revision {marked} or a later one"):
        used(store, published)
    assert store.history.at("e", published) == []


def test_many_segments_that_one_call_marks_change_at_one_revision(store, monkeypatch) -> None:
    monkeypatch.setattr("penstock.storage.metadata.sql_database.ITEMS_PER_STATEMENT", 2)
    ids = publish(store, *range(5))
    before = store.revision()
    assert store.segments.mark_unused(ids) == 5
    assert store.revision() == before + 1
    assert used(store, before) == sorted(ids)


def test_the_first_known_revision_of_older_formats_is_that_of_the_migration(
    database_url, clock, monkeypatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations_module, "MIGRATIONS", migrations_module.MIGRATIONS[:9])
        older.setattr(migrations_module, "FORMAT_NUMBER", 9)
        with MetadataStore.open(database_url, clock=clock) as store:
            publish(store, 0)
            publish(store, 1)
            newest = store.revision()
    with MetadataStore.open(database_url, clock=clock) as store:
        assert store.history.oldest("d") == newest
        assert len(used(store, newest)) == 2
        with pytest.raises(NotFound, match="an older release wrote them"):
            used(store, newest - 1)


def test_a_copy_has_the_history(store, clock, tmp_path) -> None:
    (first,) = publish(store, 0)
    published = store.revision()
    store.segments.mark_unused([first])
    path = str(tmp_path / "copy.db")
    write_copy(store._database, path, clock)
    with MetadataStore.open(f"sqlite:///{tmp_path}/restored.db", clock=clock) as restored:
        read_copy(path, restored._database, clock)
        assert used(restored, published) == [first]
