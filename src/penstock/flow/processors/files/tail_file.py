"""TailFile: a processor that reads lines as they are appended to a file.

`TailFile` owns the FlowFiles. `TailFollower` finds the file and the position to continue from
after a rotation. It identifies a file by its inode and a checksum of its beginning:

    renamed            the old file is found under its new name: read its rest, then the files
                       rotated after it, then the new file
    copied, truncated  the copy has the same beginning: read its rest, then the truncated file
    deleted, truncated unread bytes are lost, which is logged; then continue as above

Invariants: the position and the FlowFile are in one commit, so each byte is read once across
restarts, rotation and truncation. Reading continues at a position (`TailPosition`) only in a
file whose beginning matches.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import google_crc32c

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.read_guard import READ_GUARD
from penstock.flow.flowfile import FILENAME, MIME_TYPE
from penstock.flow.processor import (
    PERIOD,
    SIZE,
    STR,
    InputRequirement,
    Problem,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.storage.filesystem import FileStat, FileSystem, open_guarded

HEAD_BYTES: Final = 1_024
_SCAN_BYTES: Final = 1 << 16
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".zip", ".lz4")


@dataclass(frozen=True, slots=True)
class TailPosition:
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
    place: TailPosition
    size: int
    is_final: bool


def read_place(state: Mapping[str, str]) -> TailPosition | None:
    """Return the position in a state; None if nothing was read yet."""
    if "position" not in state:
        return None
    return TailPosition(
        int(state["inode"]),
        int(state["position"]),
        int(state["head.bytes"]),
        int(state["head.crc32c"]),
        int(state["modified.ms"]),
    )


def place_at(fs: FileSystem, path: str, stat: FileStat, position: int) -> TailPosition:
    """Return the read position for a position in a file.

    Raises:
        NotFound: The file does not exist.
        InvalidRequest: Flows must not read it.
        Unavailable: The file cannot be read now.
    """
    head_bytes = min(position, HEAD_BYTES)
    crc = _crc_of(fs, path, head_bytes)
    return TailPosition(stat.inode, position, head_bytes, crc, stat.modified_ms)


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
        self.lost: list[TailPosition] = []

    def follow(self, place: TailPosition, now_ms: int) -> TailFound | None:
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
                    at = TailPosition(
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
                place = TailPosition(stat.inode, 0, 0, 0, stat.modified_ms)
            elif current is not None:
                begun = TailPosition(current.inode, 0, 0, 0, current.modified_ms)
                return TailFound(self._path, begun, current.size, is_final=False)
            else:
                return None

    def _find(self, place: TailPosition, rotated: list[tuple[str, FileStat]]) -> int | None:
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
            if stat is not None and not stat.is_special:
                found.append((path, stat))
        return sorted(found, key=lambda one: (one[1].modified_ms, _older_first(one[0])))

    def _stat(self, path: str) -> FileStat | None:
        try:
            stat = self._fs.stat(path)
        except NotFound:
            return None
        return None if stat.is_folder else stat


def continues(fs: FileSystem, path: str, stat: FileStat, place: TailPosition) -> bool:
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
        InvalidRequest: Flows must not read it.
        Unavailable: The file cannot be read now.
    """
    file = open_guarded(fs, path, READ_GUARD.now())
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
    file = open_guarded(fs, path, READ_GUARD.now())
    try:
        head = file.pread(length, 0)
    finally:
        file.close()
    return google_crc32c.value(head) if len(head) == length else -1


def _older_first(path: str) -> tuple[int, str]:
    # If two changed in the same millisecond, log.2 is older than log.1, except for dates.
    suffix = path.rpartition(".")[2]
    return (-int(suffix) if suffix.isdecimal() and len(suffix) < 5 else 0, path)


_PIECE_BYTES: Final = 1 << 20
_FILE: Final = "file"


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidRequest("0 bytes at once would make no progress: write 1 B or more")


