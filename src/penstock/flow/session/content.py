"""The bytes of a session's FlowFiles: read and written as streams.

Owns the streams that are open, what is being appended to, and the counts of bytes. Does not own the
bytes (`storage.content`), nor the FlowFiles (`ledger`).

Invariants:

- Content is never changed: a write makes a claim, and the FlowFile points at it once it is whole.
  A write that fails leaves the FlowFile as it was.
- Every claim that was finished is among the ledger's `written`, so that the commit or the rollback
  lets go of it.
- A FlowFile that is appended to often has one writer, and its bytes are not copied again each time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flow.errors import ContentMissing, SessionMisuse
from penstock.flow.session.ledger import named, with_content
from penstock.storage.content.claims import ContentClaim

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.session.ledger import Ledger
    from penstock.storage.content.reading import ContentReader
    from penstock.storage.content.repository import ContentRepository, ContentWriter
    from penstock.storage.filesystem import FileSystem

PIECE_BYTES: Final = 1 << 20
_READ_BUFFER_BYTES: Final = 1 << 16
# Each has a file of content to itself.
_APPENDED_MAX: Final = 8


class SessionContent:
    """The content of one session's FlowFiles; for the session's thread.

    Attributes:
        read_bytes: Read since the last `counts`.
        written_bytes: Written since then.

    Args:
        content: Where the bytes are.
        ledger: The session's books.
        guard: Held around each use of a stream; raises when the session was given up.
    """

    def __init__(
        self,
        content: ContentRepository,
        ledger: Ledger,
        guard: AbstractContextManager[object],
    ) -> None:
        self._content = content
        self._ledger = ledger
        self._guard = guard
        self._readers: list[_Reading] = []
        self._writers: dict[int, ContentStream] = {}
        self._appended: dict[int, _Appended] = {}
        self._lost: FlowFile | None = None
        self.read_bytes = 0
        self.written_bytes = 0

    def use(self, ledger: Ledger) -> None:
        """Go on with other books, once all that was begun is finished."""
        self._ledger = ledger

    def read(self, flowfile: FlowFile) -> io.BufferedReader:
        """Return a stream of a FlowFile's content.

        Raises:
            ContentMissing: It is gone.
        """
        flowfile = self._settled(flowfile)
        raw = None
        if flowfile.claim is not None and flowfile.size:
            try:
                raw = self._content.open_read(
                    flowfile.claim, flowfile.content_offset, flowfile.size
                )
            except NotFound as error:
                raise self._missing(flowfile, error) from error
        reading = _Reading(raw, self._guard, self._count_read)
        self._readers.append(reading)
        return io.BufferedReader(reading, _READ_BUFFER_BYTES)

    def read_all(self, flowfile: FlowFile, max_bytes: int) -> bytes:
        """Return a FlowFile's content.

        Raises:
            ContentMissing: It is gone.
            InvalidRequest: It is longer than `max_bytes`.
        """
        flowfile = self._settled(flowfile)
        if flowfile.size > max_bytes:
            raise InvalidRequest(
                f"{named(flowfile)} has {flowfile.size:,} bytes of content, more than the "
                f"{max_bytes:,} that are read at once: use a stream, or raise the bound"
            )
        if flowfile.claim is None or not flowfile.size:
            return b""
        try:
            data = self._content.read(flowfile.claim, flowfile.content_offset, flowfile.size)
        except NotFound as error:
            raise self._missing(flowfile, error) from error
        self.read_bytes += len(data)
        return data

    def put(self, flowfile: FlowFile, data: Buffer) -> FlowFile:
        """Give a FlowFile these bytes as its content.

        Raises:
            Unavailable: Disk full or I/O error; it is as before.
        """
        self._check_not_written(flowfile)
        self._settled(flowfile)
        claim = self._content.put(data)
        return self._written(flowfile.id, claim, 0 if claim is None else claim.length)

    def write(self, flowfile: FlowFile) -> ContentStream:
        """Return a stream that makes new content."""
        self._check_not_written(flowfile)
        flowfile = self._settled(flowfile)
        writer = self._content.write()

        def ended(size: int | None) -> None:
            del self._writers[flowfile.id]
            if size is None:
                writer.abort()
            else:
                self._written(flowfile.id, writer.finish(), size)

        return self._opened(flowfile, writer, ended)

    def append(self, flowfile: FlowFile) -> ContentStream:
        """Return a stream that adds to a FlowFile's content.

        Raises:
            ContentMissing: What it adds to is gone.
            Unavailable: Disk full or I/O error; it is as before.
        """
        self._check_not_written(flowfile)
        appended = self._appended.get(flowfile.id) or self._begin_appending(flowfile)
        before = appended.size

        def ended(size: int | None) -> None:
            del self._writers[flowfile.id]
            if size is None:
                self._give_up_append(flowfile.id)
                return
            appended.size = before + size
            self.written_bytes += size
            newest = self._ledger.newest[flowfile.id]
            self._ledger.change(with_content(newest, newest.claim, appended.size))

        return self._opened(flowfile, appended.writer, ended)

    def finish(self) -> None:
        """Finish what is appended to; before a commit.

        Raises:
            SessionMisuse: A stream that writes is still open.
            Unavailable: Disk full or I/O error.
        """
        if self._writers:
            flowfile = self._ledger.newest[next(iter(self._writers))]
            raise SessionMisuse(
                f"the content of {named(flowfile)} is still being written: leave the stream's "
                "context before the session is committed"
            )
        if self._lost is not None:
            raise Unavailable(
                f"what was appended to {named(self._lost)} could not be written; the session is "
                "rolled back: free space and try again"
            )
        for number in list(self._appended):
            self._finish_appending(number)
        self.close_readers()

    def abort(self) -> None:
        """Give up what is being written, and close what is being read."""
        for stream in list(self._writers.values()):
            stream.abort()
        for appended in self._appended.values():
            appended.writer.abort()
        self._appended.clear()
        self._lost = None
        self.close_readers()

    def close_readers(self) -> None:
        """Close streams that were left open."""
        for reading in self._readers:
            reading.close()
        self._readers.clear()

    def settle(self, flowfiles: list[FlowFile]) -> None:
        """Finish what is appended to these, so that their claims are whole."""
        for flowfile in flowfiles if self._appended or self._writers else ():
            self._check_not_written(flowfile)
            self._settled(flowfile)

    def counts(self) -> tuple[int, int]:
        """Return the bytes read and written since the last call."""
        counts = self.read_bytes, self.written_bytes
        self.read_bytes = self.written_bytes = 0
        return counts

    def _settled(self, flowfile: FlowFile) -> FlowFile:
        if flowfile.id in self._appended:
            self._finish_appending(flowfile.id)
        return self._ledger.newest[flowfile.id]

    def _begin_appending(self, flowfile: FlowFile) -> _Appended:
        if len(self._appended) >= _APPENDED_MAX:
            self._finish_appending(next(iter(self._appended)))
        writer = self._content.write()
        try:
            if flowfile.size and flowfile.claim is not None:
                with self.read(flowfile) as source:
                    for piece in stream_pieces(source):
                        writer.write(piece)
        except PenstockError:
            writer.abort()
            raise
        appended = self._appended[flowfile.id] = _Appended(writer, flowfile)
        return appended

    def _finish_appending(self, number: int) -> None:
        appended = self._appended.pop(number)
        newest = self._ledger.newest[number]
        try:
            claim = appended.writer.finish()
        except PenstockError:
            # With the writer went all that was appended, which cannot be undone alone: the session
            # cannot be committed any more.
            base = appended.base
            self._lost = self._lost or base
            self._ledger.change(with_content(newest, base.claim, base.size, base.content_offset))
            raise
        if claim is not None:
            self._ledger.written.append((number, claim))
        self._ledger.change(with_content(newest, claim, appended.size))

    def _give_up_append(self, number: int) -> None:
        # What was written before the failure is behind the content's end. If the disk is what
        # failed, the commit says so.
        with suppress(PenstockError):
            self._finish_appending(number)

    def _opened(
        self, flowfile: FlowFile, writer: ContentWriter, ended: Callable[[int | None], None]
    ) -> ContentStream:
        stream = ContentStream(writer, self._guard, ended)
        self._writers[flowfile.id] = stream
        return stream

    def _written(self, number: int, claim: ContentClaim | None, size: int) -> FlowFile:
        if claim is not None:
            self._ledger.written.append((number, claim))
        self.written_bytes += size
        newest = with_content(self._ledger.newest[number], claim, size)
        self._ledger.change(newest)
        return newest

    def _check_not_written(self, flowfile: FlowFile) -> None:
        if flowfile.id in self._writers:
            raise SessionMisuse(
                f"the content of {named(flowfile)} is being written: leave that stream's context "
                "first"
            )

    def _missing(self, flowfile: FlowFile, error: NotFound) -> ContentMissing:
        original = self._ledger.originals.get(flowfile.id)
        if original is not None and original.claim == flowfile.claim:
            self._ledger.missing.add(flowfile.id)
        return ContentMissing(f"{named(flowfile)}: {error}")

    def _count_read(self, count: int) -> None:
        self.read_bytes += count


class _Appended:
    """What is being appended to: the writer, and where the content ends that counts."""

    __slots__ = ("base", "size", "writer")

    def __init__(self, writer: ContentWriter, base: FlowFile) -> None:
        self.writer = writer
        self.base = base
        self.size = base.size


class ContentStream(io.RawIOBase):
    """Writes the content of one FlowFile; leaving its context finishes it.

    An exception that leaves the context gives the bytes up, and the FlowFile is as before. It may
    be wrapped, as in ``io.TextIOWrapper``: closing is finishing, too.
    """

    def __init__(
        self,
        writer: ContentWriter,
        guard: AbstractContextManager[object],
        ended: Callable[[int | None], None],
    ) -> None:
        super().__init__()
        self._writer = writer
        self._guard = guard
        self._ended: Callable[[int | None], None] | None = ended
        self._size = 0

    def writable(self) -> bool:
        """Say that it is for writing."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, data: Buffer, /) -> int:
        """Append all of some bytes; return how many.

        Raises:
            Unavailable: Disk full or I/O error.
            ValueError: The stream is closed.
        """
        with self._guard:
            if self._ended is None:
                raise ValueError("the stream of content is closed: open another")
            count = self._writer.write(data)
            self._size += count
            return count

    def abort(self) -> None:
        """Give up what was written; the FlowFile is as before. After the end it does nothing."""
        self._end(None)

    def close(self) -> None:
        """Finish: the FlowFile has what was written as its content.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is as before.
        """
        if self._ended is not None:
            with self._guard:
                self._end(self._size)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._ended is not None:
            with self._guard:
                self._end(None)

    def __del__(self) -> None:
        """Do not finish what nobody finished: the session knows of it."""

    def _end(self, size: int | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            try:
                ended(size)
            finally:
                super().close()


class _Reading(io.RawIOBase):
    """Counts what is read of a claim; empty without one."""

    def __init__(
        self,
        source: ContentReader | None,
        guard: AbstractContextManager[object],
        count: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._source = source
        self._guard = guard
        self._count = count

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._source is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if self._source is None:
            return 0
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return 0 if self._source is None else self._source.tell()

    def readinto(self, buffer: Buffer, /) -> int:
        with self._guard:
            if self.closed:
                raise ValueError("the stream of content is closed: the session ended")
            if self._source is None:
                return 0
            count = self._source.readinto(buffer)
            self._count(count)
            return count

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        super().close()


def export_pieces(stream: io.BufferedReader, fs: FileSystem, path: str) -> int:
    """Write a stream to a file: whole and durable, or not at all; return the bytes.

    Raises:
        Unavailable: Disk full or I/O error; the file is as before.
        InvalidRequest: The path will not do.
    """
    temporary = f"{path}.part"
    file = fs.create(temporary, replace=True)
    try:
        try:
            for piece in stream_pieces(stream):
                file.writev([piece])
            file.sync()
        finally:
            size = file.size
            file.close()
        fs.rename(temporary, path)
    except PenstockError:
        with suppress(PenstockError):  # what failed before is what there is to tell
            fs.unlink(temporary)
        raise
    folder = path.rpartition("/")[0]
    fs.fsync_folder(folder or ("/" if path.startswith("/") else "."))
    return size


def file_pieces(fs: FileSystem, path: str) -> Iterator[Buffer]:
    """Yield the bytes of a file.

    Raises:
        NotFound: There is none.
        Unavailable: It cannot be read now.
    """
    file = fs.open_read(path)
    try:
        position = 0
        while data := file.pread(PIECE_BYTES, position):
            yield data
            position += len(data)
    finally:
        file.close()


def stream_pieces(stream: BinaryIO | io.BufferedReader) -> Iterator[bytes]:
    """Yield the bytes of a stream."""
    while data := stream.read(PIECE_BYTES):
        yield data
