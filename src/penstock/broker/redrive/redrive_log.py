"""The durable record of which dead letters of a topic were redriven.

Owns the folder ``redrive`` of a dead-letter topic: a journal of steps, and the set of redriven
offsets that follows from it. A step is a batch of dead letters that is published as one block:

    begin   written durably before the block is appended, with the step's number
    end     written after the block is durable, or after it is certain that it was not appended

The block carries the number of its step as the sequence number of a producer, which is stored with
its messages or not at all. So a step that was begun and not ended is decided by its target: it was
appended if the target has its number. `redriver` does this. Does not own topics, or the choice of
dead letters. Blocking; one thread at a time changes it, and any thread may call `is_redriven`.

Invariant: at most one step is open. Numbers grow, also across restarts.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import orjson

from penstock.broker.channel.offset_ranges import OffsetRangeSet
from penstock.core.errors import CorruptData, InvalidRequest, PenstockError
from penstock.storage.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem

FOLDER: Final = "redrive"

_FORMAT: Final = 1
_COMPACT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class RedriveStep:
    """A batch of dead letters that is published as one block.

    Attributes:
        number: Its number, from 1.
        topic: Name of the target.
        topic_id: Id of the target, which a later topic of this name does not have.
        target_partition: The stream partition of the target.
        partition: The stream partition of the dead letters.
        ranges: Their offsets, as ranges [start, end).
    """

    number: int
    topic: str
    topic_id: str
    target_partition: int
    partition: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def count(self) -> int:
        """Return the number of dead letters."""
        return sum(end - start for start, end in self.ranges)


class RedriveLog:
    """The record of one dead-letter topic. Created by `open`.

    Attributes:
        redriven: Number of dead letters that were redriven so far.
        step: The open step; None: there is none.
    """

    def __init__(self, journal: Journal, partitions: int) -> None:
        self.redriven = 0
        self.step: RedriveStep | None = None
        self._journal = journal
        # Not mail: `peek` reads the ranges on the event loop while a redrive of another user adds
        # some on a thread. It is not held during I/O.
        self._ranges_mutex = threading.Lock()
        self._done = [OffsetRangeSet(0) for _ in range(partitions)]
        self._last_number = 0
        self._snapshot_bytes = 0

    @classmethod
    def open(cls, folder: str, partitions: int, *, fs: FileSystem, clock: Clock) -> Self:
        """Read the record of the dead-letter topic with this folder, or start one.

        Raises:
            CorruptData: The record is damaged.
            InvalidRequest: It was written by a newer Penstock.
            Unavailable: I/O error.
        """
        path = f"{folder}/{FOLDER}"
        journal = Journal.open(path, fs=fs, clock=clock)
        log = cls(journal, partitions)
        try:
            if journal.snapshot:
                log._restore(orjson.loads(journal.snapshot))
            for record in journal.records:
                log._apply(orjson.loads(record))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise CorruptData(path, 0, f"a record of redriven dead letters: {error!r}") from error
        finally:
            journal.records.clear()
        return log

    def is_redriven(self, partition: int, offset: int) -> bool:
        """Return whether a dead letter was redriven, or is in the open step."""
        with self._ranges_mutex:
            step = self.step
            if offset in self._done[partition]:
                return True
        return (
            step is not None
            and step.partition == partition
            and any(start <= offset < end for start, end in step.ranges)
        )

    def next_number(self, used: int) -> int:
        """Return the number for the next step; it is never used for another one.

        Args:
            used: The last number that the target has. A record that was restored from a backup may
                be older than the target, and a number that the target has counts as appended.
        """
        self._last_number = max(self._last_number, used) + 1
        return self._last_number

    def begin(self, step: RedriveStep) -> None:
        """Open a step durably.

        Raises:
            Unavailable: Full disk or I/O error; nothing may be published for this step.
        """
        assert self.step is None, "a step is open"
        ranges = [list(one) for one in step.ranges]
        self._write(
            {
                "begin": step.number,
                "topic": step.topic,
                "id": step.topic_id,
                "to": step.target_partition,
                "partition": step.partition,
                "ranges": ranges,
            }
        )
        self.step = step

    def end(self, *, stored: bool) -> None:
        """Close the open step durably.

        Args:
            stored: Whether its block is durable in the target; otherwise it was not appended.

        Raises:
            Unavailable: Full disk or I/O error; the step is still open.
        """
        assert self.step is not None, "no step is open"
        record = {"end": self.step.number, "stored": stored}
        self._write(record)
        self._apply(record)

    def compact(self, earliest: Sequence[int]) -> None:
        """Rewrite the journal if it is much larger than its snapshot.

        Args:
            earliest: By stream partition, the offset below which dead letters were deleted.
        """
        if self.step or self._journal.size_bytes < _COMPACT_BYTES + 4 * self._snapshot_bytes:
            return
        with self._ranges_mutex:
            for done, offset in zip(self._done, earliest, strict=True):
                done.add(0, offset)
        snapshot = orjson.dumps(
            {
                "format": _FORMAT,
                "number": self._last_number,
                "redriven": self.redriven,
                "done": [[(0, done.floor), *done] for done in self._done],
            }
        )
        with suppress(PenstockError):  # the journal continues, and a later step tries again
            self._journal.compact(snapshot)
            self._snapshot_bytes = len(snapshot)

    def _write(self, record: Mapping[str, object]) -> None:
        try:
            self._journal.append([orjson.dumps(record)])
            self._journal.sync()
        finally:
            self._journal.park()

    def _restore(self, snapshot: Mapping[str, object]) -> None:
        found = _Fields(snapshot)
        if found.whole("format") != _FORMAT:
            raise InvalidRequest(
                f"the record of redriven dead letters has format {snapshot['format']!r}, and this"
                f" Penstock reads {_FORMAT}: use the newer Penstock that wrote it"
            )
        self._last_number, self.redriven = found.whole("number"), found.whole("redriven")
        for done, ranges in zip(self._done, found.items("done"), strict=True):
            for start, end in _ranges(ranges):
                done.add(start, end)

    def _apply(self, record: Mapping[str, object]) -> None:
        found = _Fields(record)
        if "begin" in record:
            # An earlier step that was not ended had not published: only then a next one begins.
            self.step = RedriveStep(
                found.whole("begin"),
                found.text("topic"),
                found.text("id"),
                found.whole("to"),
                found.whole("partition"),
                tuple(_ranges(found.items("ranges"))),
            )
            self._last_number = max(self._last_number, self.step.number)
            return
        step = self.step
        if step is None or step.number != found.whole("end"):
            return  # the end was written again, because its fsync had failed
        with self._ranges_mutex:
            if record["stored"]:
                for start, end in step.ranges:
                    self._done[step.partition].add(start, end)
                self.redriven += step.count
            self.step = None


def _ranges(value: object) -> Iterator[tuple[int, int]]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of ranges")
    for start, end in value:
        if not isinstance(start, int) or not isinstance(end, int):
            raise TypeError(f"{start!r} to {end!r} is not a range")
        yield start, end


class _Fields:
    """The fields of a record; a field of another type raises TypeError."""

    def __init__(self, record: Mapping[str, object]) -> None:
        self._record = record

    def whole(self, name: str) -> int:
        value = self._record[name]
        if not isinstance(value, int):
            raise TypeError(f"{name} is {value!r}")
        return value

    def text(self, name: str) -> str:
        value = self._record[name]
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}")
        return value

    def items(self, name: str) -> list[object]:
        value = self._record[name]
        if not isinstance(value, list):
            raise TypeError(f"{name} is {value!r}")
        return value
