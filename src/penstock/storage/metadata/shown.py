"""Which of the announced files a snapshot shows, so that it shows no event twice.

Pure but for the text of a reading. Tasks announce what they have read without knowing of each
other: replicas read the same; one that nobody can ask may read on behind the end that was agreed
with the others, where a successor reads, too; and whoever publishes first has the others refused.
Invariants:

- of the offsets of one supervisor and topic each is in one chosen announcement at most;
- none is chosen whose offsets are committed already: its events are in segments;
- nothing else is left out, but replicas that fall behind, and what one of a higher priority has
  not announced yet.

A replica keeps up with another if it reaches as far as that one did before its newest announcement.
So a higher priority costs the events of one announcement at most, which come with the next one;
and a replica that stands still is shown no more once another has announced twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.rows import AnnouncedRow, CommittedRow, Reading

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.metadata.rows import Offsets

_NOTHING: Final = CommittedRow("", {})


@dataclass(slots=True)
class Candidate:
    """What one task announces of one sequence, and whose events these are if that is known."""

    reading: Reading | None
    rows: list[AnnouncedRow] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        """How many rows its files have."""
        return sum(row.file.rows for row in self.rows)

    @property
    def priority(self) -> int:
        """The priority of its task."""
        return self.reading.priority if self.reading is not None else 0

    def keeps_up_with(self, other: Candidate) -> bool:
        """Whether it lacks no more than the newest announcement of another replica."""
        if self is other:
            return True
        if self.reading is None or other.reading is None:
            return False
        wanted, reached = other.reading.before or other.reading.end, self.reading.end
        return all(reached.get(p, 0) >= offset for p, offset in wanted.items())


def choose(
    sequences: Sequence[Sequence[Candidate]], committed: Mapping[str, CommittedRow]
) -> list[Candidate]:
    """Return what is shown, in the order given; of each sequence one candidate at most.

    Args:
        sequences: For each sequence what its replicas announce, not empty.
        committed: The committed offsets of each supervisor.
    """
    taken: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    chosen: dict[int, Candidate] = {}
    # The newest first: it gives up no rows because a replica of an older one has read too far, of
    # which there mostly is another replica that has not.
    numbers = sorted(range(len(sequences)), key=lambda n: _begin(sequences[n][0]), reverse=True)
    for number in numbers:
        left = sorted(sequences[number], key=lambda one: one.row_count, reverse=True)
        while left:
            candidate = _preferred(left)
            if _take(candidate.reading, committed, taken):
                chosen[number] = candidate
                break
            left = [one for one in left if one is not candidate]
    return [chosen[number] for number in sorted(chosen)]


def follow(reading: Reading, last: Reading | None) -> Reading:
    """Return a reading that knows up to where the one before it of its task has reached."""
    if last is None or differ(last.topic_id, reading.topic_id):
        return reading
    is_further = dict(last.end) != dict(reading.end)
    return replace(reading, before=last.end if is_further else last.before)


def differ(one: str, other: str) -> bool:
    """Whether two ids of topics are known and name two topics."""
    return bool(one and other and one != other)


def dump_reading(reading: Reading | None) -> str:
    """Return the text of a reading, an empty one if there is none."""
    if reading is None:
        return ""
    ranges = {str(p): [start, reading.end[p]] for p, start in reading.start.items()}
    found: dict[str, object] = {
        "supervisor": reading.supervisor_id,
        "topicId": reading.topic_id,
        "offsets": ranges,
    }
    if reading.before:
        found["before"] = {str(p): offset for p, offset in reading.before.items()}
    if reading.priority:
        found["priority"] = reading.priority
    return dump(found)


def load_reading(text: str) -> Reading | None:
    """Return the reading of a text that `dump_reading` made."""
    if not text:
        return None
    found = load(text)
    ranges = cast("dict[str, list[int]]", found["offsets"])
    before = cast("dict[str, int]", found.get("before", {}))
    return Reading(
        str(found["supervisor"]),
        {int(p): start for p, (start, _) in ranges.items()},
        {int(p): end for p, (_, end) in ranges.items()},
        str(found["topicId"]),
        cast("int", found.get("priority", 0)),
        {int(p): offset for p, offset in before.items()},
    )


def _preferred(by_progress: Sequence[Candidate]) -> Candidate:
    """Return the one of the highest priority that keeps up; of those that have it, the furthest."""
    furthest = by_progress[0]
    keeping_up = (one for one in by_progress if one.keeps_up_with(furthest))
    return max(keeping_up, key=lambda one: one.priority)


def _begin(candidate: Candidate) -> int:
    return sum(candidate.reading.start.values()) if candidate.reading else 0


def _take(
    reading: Reading | None,
    committed: Mapping[str, CommittedRow],
    taken: dict[tuple[str, int], list[tuple[str, int, int]]],
) -> bool:
    """Take the offsets of a reading, if nobody has any of them."""
    if reading is None:
        return True
    known = committed.get(reading.supervisor_id, _NOTHING)
    if differ(known.topic_id, reading.topic_id):
        return False
    ranges = _ranges(reading.start, reading.end)
    for p, (start, end) in ranges.items():
        if start < known.offsets.get(p, start):
            return False
        for topic_id, other_start, other_end in taken.get((reading.supervisor_id, p), ()):
            same_topic = not differ(topic_id, reading.topic_id)
            if same_topic and start < other_end and other_start < end:
                return False
    for p, (start, end) in ranges.items():
        taken.setdefault((reading.supervisor_id, p), []).append((reading.topic_id, start, end))
    return True


def _ranges(start: Offsets, end: Offsets) -> dict[int, tuple[int, int]]:
    """Return the offsets of each stream partition of which there are any."""
    return {p: (first, end[p]) for p, first in start.items() if first < end[p]}
