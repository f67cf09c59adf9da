"""Counts of the bytes of messages that workers read: an empty file for each range.

Spark's workers return only rows, so counts are encoded in the names of files. Invariant: a repeated
attempt at a range creates the same file, so nothing is counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.spark.topic.offset_splits import SourceRange
    from penstock.storage.filesystem import FileSystem

_PREFIX: Final = ".read-"


def note_bytes(fs: FileSystem, folder: str, source: SourceRange, size: int) -> None:
    """Record the number of bytes of a range's messages.

    Raises:
        Unavailable: The file cannot be created.
    """
    fs.mkdir(folder)
    name = f"{_PREFIX}{source.partition}-{source.start}-{source.end}-{size}"
    fs.create(f"{folder}/{name}", replace=True).close()


def take_bytes(fs: FileSystem, folder: str) -> int:
    """Return the total of the recorded bytes of a folder, and delete the folder.

    Raises:
        Unavailable: The folder cannot be read.
    """
    names = fs.listdir(folder) if fs.exists(folder) else []
    noted = [name for name in names if name.startswith(_PREFIX)]
    for name in noted:
        fs.unlink(f"{folder}/{name}")
    if noted and len(noted) == len(names):
        fs.rmdir(folder)
    return sum(int(name.rpartition("-")[2]) for name in noted)