class TailFile(Processor):
    """Takes data that is appended to a file of this machine, such as a log.

    FlowFiles contain whole lines, and each byte is taken once.

    A file that is rotated by renaming, or by copying and truncating, is read to its end. Files that
    were rotated later are read, too, unless they are compressed. Data that was truncated without a
    copy is lost, which is logged and counted as `lost`.
    """

    input = InputRequirement.FORBIDDEN
    triggers_serially = True
    tags = ("file", "tail", "log", "source")
    state = "Inode of the file, a checksum of its beginning, and the position reached."
    writes_attributes: ClassVar[Mapping[str, str]] = {
        "filename": "Name of the file with the positions, such as `app.0-1200.log`.",
        "tailfile.original.path": "Path of the file; after a rotation its new path.",
        "tailfile.start": "Position of the first byte.",
        "tailfile.end": "Position after the last byte.",
        "mime.type": "`text/plain`.",
    }

    success = Relationship("Data that was appended.")

    file = Property(STR, required=True, about="Path of the file; it need not exist yet.")
    rotated = Property(
        STR,
        default="",
        about="Glob pattern of the names of rotated files, in the same folder; empty: the name, "
        "a dot and any suffix.",
    )
    start_at = Property(
        choice("beginning", "end"), default="beginning", about="Start position for the first read."
    )
    maximum_size = Property(
        SIZE,
        default="10 MB",
        about="Maximum size of one FlowFile; a longer line is cut.",
        validator=_check_size,
    )
    rotation_grace = Property(
        PERIOD,
        default="1 sec",
        about="A renamed file may still be written to; it is complete when it did not change "
        "for this time.",
    )

    def check(self) -> Iterator[Problem]:
        """Yield the reason why a flow must not read the file."""
        try:
            READ_GUARD.now().path(self.file)
        except InvalidRequest as error:
            yield Problem("file", str(error))

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Take appended data, up to the size of one FlowFile."""
        state = session.state.get()
        place = read_place(state) if state.get(_FILE) == self.file else None
        try:
            if place is None:
                found = self._begin(context.fs, session)
            else:
                found = self._follow(place, context, session)
            if found is not None:
                self._take(found, context.fs, session)
        except NotFound as error:
            # It was renamed or deleted between two checks: the next trigger finds its final name.
            context.log.debug("%s", error)
            session.rollback()

    def _begin(self, fs: FileSystem, session: ProcessSession) -> TailFound | None:
        stat = fs.stat(self.file)
        if self.start_at == "beginning":
            place = TailPosition(stat.inode, 0, 0, 0, stat.modified_ms)
            return TailFound(self.file, place, stat.size, is_final=False)
        self._remember(place_at(fs, self.file, stat, stat.size), session)
        return None

    def _follow(
        self, place: TailPosition, context: ProcessContext, session: ProcessSession
    ) -> TailFound | None:
        pattern = self.rotated or f"{posixpath.basename(self.file)}.*"
        follower = TailFollower(context.fs, self.file, pattern, self.rotation_grace)
        found = follower.follow(place, context.clock.now_ms())
        if found is not None and follower.lost:
            session.counters.add("lost", len(follower.lost))
            context.log.warning(
                "%s was truncated or replaced, and its previous content was not found: any data "
                "after position %d is lost",
                self.file,
                place.position,
            )
        return found

    def _take(self, found: TailFound, fs: FileSystem, session: ProcessSession) -> None:
        start = found.place.position
        stat = fs.stat(found.path)
        if stat.inode != found.place.inode:
            return
        limit = min(found.size, start + self.maximum_size)
        end = line_end(fs, found.path, start, limit)
        if (found.is_final and limit == found.size) or (
            end == start and limit - start == self.maximum_size
        ):
            end = limit
        if end > start:
            stem, extension = posixpath.splitext(posixpath.basename(self.file))
            flowfile = session.create(
                attributes={
                    FILENAME: f"{stem}.{start}-{end}{extension}",
                    MIME_TYPE: "text/plain",
                    "tailfile.original.path": found.path,
                    "tailfile.start": str(start),
                    "tailfile.end": str(end),
                }
            )
            session.import_from(flowfile, _pieces(fs, found.path, start, end))
            session.transfer(flowfile, self.success)
        place = place_at(fs, found.path, stat, end)
        # Each check above opened the file by its name; it must have been the same file each time.
        now = fs.stat(found.path)
        if now.inode != stat.inode or not continues(fs, found.path, now, found.place):
            raise NotFound(f"{found.path}: was rotated while it was read")
        if end > start or self._is_elsewhere(place, session):
            self._remember(place, session)

    def _is_elsewhere(self, place: TailPosition, session: ProcessSession) -> bool:
        known = read_place(session.state.get())
        return known is None or (known.inode, known.position) != (place.inode, place.position)

    def _remember(self, place: TailPosition, session: ProcessSession) -> None:
        session.state.set({**place.state(), _FILE: self.file})


def _pieces(fs: FileSystem, path: str, start: int, end: int) -> Iterator[bytes]:
    file = open_guarded(fs, path, READ_GUARD.now())
    try:
        while start < end:
            piece = file.pread(min(_PIECE_BYTES, end - start), start)
            if not piece:
                raise NotFound(f"{path}: was truncated while it was read")
            start += len(piece)
            yield piece
    finally:
        file.close()
