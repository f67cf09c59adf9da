"""Sequences of a repository: ids of FlowFiles, their order in queues, names of swap files.

Owns the next value of each. Invariant: each is above all values that commits used, and all that
were taken. A value that is taken and never committed is lost, and no value is returned twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.records import CommitRecord

_SUFFIX = ".swap"


@dataclass(slots=True)
class RepositoryCounters:
    """The sequences of a repository.

    Attributes:
        next_id: Next id, above all ids that commits used.
        next_queue_index: Next queue index, above all that commits used.
        next_file: Next file number, above those of all swap files.
    """

    next_id: int = 0
    next_queue_index: int = 0
    next_file: int = 0

    def take_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids."""
        first = self.next_id
        self.next_id += count
        return first

    def take_queue_indexes(self, count: int) -> int:
        """Return the first of `count` consecutive indexes."""
        first = self.next_queue_index
        self.next_queue_index += count
        return first

    def take_file(self) -> str:
        """Return the name of a new swap file; names sort in the order in which they are taken."""
        number = self.next_file
        self.next_file += 1
        return f"{number:016d}{_SUFFIX}"

    def observe(self, batch: CommitRecord) -> None:
        """Raise the sequences above the values that a replayed commit used."""
        for put in batch.puts.values():
            self._observe(put)
        if batch.swapped is not None:
            self.next_id = max(self.next_id, batch.swapped.summary.max_id + 1)
            self.observe_file(batch.swapped.name)

    def observe_file(self, name: str) -> None:
        """Raise the sequence above the number of a swap file, if its name begins with one."""
        digits = name.partition(".")[0]
        if digits.isdecimal():
            self.next_file = max(self.next_file, int(digits) + 1)

    def copy(self) -> RepositoryCounters:
        """Return a copy of the sequences."""
        return RepositoryCounters(self.next_id, self.next_queue_index, self.next_file)

    def _observe(self, flowfiles: Sequence[FlowFile]) -> None:
        if flowfiles:
            self.next_id = max(self.next_id, 1 + max([one.id for one in flowfiles]))
            indexes = [one.queue_index for one in flowfiles]
            self.next_queue_index = max(self.next_queue_index, 1 + max(indexes))
