"""How many bytes of messages were read, told by whoever reads: an empty file for each range.

Spark's workers hand on rows and nothing beside them, so what they count goes into the names of
files. Invariant: a repeated attempt at a range makes the same file, so attempts do not add up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.spark.topic.splits import SourceRange
    from penstock.storage.filesystem import FileSystem

_PREFIX: Final = ".read-"


def note_bytes(fs: FileSystem, folder: str, source: SourceRange, size: int) -> None:
    """Note that the messages of a range have so many bytes.

    Raises:
        Unavailable: The file cannot be made.
    """
    fs.mkdir(folder)
    name = f"{_PREFIX}{source.partition}-{source.start}-{source.end}-{size}"
    fs.create(f"{folder}/{name}", replace=True).close()


def take_bytes(fs: FileSystem, folder: str) -> int:
    """Return how many bytes were noted in a folder, and leave no trace of it.

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
