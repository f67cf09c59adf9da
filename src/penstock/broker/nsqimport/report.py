"""What was found while a queue of an nsqd was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.broker.nsqimport.records import Damage

FileState = Literal["read", "consumed", "missing", "unreadable"]


@dataclass(slots=True)
class FileReport:
    """One data file, or several missing ones in a row.

    Attributes:
        name: Its name in the folder, or the first's.
        state: Whether it was read, was consumed according to the metadata, is missing between
            others, or cannot be read.
        records: Records that are whole.
        doubtful: Records whose length is damaged, given all the same.
        bytes_read: From where reading began to the end.
        damage: The parts that gave no record.
        lost_estimate: Records that are gone, estimated from the size of the others.
        file_count: Files that it stands for; above 1 for missing ones only.
    """

    name: str
    state: FileState = "read"
    records: int = 0
    doubtful: int = 0
    bytes_read: int = 0
    damage: list[Damage] = field(default_factory=list)
    lost_estimate: int = 0
    file_count: int = 1


@dataclass(slots=True)
class QueueReport:
    """One queue. Complete when its reader has come to the end.

    Attributes:
        metadata: What is wrong with the queue's metadata file; empty when it is sound.
        expected: The number of unread records by the metadata, when it fits the files.
        files: In the order of reading.
    """

    metadata: str = ""
    expected: int | None = None
    files: list[FileReport] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Return how many records are whole."""
        return sum(file.records for file in self.files)

    @property
    def doubtful(self) -> int:
        """Return how many records have a damaged length."""
        return sum(file.doubtful for file in self.files)

    @property
    def lost(self) -> int:
        """Return how many records are gone: exactly where the metadata says, else estimated."""
        if self.expected is not None:
            return max(0, self.expected - self.records - self.doubtful)
        return sum(file.lost_estimate for file in self.files)
