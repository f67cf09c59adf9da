"""Reads the records of one queue of an nsqd, beginning where nsqd would continue.

Owns which files are read and from where. If the metadata is missing, truncated, or does not match
the files, all of them are read: duplicates are better than losses.

    read file exists, with a record or the end at its position    from there
    read file is missing, later ones exist                        from the first of them
    anything else                                                 from the first file

Files after the write position are read, too: nsqd saves its position only every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.nsq_import.nsqd_records import (
    LENGTH_MIN,
    NsqdDamage,
    NsqdRecords,
    RecordScanner,
)
from penstock.broker.nsq_import.report import DamagedLength, NsqFileReport, QueueReport
from penstock.core.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.broker.nsq_import.metadata import NsqdDataFile, QueueMetadata
    from penstock.storage.filesystem import FileSystem


@dataclass(frozen=True, slots=True)
class NsqImportOptions:
    """Options for reading a folder.

    Attributes:
        include_bad: Also read the files that nsqd has renamed to ``.bad``. Many of their messages
            may have been delivered long ago.
        max_message_bytes: The largest message that nsqd accepted.
        batch_bytes: Approximate size of the batches of records.
    """

    include_bad: bool = False
    max_message_bytes: int = 16 * 1024 * 1024
    batch_bytes: int = 4 * 1024 * 1024


class NsqdQueueReader:
    """Yields the records of a queue, once. Created by `NsqdFolder.read`.

    Attributes:
        report: Findings so far.
    """

    def __init__(
        self,
        folder: str,
        files: Sequence[NsqdDataFile],
        metadata: QueueMetadata | None,
        metadata_problem: str,
        options: NsqImportOptions,
        fs: FileSystem,
    ) -> None:
        self.report = QueueReport(metadata_problem)
        self._folder = folder
        self._options = options
        self._fs = fs
        self._files = [file for file in files if file.is_good or options.include_bad]
        self._metadata = metadata
        self._unwritten: int | None = None  # number of the first file that was never written

    def __iter__(self) -> Iterator[NsqdRecords]:
        """Yield the records in order.

        Damage is added to the report, and so are files that cannot be read.
        """
        start_file, start_position = self._start()
        previous: int | None = None
        for file in self._files:
            # Files that nsqd renamed are before its read position, but requested explicitly.
            if file.number < start_file and file.is_good:
                self.report.files.append(NsqFileReport(file.name, "consumed"))
                continue
            if previous is not None:
                self._note_missing(file, range(previous + 1, file.number))
            previous = file.number
            starts_here = file.number == start_file and file.is_good
            yield from self._read(file, start_position if starts_here else 0)
        if self._unwritten is not None and previous is not None:
            self._note_missing(self._files[-1], range(previous + 1, self._unwritten))
        self._estimate_missing()
        self.report.adjust_losses()

    def _start(self) -> tuple[int, int]:
        """Return the file and the position at which to begin."""
        metadata = self._metadata
        good = [file for file in self._files if file.is_good]
        if metadata is None or not good:
            return 0, 0
        self.report.depth = metadata.depth if metadata.depth >= 0 else None
        read, write = metadata.read_file, metadata.write_file
        if (read, metadata.read_position) > (write, metadata.write_position):
            return self._distrust("its read position is after its write position")
        begin = next((file for file in good if file.number == read), None)
        if begin is None:
            if read == write and not metadata.read_position and not metadata.depth:
                return read, 0  # all was read, and nothing was written afterwards
            if any(file.number > read for file in good):
                self.report.metadata = f"it names file {read} as the read file, which is missing"
                return read, 0
            return self._distrust(f"it names file {read} as the read file, and all files are older")
        if not self._is_border(begin, metadata.read_position):
            text = f"no record begins at byte {metadata.read_position} of {begin.name}"
            return self._distrust(text)
        self._unwritten = write + (metadata.write_position > 0)
        self.report.expected = self._expected(metadata)
        return read, metadata.read_position

    def _distrust(self, why: str) -> tuple[int, int]:
        self.report.metadata = f"{why}: everything was read"
        return 0, 0

    def _is_border(self, file: NsqdDataFile, position: int) -> bool:
        try:
            data = self._map(file)
        except PenstockError:
            return position == 0
        return position == len(data) or self._scanner(data).is_record(position) or position == 0

    def _expected(self, metadata: QueueMetadata) -> int | None:
        """Return the depth, unless files were written after the metadata."""
        last = self._files[-1]
        try:
            end = (last.number, len(self._map(last)))
        except PenstockError:
            return None
        is_known = end <= (metadata.write_file, metadata.write_position) and metadata.depth >= 0
        return metadata.depth if is_known and all(file.is_good for file in self._files) else None

    def _read(self, file: NsqdDataFile, position: int) -> Iterator[NsqdRecords]:
        report = NsqFileReport(file.name)
        self.report.files.append(report)
        try:
            data = self._map(file)
        except PenstockError as error:
            report.state = "missing" if isinstance(error, NotFound) else "unreadable"
            return
        report.bytes_read = max(0, len(data) - position)
        metadata, border = self._metadata, None
        if metadata is not None and file.is_good and file.number == metadata.write_file:
            border = metadata.write_position
        for found in self._scanner(data, border).scan(position):
            if isinstance(found, NsqdDamage):
                report.damage.append(found)
                report.lost += found.lost_estimate
                continue
            if found.doubtful:
                report.doubts.append(DamagedLength(found.position, found.doubt))
            else:
                report.records += len(found)
            yield found

    def _note_missing(self, file: NsqdDataFile, numbers: range) -> None:
        if numbers:
            name = file.name.replace(f"{file.number:06}", f"{numbers[0]:06}").removesuffix(".bad")
            self.report.files.append(NsqFileReport(name, "missing", file_count=len(numbers)))

    def _estimate_missing(self) -> None:
        """Estimate the records of missing files from those of completely written files."""
        missing = [file for file in self.report.files if file.state in {"missing", "unreadable"}]
        whole = [file for file in self.report.files if file.state == "read"][:-1]
        if missing and whole:
            counts = [file.records + file.doubtful + file.lost for file in whole]
            for file in missing:
                file.lost = round(sum(counts) / len(counts) * file.file_count)

    def _map(self, file: NsqdDataFile) -> memoryview:
        opened = self._fs.open_read(f"{self._folder}/{file.name}")
        try:
            size = opened.size()
            return opened.map(size) if size else memoryview(b"")
        finally:
            opened.close()

    def _scanner(self, data: memoryview, border: int | None = None) -> RecordScanner:
        longest = LENGTH_MIN + self._options.max_message_bytes
        return RecordScanner(data, longest, self._options.batch_bytes, border)
