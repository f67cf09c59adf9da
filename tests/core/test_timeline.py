"""The worked examples of the visibility rules, one by one, and the timeline against a naive model.

Days are written as numbers; `[1,4)A` is a visible piece of the set A.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.intervals import Interval
from penstock.core.timeline.chunks import PartitionChunk, RootRange, UpdateGroups
from penstock.core.timeline.timeline import Timeline, TimelinePiece, pieces_of

Pieces = list[TimelinePiece[str]]
Span = tuple[int, int, int, int]


class Sets:
    """A timeline of named sets; a set is given as ``"A", start, end, version``."""

    def __init__(self, *sets: tuple[str, int, int, int]) -> None:
        self.timeline: Timeline[str] = Timeline()
        for item in sets:
            self.add(*item)

    def add(
        self,
        name: str,
        start: int,
        end: int,
        version: int,
        *,
        numbers: Iterable[int] = (0,),
        core: int = 0,
        no_data: bool = False,
    ) -> None:
        for number in numbers:
            chunk = PartitionChunk(number, core, f"{name}{number}", no_data=no_data)
            self.timeline.add(Interval(start, end), f"v{version}", chunk)

    def remove(self, start: int, end: int, version: int, number: int = 0) -> str | None:
        return self.timeline.remove(Interval(start, end), f"v{version}", number)

    def visible(self, start: int, end: int, *, skip_no_data: bool = False) -> str:
        pieces = self.timeline.lookup(Interval(start, end), skip_no_data=skip_no_data)
        return self._text(pieces)

    def incomplete_ok(self, start: int, end: int) -> str:
        return self._text(self.timeline.lookup_incomplete_ok(Interval(start, end)))

    def hidden(self) -> list[str]:
        return [piece.chunks[0].item[0] for piece in self.timeline.find_fully_overshadowed()]

    def is_overshadowed(self, start: int, end: int, version: int) -> bool:
        return self.timeline.is_overshadowed(Interval(start, end), f"v{version}")

    @staticmethod
    def _text(pieces: Pieces) -> str:
        return " ".join(
            f"[{p.interval.start_ms},{p.interval.end_ms}){p.chunks[0].item[0]}"
            f"{','.join(str(c.number) for c in p.chunks if c.number or len(p.chunks) > 1)}"
            for p in pieces
        )


A_B = (("A", 1, 10, 1), ("B", 4, 6, 2))
A_B_C = (("A", 1, 9, 1), ("B", 3, 5, 2), ("C", 3, 5, 3))


def test_01_a_part_of_a_set_is_clipped() -> None:
    sets = Sets(("A", 1, 10, 1))
    assert sets.visible(3, 5) == "[3,5)A"
    [piece] = sets.timeline.lookup(Interval(3, 5))
    assert piece.true_interval == Interval(1, 10)
    assert piece.clipped


def test_02_a_newer_set_cuts_a_hole() -> None:
    assert Sets(*A_B).visible(1, 10) == "[1,4)A [4,6)B [6,10)A"


def test_03_a_newer_set_hides_the_end() -> None:
    assert Sets(("A", 1, 10, 1), ("B", 8, 12, 2)).visible(1, 20) == "[1,8)A [8,12)B"


def test_04_an_older_set_fills_what_is_left() -> None:
    assert Sets(("A", 1, 10, 2), ("B", 8, 12, 1)).visible(1, 20) == "[1,10)A [10,12)B"


def test_05_a_newer_set_lies_over_two() -> None:
    sets = Sets(("A", 1, 5, 1), ("B", 5, 9, 1), ("C", 3, 7, 2))
    assert sets.visible(1, 9) == "[1,3)A [3,7)C [7,9)B"


def test_06_a_set_may_be_hidden_whole() -> None:
    sets = Sets(*A_B_C)
    assert sets.visible(2, 4) == "[2,3)A [3,4)C"
    assert sets.hidden() == ["B"]


def incomplete() -> Sets:
    sets = Sets(("A", 1, 9, 1))
    sets.add("B", 1, 9, 2, core=2)
    return sets


def test_07_an_incomplete_set_hides_nothing() -> None:
    assert incomplete().visible(1, 9) == "[1,9)A"


def test_08_an_incomplete_set_shows_if_it_is_wanted() -> None:
    sets = incomplete()
    assert sets.incomplete_ok(1, 9) == "[1,9)B"
    assert sets.hidden() == []


def test_09_a_gap_stays_empty() -> None:
    assert Sets(("A", 1, 3, 1), ("B", 6, 8, 1)).visible(2, 7) == "[2,3)A [6,7)B"


def ten() -> Sets:
    return Sets(("A", 1, 9, 3), ("B", 2, 4, 1), ("C", 0, 12, 2))


def test_10_the_middle_hides_the_smallest() -> None:
    sets = ten()
    assert sets.visible(0, 12) == "[0,1)C [1,9)A [9,12)C"
    assert sets.hidden() == ["B"]


def test_11_a_staircase() -> None:
    sets = Sets(("A", 1, 5, 1), ("B", 2, 8, 2), ("C", 6, 9, 3))
    assert sets.visible(0, 9) == "[1,2)A [2,6)B [6,9)C"


def test_12_what_was_cut_is_one_piece_again() -> None:
    sets = Sets(*A_B)
    assert sets.remove(4, 6, 2) == "B0"
    assert sets.visible(1, 10) == "[1,10)A"


def test_13_what_was_hidden_comes_up() -> None:
    sets = Sets(*A_B_C)
    sets.remove(3, 5, 3)
    assert sets.visible(1, 9) == "[1,3)A [3,5)B [5,9)A"


def test_14_one_version_may_not_overlap_itself() -> None:
    sets = Sets(("A", 1, 9, 1))
    with pytest.raises(Conflict, match="newer version"):
        sets.add("B", 3, 12, 1)
    assert sets.visible(0, 20) == "[1,9)A"


def test_15_appended_chunks_come_with_the_core() -> None:
    sets = Sets()
    sets.add("A", 1, 2, 1, numbers=(0, 1, 2, 3), core=2)
    assert sets.visible(1, 2) == "[1,2)A0,1,2,3"


def test_16_without_its_core_nothing_shows() -> None:
    sets = Sets()
    sets.add("A", 1, 2, 1, numbers=(0, 2, 3), core=2)
    assert sets.visible(1, 2) == ""
    assert sets.incomplete_ok(1, 2) == "[1,2)A0,2,3"


def test_17_appends_need_no_core() -> None:
    sets = Sets()
    sets.add("A", 1, 2, 1, numbers=(4, 9))
    assert sets.visible(1, 2) == "[1,2)A4,9"


# 18 to 21 are about minor versions and atomic update groups: test_overshadow.py has them.


def test_22_a_tombstone_hides_and_is_not_shown() -> None:
    sets = Sets(("A", 1, 9, 1))
    sets.add("T", 3, 5, 2, no_data=True)
    assert sets.visible(1, 9, skip_no_data=True) == "[1,3)A [5,9)A"
    assert sets.visible(1, 9) == "[1,3)A [3,5)T [5,9)A"


def test_23_hours_over_a_day() -> None:
    sets = Sets(("A", 0, 24, 1), *(("H", hour, hour + 1, 2) for hour in range(23)))
    assert sets.visible(0, 24).split(" ") == [
        *(f"[{hour},{hour + 1})H" for hour in range(23)),
        "[23,24)A",
    ]
    assert sets.hidden() == []
    assert not sets.is_overshadowed(0, 24, 1)


def test_24_what_only_touches_is_not_in() -> None:
    sets = Sets(*A_B)
    assert sets.visible(10, 12) == ""
    assert sets.visible(5, 5) == ""


@pytest.mark.parametrize(
    ("start", "end", "version", "expected"),
    [(2, 4, 2, True), (8, 10, 2, False), (0, 9, 1, True), (0, 13, 1, False)],
)
def test_is_overshadowed_asks_for_larger_versions_without_a_gap(
    start: int, end: int, version: int, *, expected: bool
) -> None:
    assert ten().is_overshadowed(start, end, version) is expected


def test_a_chunk_again_is_ignored_and_another_one_refused() -> None:
    sets = Sets(("A", 1, 9, 1), ("A", 1, 9, 1))
    assert sets.visible(1, 9) == "[1,9)A"
    with pytest.raises(Conflict, match="use an unused number"):
        sets.add("B", 1, 9, 1)


def test_empty_time_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        Sets(("A", 1, 1, 1))


def test_taking_out_what_is_not_there_gives_none() -> None:
    sets = Sets(("A", 1, 9, 1))
    assert sets.remove(1, 9, 2) is None
    assert sets.remove(1, 9, 1, 5) is None
    assert sets.remove(1, 9, 1) == "A0"
    assert sets.remove(1, 9, 1) is None
    assert (sets.visible(0, 9), sets.incomplete_ok(0, 9), sets.hidden()) == ("", "", [])


def test_a_chunk_is_found_by_its_interval_or_one_within() -> None:
    sets = Sets(("A", 1, 9, 1), ("B", 1, 9, 2), ("C", 3, 5, 3))

    def find(interval: Interval, version: str, number: int = 0) -> str | None:
        found = sets.timeline.find_chunk(interval, version, number)
        return None if found is None else found.item

    assert [find(Interval(1, 9), f"v{version}") for version in (1, 2)] == ["A0", "B0"]
    assert find(Interval(3, 5), "v1") == "A0"
    assert find(Interval(3, 5), "v3") == "C0"
    assert find(Interval(0, 5), "v1") is None
    assert find(Interval(1, 9), "v1", 1) is None
    assert find(Interval(1, 9), "v4") is None


def test_what_is_visible_is_told_item_by_item_once() -> None:
    sets = Sets(*A_B)
    sets.add("C", 20, 22, 1, core=2)
    find = sets.timeline.find_non_overshadowed
    assert sorted(find()) == ["A0", "B0"]
    assert sorted(find(Interval(4, 6))) == ["B0"]
    assert sorted(find(incomplete_ok=True)) == ["A0", "B0", "C0"]


def test_all_of_a_batch_is_done_or_nothing() -> None:
    sets = Sets(*A_B)
    new = PartitionChunk(0, 0, "N")
    for bad in (
        (Interval(5, 12), "v1", new),  # overlaps A
        (Interval(10, 12), "v3", new),  # overlaps the next one of the batch
        (Interval(4, 6), "v2", new),  # another B
        (Interval(7, 7), "v9", new),
    ):
        with pytest.raises((Conflict, InvalidRequest)):
            sets.timeline.change(
                added=[(Interval(11, 13), "v3", new), bad], removed=[(Interval(1, 10), "v9", 0)]
            )
        assert sets.visible(0, 20) == "[1,4)A [4,6)B [6,10)A"
        assert len(sets.timeline) == 2


def test_a_batch_takes_out_before_it_puts_in() -> None:
    sets = Sets(*A_B)
    removed = sets.timeline.change(
        added=[
            (Interval(1, 5), "v1", PartitionChunk(0, 0, "C")),
            (Interval(5, 10), "v1", PartitionChunk(0, 0, "D")),
        ],
        removed=[(Interval(1, 10), "v1", 0), (Interval(1, 10), "v1", 7)],
    )
    assert removed == ["A0"]
    assert sets.visible(0, 20) == "[1,4)C [4,6)B [6,10)D"


def test_what_was_handed_out_stays_as_it_was() -> None:
    sets = Sets(*A_B)
    kept = sets.timeline.visible()
    sets.add("B", 4, 6, 2, numbers=(1, 2))
    sets.remove(1, 10, 1)
    assert Sets._text(pieces_of(kept, Interval(0, 20))) == "[1,4)A [4,6)B [6,10)A"
    assert sets.visible(0, 20) == "[4,6)B0,1,2"


def test_many_changes_at_once_are_as_good_as_one_after_the_other() -> None:
    hours = [(Interval(at, at + 2), "v1", PartitionChunk(0, 0, at)) for at in range(0, 400, 2)]
    over = [(Interval(at, at + 3), "v2", PartitionChunk(0, 0, -at)) for at in range(1, 400, 5)]
    whole, steps = Timeline.of(hours), Timeline.of(hours)
    whole.change(added=over)
    for member in over:
        steps.add(*member)
    assert whole.lookup(Interval(0, 500)) == steps.lookup(Interval(0, 500))
    assert whole.lookup(Interval(0, 500)) == Timeline.of(over + hours).lookup(Interval(0, 500))
    whole.change(removed=[(interval, version, 0) for interval, version, _ in over])
    assert whole.lookup(Interval(0, 500)) == Timeline.of(hours).lookup(Interval(0, 500))


@pytest.mark.parametrize("clash", [(Interval(3, 6), "v"), (Interval(1, 2), "v")])
def test_a_bulk_of_chunks_that_exclude_each_other_is_refused(clash: tuple[Interval, str]) -> None:
    members = [
        (Interval(1, 5), "v", PartitionChunk(0, 0, "A")),
        (Interval(20, 30), "v", PartitionChunk(0, 0, "B")),
        (*clash, PartitionChunk(0, 0, "C")),
    ]
    with pytest.raises(Conflict, match="newer version"):
        Timeline.of(members)
    with pytest.raises(Conflict, match="use an unused number"):
        Timeline.of([*members[:2], (Interval(1, 5), "v", PartitionChunk(0, 0, "C"))])
    with pytest.raises(InvalidRequest, match="set a later end"):
        Timeline.of([*members[:2], (Interval(1, 1), "v", PartitionChunk(0, 0, "C"))])


TIME = 12
chunks = st.tuples(
    st.integers(0, TIME - 1), st.integers(1, TIME), st.integers(1, 4), st.integers(0, 2)
).map(lambda item: (item[0], min(item[0] + item[1], TIME), item[2], item[3]))
steps = st.lists(st.tuples(st.booleans(), chunks), max_size=40)


class Naive:
    """The rules, instant by instant."""

    def __init__(self) -> None:
        self.sets: dict[tuple[int, int, int], set[int]] = {}

    def core(self, version: int) -> int:
        return version - 1  # so that some sets are complete only with all three chunks

    def shown(self, *, incomplete_ok: bool) -> list[tuple[int, int, int] | None]:
        candidates = [
            key
            for key, numbers in self.sets.items()
            if incomplete_ok or set(range(self.core(key[2]))) <= numbers
        ]
        return [
            max(
                (key for key in candidates if key[0] <= instant < key[1]),
                key=lambda key: key[2],
                default=None,
            )
            for instant in range(TIME)
        ]


def instants(pieces: Pieces) -> list[tuple[int, int, int] | None]:
    shown: list[tuple[int, int, int] | None] = [None] * TIME
    for piece in pieces:
        true = piece.true_interval
        for instant in range(piece.interval.start_ms, piece.interval.end_ms):
            assert shown[instant] is None, "pieces overlap"
            shown[instant] = (true.start_ms, true.end_ms, int(piece.version))
    return shown


@given(steps)
def test_the_timeline_agrees_with_the_rules_at_every_instant(
    steps: list[tuple[bool, Span]],
) -> None:
    timeline: Timeline[str] = Timeline()
    naive = Naive()
    for adds, (start, end, version, number) in steps:
        interval, key = Interval(start, end), (start, end, version)
        if adds:
            clash = any(
                other != key and other[2] == version and other[0] < end and start < other[1]
                for other in naive.sets
            )
            chunk = PartitionChunk(number, naive.core(version), f"{key}-{number}")
            if clash:
                with pytest.raises(Conflict):
                    timeline.add(interval, str(version), chunk)
            else:
                timeline.add(interval, str(version), chunk)
                naive.sets.setdefault(key, set()).add(number)
        else:
            there = number in naive.sets.get(key, set())
            assert (timeline.remove(interval, str(version), number) is not None) == there
            if there:
                naive.sets[key].discard(number)
                if not naive.sets[key]:
                    del naive.sets[key]
        compare(timeline, naive)


def compare(timeline: Timeline[str], naive: Naive) -> None:
    whole = Interval(0, TIME)
    complete, everything = (naive.shown(incomplete_ok=ok) for ok in (False, True))
    pieces = timeline.lookup(whole)
    assert instants(pieces) == complete
    assert instants(timeline.lookup_incomplete_ok(whole)) == everything
    for one, other in itertools.pairwise(pieces):
        touch = one.interval.end_ms == other.interval.start_ms
        assert not (
            touch and (one.true_interval, one.version) == (other.true_interval, other.version)
        )
    for piece in pieces:
        key = (piece.true_interval.start_ms, piece.true_interval.end_ms, int(piece.version))
        assert {chunk.number for chunk in piece.chunks} == naive.sets[key]
    hidden = {
        (p.true_interval.start_ms, p.true_interval.end_ms, int(p.version))
        for p in timeline.find_fully_overshadowed()
    }
    assert hidden == set(naive.sets) - set(complete) - set(everything)
    for start, end, version in ((0, TIME, 2), (3, 5, 1), (4, 9, 3)):
        covered = all(key is not None and key[2] > version for key in complete[start:end])
        assert timeline.is_overshadowed(Interval(start, end), str(version)) == covered


def spans(timeline: Timeline[str]) -> tuple[Pieces, Pieces]:
    whole = Interval(0, TIME)
    return timeline.lookup(whole), timeline.lookup_incomplete_ok(whole)


@given(st.lists(chunks, max_size=16), st.lists(chunks, max_size=8), st.randoms())
def test_neither_order_nor_batches_matter(
    items: Sequence[Span], gone: Sequence[Span], rng: Random
) -> None:
    first: Timeline[str] = Timeline()
    taken = []
    for start, end, version, number in dict.fromkeys(items):
        member = (Interval(start, end), str(version), PartitionChunk(number, version - 1, ""))
        try:
            first.add(*member)
        except Conflict:
            continue
        taken.append(member)
    keys = [(Interval(start, end), str(version), number) for start, end, version, number in gone]
    left = [m for m in taken if (m[0], m[1], m[2].number) not in keys]
    first.change(removed=keys)
    rng.shuffle(taken)
    second: Timeline[str] = Timeline()
    cut = rng.randrange(len(taken) + 1)
    second.change(added=taken[:cut])
    second.change(added=taken[cut:], removed=keys)
    second.change(removed=keys)
    rng.shuffle(left)
    assert spans(first) == spans(second) == spans(Timeline.of(left))


@pytest.mark.parametrize(
    ("existing", "added", "clashing"),
    [
        ([RootRange(0, 2, 1)], [RootRange.of(0), RootRange.of(2)], [RootRange.of(0)]),
        ([RootRange.of(0), RootRange.of(1)], [RootRange(0, 2, 1)], []),
        ([RootRange(0, 2, 1)], [RootRange(0, 1, 2)], [RootRange(0, 1, 2)]),
        ([RootRange(0, 2, 1)], [RootRange(0, 2, 2)], []),
        ([RootRange(0, 2, 1, 2)], [RootRange.of(0)], []),  # not full, so it shows nothing yet
        ([RootRange(0, 2, 1, 2)], [RootRange(0, 2, 1, 2), RootRange.of(0)], [RootRange.of(0)]),
    ],
)
def test_groups_that_would_show_rows_twice_clash(
    existing: list[RootRange], added: list[RootRange], clashing: list[RootRange]
) -> None:
    counts = dict.fromkeys(existing, 1)
    assert UpdateGroups.clashing(counts, dict.fromkeys(added, 1)) == set(clashing)
