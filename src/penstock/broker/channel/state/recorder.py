"""Changes of a channel since its journal was last written, merged.

Owns the merging: thousands of finished messages become a few ranges, and a message that waited and
was finished leaves no record. Does not own when the journal is written (`keeping`).
"""

from __future__ import annotations

from penstock.broker import message_id
from penstock.broker.channel import journal_records
from penstock.broker.channel.offset_ranges import RangeSet


class Recorder:
    """Collects changes until they are written.

    Attributes:
        urgent: A change must be written at once, because waiting messages must not be redelivered
            too early after a crash.
    """

    def __init__(self) -> None:
        self.urgent = False
        self._log: list[bytes] = []  # records that must precede later changes
        self._next: dict[int, int] = {}
        self._done: dict[int, RangeSet] = {}
        self._retries: dict[int, tuple[int, int]] = {}

    @property
    def changed(self) -> bool:
        """Whether there are records to write."""
        return bool(self._log or self._next or self._done or self._retries)

    def given_out(self, partition: int, end: int) -> None:
        """Note that every message below `end` was delivered."""
        self._next[partition] = end

    def waits(self, number: int, due_ms: int, attempts: int) -> None:
        """Note that a message waits, or must wait after a crash."""
        self._retries[number] = (due_ms, attempts)

    def done(self, partition: int, start: int, end: int) -> None:
        """Note that messages are finished."""
        ranges = self._done.get(partition)
        if ranges is None:
            ranges = self._done[partition] = RangeSet(-1)
        ranges.add(start, end)
        remove_range(self._retries, message_id.of(partition, start), message_id.of(partition, end))

    def sought(self, partition: int, offset: int) -> None:
        """Note that a stream partition continues at another offset."""
        self._log += self._merged()
        self._next, self._done, self._retries = {}, {}, {}
        self._log.append(journal_records.seek(partition, offset))
        self.urgent = True

    def pending(self) -> bytes:
        """Return all changes as one blob of records; empty if there are none."""
        return b"".join([*self._log, *self._merged()])

    def clear(self) -> None:
        """Clear the changes after they were written."""
        self._log = []
        self._next, self._done, self._retries = {}, {}, {}
        self.urgent = False

    def _merged(self) -> list[bytes]:
        parts = [journal_records.next_(partition, end) for partition, end in self._next.items()]
        parts += [journal_records.retry(number, *wait) for number, wait in self._retries.items()]
        parts += [
            journal_records.done(partition, start, end)
            for partition, ranges in self._done.items()
            for start, end in ranges
        ]
        return parts


def remove_range(known: dict[int, tuple[int, int]], first: int, last: int) -> list[int]:
    """Remove the ids [first, last) from a mapping, and return the removed ones."""
    if not known:
        return []
    if last - first < len(known):
        found = [number for number in range(first, last) if number in known]
    else:
        found = [number for number in known if first <= number < last]
    for number in found:
        del known[number]
    return found
