"""Content of a session's FlowFiles, read and written as streams.

`SessionContent` owns the open streams and the byte counts. `AppendWriters` owns one writer for
each FlowFile that is appended to, and the valid end of its content. Does not own the streams
(`content_streams`), the stored bytes (`storage.content`) or the FlowFiles (`session_state`).

Invariants:

- Content is immutable: a write creates a claim, and the FlowFile refers to it when it is
  complete. A failed write leaves the FlowFile unchanged.
- Every finished claim is recorded in `SessionFlowFiles.written`, so that the commit or the
  rollback releases it.
- Repeated appends to a FlowFile use one writer and do not copy its bytes again. If an append
  writer fails, the session must be rolled back.

Threading: used by the session's thread.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flow.errors import ContentMissing, SessionMisuse
from penstock.flow.session.content_streams import ContentSource, ContentStream, stream_pieces
from penstock.flow.session.session_state import named, with_content

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from typing_extensions import Buffer

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.session.session_state import SessionFlowFiles
    from penstock.storage.content.claims import ContentClaim
    from penstock.storage.content.content_repository import ContentRepository, ContentWriter


# Each of these FlowFiles keeps a content file open.
_APPENDED_MAX: Final = 8


class AppendTarget:
    """FlowFile that is being appended to.

    Attributes:
        writer: Writer that holds the content so far.
        base: The FlowFile before the first append.
        size: Length of the valid content, in bytes.
    """

    __slots__ = ("base", "size", "writer")

    def __init__(self, writer: ContentWriter, base: FlowFile) -> None:
        self.writer = writer
        self.base = base
        self.size = base.size


class AppendWriters:
    """FlowFiles that a session appends to; for the session's thread only.

    Args:
        content: Repository for the bytes.
        read: Reads the content of a FlowFile.

    Attributes:
        begun: Unfinished appends, by the FlowFile's id.
    """

    def __init__(
        self, content: ContentRepository, read: Callable[[FlowFile], io.BufferedReader]
    ) -> None:
        self._content = content
        self._read = read
        self.begun: dict[int, AppendTarget] = {}
        self._lost: FlowFile | None = None

    def to(self, flowfile: FlowFile, session_state: SessionFlowFiles) -> AppendTarget:
        """Return the unfinished append of a FlowFile; begin one with its content if there is none.

        Raises:
            ContentMissing: The existing content of the FlowFile is missing.
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
        """
        begun = self.begun.get(flowfile.id)
        if begun is not None:
            return begun
        if len(self.begun) >= _APPENDED_MAX:
            self.finish(next(iter(self.begun)), session_state)
        writer = self._content.write()
        try:
            if flowfile.size and flowfile.claim is not None:
                with self._read(flowfile) as source:
                    for piece in stream_pieces(source):
                        writer.write(piece)
            appended = self.begun[flowfile.id] = AppendTarget(writer, flowfile)
        except BaseException:
            writer.abort()
            raise
        return appended

    def finish(self, number: int, session_state: SessionFlowFiles) -> None:
        """Finish the claim of an append, and make the FlowFile refer to it.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is as it was before the first append.
        """
        appended = self.begun[number]
        newest = session_state.newest[number]
        base = appended.base
        claim: ContentClaim | None = None
        is_entered = False
        try:
            claim = appended.writer.finish()
            if claim is not None:
                session_state.written.append((number, claim))
                is_entered = True
            session_state.change(with_content(newest, claim, appended.size))
        except BaseException:
            # The failed writer held all appended bytes. They cannot be undone separately, so the
            # session can no longer be committed.
            self._lost = self._lost or base
            appended.writer.abort()
            if claim is not None and not is_entered:
                self._content.release(claim.resource)
            session_state.change(with_content(newest, base.claim, base.size, base.content_offset))
            raise
        finally:
            del self.begun[number]

    def finish_all(self, session_state: SessionFlowFiles) -> None:
        """Finish all appends; called before a commit.

        Raises:
            Unavailable: Disk full or I/O error, now or earlier.
        """
        if self._lost is not None:
            raise Unavailable(
                f"the bytes appended to {named(self._lost)} could not be written, so the session "
                "is rolled back: free disk space and try again"
            )
        for number in list(self.begun):
            self.finish(number, session_state)

    def abandon(self, number: int, session_state: SessionFlowFiles) -> None:
        """Close a FlowFile's writer after a failure; bytes appended before are kept."""
        # Bytes written before the failure are beyond the end of the valid content. If the disk
        # failed, the commit reports it.
        with suppress(PenstockError):
            self.finish(number, session_state)

    def abort(self) -> None:
        """Discard all appends; called before a rollback."""
        steps = CleanupSteps()
        for appended in self.begun.values():
            steps.take(appended.writer.abort)
        self.begun.clear()
        self._lost = None
        steps.finish()


_READ_BUFFER_BYTES: Final = 1 << 16


