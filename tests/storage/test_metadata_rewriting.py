"""Segments that rewrite others of their version: places, publishes, marks, and what is visible."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import RootRange
from penstock.segments.catalog import timeline_of
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.storage.metadata import AllocateRequest, PublishRequest, SegmentRow
from penstock.storage.metadata.chunk_summaries import chunks_of

DAY = Interval(0, 86_400_000)
VERSION = "2026-01-01T00:00:00.000Z"
FIRST = 32_768


def row(spec: ShardSpec) -> SegmentRow:
    return Segment("d", DAY, VERSION, {"type": "local", "path": "/x"}, spec, size=1).to_row()


def roots(*numbers: int, core: int = 0) -> list[SegmentRow]:
    return [row(ShardSpec(number, core)) for number in numbers]


def group(numbers, start, end, minor, size=None) -> list[SegmentRow]:
    found = RootRange(start, end, minor, size or len(numbers))
    return [row(ShardSpec.overwrite(FIRST + number, found)) for number in numbers]


def publish(store, rows, *, over=(), task="t"):
    names = tuple(one.id for one in over)
    request = PublishRequest(task, "d", tuple(rows), sequence_name=task, overwritten=names)
    return store.publish(request)


def visible(store) -> list[int]:
    pieces = timeline_of(store.segments.used("d")).visible().spans(DAY)
    return [chunk.number for *_, entry in pieces for chunk in entry.visible]


def place(store, space="overwrite", sequence="s"):
    asked = AllocateRequest("d", DAY, sequence, VERSION, space=space)
    (found,) = store.allocate_segments([asked])
    return found.partition_number, found.core_partitions, found.minor_version


def test_a_group_takes_the_place_of_what_it_rewrites(store) -> None:
    old = roots(0, 1, 2, core=3)
    assert publish(store, old).ok
    assert place(store) == (FIRST, 0, 1)
    assert publish(store, group([0, 1], 0, 3, 1), over=old, task="u").ok
    assert visible(store) == [FIRST, FIRST + 1]
    assert place(store, sequence="next")[::2] == (FIRST + 2, 2)


def test_what_a_task_has_read_itself_is_not_compared_with_itself(store, monkeypatch) -> None:
    """Of thousands of small segments that would be the square, in the transaction of a publish."""
    old = roots(*range(50))
    publish(store, old)
    sound, compared = RootRange.overshadows, []

    def overshadows(one: RootRange, other: RootRange) -> bool:
        compared.append(other)
        return sound(one, other)

    monkeypatch.setattr(RootRange, "overshadows", overshadows)
    assert publish(store, group([0], 0, 50, 1), over=old, task="u").ok
    assert len(compared) <= len(old)


def test_a_place_reads_of_a_chunk_only_what_rewrites(store, monkeypatch) -> None:
    """A day of small segments has thousands of them, and everyone waits for the transaction."""
    old = roots(*range(50))
    publish(store, old)
    publish(store, group([0], 0, 2, 1), over=old[:2], task="u")
    sound, read = orjson.loads, []

    def loads(text: str) -> object:
        read.append(text)
        return sound(text)

    monkeypatch.setattr(orjson, "loads", loads)
    assert place(store)[2] == 2
    assert {sound(text)["shardSpec"]["minorVersion"] for text in read} == {1}


def test_what_is_appended_beside_a_group_is_seen_though_its_core_is_unused(store) -> None:
    old = roots(0, 1, core=2)
    publish(store, old)
    publish(store, group([0], 0, 2, 1), over=old, task="u")
    publish(store, roots(2, core=2), task="v")
    store.segments.mark_unused([one.id for one in old])
    assert visible(store) == [2, FIRST]
    # The chunk counts as one that is there: what comes next goes beside it.
    assert place(store, "root")[0] == 3
    (occupied,) = store.segments.occupied("d", [DAY])
    assert occupied.visible == (DAY,)


def test_a_number_that_was_rewritten_is_never_given_again(store) -> None:
    old = roots(0, 1)
    publish(store, old)
    publish(store, group([0], 0, 2, 1), over=old, task="u")
    names = [one.id for one in old]
    store.segments.mark_unused(names)
    assert place(store, "root", "one")[0] == 2
    store.segments.kill(names)
    assert place(store, "root", "two")[0] == 3


@pytest.mark.parametrize(
    ("new", "over", "what"),
    [
        (group([0], 0, 2, 1, size=2), [0, 1], "does not consist of 1 segment"),
        (group([0], 0, 3, 1), [0, 1], "root numbers"),
        (group([0], 0, 2, 1), [0], "root numbers"),
        (group([0], 0, 3, 1), [0, 2], "root numbers"),
        (group([0], 0, 2, 1), [], "root numbers"),
    ],
)
def test_a_group_that_is_not_what_it_says_is_refused(store, new, over, what) -> None:
    old = roots(0, 1, 2)
    publish(store, old)
    with pytest.raises(InvalidRequest, match=what):
        publish(store, new, over=[old[number] for number in over], task="u")
    assert visible(store) == [0, 1, 2]


def test_a_part_of_a_group_cannot_be_rewritten(store) -> None:
    old = roots(0, 1)
    publish(store, old)
    first = group([0, 1], 0, 2, 1)
    publish(store, first, over=old, task="u")
    with pytest.raises(InvalidRequest, match="root numbers"):
        publish(store, group([2], 0, 2, 2), over=first[:1], task="v")
    assert publish(store, group([2], 0, 2, 2), over=first, task="w").ok
    assert visible(store) == [FIRST + 2]


def test_an_older_minor_version_is_refused(store) -> None:
    old = roots(0, 1)
    publish(store, old)
    first = group([0], 0, 2, 3)
    publish(store, first, over=old, task="u")
    outcome = publish(store, group([1], 0, 2, 3), over=first, task="v")
    assert (outcome.ok, outcome.outdated_by) == (False, (first[0].id,))


def test_marks_of_what_is_rewritten_refuse_the_publish(store) -> None:
    old = roots(0, 1, 2)
    publish(store, old)
    store.segments.mark_unused([old[1].id])
    outcome = publish(store, group([0], 0, 3, 1), over=old, task="u")
    assert (outcome.ok, outcome.outdated_by) == (False, (old[1].id,))
    assert "marked unused" in outcome.reason
    store.segments.mark_unused([one.id for one in old])
    store.segments.kill([old[2].id])
    assert not publish(store, group([0], 0, 3, 1), over=old, task="v").ok


def test_two_groups_of_other_numbers_do_not_hinder_each_other(store) -> None:
    old = roots(0, 1, 2, 3, core=4)
    publish(store, old)
    assert publish(store, group([0], 0, 2, 1), over=old[:2], task="u").ok
    assert publish(store, group([1], 2, 4, 1), over=old[2:], task="v").ok
    assert visible(store) == [FIRST, FIRST + 1]


def test_a_member_that_goes_brings_back_what_its_group_hid(store) -> None:
    old = roots(0, 1, core=2)
    new = group([0, 1], 0, 2, 1)
    publish(store, old)
    publish(store, new, over=old, task="u")
    store.segments.mark_unused([new[0].id])
    assert visible(store) == [0, 1]
    # The rest of the group waits, and the next one is told from it.
    assert place(store)[2] == 2


def test_the_rest_of_a_group_is_in_nobodys_way_and_stays_out_of_view(store) -> None:
    old, first = roots(0, 1, 2), group([0, 1], 0, 2, 1)
    publish(store, old)
    publish(store, first, over=old[:2], task="u")
    store.segments.mark_unused([first[0].id])
    assert visible(store) == [0, 1, 2]
    assert publish(store, group([2], 1, 3, 2), over=old[1:], task="v").ok
    assert visible(store) == [0, FIRST + 2]
    assert store.segments.mark_used([first[0].id]) == 0
    assert visible(store) == [0, FIRST + 2]


def test_marks_bring_back_nothing_that_a_group_stands_for(store) -> None:
    old, new = roots(0, 1, 2), group([0], 0, 3, 1)
    publish(store, old)
    publish(store, new, over=old, task="u")
    store.segments.mark_unused([one.id for one in old])
    assert store.segments.mark_used([one.id for one in old]) == 0
    store.segments.mark_unused([new[0].id])
    # All at once: the newest of each root number.
    assert store.segments.mark_used_within("d", DAY) == 1
    assert visible(store) == [FIRST]


def test_a_group_does_not_come_back_above_a_part_of_a_newer_one(store) -> None:
    old, first = roots(0, 1, 2), group([0], 0, 2, 1)
    publish(store, old)
    publish(store, first, over=old[:2], task="u")
    store.segments.mark_unused([first[0].id])
    publish(store, group([1], 1, 3, 2), over=old[1:], task="v")
    assert store.segments.mark_used([first[0].id]) == 0
    assert visible(store) == [0, FIRST + 1]


def test_a_stream_rewrites_nothing(store) -> None:
    old = roots(0)
    publish(store, old)
    new = tuple(group([0], 0, 1, 1))
    request = PublishRequest("t", "d", new, kind="append", overwritten=(old[0].id,))
    with pytest.raises(InvalidRequest, match="EXCLUSIVE"):
        store.publish(request)


def test_numbers_end_with_their_space(store) -> None:
    publish(store, [row(ShardSpec(FIRST - 1, 0))])
    with pytest.raises(Conflict, match="no partition number left"):
        place(store, "root")


@given(st.data())
def test_chunks_are_whole_where_the_timeline_says_so(data) -> None:
    core = data.draw(st.integers(0, 4))
    rows = roots(*data.draw(st.sets(st.integers(0, 5))), core=core)
    number = 0
    kinds = data.draw(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
            max_size=4,
            unique_by=lambda one: one[:3],
        )
    )
    for start, length, minor, size in kinds:
        there = data.draw(st.integers(1, size))
        rows += group(range(number, number + there), start, start + length, minor, size)
        number += size
    if not rows:
        return
    (chunk,) = chunks_of(rows).values()
    entries = list(timeline_of(rows).visible().entries())
    assert chunk.complete == bool(entries)


def test_a_group_that_lacks_members_beside_a_newer_one_that_does_tears_nothing() -> None:
    """The timeline shows neither, but what is whole below the newer one: a draw of the above."""
    newer, older = group([1], 0, 2, 2, size=2), group([3], 1, 2, 1, size=2)
    rows = [*group([0], 0, 1, 1), *newer, *older]
    (chunk,) = chunks_of(rows).values()
    (entry,) = timeline_of(rows).visible().entries()
    assert [one.number for one in entry.visible] == [FIRST]
    assert chunk.complete


def test_an_append_beside_what_is_left_of_a_group_of_its_version_is_refused(store) -> None:
    """The day is not in view, but nobody could read it together with an hour of one version."""
    old, new = roots(0, 1), group([0, 1], 0, 2, 1)
    publish(store, old)
    publish(store, new, over=old, task="u")
    store.segments.mark_unused([*(one.id for one in old), new[1].id])
    assert visible(store) == []
    hour = Interval(0, 3_600_000)
    (place,) = store.allocate_segments([AllocateRequest("d", hour, "s", VERSION)])
    late = structs.replace(old[0], id=place.id, interval=hour, version=place.version)
    outcome = store.publish(PublishRequest("v", "d", (late,), kind="append"))
    assert not outcome.ok
    assert f"the segments of {DAY}" in outcome.reason
