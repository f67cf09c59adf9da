"""The log of publishes: from an offset to its segments, from a segment to its task and offsets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    CountsRow,
    MetadataStore,
    PublishRequest,
    ReplaceLock,
    SegmentRow,
    migrations,
    segment_id,
)
from tests.storage.conftest import HandClock

DAY = Interval(0, 86_400_000)
OLD, NEW = "v1", "v2"


def segment(number: int = 0, version: str = OLD) -> SegmentRow:
    name = segment_id("d", DAY, version, number)
    return SegmentRow(name, "d", DAY, version, number, 0, {"n": number})


def stream(
    start: dict[int, int],
    end: dict[int, int],
    *segments: SegmentRow,
    name: str = "s0",
    task: str = "t1",
) -> PublishRequest:
    return PublishRequest(task, "d", segments, "sup", start, end, sequence_name=name)


def test_an_offset_leads_to_its_sequence_with_its_counts(
    store: MetadataStore, clock: HandClock
) -> None:
    counts = CountsRow(processed=3, unparseable=1)
    first = stream({0: 0, 1: 5}, {0: 4, 1: 5}, segment(0))
    assert store.publish(replace(first, counts=counts, topic_id="T")).ok
    assert store.publish(stream({0: 4, 1: 5}, {0: 9, 1: 6}, name="s1", task="t2")).ok
    (found,) = store.publishes.at_offset("sup", 0, 3)
    assert (found.task_id, found.sequence_name, found.topic_id) == ("t1", "s0", "T")
    assert (found.start_offsets, found.end_offsets) == ({0: 0, 1: 5}, {0: 4, 1: 5})
    assert (found.counts, found.segments) == (counts, (segment(0).id,))
    assert found.published_ms == clock.now_ms()
    assert store.publishes.of_segments([segment(0).id, "other"]) == {segment(0).id: found}
    # A sequence without rows is recorded, too.
    assert [(one.task_id, one.segments) for one in store.publishes.at_offset("sup", 0, 4)] == [
        ("t2", ())
    ]
    assert store.publishes.at_offset("sup", 1, 4) == []
    assert store.publishes.at_offset("sup", 0, 9) == []
    assert store.publishes.at_offset("other", 0, 3) == []


def test_a_refused_publish_is_not_recorded(store: MetadataStore) -> None:
    assert store.publish(stream({0: 0}, {0: 4}, segment(0))).ok
    assert store.publish(stream({0: 0}, {0: 4}, segment(0), task="t2")).already_published
    assert not store.publish(stream({0: 9}, {0: 12}, segment(1), name="s9")).ok
    assert [one.task_id for one in store.publishes.at_offset("sup", 0, 1)] == ["t1"]
    assert store.publishes.at_offset("sup", 0, 10) == []


def test_a_copy_names_the_publish_of_its_original(store: MetadataStore) -> None:
    appended = segment(0)
    cover = {appended.id: ReplaceLock("batch", NEW)}
    request = stream({0: 0}, {0: 4}, appended)
    assert store.publish(replace(request, kind="append", covering=cover)).ok
    replaced = PublishRequest(
        "batch", "d", (segment(0, NEW),), kind="replace", sequence_name="batch"
    )
    outcome = store.publish(replaced)
    (copy,) = set(outcome.inserted) - {segment(0, NEW).id}
    found = store.publishes.of_segments([appended.id, copy, segment(0, NEW).id])
    assert {name: one.task_id for name, one in found.items()} == {
        appended.id: "t1",
        copy: "t1",
        segment(0, NEW).id: "batch",
    }
    assert found[copy].segments == (appended.id,)


def test_records_are_kept_while_a_segment_exists_and_for_a_minimum_time(
    store: MetadataStore, clock: HandClock
) -> None:
    for number in range(3):
        with_rows = [segment(number)] if number < 2 else []
        request = stream({0: number}, {0: number + 1}, *with_rows, name=f"s{number}")
        assert store.publish(request).ok
    clock.ms += 1_000
    forget = store.publishes.forget
    assert forget(before_ms=clock.now_ms() - 2_000) == (0, 0)
    later_ms = clock.now_ms() + 1
    store.segments.mark_unused([segment(0).id])
    # The one without rows, but not the one whose segment is only unused.
    assert forget(before_ms=later_ms) == (1, 0)
    store.segments.kill([segment(0).id])
    assert [one.segments for one in store.publishes.at_offset("sup", 0, 0)] == [(segment(0).id,)]
    assert forget(before_ms=later_ms) == (1, 0)
    assert [bool(store.publishes.at_offset("sup", 0, at)) for at in range(3)] == [
        False,
        True,
        False,
    ]


def test_publishes_before_the_log_are_unknown(
    database_url: str, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:6])
        older.setattr(migrations, "FORMAT_NUMBER", 6)
        with MetadataStore.open(database_url, clock=clock) as store:
            row = (
                "INSERT INTO penstock_segments (id, datasource, start_ms, end_ms, version,"
                " partition_number, core_partitions, used, created_ms, used_changed_ms, payload,"
                " upgraded_from, changed_revision)"
                " VALUES ('old', 'd', 0, 1, 'v', 0, 0, TRUE, 1, 1, '{}', '', 0)"
            )
            store._database.write(lambda c: c.execute(text(row)))
    with MetadataStore.open(database_url, clock=clock) as store:
        assert store.publishes.of_segments(["old"]) == {}
        assert store.publish(stream({0: 0}, {0: 1}, segment(0))).ok
        assert set(store.publishes.of_segments(["old", segment(0).id])) == {segment(0).id}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 12)), max_size=12)
)
def test_every_reading_of_an_offset_is_found(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]]
) -> None:
    """Each step reads some offsets of one stream partition, sometimes after a reset."""
    path = tmp_path_factory.mktemp("log") / "metadata.db"
    with MetadataStore.open(f"sqlite:///{path}") as store:
        read: dict[tuple[int, int], list[str]] = {}
        at = {0: 0, 1: 0}
        for number, (partition, count, moved) in enumerate(steps):
            if moved > 9:
                at = {**at, partition: 0}
                store.reset_offsets("sup", at)
            start, at = at, {**at, partition: at[partition] + count}
            name = f"s{number}"
            assert store.publish(stream(start, at, name=name)).ok
            for offset in range(start[partition], at[partition]):
                read.setdefault((partition, offset), []).insert(0, name)
        for partition in at:
            for offset in range(70):
                found = store.publishes.at_offset("sup", partition, offset)
                names = [one.sequence_name for one in found]
                assert names == read.get((partition, offset), [])


def test_a_task_leads_to_its_publishes_and_segments(store: MetadataStore, clock: HandClock) -> None:
    began_ms = clock.now_ms()
    assert store.publishes.of_task("t1", began_ms, clock.now_ms()) == []
    clock.ms += 3_600_000
    created_ms = clock.now_ms()
    for number in range(12):
        task = "t1" if number % 3 == 0 else "t2"
        request = stream(
            {0: number}, {0: number + 1}, segment(number), name=f"s{number}", task=task
        )
        assert store.publish(request).ok
        clock.ms += 3_600_000
    found = store.publishes.of_task("t1", created_ms, clock.now_ms())
    assert [one.sequence_name for one in found] == ["s9", "s6", "s3", "s0"]
    # Only what was published while the task ran is read.
    assert store.publishes.of_task("t1", began_ms, created_ms - 1_000_000) == []
    ended_ms = created_ms + 4 * 3_600_000
    early = store.publishes.of_task("t1", created_ms, ended_ms)
    assert [one.sequence_name for one in early] == ["s3", "s0"]
    ids = [one.id for one in found]
    assert store.segments.mark_unused([segment(3).id]) == 1
    count, segments = store.publishes.segments_of(ids, 3)
    assert (count, len(segments)) == (4, 3)
    _, all_of_them = store.publishes.segments_of(ids, 100)
    assert {one.id: one.used for one in all_of_them} == {
        segment(n).id: n != 3 for n in (0, 3, 6, 9)
    }
    assert store.publishes.segments_of([], 5) == (0, [])
