"""The publish transaction, announced files and snapshots, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import Interval
from penstock.storage.metadata import (
    AllocateRequest,
    AnnouncedFile,
    CommittedRow,
    CountsRow,
    MetadataStore,
    PublishRequest,
    QueryBatch,
    SegmentRow,
    TaskRow,
)
from penstock.storage.metadata.segment_overview import load_specs

DAY = Interval(0, 86_400_000)


def segment(number: int = 0, version: str = "v1", **changes) -> SegmentRow:
    row = SegmentRow(f"d_{version}_{number}", "d", DAY, version, number, 0, {"n": number})
    return structs.replace(row, **changes)


def stream(start, end, *segments, sequence="s0", task="t1", **more) -> PublishRequest:
    return PublishRequest(task, "d", segments, "sup", start, end, sequence_name=sequence, **more)


def used(store) -> list[str]:
    return [row.id for row in store.snapshot().segments]


def test_what_comes_too_late_is_told_who_published_before_it(store) -> None:
    store.reset_offsets("sup", {0: 0, 1: 0})
    assert store.publish(stream({0: 0}, {0: 4}, segment(0), sequence="a0", task="a")).ok
    assert store.publish(stream({0: 4}, {0: 9}, segment(1), sequence="b0", task="b")).ok
    assert store.publish(stream({1: 0}, {1: 7}, segment(2), sequence="c0", task="c")).ok
    late = store.publish(stream({0: 0}, {0: 6}, segment(3), sequence="d0", task="d"))
    assert "is behind the last committed {0: 9, 1: 7}" in late.reason
    assert late.reason.endswith("it has already been updated by task b")
    store.reset_offsets("sup", {0: 20, 1: 7})
    late = store.publish(stream({0: 0}, {0: 6}, segment(3), sequence="d0", task="d"))
    assert late.reason.endswith("by other tasks, or by hand")


@pytest.mark.parametrize(
    ("committed", "start", "end", "expected"),
    [
        (None, {0: 5}, {0: 9}, {0: 9}),  # any start is valid when nothing is committed
        ({0: 5}, {0: 5}, {0: 9}, {0: 9}),
        ({0: 5, 1: 2}, {0: 5, 1: 2}, {0: 9, 1: 2}, {0: 9, 1: 2}),
        ({0: 5, 1: 2}, {0: 5}, {0: 9}, {0: 9, 1: 2}),  # what it does not read stays
        ({0: 5}, {0: 5, 1: 0}, {0: 6, 1: 3}, {0: 6, 1: 3}),  # a new stream partition
        ({0: 5}, {0: 6}, {0: 9}, "retry"),
        ({0: 5, 1: 5}, {0: 6, 1: 4}, {0: 9, 1: 9}, "retry"),  # ahead anywhere counts as ahead
        ({0: 5}, {0: 4}, {0: 9}, "final"),
        ({0: 9, 10: 3}, {0: 9, 10: 2}, {0: 10, 10: 4}, "final"),
    ],
)
def test_offsets_move_only_from_where_the_sequence_began(store, committed, start, end, expected):
    if committed is not None:
        store.reset_offsets("sup", committed)
    outcome = store.publish(stream(start, end, segment()))
    if isinstance(expected, dict):
        assert (outcome.ok, outcome.inserted) == (True, ("d_v1_0",))
        assert store.offsets("sup") == expected
        assert used(store) == ["d_v1_0"]
        return
    assert (outcome.ok, outcome.retryable) == (False, expected == "retry")
    assert not outcome.already_published
    assert ("ahead of" if outcome.retryable else "already been updated") in outcome.reason
    assert store.offsets("sup") == committed
    assert used(store) == []
    assert store.counts("sup") == CountsRow()


def test_whatever_may_have_moved_offsets_is_told_by_another_number(store) -> None:
    seen = [store.last_move("sup")]

    def moved() -> bool:
        seen.append(store.last_move("sup"))
        return seen[-1] not in seen[:-1]

    store.begin_offsets("sup", {0: 0}, "topic1")
    assert moved()
    assert store.publish(stream({0: 0}, {0: 4}, segment(0), topic_id="topic1")).ok
    assert moved()
    store.move_offsets("sup", {0: 6})
    assert moved()
    assert store.begin_topic("sup", "topic1", "topic2", {0: 0})
    assert moved()
    store.reset_offsets("sup", {0: 1}, "topic2")
    assert moved()
    with pytest.raises(Conflict):
        store.begin_offsets("sup", {1: 0}, "topic3")  # Whether it failed in time is not asked.
    assert moved()
    store.move_offsets("other", {0: 1})
    assert store.committed("sup") is not None
    assert store.last_move("sup") == seen[-1]


def test_a_refused_publish_changes_nothing_visible(store) -> None:
    store.reset_offsets("sup", {0: 5})
    store.announce("t1", "d", "s0", [AnnouncedFile("/f", DAY, 3)])
    before = store.snapshot()
    store.publish(stream({0: 0}, {0: 5}, segment()))
    assert store.snapshot() == before


@pytest.mark.parametrize("state", ["SUCCESS", "FAILED"])
def test_a_task_that_has_ended_publishes_nothing_more(store, state) -> None:
    store.tasks.insert_new([TaskRow("t1", "d", "index", "g", {})])
    assert store.publish(stream({0: 0}, {0: 5}, segment())).ok
    store.tasks.set_status("t1", state)
    store.reset_offsets("sup", None)  # which alone would let any offsets match
    outcome = store.publish(stream({0: 5}, {0: 9}, segment(1), sequence="s1"))
    assert (outcome.ok, outcome.retryable) == (False, False)
    assert "has ended" in outcome.reason
    assert store.offsets("sup") is None
    assert used(store) == ["d_v1_0"]
    # One whose answer was lost hears that it went through all the same.
    assert store.publish(stream({0: 0}, {0: 5}, segment())).already_published


def test_without_segments_only_the_offsets_move(store) -> None:
    assert store.publish(stream({0: 0}, {0: 7})).ok
    assert (store.offsets("sup"), used(store)) == ({0: 7}, [])


def test_counts_add_up_over_publishes_that_went_through(store) -> None:
    counts = CountsRow(5, 1, 2, 3, 4, 1)
    store.publish(stream({0: 0}, {0: 5}, sequence="s0", counts=counts))
    store.publish(stream({0: 0}, {0: 5}, sequence="s0", counts=counts))
    store.publish(stream({0: 5}, {0: 9}, sequence="s1", counts=CountsRow(processed=4)))
    assert store.counts("sup") == CountsRow(9, 1, 2, 3, 4, 1)
    assert store.counts("other") == CountsRow()


def test_a_repeated_publish_is_told_that_it_went_through(store) -> None:
    request = stream({0: 0}, {0: 5}, segment())
    assert store.publish(request).ok
    again = store.publish(replace(request, task_id="replica"))
    assert (again.ok, again.already_published, again.retryable) == (False, True, False)
    assert used(store) == ["d_v1_0"]
    # The same name over other offsets is another matter.
    other = store.publish(stream({0: 0}, {0: 6}, segment(1)))
    assert (other.ok, other.already_published) == (False, False)


def test_a_batch_publish_is_idempotent_by_id(store) -> None:
    request = PublishRequest("t1", "d", (segment(0), segment(1)))
    assert store.publish(request).inserted == ("d_v1_0", "d_v1_1")
    more = replace(request, segments=(segment(1), segment(2)))
    assert store.publish(more).inserted == ("d_v1_2",)
    assert used(store) == ["d_v1_0", "d_v1_1", "d_v1_2"]
    before = store.revision()
    assert store.publish(request).ok
    assert store.revision() == before


def test_new_events_under_a_taken_id_are_refused_not_dropped(store) -> None:
    store.publish(stream({0: 0}, {0: 5}, segment(0), sequence="s0"))
    outcome = store.publish(stream({0: 5}, {0: 9}, segment(0), sequence="s1"))
    assert (outcome.ok, outcome.retryable) == (False, False)
    assert "another sequence" in outcome.reason
    assert store.offsets("sup") == {0: 5}


def test_two_ids_for_one_place_conflict(store) -> None:
    store.publish(PublishRequest("t1", "d", (segment(0),)))
    with pytest.raises(Conflict):
        store.publish(PublishRequest("t1", "d", (segment(0, id="other"), segment(1))))
    assert used(store) == ["d_v1_0"]


def test_segments_hidden_by_their_own_publish_go_in_unused(store) -> None:
    incomplete = segment(0, "v3", core_partitions=2)
    store.publish(PublishRequest("t1", "d", (segment(0), segment(0, "v2"), incomplete)))
    assert used(store) == ["d_v2_0", "d_v3_0"]
    # A stream's offsets stand for all of its segments.
    store.publish(stream({0: 0}, {0: 5}, segment(1), segment(1, "v2")))
    assert {row.id for row in store.segments.every() if not row.used} == {"d_v1_0"}


def test_the_files_of_all_segments_are_told_in_one_pass(store) -> None:
    rows = [
        segment(number, payload={"loadSpec": {"type": "local", "path": f"/{number}"}, "bytes": 1})
        for number in range(2_500)
    ]
    store.publish(PublishRequest("t1", "d", (*rows, segment(2_500, payload={}))))
    store.segments.mark_unused(["d_v1_0"])
    told = sorted(
        str(spec["path"]) for spec in store.segment_overviews.read(lambda o: list(load_specs(o)))
    )
    assert told == sorted(f"/{number}" for number in range(2_500))


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (PublishRequest("t1", "d", (), "sup", {0: 1}), "all three or none"),
        (PublishRequest("t1", "d", (), None, {0: 1}, {0: 2}), "all three or none"),
        (stream({0: 5}, {0: 4}), "do not follow"),
        (stream({0: 5, 1: 1}, {0: 6}), "do not follow"),
        (PublishRequest("t1", "e", (segment(),)), "one datasource"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused(store, request_, complaint) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        store.publish(request_)


def test_a_publish_clears_up_behind_its_sequence(store) -> None:
    for sequence in ("s0", "s1"):
        store.allocate_segments([AllocateRequest("d", DAY, sequence, "v1")])
        for task in ("t1", "replica"):
            store.announce(task, "d", sequence, [AnnouncedFile(f"/{task}/{sequence}", DAY, 3)])
    store.announce("t1", "e", "s0", [AnnouncedFile("/e", DAY, 3)])
    store.publish(stream({0: 0}, {0: 5}, segment(), sequence="s0"))
    snapshot = store.snapshot()
    assert [(row.datasource, row.sequence_name) for row in snapshot.announced] == [
        ("d", "s1"),
        ("e", "s0"),
    ]
    assert [row.sequence_name for row in store.segments.pending("d")] == ["s1"]
    # A task that was cut after the publish shows its files again: they are in the segments.
    assert not store.announce("t1", "d", "s0", [AnnouncedFile("/again", DAY, 3)])
    assert store.snapshot() == snapshot


def test_a_publish_frees_the_places_of_its_segments_by_any_name(store) -> None:
    requests = [AllocateRequest("d", DAY, name, "v1") for name in ("s0", "s0#1", "s1")]
    store.allocate_segments(requests)
    store.publish(stream({0: 0}, {0: 5}, segment(0), segment(1), sequence="s0"))
    assert [row.sequence_name for row in store.segments.pending("d")] == ["s1"]


def test_published_sequences_are_forgotten_when_no_older_task_is_left(store, clock) -> None:
    store.tasks.insert_new([TaskRow("t1", "d", "index", "g", {})])
    store.publish(stream({0: 0}, {0: 5}, sequence="s0"))
    file = AnnouncedFile("/f", DAY, 3)
    clock.ms += 2 * 86_400_000
    store.publish(stream({0: 5}, {0: 6}, sequence="s1"))
    assert not store.announce("t1", "d", "s0", [file])
    store.tasks.set_status("t1", "SUCCESS")
    clock.ms += 1
    store.publish(stream({0: 6}, {0: 7}, sequence="s2", task="t2"))
    remembered = [s for s in ("s0", "s1", "s2") if not store.announce("new", "d", s, [file])]
    assert remembered == ["s1", "s2"]


def test_an_announcement_replaces_the_one_before(store) -> None:
    store.announce("t1", "d", "s0", [AnnouncedFile("/a", DAY, 1), AnnouncedFile("/b", DAY, 1)])
    store.announce(
        "t1", "d", "s0", [AnnouncedFile("/b", DAY, 1, {"bytes": 9}), AnnouncedFile("/c", DAY, 1)]
    )
    files = [row.file for row in store.snapshot("d").announced]
    assert [file.path for file in files] == ["/b", "/c"]
    assert files[0].payload == {"bytes": 9}
    store.announce("t1", "d", "s0", [])
    assert store.snapshot().announced == ()


def test_of_replicas_the_one_that_got_furthest_is_seen(store) -> None:
    store.announce("t1", "d", "s0", [AnnouncedFile("/1a", DAY, 3), AnnouncedFile("/1b", DAY, 1)])
    store.announce("t2", "d", "s0", [AnnouncedFile("/2", DAY, 3)])
    store.announce("t2", "d", "s1", [AnnouncedFile("/2s1", DAY, 1)])
    assert [row.file.path for row in store.snapshot().announced] == ["/1a", "/1b", "/2s1"]
    store.announce("t1", "d", "s0", [])
    assert [row.file.path for row in store.snapshot().announced] == ["/2", "/2s1"]


def test_the_revision_grows_with_visible_changes_only(store) -> None:
    seen = [store.revision()]

    def grew() -> bool:
        seen.append(store.revision())
        assert seen[-1] >= seen[-2]
        return seen[-1] > seen[-2]

    store.announce("t1", "d", "s0", [AnnouncedFile("/a", DAY, 1)])
    assert grew()
    store.announce("t1", "d", "s1", [])
    store.announce("t9", "d", "s0", [])
    assert not grew()
    store.publish(stream({0: 0}, {0: 5}, segment()))
    assert grew()
    # Announced files are shown or not as the committed offsets say.
    store.publish(stream({0: 5}, {0: 6}, sequence="s1"))
    assert grew()
    store.reset_offsets("sup", {0: 1})
    assert grew()
    store.allocate_segments([AllocateRequest("d", DAY, "s2", "v1")])
    store.tasks.insert_new([TaskRow("t1", "d", "index", "g", {})])
    store.tasks.set_status("t1", "SUCCESS")
    assert not grew()
    store.segments.mark_unused(["d_v1_0"])
    assert grew()
    store.segments.mark_unused(["d_v1_0"])
    assert not grew()


@pytest.mark.parametrize("datasource", [None, "d"])
def test_a_snapshot_moves_on_over_many_changes(store, datasource) -> None:
    def publish(name, *rows) -> None:
        assert store.publish(PublishRequest("t", name, rows)).ok

    publish("d", *(segment(n) for n in range(1000)))
    seen = store.snapshot(datasource)
    store.segments.mark_unused(f"d_v1_{n}" for n in range(0, 700, 2))
    publish("d", *(segment(n, "v2") for n in range(400)))
    publish("e", *(segment(n, id=f"e{n}", datasource="e") for n in range(5)))
    seen = store.snapshot(datasource, known=seen)
    assert seen == store.snapshot(datasource)
    # Out of view, killed, and another in: the dead one has left no row that says so.
    store.segments.mark_unused(["d_v1_1"])
    store.segments.kill(["d_v1_1"])
    publish("d", segment(1000))
    seen = store.snapshot(datasource, known=seen)
    assert seen == store.snapshot(datasource)
    assert len(seen.segments) == 1000 - 350 + 400 + (5 if datasource is None else 0)


def test_a_known_snapshot_saves_what_did_not_change(store) -> None:
    store.publish(stream({0: 0}, {0: 5}, segment()))
    first = store.snapshot()
    assert store.snapshot(known=first) is first
    store.announce("t1", "d", "s1", [AnnouncedFile("/a", DAY, 1)])
    second = store.snapshot(known=first)
    assert second.segments is first.segments
    assert len(second.announced) == 1
    assert second == store.snapshot()
    store.publish(stream({0: 5}, {0: 9}, segment(1), sequence="s1"))
    third = store.snapshot(known=second)
    assert third == store.snapshot()
    assert store.snapshot("d", known=third) is not third
    assert store.snapshot("e").segments == ()


def test_offsets_begin_once(store) -> None:
    assert store.offsets("sup") is None
    assert store.begin_offsets("sup", {0: 5}) == {0: 5}
    assert store.begin_offsets("sup", {1: 3, 0: 0}) == {0: 5, 1: 3}
    assert store.offsets("sup") == {0: 5, 1: 3}
    # A sequence that overtakes the first one is held back.
    assert store.publish(stream({0: 9, 1: 3}, {0: 12, 1: 3})).retryable
    store.reset_offsets("sup", None)
    assert store.offsets("sup") is None


def test_used_and_unused(store, clock) -> None:
    store.publish(PublishRequest("t1", "d", tuple(segment(n) for n in range(4))))
    assert store.segments.mark_unused(["d_v1_0", "d_v1_1", "nobody"]) == 2
    assert used(store) == ["d_v1_2", "d_v1_3"]
    marked_ms = clock.ms
    clock.ms += 10
    assert store.segments.unused(changed_before_ms=marked_ms) == []
    found = store.segments.unused(changed_before_ms=clock.ms, datasource="d", interval=DAY)
    assert [row.id for row in found] == ["d_v1_0", "d_v1_1"]
    first, rest = (
        store.segments.unused(changed_before_ms=clock.ms, after=after, limit=1)
        for after in (None, found[0])
    )
    assert [first, rest] == [found[:1], found[1:]]
    assert store.segments.unused(changed_before_ms=clock.ms, after=found[1]) == []
    assert store.segments.unused(changed_before_ms=clock.ms, datasource="e") == []
    assert store.segments.unused(changed_before_ms=clock.ms, interval=Interval(0, 5)) == []
    assert store.segments.mark_used(["d_v1_0", "d_v1_2"]) == 1
    assert [r.id for r in store.segments.kill(["d_v1_0", "d_v1_1"]).rows] == ["d_v1_1"]
    assert sorted(row.id for row in store.segments.by_ids(f"d_v1_{n}" for n in range(9))) == [
        "d_v1_0",
        "d_v1_2",
        "d_v1_3",
    ]


def test_an_id_that_is_named_twice_counts_once(store) -> None:
    """Long lists are read in pieces: the two may be in different ones."""
    core = structs.replace(segment(0), core_partitions=2)
    store.publish(PublishRequest("t1", "d", (core,)))
    store.publish(PublishRequest("t1", "d", (segment(0, "v0"),)))
    store.segments.mark_unused(["d_v1_0", "d_v0_0"])
    twice = ["d_v1_0", *(f"nobody_{n}" for n in range(600)), "d_v1_0"]
    assert [row.id for row in store.segments.by_ids(twice)] == ["d_v1_0"]
    # Half a core set hides nothing, so that the older segment comes back beside it.
    assert store.segments.mark_used([*twice, "d_v0_0"]) == 2


def test_overshadowed_segments_are_marked_only_if_nothing_changed_since(store) -> None:
    store.publish(PublishRequest("t1", "d", (segment(0),)))
    store.publish(PublishRequest("t1", "d", (segment(0, "v2"),)))
    seen = store.snapshot()
    store.segments.mark_unused(["d_v2_0"])
    assert store.segments.mark_overshadowed_unused(["d_v1_0"], seen.revision) == 0
    store.segments.mark_used(["d_v2_0"])
    now = store.snapshot()
    store.announce("t1", "d", "s0", [AnnouncedFile("/a", DAY, 1)])
    assert store.segments.mark_overshadowed_unused(["d_v1_0"], now.revision) == 1
    assert used(store) == ["d_v2_0"]


def test_racing_replicas_publish_each_sequence_once(database_url, clock) -> None:
    """Several connections at once: what the row lock and BEGIN IMMEDIATE are for."""
    sequences, replicas = 8, 4
    inserted: list[str] = []
    errors: list[BaseException] = []

    def replica(number: int, store: MetadataStore) -> None:
        try:
            for step in range(sequences):
                request = stream(
                    {0: step * 10},
                    {0: step * 10 + 10},
                    segment(step),
                    sequence=f"s{step}",
                    task=f"t{number}",
                    counts=CountsRow(10),
                )
                while True:
                    outcome = store.publish(request)
                    if not outcome.retryable:
                        break
                assert outcome.ok or outcome.already_published
                inserted.extend(outcome.inserted)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    stores = [MetadataStore.open(database_url, clock=clock) for _ in range(replicas)]
    stores[0].begin_offsets("sup", {0: 0})
    threads = [threading.Thread(target=replica, args=item) for item in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(inserted) == [f"d_v1_{step}" for step in range(sequences)]
    assert stores[0].offsets("sup") == {0: sequences * 10}
    assert stores[0].counts("sup") == CountsRow(sequences * 10)
    for store in stores:
        store.close()


def test_offsets_of_some_stream_partitions_are_moved_and_the_others_stay(store):
    assert store.move_offsets("sup", {1: 4}) == {1: 4}
    store.reset_offsets("sup", {0: 5, 1: 7})
    assert store.publish(stream({0: 5}, {0: 9}, segment())).ok
    assert store.move_offsets("sup", {1: 2}) == {0: 9, 1: 2}
    assert store.offsets("sup") == {0: 9, 1: 2}


# a topic that was deleted and made again under its name


def test_an_id_is_committed_once_it_is_known(store):
    store.begin_offsets("sup", {0: 5})
    assert store.committed("sup") == CommittedRow("", {0: 5})
    assert store.begin_offsets("sup", {0: 0}, "a") == {0: 5}
    assert store.committed("sup") == CommittedRow("a", {0: 5})
    with pytest.raises(Conflict, match="of the topic with the id a, not of b"):
        store.begin_offsets("sup", {1: 0}, "b")
    store.move_offsets("sup", {0: 6})
    assert store.publish(stream({0: 6}, {0: 9})).ok
    assert store.committed("sup") == CommittedRow("a", {0: 9})


def test_a_publish_may_be_the_first_to_know_the_id(store):
    store.begin_offsets("sup", {0: 0})
    assert store.publish(stream({0: 0}, {0: 9}, topic_id="a")).ok
    assert store.committed("sup") == CommittedRow("a", {0: 9})


def test_offsets_of_one_topic_do_not_match_those_of_another(store):
    """Even where they are equal: that is the case which would skip events."""
    store.reset_offsets("sup", {0: 5}, "a")
    outcome = store.publish(stream({0: 5}, {0: 9}, segment(), topic_id="b"))
    assert (outcome.ok, outcome.retryable, outcome.already_published) == (False, False, False)
    assert "the topic with the id b, which was deleted" in outcome.reason
    assert store.committed("sup") == CommittedRow("a", {0: 5})
    assert used(store) == []
    assert store.publish(stream({0: 5}, {0: 9}, segment(), topic_id="a")).ok


def test_a_topic_is_left_for_its_successor_once(store):
    assert not store.begin_topic("sup", "", "b", {0: 0})
    store.reset_offsets("sup", {0: 5, 1: 5}, "a")
    assert store.begin_topic("sup", "a", "b", {0: 2})
    assert not store.begin_topic("sup", "a", "c", {0: 0})
    assert store.committed("sup") == CommittedRow("b", {0: 2})
    # One of the old topic that comes late, from where the new one was begun.
    assert not store.publish(stream({0: 2}, {0: 9}, segment(), topic_id="a")).ok
    # One that was committed before is known all the same.
    store.reset_offsets("sup", {0: 0}, "a")
    assert store.publish(stream({0: 0}, {0: 7}, topic_id="a")).ok
    assert store.begin_topic("sup", "a", "b", {0: 0})
    assert store.publish(stream({0: 0}, {0: 7}, topic_id="a")).already_published


def test_chunks_of_one_version_that_overlap_are_not_published(store):
    """Neither could hide the other, so that nobody could read the datasource any more."""
    half = Interval(DAY.start_ms + 1, DAY.end_ms + 1)
    later = Interval(DAY.end_ms, 2 * DAY.end_ms)
    across = structs.replace(segment(), id="across", interval=half)
    beside = structs.replace(segment(), id="beside", interval=later)
    with pytest.raises(InvalidRequest, match=r"overlap and have the version 'v1', so"):
        store.publish(PublishRequest("t", "d", (segment(), beside, across)))
    assert used(store) == []
    newer = structs.replace(across, version="v2")
    store.publish(PublishRequest("t", "d", (segment(), segment(1), beside, newer)))
    assert len(used(store)) == 4


def test_what_overlaps_others_of_its_version_stays_unused(store):
    """As a day and an hour of it that were appended, the hour while the day was not in view."""
    hour, next_hour = Interval(0, 3_600_000), Interval(3_600_000, 7_200_000)
    for row in (
        segment(),
        structs.replace(segment(), id="hour", interval=hour),
        structs.replace(segment(), id="next", interval=next_hour),
        segment(0, "v0"),
    ):
        store.publish(PublishRequest("t", "d", (row,)))
        store.segments.mark_unused([row.id])
    assert store.segments.mark_used(["hour"]) == 1
    assert store.segments.mark_used(["d_v1_0"]) == 0
    # What is older is cut by the hour, and hidden by nothing that did not come back.
    assert store.segments.mark_used_within("d") == 2
    assert set(used(store)) == {"d_v0_0", "hour", "next"}
    store.segments.mark_unused_within("d")
    # A place that was given meanwhile is none any more when the day is back.
    rest = Interval(7_200_000, DAY.end_ms)
    (place,) = store.allocate_segments([AllocateRequest("d", rest, "s", "v1")])
    assert store.segments.mark_used_within("d") == 1
    assert used(store) == ["d_v1_0"]
    late = structs.replace(segment(), id=place.id, interval=place.interval, version=place.version)
    outcome = store.publish(PublishRequest("t", "d", (late,), kind="append"))
    assert not outcome.ok
    assert "they are visible again" in outcome.reason


def batch(
    query: str, number: int, at: int, datasource: str = "d", owner: str = "", **more
) -> PublishRequest:
    row = segment(at, id=f"{datasource}_v1_{at}", datasource=datasource)
    task = f"t{at}"
    which = QueryBatch(query, number, owner)
    return PublishRequest(task, datasource, (row,), sequence_name=task, batch=which, **more)


@pytest.mark.parametrize("kind", ["insert", "append"])
def test_a_batch_of_a_query_is_published_once(store, kind) -> None:
    assert store.publish(batch("q", 3, 0, kind=kind)).ok
    again = store.publish(batch("q", 3, 1, kind=kind))
    assert (again.ok, again.already_published, again.earlier_task) == (False, True, "t0")
    assert again.reason == "batch 3 of the Spark query q was published before, by task t0"
    # The task that published it repeats its publish.
    own = store.publish(batch("q", 3, 0, kind=kind))
    assert (own.ok, own.already_published, own.earlier_task) == (False, True, "")
    earlier = store.publish(batch("q", 2, 2, kind=kind))
    assert (earlier.ok, earlier.already_published) == (False, False)
    assert "is before its batch 3" in earlier.reason
    assert used(store) == ["d_v1_0"]
    assert store.publish(batch("q", 5, 3, kind=kind)).ok
    assert used(store) == ["d_v1_0", "d_v1_3"]


def test_batches_of_queries_and_datasources_are_apart(store) -> None:
    assert store.publish(batch("q", 3, 0)).ok
    assert store.publish(batch("p", 3, 1)).ok
    assert store.publish(batch("q", 3, 2, "e")).ok
    assert store.publish(batch("q", 0, 3, "e")).ok is False
    assert len(used(store)) == 3


def test_a_principal_cannot_use_the_query_of_another_one(store) -> None:
    assert store.publish(batch("q", 3, 0, owner="user:ann")).ok
    # Neither the same number nor a higher one blocks the owner of the query.
    assert store.publish(batch("q", 3, 1, owner="user:eve")).ok
    assert store.publish(batch("q", 2**40, 2, owner="user:eve")).ok
    again = store.publish(batch("q", 3, 3, owner="user:ann"))
    assert (again.ok, again.already_published, again.earlier_task) == (False, True, "t0")
    assert store.publish(batch("q", 4, 4, owner="user:ann")).ok
    # Names of principals and of datasources may have any characters.
    assert store.publish(batch("q", 1, 5, "b/q/c", owner="a")).ok
    assert store.publish(batch("q", 1, 6, "c", owner="a/q/b")).ok


def test_a_batch_of_an_earlier_release_is_recognized(store) -> None:
    """It was recorded without a principal."""
    assert store.publish(batch("q", 3, 0)).ok
    assert store.publish(batch("q", 3, 1, owner="user:ann")).already_published
    assert store.publish(batch("q", 4, 2, owner="user:ann")).ok


def test_a_refused_publish_records_no_batch(store) -> None:
    with pytest.raises(InvalidRequest):
        store.publish(batch("q", 3, 0, start_offsets={0: 1}))
    assert store.publish(batch("q", 3, 1)).ok


def test_of_two_tasks_with_one_batch_one_publishes(store) -> None:
    outcomes = []

    def publish(at: int) -> None:
        outcomes.append(store.publish(batch("q", 1, at)))

    threads = [threading.Thread(target=publish, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.ok for one in outcomes) == [False, False, False, True]
    assert sum(one.already_published for one in outcomes) == 3
    assert len(used(store)) == 1
