"""Read position in a growing file, and the position to continue from after a rotation.

Owns how a file is recognized: by its inode and a checksum of its beginning. Does not own the use of
the bytes (`tail`).

    renamed         found under another name: the rest of it, then the files rotated after it,
                    then the new one
    copied, cut     the copy has the same beginning: the rest of it, then the cut file from its
                    beginning
    gone, cut       unread data is lost, which is logged; then as above

Invariant: reading only continues in a file with the same beginning as the one that was read.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import google_crc32c

from penstock.core.errors import NotFound
from penstock.storage.filesystem import FileStat, FileSystem

HEAD_BYTES: Final = 1_024
_SCAN_BYTES: Final = 1 << 16
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")


@dataclass(frozen=True, slots=True)
class TailPlace:
    """Read position in a file.

    Attributes:
        inode: Inode of the file.
        position: Position of the next byte.
        head_bytes: Length of the checked beginning.
        head_crc: CRC-32C of the beginning.
        modified_ms: Time of the file's last change when it was read.
    """

    inode: int
    position: int
    head_bytes: int
    head_crc: int
    modified_ms: int

    def state(self) -> dict[str, str]:
        """Return the position as state."""
        return {
            "inode": str(self.inode),
            "position": str(self.position),
            "head.bytes": str(self.head_bytes),
            "head.crc32c": str(self.head_crc),
            "modified.ms": str(self.modified_ms),
        }


@dataclass(frozen=True, slots=True)
class TailFound:
    """Position to read from now.

    Attributes:
        path: Path of the file.
        place: Position in the file.
        size: Size of the file.
        is_final: Whether it was rotated and no longer grows.
    """

    path: str
    place: TailPlace
    size: int
    is_final: bool


def read_place(state: Mapping[str, str]) -> TailPlace | None:
    """Return the position in a state; None if nothing was read yet."""
    if "position" not in state:
        return None
    return TailPlace(
        int(state["inode"]),
        int(state["position"]),
        int(state["head.bytes"]),
        int(state["head.crc32c"]),
        int(state["modified.ms"]),
    )


def place_at(fs: FileSystem, path: str, stat: FileStat, position: int) -> TailPlace:
    """Return the read position for a position in a file.

    Raises:
        NotFound: The file does not exist.
        Unavailable: The file cannot be read now.
    """
    head_bytes = min(position, HEAD_BYTES)
    crc = _crc_of(fs, path, head_bytes)
    return TailPlace(stat.inode, position, head_bytes, crc, stat.modified_ms)


class TailFollower:
    """Finds the file and the position to continue from.

    Args:
        fs: The file system.
        path: Path of the growing file.
        rotated: Glob pattern of the names of rotated files, in the same folder.
        grace_ms: How long a renamed file may still grow.
    """

    def __init__(self, fs: FileSystem, path: str, rotated: str, grace_ms: int) -> None:
        self._fs = fs
        self._path = path
        self._folder, self._name = posixpath.split(path)
        self._rotated = rotated
        self._grace_ms = grace_ms
        self.lost: list[TailPlace] = []

    def follow(self, place: TailPlace, now_ms: int) -> TailFound | None:
        """Return where to read now; None if the file does not exist (yet).

        Positions whose remaining data is not found are added to `lost`.
        """
        rotated = self._rotated_files()
        while True:
            current = self._stat(self._path)
            is_same = current is not None and current.inode == place.inode
            if current is not None and is_same and continues(self._fs, self._path, current, place):
                return TailFound(self._path, place, current.size, is_final=False)
            known = self._find(place, rotated)
            if known is None:
                self.lost.append(place)
                later = [one for one in rotated if one[1].modified_ms > place.modified_ms]
            else:
                path, stat = rotated[known]
                later = rotated[known + 1 :]
                is_quiet = now_ms - stat.modified_ms >= self._grace_ms
                followed = current is not None or bool(later)
                if stat.size > place.position or not (is_quiet and followed):
                    at = TailPlace(
                        stat.inode,
                        place.position,
                        place.head_bytes,
                        place.head_crc,
                        place.modified_ms,
                    )
                    return TailFound(path, at, stat.size, is_final=is_quiet and followed)
            if later:
                path, stat = later[0]
                rotated = later
                place = TailPlace(stat.inode, 0, 0, 0, stat.modified_ms)
            elif current is not None:
                begun = TailPlace(current.inode, 0, 0, 0, current.modified_ms)
                return TailFound(self._path, begun, current.size, is_final=False)
            else:
                return None

    def _find(self, place: TailPlace, rotated: list[tuple[str, FileStat]]) -> int | None:
        same = [n for n, (_, stat) in enumerate(rotated) if stat.inode == place.inode]
        # A copy is not older than the last read. Without a checked beginning it could not be
        # distinguished from other files.
        copies = [
            n
            for n, (_, stat) in enumerate(rotated)
            if place.head_bytes
            and stat.inode != place.inode
            and stat.modified_ms >= place.modified_ms
        ]
        for number in same + copies:
            if continues(self._fs, *rotated[number], place):
                return number
        return None

    def _rotated_files(self) -> list[tuple[str, FileStat]]:
        """Return the rotated files, the oldest first."""
        found = []
        for name in fnmatch.filter(self._fs.listdir(self._folder or "."), self._rotated):
            path = posixpath.join(self._folder, name)
            if name == self._name or name.endswith(_COMPRESSED):
                continue
            stat = self._stat(path)
            if stat is not None:
                found.append((path, stat))
        return sorted(found, key=lambda one: (one[1].modified_ms, _older_first(one[0])))

    def _stat(self, path: str) -> FileStat | None:
        try:
            stat = self._fs.stat(path)
        except NotFound:
            return None
        return None if stat.is_folder else stat


def continues(fs: FileSystem, path: str, stat: FileStat, place: TailPlace) -> bool:
    """Return whether a file has the beginning of a read position, and is long enough."""
    if stat.size < place.position:
        return False
    try:
        return _crc_of(fs, path, place.head_bytes) == place.head_crc
    except NotFound:
        return False


def line_end(fs: FileSystem, path: str, start: int, end: int) -> int:
    """Return the end of the last whole line between two positions; `start` if there is none.

    Raises:
        NotFound: The file does not exist.
        Unavailable: The file cannot be read now.
    """
    file = fs.open_read(path)
    try:
        while end > start:
            length = min(_SCAN_BYTES, end - start)
            place = file.pread(length, end - length).rfind(b"\n")
            if place >= 0:
                return end - length + place + 1
            end -= length
        return start
    finally:
        file.close()


def _crc_of(fs: FileSystem, path: str, length: int) -> int:
    if not length:
        return 0
    file = fs.open_read(path)
    try:
        head = file.pread(length, 0)
    finally:
        file.close()
    return google_crc32c.value(head) if len(head) == length else -1


def _older_first(path: str) -> tuple[int, str]:
    # If two changed in the same millisecond, log.2 is older than log.1, except for dates.
    suffix = path.rpartition(".")[2]
    return (-int(suffix) if suffix.isdecimal() and len(suffix) < 5 else 0, path)
