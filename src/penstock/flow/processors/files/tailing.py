"""Where reading a growing file stands, and where it goes on after the file was rotated.

Owns how a file is known again: by its inode and a checksum of its beginning. Does not own what is
made of the bytes (`tail`).

    renamed         the place is found under another name: its rest, then the files rotated after
                    it, then the new one
    copied, cut     the copy begins as the place did: its rest, then the cut file from its beginning
    gone, cut       what was not read is lost, which is said; then as above

Invariant: a place is only gone on from in a file that begins as that place's file did.
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
    """How far a file was read.

    Attributes:
        inode: Of the file.
        position: The next byte.
        head_bytes: How much of its beginning was looked at.
        head_crc: CRC-32C of that.
        modified_ms: When it had changed last, as it was read.
    """

    inode: int
    position: int
    head_bytes: int
    head_crc: int
    modified_ms: int

    def state(self) -> dict[str, str]:
        """Return it as text."""
        return {
            "inode": str(self.inode),
            "position": str(self.position),
            "head.bytes": str(self.head_bytes),
            "head.crc32c": str(self.head_crc),
            "modified.ms": str(self.modified_ms),
        }


@dataclass(frozen=True, slots=True)
class TailFound:
    """Where to read now.

    Attributes:
        path: Of the file.
        place: In it.
        size: Of the file.
        is_final: It was rotated away and does not grow any more.
    """

    path: str
    place: TailPlace
    size: int
    is_final: bool


def read_place(state: Mapping[str, str]) -> TailPlace | None:
    """Return the place that a state has; None: nothing was read yet."""
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
    """Return the place in a file up to which it was read.

    Raises:
        NotFound: The file is gone.
        Unavailable: It cannot be read now.
    """
    head_bytes = min(position, HEAD_BYTES)
    crc = _crc_of(fs, path, head_bytes)
    return TailPlace(stat.inode, position, head_bytes, crc, stat.modified_ms)


class TailFollower:
    """Finds the file and the place to go on from.

    Args:
        fs: The file system.
        path: The file that grows.
        rotated: Glob of the names that it is rotated to, in the same folder.
        grace_ms: A file that was renamed may still grow for so long.
    """

    def __init__(self, fs: FileSystem, path: str, rotated: str, grace_ms: int) -> None:
        self._fs = fs
        self._path = path
        self._folder, self._name = posixpath.split(path)
        self._rotated = rotated
        self._grace_ms = grace_ms
        self.lost: list[TailPlace] = []

    def follow(self, place: TailPlace, now_ms: int) -> TailFound | None:
        """Return where to read now; None: the file is not there (yet).

        Places whose rest is nowhere are added to `lost`.
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
        # A copy is not older than what was read; and without a beginning that was read it could
        # not be told from any other file.
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
        """Return the files that were rotated away, the oldest first."""
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
    """Say whether a file begins as that of a place did, and reaches as far."""
    if stat.size < place.position:
        return False
    try:
        return _crc_of(fs, path, place.head_bytes) == place.head_crc
    except NotFound:
        return False


def line_end(fs: FileSystem, path: str, start: int, end: int) -> int:
    """Return the end of the last whole line between two positions; `start` if there is none.

    Raises:
        NotFound: The file is gone.
        Unavailable: It cannot be read now.
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
    # Of two that changed in the same millisecond, log.2 is older than log.1, but a date is not.
    suffix = path.rpartition(".")[2]
    return (-int(suffix) if suffix.isdecimal() and len(suffix) < 5 else 0, path)
