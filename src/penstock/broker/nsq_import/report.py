"""Findings of reading a queue of an nsqd."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.broker.nsq_import.nsqd_records import NsqdDamage

FileState = Literal["read", "consumed", "missing", "unreadable", "unknown"]


@dataclass(frozen=True, slots=True)
class DamagedLength:
    """A record whose length is damaged.

    Attributes:
        position: Its position in the file.
        reason: Problem with its length.
    """

    position: int
    reason: str


@dataclass(slots=True)
class NsqFileReport:
    """One data file, or several consecutive missing ones.

    Attributes:
        name: Its name in the folder, or that of the first.
        state: Whether it was read, was consumed according to the metadata, is missing between
            others, or cannot be read; unknown: records are missing, and no file shows where.
        records: Number of intact records.
        doubts: Records whose length is damaged, imported nevertheless.
        bytes_read: Bytes from the start of reading to the end.
        damage: The parts without records.
        lost: Number of lost records. An estimate from the average size until the reader has
            reached the end; then, if the metadata has the total, its share of the difference.
        file_count: Number of files; above 1 only for missing ones.
    """

    name: str
    state: FileState = "read"
    records: int = 0
    doubts: list[DamagedLength] = field(default_factory=list)
    bytes_read: int = 0
    damage: list[NsqdDamage] = field(default_factory=list)
    lost: int = 0
    file_count: int = 1

    @property
    def doubtful(self) -> int:
        """Number of records with a damaged length."""
        return len(self.doubts)


@dataclass(slots=True)
class QueueReport:
    """One queue. Complete when its reader has reached the end.

    Attributes:
        metadata: Problem with the queue's metadata file; empty if there is none.
        expected: Number of unread records according to the metadata, if it matches the files.
        depth: Number of unread records according to the metadata, even if it is stale.
        files: The files in the order of reading.
    """

    metadata: str = ""
    expected: int | None = None
    depth: int | None = None
    files: list[NsqFileReport] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Number of intact records."""
        return sum(file.records for file in self.files)

    @property
    def doubtful(self) -> int:
        """Number of records with a damaged length."""
        return sum(file.doubtful for file in self.files)

    @property
    def lost(self) -> int:
        """Number of lost records: exact if the metadata allows it, otherwise estimated."""
        return sum(file.lost for file in self.files)

    def adjust_losses(self) -> None:
        """Adjust the losses of the files to the metadata, after everything was read.

        If the metadata matches the files, their sum is exact. If it is stale, the losses of missing
        files are limited to the records that the metadata counted and that were not found.
        """
        found = self.records + self.doubtful
        if self.expected is not None:
            self._share(self.files, max(0, self.expected - found))
        elif self.depth is not None:
            missing = [file for file in self.files if file.state == "missing"]
            room = max(0, self.depth - found)
            if sum(file.lost for file in missing) > room:
                self._share(missing, room)

    def _share(self, files: list[NsqFileReport], lost: int) -> None:
        """Distribute a loss among files by their estimates."""
        estimates = [file.lost for file in files]
        if lost and not any(estimates):
            self.files.append(NsqFileReport("", "unknown", lost=lost))
            return
        total, given = sum(estimates), 0
        seen = 0
        for file, estimate in zip(files, estimates, strict=True):
            seen += estimate
            file.lost = lost * seen // max(total, 1) - given
            given += file.lost
