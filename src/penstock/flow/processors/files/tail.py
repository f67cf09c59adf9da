"""TailFile: takes data that is appended to a file.

Owns the FlowFiles that are created. Does not own finding the file after a rotation (`tailing`).

Invariant: position and FlowFile are one commit, so that each byte is taken once, across restarts,
rotation and truncation.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.flowfile import FILENAME, MIME_TYPE
from penstock.flow.processor import (
    PERIOD,
    SIZE,
    STR,
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
    choice,
)
from penstock.flow.processors.files.tailing import (
    TailFollower,
    TailFound,
    TailPlace,
    continues,
    line_end,
    place_at,
    read_place,
)

if TYPE_CHECKING:
    from penstock.storage.filesystem import FileSystem

_PIECE_BYTES: Final = 1 << 20
_FILE: Final = "file"


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidRequest("0 bytes at once would make no progress: write 1 B or more")


class TailFile(Processor):
    """Takes data that is appended to a file of this machine, such as a log.

    Lines are taken whole, and each byte once.

    A file that is rotated by renaming, or by copying and truncating, is read to its end. So are all
    files rotated since, unless they are compressed. Data that was truncated without a copy is lost,
    which is logged and counted as `lost`.
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
            place = TailPlace(stat.inode, 0, 0, 0, stat.modified_ms)
            return TailFound(self.file, place, stat.size, is_final=False)
        self._remember(place_at(fs, self.file, stat, stat.size), session)
        return None

    def _follow(
        self, place: TailPlace, context: ProcessContext, session: ProcessSession
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

    def _is_elsewhere(self, place: TailPlace, session: ProcessSession) -> bool:
        known = read_place(session.state.get())
        return known is None or (known.inode, known.position) != (place.inode, place.position)

    def _remember(self, place: TailPlace, session: ProcessSession) -> None:
        session.state.set({**place.state(), _FILE: self.file})


def _pieces(fs: FileSystem, path: str, start: int, end: int) -> Iterator[bytes]:
    file = fs.open_read(path)
    try:
        while start < end:
            piece = file.pread(min(_PIECE_BYTES, end - start), start)
            if not piece:
                raise NotFound(f"{path}: was truncated while it was read")
            start += len(piece)
            yield piece
    finally:
        file.close()
