"""Announced files of running tasks, which queries read before they are published.

`announce` and `forget` write the table; `choose` selects which announced files a snapshot
shows, so that no event appears twice. The selection is pure, except for the encoding of a
reading. Tasks announce their files independently of each other: replicas read the same offsets; an
unreachable task may read past the end that the others agreed on, where its successor also reads;
and the first publish makes the others fail.

Invariants:

- No announced file contains events of a published sequence or of a complete task.
- Each offset of a supervisor and topic is in at most one selected announcement.
- No announcement with committed offsets is selected: its events are in segments.
- All other files are selected, except those of replicas that fall behind, and rows that a replica
  of higher priority has not announced yet.

A replica keeps up with another one if it has reached the end that the other one had before its
newest announcement. A higher priority therefore delays at most the events of one announcement, and
a replica that stops is no longer shown once another one has announced twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from sqlalchemy import Connection, delete, insert, select

from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import dump, load
from penstock.storage.metadata.revision import raise_revision, take_turn
from penstock.storage.metadata.rows.publish import CommittedRow
from penstock.storage.metadata.rows.segments import AnnouncedOffsets, AnnouncedRow
from penstock.storage.metadata.sql_database import in_batches
from penstock.storage.metadata.task_roots import read_roots, stored_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.metadata.payloads import Offsets
    from penstock.storage.metadata.rows.segments import AnnouncedFile


_NOTHING: Final = CommittedRow("", {})


@dataclass(slots=True)
class Candidate:
    """An announcement of one task for one sequence, with its reading if known."""

    reading: AnnouncedOffsets | None
    rows: list[AnnouncedRow] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        """Number of rows in its files."""
        return sum(row.file.rows for row in self.rows)

    @property
    def priority(self) -> int:
        """The priority of its task."""
        return self.reading.priority if self.reading is not None else 0

    def keeps_up_with(self, other: Candidate) -> bool:
        """Return whether it lacks at most the newest announcement of another replica."""
        if self is other:
            return True
        if self.reading is None or other.reading is None:
            return False
        wanted, reached = other.reading.before or other.reading.end, self.reading.end
        return all(reached.get(p, 0) >= offset for p, offset in wanted.items())


def choose(
    sequences: Sequence[Sequence[Candidate]], committed: Mapping[str, CommittedRow]
) -> list[Candidate]:
    """Return the candidates to show, in the given order; at most one of each sequence.

    Args:
        sequences: For each sequence the announcements of its replicas, not empty.
        committed: The committed offsets of each supervisor.
    """
    taken: dict[tuple[str, int], list[tuple[str, int, int]]] = {}
    chosen: dict[int, Candidate] = {}
    # Choose the newest sequence first: it must not lose rows to a replica of an older sequence that
    # read too far. The older sequence usually has another replica that did not.
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


def follow(reading: AnnouncedOffsets, last: AnnouncedOffsets | None) -> AnnouncedOffsets:
    """Return a reading with the end of the previous one of its task."""
    if last is None or differ(last.topic_id, reading.topic_id):
        return reading
    is_further = dict(last.end) != dict(reading.end)
    return replace(reading, before=last.end if is_further else last.before)


def differ(one: str, other: str) -> bool:
    """Return whether two topic ids are known and differ."""
    return bool(one and other and one != other)


def dump_announced_offsets(reading: AnnouncedOffsets | None) -> str:
    """Return the text of a reading, empty if there is none."""
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


def load_announced_offsets(text: str) -> AnnouncedOffsets | None:
    """Parse the text of `dump_announced_offsets`."""
    if not text:
        return None
    found = load(text)
    ranges = cast("dict[str, list[int]]", found["offsets"])
    before = cast("dict[str, int]", found.get("before", {}))
    return AnnouncedOffsets(
        str(found["supervisor"]),
        {int(p): start for p, (start, _) in ranges.items()},
        {int(p): end for p, (_, end) in ranges.items()},
        str(found["topicId"]),
        cast("int", found.get("priority", 0)),
        {int(p): offset for p, offset in before.items()},
    )


def _preferred(by_progress: Sequence[Candidate]) -> Candidate:
    """Return the candidate of the highest priority that keeps up; if several, the furthest."""
    furthest = by_progress[0]
    keeping_up = (one for one in by_progress if one.keeps_up_with(furthest))
    return max(keeping_up, key=lambda one: one.priority)


def _begin(candidate: Candidate) -> int:
    return sum(candidate.reading.start.values()) if candidate.reading else 0


def _take(
    reading: AnnouncedOffsets | None,
    committed: Mapping[str, CommittedRow],
    taken: dict[tuple[str, int], list[tuple[str, int, int]]],
) -> bool:
    """Reserve the offsets of a reading, unless some are reserved already."""
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
    """Return the offset ranges of the stream partitions that are not empty."""
    return {p: (first, end[p]) for p, first in start.items() if first < end[p]}


def announce(
    connection: Connection,
    owner: tuple[str, str, str],
    files: Sequence[AnnouncedFile],
    reading: AnnouncedOffsets | None,
) -> bool:
    """Replace the files of `owner` (task, datasource, sequence); False if it must show none."""
    take_turn(connection)
    task_id, datasource, sequence_name = owner
    table = schema.announced
    mine = (
        (table.c.task_id == task_id)
        & (table.c.datasource == datasource)
        & (table.c.sequence_name == sequence_name)
    )
    allowed = not (
        is_complete(connection, task_id) or _is_published(connection, datasource, sequence_name)
    )
    query = delete(table).where(mine).returning(table.c.reading)
    removed = connection.execute(query).scalars().all()
    if reading is not None and removed:
        reading = follow(reading, load_announced_offsets(removed[0]))
    roots = read_roots(connection)
    rows = [
        {
            "task_id": task_id,
            "sequence_name": sequence_name,
            **stored_path(file.path, roots),
            "datasource": datasource,
            "start_ms": file.interval.start_ms,
            "end_ms": file.interval.end_ms,
            "row_count": file.rows,
            "payload": dump({key: file.payload[key] for key in file.payload if key != "path"}),
            "reading": dump_announced_offsets(reading),
        }
        for file in files
    ]
    if allowed and rows:
        connection.execute(insert(table), rows)
    if removed or (allowed and rows):
        raise_revision(connection, segments=False)
    return allowed


def forget(connection: Connection, task_ids: Sequence[str]) -> None:
    """Drop all announced files of some tasks."""
    take_turn(connection)
    table = schema.announced
    dropped = sum(
        connection.execute(delete(table).where(table.c.task_id.in_(batch))).rowcount
        for batch in in_batches(task_ids)
    )
    if dropped:
        raise_revision(connection, segments=False)


def is_complete(connection: Connection, task_id: str) -> bool:
    """Return whether a task has ended; an unknown one has not."""
    table = schema.tasks
    active = connection.execute(select(table.c.active).where(table.c.id == task_id)).scalar()
    return active is False


def _is_published(connection: Connection, datasource: str, sequence_name: str) -> bool:
    table = schema.published
    query = select(table.c.task_id).where(
        table.c.datasource == datasource, table.c.sequence_name == sequence_name
    )
    return connection.execute(query).first() is not None
