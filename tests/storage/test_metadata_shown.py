"""Which announced files a snapshot shows: no event twice, whatever tasks announce and publish."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AnnouncedFile,
    AnnouncedOffsets,
    AnnouncedRow,
    CommittedRow,
    PublishRequest,
)
from penstock.storage.metadata.announced_files import (
    Candidate,
    choose,
    dump_announced_offsets,
    load_announced_offsets,
)

DAY = Interval(0, 86_400_000)


def announce(
    store, task: str, sequence: str, start: int, end: int, topic_id: str = "x", priority: int = 0
) -> None:
    """Announce one file with a row for each offset."""
    file = AnnouncedFile(f"/{task}/{sequence}", DAY, end - start)
    reading = AnnouncedOffsets("sup", {0: start}, {0: end}, topic_id, priority)
    assert store.announce(task, "d", sequence, [file], reading)


def shown(store) -> list[str]:
    return [row.file.path for row in store.snapshot("d").announced]


def test_a_replica_that_reads_on_behind_the_agreed_end_hides_nothing_of_the_successor(store):
    store.begin_offsets("sup", {0: 0}, "x")
    announce(store, "asked", "a_0", 0, 5)
    announce(store, "mute", "a_0", 0, 9)
    assert shown(store) == ["/mute/a_0"]
    announce(store, "next", "b_0", 5, 8)
    assert shown(store) == ["/asked/a_0", "/next/b_0"]


def test_a_successor_whose_events_somebody_else_published_is_shown_no_more(store):
    store.begin_offsets("sup", {0: 0}, "x")
    announce(store, "mute", "a_0", 0, 9)
    announce(store, "next", "b_0", 5, 12)
    seen = store.snapshot("d")
    assert [row.task_id for row in seen.announced] == ["next"]
    publish = PublishRequest("mute", "d", (), "sup", {0: 0}, {0: 9}, "a_0", topic_id="x")
    assert store.publish(publish).ok
    assert store.snapshot("d", known=seen).announced == ()


def test_offsets_of_another_topic_or_supervisor_are_other_events(store):
    store.begin_offsets("sup", {0: 7}, "new")
    announce(store, "one", "a_0", 7, 9, "new")
    announce(store, "old", "b_0", 0, 9, "old")
    files = [AnnouncedFile("/backfill", DAY, 9)]
    assert store.announce(
        "t", "d", "c_0", files, AnnouncedOffsets("backfill", {0: 0}, {0: 9}, "new")
    )
    assert store.announce("t", "d", "d_0", [AnnouncedFile("/unknown", DAY, 9)])
    assert shown(store) == ["/one/a_0", "/backfill", "/unknown"]
    store.begin_topic("sup", "new", "newer", {0: 0})
    assert shown(store) == ["/backfill", "/unknown"]


def test_of_replicas_that_keep_up_the_one_of_the_highest_priority_is_shown(store):
    store.begin_offsets("sup", {0: 0}, "x")
    announce(store, "low", "a_0", 0, 5)
    assert shown(store) == ["/low/a_0"]
    # It has not all that the other announced first.
    announce(store, "high", "a_0", 0, 4, priority=1)
    assert shown(store) == ["/low/a_0"]
    announce(store, "high", "a_0", 0, 5, priority=1)
    assert shown(store) == ["/high/a_0"]
    # One announcement behind, two behind, and up to date again.
    announce(store, "low", "a_0", 0, 8)
    assert shown(store) == ["/high/a_0"]
    announce(store, "low", "a_0", 0, 9)
    assert shown(store) == ["/low/a_0"]
    announce(store, "high", "a_0", 0, 8, priority=1)
    assert shown(store) == ["/high/a_0"]


def test_other_files_of_the_same_events_are_no_newer_announcement(store):
    store.begin_offsets("sup", {0: 0}, "x")
    announce(store, "low", "a_0", 0, 5)
    announce(store, "low", "a_0", 0, 8)
    announce(store, "high", "a_0", 0, 5, priority=1)
    assert shown(store) == ["/high/a_0"]
    announce(store, "low", "a_0", 0, 8)
    assert shown(store) == ["/high/a_0"]


def test_one_of_a_higher_priority_that_reads_on_behind_the_agreed_end_hides_nothing(store):
    store.begin_offsets("sup", {0: 0}, "x")
    announce(store, "asked", "a_0", 0, 5)
    announce(store, "mute", "a_0", 0, 9, priority=3)
    assert shown(store) == ["/mute/a_0"]
    announce(store, "next", "b_0", 5, 8)
    assert shown(store) == ["/asked/a_0", "/next/b_0"]


offset = st.integers(0, 6)
ranges = st.dictionaries(st.integers(0, 1), st.tuples(offset, offset).map(sorted), max_size=2)
readings = st.builds(
    lambda supervisor, found, topic_id, priority, before: AnnouncedOffsets(
        supervisor,
        {p: start for p, (start, _) in found.items()},
        {p: end for p, (_, end) in found.items()},
        topic_id,
        priority,
        before,
    ),
    st.sampled_from(["s", "t"]),
    ranges,
    st.sampled_from(["x", "y"]),
    st.integers(-1, 2),
    st.dictionaries(st.integers(0, 1), offset),
)


@given(
    st.lists(st.lists(readings, min_size=1, max_size=3), max_size=5),
    st.dictionaries(
        st.sampled_from(["s", "t"]),
        st.builds(CommittedRow, st.just("x"), st.dictionaries(st.integers(0, 1), offset)),
    ),
)
def test_no_offset_is_shown_twice_nor_beside_its_segment(sequences, committed):
    made = [[_candidate(reading) for reading in replicas] for replicas in sequences]
    chosen = choose(made, committed)
    taken = Counter(event for one in chosen for event in _events(one.reading))
    for name, known in committed.items():
        done = {(name, "x", p, n) for p, end in known.offsets.items() for n in range(end)}
        assert not done & taken.keys()
    assert not taken or max(taken.values()) == 1
    for replicas in made:
        assert sum(any(one is other for other in chosen) for one in replicas) <= 1


@given(st.lists(readings, min_size=1, max_size=4))
def test_nobody_of_a_lower_priority_is_shown_beside_one_that_lacks_one_announcement(replicas):
    made = [_candidate(reading) for reading in replicas]
    (chosen,) = choose([made], {})
    most = max(one.row_count for one in made)
    furthest = next(one for one in made if one.row_count == most)
    known = furthest.reading.before or furthest.reading.end
    keeping_up = [
        one
        for one in made
        if one is furthest or all(one.reading.end.get(p, 0) >= known[p] for p in known)
    ]
    assert chosen in keeping_up
    assert chosen.priority == max(one.priority for one in keeping_up)
    assert chosen.row_count == max(
        one.row_count for one in keeping_up if one.priority == chosen.priority
    )


@given(st.none() | readings)
def test_a_reading_is_kept_as_it_is(reading):
    assert load_announced_offsets(dump_announced_offsets(reading)) == reading


def _events(reading: AnnouncedOffsets) -> list[tuple[str, str, int, int]]:
    return [
        (reading.supervisor_id, reading.topic_id, p, n)
        for p, start in reading.start.items()
        for n in range(start, reading.end[p])
    ]


def _candidate(reading: AnnouncedOffsets) -> Candidate:
    file = AnnouncedFile("/f", DAY, len(_events(reading)))
    return Candidate(reading, [AnnouncedRow("t", "d", "s", file)])