class SessionContent:
    """Content of one session's FlowFiles; for the session's thread only.

    Attributes:
        read_bytes: Bytes read since the last `counts`.
        written_bytes: Bytes written since the last `counts`.

    Args:
        content: Repository for the bytes.
        session_state: State of the session.
        guard: Context manager around each use of a stream; raises if the session was terminated.
    """

    def __init__(
        self,
        content: ContentRepository,
        session_state: SessionFlowFiles,
        guard: AbstractContextManager[object],
    ) -> None:
        self._content = content
        self._session_state = session_state
        self._guard = guard
        self._readers: list[ContentSource] = []
        self._writers: dict[int, ContentStream] = {}
        self._appending = AppendWriters(content, self.read)
        self.read_bytes = 0
        self.written_bytes = 0

    def use(self, session_state: SessionFlowFiles) -> None:
        """Continue with another session state, after all open writes are finished."""
        self._session_state = session_state

    def read(self, flowfile: FlowFile) -> io.BufferedReader:
        """Return a stream of a FlowFile's content.

        Raises:
            ContentMissing: The content is missing.
        """
        flowfile = self._with_finished_append(flowfile)
        raw = None
        if flowfile.claim is not None and flowfile.size:
            try:
                raw = self._content.open_read(
                    flowfile.claim, flowfile.content_offset, flowfile.size
                )
            except NotFound as error:
                raise self._missing(flowfile, error) from error
        reading = ContentSource(raw, self._guard, self._count_read)
        self._readers.append(reading)
        return io.BufferedReader(reading, _READ_BUFFER_BYTES)

    def read_all(self, flowfile: FlowFile, max_bytes: int) -> bytes:
        """Return a FlowFile's content.

        Raises:
            ContentMissing: The content is missing.
            InvalidRequest: The content is longer than `max_bytes`.
        """
        flowfile = self._with_finished_append(flowfile)
        if flowfile.size > max_bytes:
            raise InvalidRequest(
                f"{named(flowfile)} has {flowfile.size:,} bytes of content, more than the limit "
                f"of {max_bytes:,}: read it as a stream, or raise the limit"
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
        """Replace the content of a FlowFile with these bytes.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
        """
        self._check_not_written(flowfile)
        self._with_finished_append(flowfile)
        return self._written(flowfile.id, partial(self._content.put, data))

    def write(self, flowfile: FlowFile) -> ContentStream:
        """Return a stream that writes new content."""
        self._check_not_written(flowfile)
        flowfile = self._with_finished_append(flowfile)
        writer = self._content.write()

        def ended(size: int | None) -> None:
            del self._writers[flowfile.id]
            if size is None:
                writer.abort()
            else:
                self._written(flowfile.id, writer.finish)

        try:
            return self._opened(flowfile, writer, ended)
        except BaseException:
            writer.abort()
            raise

    def append(self, flowfile: FlowFile) -> ContentStream:
        """Return a stream that appends to a FlowFile's content.

        Raises:
            ContentMissing: The existing content is missing.
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
        """
        self._check_not_written(flowfile)
        appended = self._appending.to(flowfile, self._session_state)
        before = appended.size

        def ended(size: int | None) -> None:
            del self._writers[flowfile.id]
            if size is None:
                self._appending.abandon(flowfile.id, self._session_state)
                return
            newest = self._session_state.newest[flowfile.id]
            self._session_state.change(with_content(newest, newest.claim, before + size))
            appended.size = before + size
            self.written_bytes += size

        return self._opened(flowfile, appended.writer, ended)

    def finish(self) -> None:
        """Finish all appends; called before a commit.

        Raises:
            SessionMisuse: A stream for writing is still open.
            Unavailable: Disk full or I/O error.
        """
        if self._writers:
            flowfile = self._session_state.newest[next(iter(self._writers))]
            raise SessionMisuse(
                f"the content of {named(flowfile)} is still being written: leave the stream's "
                "context before the commit"
            )
        self._appending.finish_all(self._session_state)
        self.close_readers()

    def abort(self) -> None:
        """Discard unfinished writes, and close streams for reading."""
        steps = CleanupSteps()
        for stream in list(self._writers.values()):
            steps.take(stream.abort)
        steps.take(self._appending.abort)
        steps.take(self.close_readers)
        steps.finish()

    def close_readers(self) -> None:
        """Close streams that were left open."""
        steps = CleanupSteps()
        for reading in self._readers:
            steps.take(reading.close)
        self._readers.clear()
        steps.finish()

    def finish_appends(self, flowfiles: list[FlowFile]) -> None:
        """Finish the appends to these FlowFiles, so that their claims are complete."""
        for flowfile in flowfiles if self._appending.begun or self._writers else ():
            self._check_not_written(flowfile)
            self._with_finished_append(flowfile)

    def counts(self) -> tuple[int, int]:
        """Return the bytes read and written since the last call."""
        counts = self.read_bytes, self.written_bytes
        self.read_bytes = self.written_bytes = 0
        return counts

    def _with_finished_append(self, flowfile: FlowFile) -> FlowFile:
        if flowfile.id in self._appending.begun:
            self._appending.finish(flowfile.id, self._session_state)
        return self._session_state.newest[flowfile.id]

    def _opened(
        self, flowfile: FlowFile, writer: ContentWriter, ended: Callable[[int | None], None]
    ) -> ContentStream:
        stream = ContentStream(writer, self._guard, ended)
        self._writers[flowfile.id] = stream
        return stream

    def _written(self, number: int, finish: Callable[[], ContentClaim | None]) -> FlowFile:
        claim: ContentClaim | None = None
        try:
            claim = finish()
            size = 0 if claim is None else claim.length
            newest = with_content(self._session_state.newest[number], claim, size)
            if claim is not None:
                self._session_state.written.append((number, claim))
        except BaseException:
            if claim is not None:
                self._content.release(claim.resource)
            raise
        self.written_bytes += size
        self._session_state.change(newest)
        return newest

    def _check_not_written(self, flowfile: FlowFile) -> None:
        if flowfile.id in self._writers:
            raise SessionMisuse(
                f"the content of {named(flowfile)} is already being written: leave that stream's "
                "context first"
            )

    def _missing(self, flowfile: FlowFile, error: NotFound) -> ContentMissing:
        original = self._session_state.originals.get(flowfile.id)
        if original is not None and original.claim == flowfile.claim:
            self._session_state.missing.add(flowfile.id)
        return ContentMissing(f"{named(flowfile)}: {error}")

    def _count_read(self, count: int) -> None:
        self.read_bytes += count
