"""Named positions of readers in a disk queue, stored in small checksummed files.

Owns: the cursor files ``<name>.cursor`` of a queue's folder and the positions in memory. Does not
own: the schedule of saves (with each sync of the queue), nor their effect on retention.

Invariants:

- A saved position is never above the durable offset of the log files, so a power loss cannot leave
  a cursor beyond the end, which would later skip new messages. A cursor that nevertheless is beyond
  the end is moved to the end.
- A cursor file is only a position: if it is missing, truncated or damaged, the log files still have
  everything else. An unreadable one is kept as ``<name>.cursor.bad``, counted, and the cursor
  starts at the earliest message, so that messages are repeated rather than lost.
- Positions change in memory at once and on disk with the next sync: after a crash a reader sees
  again the messages that it read since.

    cursor file (32 bytes, little-endian)
     0   8  magic "PNSTCURS"
     8   4  format number
    12   4  crc32c of the other 28 bytes
    16   8  position: the offset of the next message
    24   8  zero
"""

from __future__ import annotations

import logging
import re
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import google_crc32c

from penstock.core.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.filesystem import FileSystem
    from penstock.storage.queue.log import QueueLog

_logger = logging.getLogger(__name__)
_SUFFIX = ".cursor"
_MAGIC = b"PNSTCURS"
_FORMAT_NUMBER = 1
_NAME = re.compile(r"[.a-zA-Z0-9_#-]{1,100}", re.ASCII)


class CursorStore:
    """The cursors of one queue.

    Readers on any thread move their own position. One mutex guards the positions and is never held
    during I/O; a second one lets one thread at a time write files.
    """

    __slots__ = (
        "_folder",
        "_fs",
        "_missing",
        "_mutex",
        "_positions",
        "_save_mutex",
        "_saved",
        "reset",
    )

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._mutex = threading.Lock()
        self._save_mutex = threading.Lock()
        self._positions: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        # Cursors whose files may be missing, because their deletion failed.
        self._missing: set[str] = set()
        self.reset = 0

    def load(self, names: Sequence[str], earliest: int, latest: int) -> None:
        """Read all cursor files; put each position between `earliest` and `latest`.

        Args:
            names: Names of the files in the folder.
            earliest: The first stored offset.
            latest: The offset of the next message.

        Raises:
            InvalidRequest: A file has a newer format.
            Unavailable: I/O error.
        """
        for name in names:
            if name.endswith(f"{_SUFFIX}.tmp"):
                self._fs.unlink(f"{self._folder}/{name}")
            elif name.endswith(_SUFFIX):
                self._load_one(name, earliest, latest)

    def _load_one(self, file_name: str, earliest: int, latest: int) -> None:
        path = f"{self._folder}/{file_name}"
        name = file_name.removesuffix(_SUFFIX)
        position = _decode(self._fs.read_bytes(path), path)
        if position is None:
            self._fs.rename(path, f"{path}.bad")
            self._fs.fsync_folder(self._folder)
            self.reset += 1
            _logger.warning("%s: not a cursor file: kept as .bad, starts at %d", path, earliest)
            self._write(name, earliest)
            position = earliest
        elif position > latest:
            _logger.warning("%s: position %d is beyond the end, set to %d", path, position, latest)
            self._write(name, latest)
            self.reset += 1
            position = latest
        self._saved[name] = position
        self._positions[name] = max(earliest, position)

    def create(self, name: str, position: int, durable: int) -> None:
        """Create a cursor durably, unless one of this name exists.

        Raises:
            InvalidRequest: The name is invalid.
            Unavailable: Disk full or I/O error; the cursor was not created.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"invalid cursor name {name!r}: use 1 to 100 of a-z A-Z 0-9 . _ - #"
            )
        with self._save_mutex:
            with self._mutex:
                if name in self._positions:
                    return
            try:
                self._write(name, min(position, durable))
            except BaseException:
                # The file may have got its name; a restart must not find a cursor that no caller
                # created.
                with suppress(NotFound):
                    self._fs.unlink(f"{self._folder}/{name}{_SUFFIX}")
                    self._fs.fsync_folder(self._folder)
                raise
            with self._mutex:
                self._saved[name] = min(position, durable)
                self._positions[name] = position  # last: every entry has been saved

    def position(self, name: str) -> int:
        """Return the position of a cursor.

        Raises:
            NotFound: It was deleted.
        """
        with self._mutex:
            return self._position(name)

    def move(self, name: str, position: int, *, forward_only: bool) -> None:
        """Move a cursor to a position."""
        with self._mutex:
            if not forward_only or position > self._position(name):
                self._position(name)
                self._positions[name] = position

    def move_all_up(self, offset: int) -> None:
        """Move all cursors before an offset to it."""
        with self._mutex:
            for name, position in self._positions.items():
                self._positions[name] = max(position, offset)

    def delete(self, name: str) -> None:
        """Delete a cursor durably; a missing one is ignored.

        Raises:
            Unavailable: I/O error; the cursor still exists, so delete it again.
        """
        with self._save_mutex:
            with self._mutex:
                if name not in self._positions:
                    return
            # If the deletion fails, the next save writes the file again.
            self._missing.add(name)
            with suppress(NotFound):  # deleted by an earlier attempt that could not be synced
                self._fs.unlink(f"{self._folder}/{name}{_SUFFIX}")
            self._fs.fsync_folder(self._folder)
            with self._mutex:
                del self._positions[name], self._saved[name]
                self._missing.discard(name)

    def save(self, durable: int) -> None:
        """Save changed positions, none further than `durable`.

        Raises:
            Unavailable: Disk full or I/O error; call again later.
        """
        with self._save_mutex:
            with self._mutex:
                # A saved position was durable once, though a queue that was killed starts lower.
                targets = {
                    name: min(position, max(durable, self._saved[name]))
                    for name, position in self._positions.items()
                }
                moved = [
                    (name, target)
                    for name, target in targets.items()
                    if target != self._saved[name] or name in self._missing
                ]
            for name, position in moved:
                self._write(name, position)
                self._saved[name] = position

    @property
    def unsaved(self) -> bool:
        """Return whether a cursor has moved since it was saved, or its file may be missing."""
        with self._mutex:
            return self._positions != self._saved or bool(self._missing)

    def all_positions(self) -> dict[str, int]:
        """Return every cursor's position."""
        with self._mutex:
            return dict(self._positions)

    def _position(self, name: str) -> int:
        position = self._positions.get(name)
        if position is None:
            raise NotFound(f"{self._folder}: no cursor {name!r}: it was deleted")
        return position

    def _write(self, name: str, position: int) -> None:
        self._fs.write_atomically(f"{self._folder}/{name}{_SUFFIX}", _encode(position))
        self._missing.discard(name)


