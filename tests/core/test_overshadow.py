"""Minor versions and atomic update groups within one interval and version."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Conflict
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import UNKNOWN_CORE, KeyRange, PartitionChunk, RootRange
from penstock.core.timeline.timeline import Timeline, TimelinePiece

Chunk = PartitionChunk[str]
DAY = Interval(1, 2)


def first(number: int, core: int = 0) -> Chunk:
    return PartitionChunk(number, core, str(number))


def over(number: int, start: int, end: int, minor: int, size: int) -> Chunk:
    return PartitionChunk(number, 0, str(number), place=RootRange(start, end, minor, size))


def timeline(*chunks: Chunk) -> Timeline[str]:
    made: Timeline[str] = Timeline()
    for chunk in chunks:
        made.add(DAY, "v1", chunk)
    return made


def numbers(pieces: Iterable[TimelinePiece[str]]) -> list[int]:
    return [chunk.number for piece in pieces for chunk in piece.chunks]


def visible(made: Timeline[str]) -> list[int]:
    return numbers(made.lookup(DAY))


ROOTS = [first(0), first(1), first(2)]
FULL = [over(32768, 0, 3, 1, 2), over(32769, 0, 3, 1, 2)]


def test_18_a_group_that_is_not_full_waits() -> None:
    made = timeline(*ROOTS, FULL[0])
    assert visible(made) == [0, 1, 2]
    assert made.find_fully_overshadowed() == []


def test_19_a_full_group_replaces_what_it_covers() -> None:
    made = timeline(*ROOTS, *FULL)
    assert visible(made) == [32768, 32769]
    assert numbers(made.find_fully_overshadowed()) == [0, 1, 2]


def test_20_what_was_appended_stays() -> None:
    assert visible(timeline(*ROOTS, *FULL, first(3))) == [3, 32768, 32769]


def test_21_without_a_member_what_was_hidden_comes_up() -> None:
    made = timeline(*ROOTS, *FULL)
    assert made.remove(DAY, "v1", 32769) == "32769"
    assert visible(made) == [0, 1, 2]


def test_a_group_that_is_not_full_shows_only_where_nothing_else_is() -> None:
    made = timeline(FULL[0])
    assert visible(made) == []
    assert numbers(made.lookup_incomplete_ok(DAY)) == [32768]
    made.add(DAY, "v1", over(32770, 0, 3, 2, 2))
    assert numbers(made.lookup_incomplete_ok(DAY)) == [32770]
    made.add(DAY, "v1", FULL[1])
    assert visible(made) == [32768, 32769]
    assert numbers(made.lookup_incomplete_ok(DAY)) == [32768, 32769]


def test_core_numbers_count_as_there_when_they_were_overwritten() -> None:
    made = timeline(first(0, 3), *FULL)
    assert visible(made) == [32768, 32769]
    made.remove(DAY, "v1", 32768)
    assert visible(made) == []  # 1 and 2 are missing, so the set is not whole
    assert numbers(made.lookup_incomplete_ok(DAY)) == [0]


def test_newer_groups_hide_older_ones_step_by_step() -> None:
    made = timeline(*ROOTS, *FULL, over(32770, 0, 3, 2, 1))
    assert visible(made) == [32770]
    assert numbers(made.find_fully_overshadowed()) == [0, 1, 2, 32768, 32769]
    made.remove(DAY, "v1", 32770)
    assert visible(made) == [32768, 32769]


def test_a_smaller_range_does_not_hide_a_larger_one() -> None:
    assert visible(timeline(*ROOTS, over(32768, 0, 3, 1, 1), over(32769, 0, 2, 2, 1))) == [
        32768,
        32769,
    ]


@pytest.mark.parametrize(
    "chunk", [over(32770, 0, 3, 1, 2), over(32770, 0, 3, 1, 5)], ids=["too many", "another size"]
)
def test_a_group_has_one_size(chunk: Chunk) -> None:
    made = timeline(*ROOTS, *FULL)
    with pytest.raises(Conflict, match="larger minor version"):
        made.add(DAY, "v1", chunk)
    assert visible(made) == [32768, 32769]
    assert len(made) == 5


def test_an_object_of_the_same_version_may_be_overshadowed() -> None:
    made = timeline(*ROOTS, *FULL)
    assert made.is_overshadowed(DAY, "v1", RootRange(1, 2, 0, 1))
    assert not made.is_overshadowed(DAY, "v1", RootRange(3, 4, 0, 1))
    assert not made.is_overshadowed(DAY, "v1", RootRange(0, 3, 1, 2))
    assert not made.is_overshadowed(DAY, "v1")
    assert made.is_overshadowed(DAY, "v0", RootRange(3, 4, 0, 1))


def link(number: int, start: str | None, end: str | None) -> Chunk:
    keys = KeyRange(("a",), (start,) if start else None, (end,) if end else None)
    return PartitionChunk(number, UNKNOWN_CORE, str(number), place=keys)


def test_old_ranges_are_whole_when_they_leave_no_gap() -> None:
    made = timeline(link(2, "m", None), link(0, None, "f"))
    assert visible(made) == []
    made.add(DAY, "v1", link(1, "f", "m"))
    assert visible(made) == [0, 1, 2]
    made.remove(DAY, "v1", 2)
    assert visible(made) == []
    with pytest.raises(Conflict, match="replace the interval"):
        made.add(DAY, "v1", first(5))


# Groups as segment locks make them: ranges nest, and newer ones are never smaller than older.
groups = [
    *[[first(n)] for n in range(4)],
    [over(40, 0, 2, 1, 1)],
    [over(41, 2, 4, 1, 2), over(42, 2, 4, 1, 2)],
    [over(43, 0, 4, 2, 2), over(44, 0, 4, 2, 2)],
]
pool = [chunk for group in groups for chunk in group]


def naive(present: set[int]) -> list[int]:
    """Root number by root number: the newest full group shows."""
    full = [g for g in groups if {c.number for c in g} <= present]
    shown: set[int] = set()
    for root in range(4):
        covering = [g for g in full if g[0].roots.start <= root < g[0].roots.end]
        if covering:
            newest = max(covering, key=lambda g: g[0].roots.minor_version)
            shown.update(chunk.number for chunk in newest)
    return sorted(shown)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(pool)), max_size=30))
def test_the_newest_full_group_shows_in_whatever_order_chunks_come_and_go(
    steps: list[tuple[bool, Chunk]],
) -> None:
    made: Timeline[str] = Timeline()
    present: set[int] = set()
    for adds, chunk in steps:
        if adds:
            made.add(DAY, "v1", chunk)
            present.add(chunk.number)
        else:
            made.remove(DAY, "v1", chunk.number)
            present.discard(chunk.number)
        shown = made.lookup_incomplete_ok(DAY)
        assert set(naive(present)) <= set(numbers(shown))
        if made.lookup(DAY):
            assert visible(made) == naive(present)
    members = [(DAY, "v1", chunk) for chunk in pool if chunk.number in present]
    assert Timeline.of(members).lookup_incomplete_ok(DAY) == made.lookup_incomplete_ok(DAY)
