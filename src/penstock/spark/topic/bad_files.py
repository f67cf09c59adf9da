"""Files of the messages that could not be parsed, one for each offset range that has any.

Owns their format: JSON lines {"topic", "partition", "offset", "reason", "message_base64"}, in the
order of offsets. Invariants: a file gets its name only when it is complete, and a repeated attempt
at a range writes the same bytes under the same name, so no message is counted twice.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import orjson

from penstock.storage.filesystem import AppendFile, FileSystem

SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A message that could not be parsed, and why."""

    offset: int
    reason: str
    message: bytes


def bad_file_name(partition: int, start: int, end: int) -> str:
    """Return the name of the file for the range [start, end) of a stream partition."""
    return f"bad-{partition}-{start:020d}-{end:020d}{SUFFIX}"


class BadFileWriter:
    """Writes the file of one offset range; creates none if no message is bad.

    Args:
        fs: The file system.
        folder: Folder of the file; created when needed.
        name: Name of the file, from `bad_file_name`.
        topic: The topic, for the records.
        partition: The stream partition, for the records.
        attempt: Distinguishes the temporary names of concurrent attempts.
    """

    def __init__(
        self, fs: FileSystem, folder: str, name: str, topic: str, partition: int, attempt: str
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._path = f"{folder}/{name}"
        self._temporary = f"{folder}/.{name}.{attempt}.tmp"
        self._topic = topic
        self._partition = partition
        self._file: AppendFile | None = None

    def write(self, records: Iterable[BadRecord]) -> None:
        """Add records, whose offsets follow those of the last call.

        Raises:
            Unavailable: The file cannot be written.
        """
        lines = [
            orjson.dumps(
                {
                    "topic": self._topic,
                    "partition": self._partition,
                    "offset": record.offset,
                    "reason": record.reason,
                    "message_base64": base64.b64encode(record.message).decode(),
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for record in records
        ]
        if not lines:
            return
        if self._file is None:
            self._fs.mkdir(self._folder)
            self._file = self._fs.create(self._temporary, replace=True)
        self._file.writev([b"".join(lines)])

    def commit(self) -> None:
        """Give the file its name, fsynced.

        Raises:
            Unavailable: The file cannot be written.
        """
        if self._file is None:
            return
        self._file.sync()
        self.close()
        self._fs.rename(self._temporary, self._path)
        self._fs.fsync_folder(self._folder)

    def close(self) -> None:
        """Close the file; a file that was not committed never gets its final name."""
        if self._file is not None:
            self._file.close()
            self._file = None


def list_bad_files(fs: FileSystem, folder: str) -> list[str]:
    """Return the paths of the complete files in the folder, by name; empty if it does not exist."""
    if not fs.exists(folder):
        return []
    names = sorted(fs.listdir(folder))
    return [f"{folder}/{n}" for n in names if n.endswith(SUFFIX) and not n.startswith(".")]


def count_records(fs: FileSystem, path: str) -> int:
    """Return the number of messages in a file of bad messages."""
    return fs.read_bytes(path).count(b"\n")