class Cursor:
    """A named reader's position, which holds retention back. Several objects may share a name."""

    __slots__ = ("_log", "_store", "name")

    def __init__(self, name: str, store: CursorStore, log: QueueLog) -> None:
        self.name = name
        self._store = store
        self._log = log

    @property
    def position(self) -> int:
        """Return the offset of the next message to read.

        Raises:
            NotFound: The cursor was deleted.
        """
        # Its messages may have been dropped just now.
        return max(self._store.position(self.name), self._log.earliest)

    def advance(self, offset: int) -> None:
        """Move forward to `offset`; a lower one changes nothing. Saved with the next sync.

        Raises:
            InvalidRequest: The offset is beyond the end of the queue.
            NotFound: The cursor was deleted.
        """
        self._check(offset)
        self._store.move(self.name, offset, forward_only=True)

    def seek(self, offset: int) -> None:
        """Move to any offset that the queue holds, back or forward. Raises as `advance`."""
        earliest = self._check(offset)
        self._store.move(self.name, max(offset, earliest), forward_only=False)

    def delete(self) -> None:
        """Delete the cursor durably; it no longer holds retention back."""
        self._store.delete(self.name)

    def _check(self, offset: int) -> int:
        earliest, latest = self._log.bounds()
        if not 0 <= offset <= latest:
            raise InvalidRequest(
                f"cursor {self.name!r} cannot move to {offset}: the queue ends at {latest}"
            )
        return earliest


def _encode(position: int) -> bytes:
    before = _MAGIC + struct.pack("<I", _FORMAT_NUMBER)
    after = struct.pack("<q8x", position)
    return before + struct.pack("<I", google_crc32c.value(before + after)) + after


def _decode(data: bytes, path: str) -> int | None:
    if len(data) != 32 or not data.startswith(_MAGIC):
        return None
    format_number, crc, position = struct.unpack_from("<IIq", data, 8)
    if google_crc32c.value(data[:12] + data[16:]) != crc or position < 0:
        return None
    if format_number > _FORMAT_NUMBER:
        raise InvalidRequest(
            f"{path}: has format number {format_number}, but this release reads up to "
            f"{_FORMAT_NUMBER}: use the newer Penstock that wrote it"
        )
    return int(position)
