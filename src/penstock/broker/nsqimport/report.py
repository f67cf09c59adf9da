"""What was found while a queue of an nsqd was read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.broker.nsqimport.records import Damage

FileState = Literal["read", "consumed", "missing", "unreadable", "unknown"]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A record whose length is damaged.

    Attributes:
        position: Where it begins in the file.
        reason: Mistake in its length.
    """

    position: int
    reason: str


@dataclass(slots=True)
class FileReport:
    """One data file, or several missing ones in a row.

    Attributes:
        name: Its name in the folder, or the first's.
        state: Whether it was read, was consumed according to the metadata, is missing between
            others, or cannot be read; unknown: records are missing, and no file shows where.
        records: Records that are whole.
        doubts: Records whose length is damaged, given all the same.
        bytes_read: From where reading began to the end.
        damage: The parts that gave no record.
        lost: Records that are gone. An estimate from the size of the others until the reader has
            come to the end; then, if the metadata says how many there were, its share of these.
        file_count: Files that it stands for; above 1 for missing ones only.
    """

    name: str
    state: FileState = "read"
    records: int = 0
    doubts: list[Doubt] = field(default_factory=list)
    bytes_read: int = 0
    damage: list[Damage] = field(default_factory=list)
    lost: int = 0
    file_count: int = 1

    @property
    def doubtful(self) -> int:
        """Return how many records have a damaged length."""
        return len(self.doubts)


@dataclass(slots=True)
class QueueReport:
    """One queue. Complete when its reader has come to the end.

    Attributes:
        metadata: What is wrong with the queue's metadata file; empty when it is sound.
        expected: The number of unread records by the metadata, when it fits the files.
        depth: The number of unread records by the metadata, also when it is stale.
        files: In the order of reading.
    """

    metadata: str = ""
    expected: int | None = None
    depth: int | None = None
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
        return sum(file.lost for file in self.files)

    def settle(self) -> None:
        """Bring the files' losses in line with the metadata, once everything was read.

        Where the metadata fits the files their sum is exact. Where it is stale, what missing files
        held is bounded by what the metadata knew of and was not found.
        """
        found = self.records + self.doubtful
        if self.expected is not None:
            self._share(self.files, max(0, self.expected - found))
        elif self.depth is not None:
            missing = [file for file in self.files if file.state == "missing"]
            room = max(0, self.depth - found)
            if sum(file.lost for file in missing) > room:
                self._share(missing, room)

    def _share(self, files: list[FileReport], lost: int) -> None:
        """Divide a loss among files by their estimates."""
        estimates = [file.lost for file in files]
        if lost and not any(estimates):
            self.files.append(FileReport("", "unknown", lost=lost))
            return
        total, given = sum(estimates), 0
        seen = 0
        for file, estimate in zip(files, estimates, strict=True):
            seen += estimate
            file.lost = lost * seen // max(total, 1) - given
            given += file.lost
