"""Persisted work of a streaming task: the content of its ``commit.json``, as pure values.

A persist is a range of offsets with the resulting files and counts. Invariants:

- persists are in reading order: each starts at the end of the previous one;
- `current` is the end of the last one: the start of the next read after a restart;
- a sequence's persists are removed together, when it is published.

Many small persists are regularly folded into one, with merged files, so that a task that reads
few messages for an hour does not announce thousands of files.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.indexing.engine import DataFile, RowCounts
from penstock.indexing.engine_json import (
    counts_from_json,
    counts_to_json,
    data_file_from_json,
    data_file_to_json,
    whole_number,
)
from penstock.indexing.sequences import Offsets, offsets_from_json, offsets_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.intervals import Interval

FORMAT = 2
"""Since format 2, paths are relative to the task's folder."""


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file of unparseable messages; `sent` once all are in the dead-letter topic."""

    path: str
    size: int
    sent: bool = False


@dataclass(frozen=True, slots=True)
class Persist:
    """Offsets [start, end) of one sequence, the files of their rows, and the counts.

    `level` is the number of times it was folded: 0 is one batch.
    """

    number: int
    sequence: str
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...]
    counts: RowCounts
    bad_files: tuple[BadFile, ...] = ()
    level: int = 0

    @property
    def rows(self) -> int:
        """Number of rows in its files, after roll-up."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class CommitFile:
    """All persisted work that is not published yet.

    Raises:
        ValueError: There is a gap between persists, or before `current`.

    Attributes:
        number: Grows with every change.
        current: Next offset of each stream partition.
        persists: In reading order.
        dead_lettered: The end offset of bad messages that were sent, by partition; it outlives the
            persists, so that a message that is read again is not sent again.
        topic_id: The topic of all offsets; empty until it is known.
        published: Counts of the published sequences.
    """

    number: int
    current: Offsets
    persists: tuple[Persist, ...] = ()
    dead_lettered: Offsets | None = None
    topic_id: str = ""
    published: RowCounts = field(default_factory=RowCounts)

    def __post_init__(self) -> None:
        for before, after in zip(self.persists, self.persists[1:], strict=False):
            if dict(before.end) != dict(after.start):
                raise ValueError(f"persist {after.number} does not start at the end of another")
        if self.persists and dict(self.persists[-1].end) != dict(self.current):
            raise ValueError("the next offsets are not the end of the last persist")

    def of_topic(self, topic_id: str) -> CommitFile:
        """Return the commit with the id of its topic."""
        return replace(self, number=self.number + 1, topic_id=topic_id)

    def add(self, persist: Persist) -> CommitFile:
        """Return the commit with one more persist."""
        persists = (*self.persists, persist)
        return replace(self, number=self.number + 1, current=persist.end, persists=persists)

    def of(self, sequence: str) -> tuple[Persist, ...]:
        """Return the persists of one sequence."""
        return tuple(p for p in self.persists if p.sequence == sequence)

    def files(self, sequence: str) -> tuple[DataFile, ...]:
        """Return the files of one sequence."""
        return tuple(file for persist in self.of(sequence) for file in persist.files)

    def reach(self, sequence: str, start: Offsets) -> Offsets:
        """Return the end offsets of the persists of a sequence that begins at `start`."""
        persists = self.of(sequence)
        return persists[-1].end if persists else start

    def counts(self, sequence: str) -> RowCounts:
        """Return the counts of one sequence."""
        total = RowCounts()
        for persist in self.of(sequence):
            total = total.plus(persist.counts)
        return total

    def is_full(self, sequence: str, max_rows_per_chunk: int, max_rows: int) -> bool:
        """Return whether a sequence has a number of rows in one time chunk, or in all."""
        chunks: dict[Interval, int] = {}
        for file in self.files(sequence):
            chunks[file.interval] = chunks.get(file.interval, 0) + file.rows
        largest = max(chunks.values(), default=0)
        return largest >= max_rows_per_chunk or sum(chunks.values()) >= max_rows

    def sequence_names(self) -> tuple[str, ...]:
        """Return the sequences that have persists, oldest first."""
        return tuple(dict.fromkeys(persist.sequence for persist in self.persists))

    def without(self, sequence: str) -> CommitFile:
        """Return the commit after a sequence was published."""
        persists = tuple(p for p in self.persists if p.sequence != sequence)
        published = self.published.plus(self.counts(sequence))
        return replace(self, number=self.number + 1, persists=persists, published=published)

    def back_to(self, index: int) -> CommitFile:
        """Return the commit before the persist at `index`: later messages are read again."""
        return replace(
            self,
            number=self.number + 1,
            current=self.persists[index].start,
            persists=self.persists[:index],
        )

    def unsent(self) -> BadFile | None:
        """Return the oldest file of bad messages that is not completely sent."""
        for persist in self.persists:
            for bad in persist.bad_files:
                if not bad.sent:
                    return bad
        return None

    def unsent_of(self, sequence: str) -> tuple[BadFile, ...]:
        """Return the files of bad messages of a sequence that are not completely sent."""
        return tuple(b for p in self.of(sequence) for b in p.bad_files if not b.sent)

    def all_sent(self, sequence: str) -> bool:
        """Return whether every bad message of a sequence is in the dead-letter topic."""
        return all(bad.sent for persist in self.of(sequence) for bad in persist.bad_files)

    def mark_sent(self, sent: BadFile, marks: Offsets) -> CommitFile:
        """Return the commit in which a bad file is sent, perhaps partly, up to these offsets."""
        persists = tuple(
            replace(p, bad_files=tuple(sent if b.path == sent.path else b for b in p.bad_files))
            for p in self.persists
        )
        known = dict(self.dead_lettered or {})
        for partition, offset in marks.items():
            known[partition] = max(offset, known.get(partition, 0))
        return replace(self, number=self.number + 1, persists=persists, dead_lettered=known)

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all files."""
        files = {file.path for persist in self.persists for file in persist.files}
        bad = {bad.path for persist in self.persists for bad in persist.bad_files}
        return frozenset(files | bad)

    def relocated(self, paths: Mapping[str, str]) -> CommitFile:
        """Return the commit with other paths of its files; its number is unchanged."""
        persists = tuple(
            replace(
                persist,
                files=tuple(replace(file, path=paths[file.path]) for file in persist.files),
                bad_files=tuple(replace(bad, path=paths[bad.path]) for bad in persist.bad_files),
            )
            for persist in self.persists
        )
        return replace(self, persists=persists)

    def to_fold(self, fan_in: int, max_rows: int) -> tuple[Persist, ...]:
        """Return the newest run of `fan_in` small persists of one sequence and level, or none.

        Runs at the end of the list are folded first, because those are small; large files
        are left for the publish.
        """
        run: list[Persist] = []
        for persist in reversed(self.persists):
            if run and (persist.sequence, persist.level) != (run[-1].sequence, run[-1].level):
                run = []
            run.append(persist)
            if len(run) == fan_in:
                found = tuple(reversed(run))
                return found if sum(p.rows for p in found) <= max_rows else ()
        return ()

    def fold(self, run: tuple[Persist, ...], files: tuple[DataFile, ...]) -> CommitFile | None:
        """Return the commit with `run` as one persist; None if the run has changed."""
        numbers = [p.number for p in self.persists]
        if run[0].number not in numbers:
            return None
        at = numbers.index(run[0].number)
        found = self.persists[at : at + len(run)]
        if [p.number for p in found] != [p.number for p in run]:
            return None
        counts = RowCounts()
        for persist in found:
            counts = counts.plus(persist.counts)
        folded = Persist(
            number=run[0].number,
            sequence=run[0].sequence,
            start=run[0].start,
            end=run[-1].end,
            files=files,
            counts=counts,
            bad_files=tuple(bad for persist in found for bad in persist.bad_files),
            level=run[0].level + 1,
        )
        persists = (*self.persists[:at], folded, *self.persists[at + len(run) :])
        return replace(self, number=self.number + 1, persists=persists)

    def to_json(self) -> dict[str, object]:
        """Return the form stored on disk."""
        marks = None if self.dead_lettered is None else offsets_to_json(self.dead_lettered)
        return {
            "format": FORMAT,
            "number": self.number,
            "current": offsets_to_json(self.current),
            "deadLettered": marks,
            "topicId": self.topic_id,
            "published": counts_to_json(self.published),
            "persists": [_persist_to_json(persist) for persist in self.persists],
        }

    @classmethod
    def from_json(cls, value: object, *, source: str) -> CommitFile:
        """Parse the form stored on disk.

        Raises:
            CorruptData: It is not the output of `to_json`, or contradicts itself.
            InvalidRequest: A newer release wrote it.
        """
        number = value.get("format") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(number, int):
            raise CorruptData(source, 0, "not a commit: it has no format number")
        if number > FORMAT:
            raise InvalidRequest(
                f"{source} has format number {number}, but this release reads up to {FORMAT}:"
                " run the release that wrote it, or a newer one"
            )
        try:
            return _commit_from_json(value)
        except (KeyError, TypeError, ValueError, InvalidRequest) as error:
            raise CorruptData(source, 0, f"not a commit: {error!r}") from error


def _persist_to_json(persist: Persist) -> dict[str, object]:
    return {
        "number": persist.number,
        "sequence": persist.sequence,
        "start": offsets_to_json(persist.start),
        "end": offsets_to_json(persist.end),
        "level": persist.level,
        "counts": counts_to_json(persist.counts),
        "files": [data_file_to_json(file) for file in persist.files],
        "badFiles": [{"path": b.path, "size": b.size, "sent": b.sent} for b in persist.bad_files],
    }


def _commit_from_json(value: Mapping[str, object]) -> CommitFile:
    persists = value["persists"]
    if not isinstance(persists, list):
        raise TypeError("persists is not a list")
    marks = value["deadLettered"]
    return CommitFile(
        number=whole_number(value["number"]),
        current=offsets_from_json(value["current"]),
        persists=tuple(_persist_from_json(persist) for persist in persists),
        dead_lettered=None if marks is None else offsets_from_json(marks),
        topic_id=str(value.get("topicId", "")),
        published=counts_from_json(value["published"]) if "published" in value else RowCounts(),
    )


def _persist_from_json(value: Mapping[str, object]) -> Persist:
    return Persist(
        number=whole_number(value["number"]),
        sequence=str(value["sequence"]),
        start=offsets_from_json(value["start"]),
        end=offsets_from_json(value["end"]),
        level=whole_number(value["level"]),
        counts=counts_from_json(value["counts"]),
        files=tuple(data_file_from_json(file) for file in _objects(value["files"])),
        bad_files=tuple(
            BadFile(str(bad["path"]), whole_number(bad["size"]), bool(bad["sent"]))
            for bad in _objects(value["badFiles"])
        ),
    )


def _objects(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TypeError("not a list of objects")
    return value
