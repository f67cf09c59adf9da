"""Streams of FlowFile content, and copying of files to and from content piece by piece.

Owns the streams that processors read and write. Does not own the FlowFile of the content, nor the
use of the written bytes (`session_content`). Invariant: a stream cannot be used after its session.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from penstock.storage.content.content_reader import ContentReader
    from penstock.storage.content.content_repository import ContentWriter
    from penstock.storage.filesystem import FileSystem

PIECE_BYTES: Final = 1 << 20


class ContentStream(io.RawIOBase):
    """Stream that writes the content of one FlowFile; leaving its context finishes it.

    If an exception leaves the context, the bytes are discarded, and the FlowFile is unchanged. The
    stream may be wrapped, for example in ``io.TextIOWrapper``: closing the wrapper also finishes
    it.
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
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def write(self, data: Buffer, /) -> int:
        """Append all the bytes; return their number.

        Raises:
            Unavailable: Disk full or I/O error.
            ValueError: The stream is closed.
        """
        with self._guard:
            if self._ended is None:
                raise ValueError("the content stream is closed: open another")
            count = self._writer.write(data)
            self._size += count
            return count

    def abort(self) -> None:
        """Discard the written bytes; the FlowFile is unchanged.

        After the stream is closed, this does nothing.
        """
        self._end(None)

    def close(self) -> None:
        """Finish: the written bytes become the content of the FlowFile.

        Raises:
            Unavailable: Disk full or I/O error; the FlowFile is unchanged.
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
        """Do not finish an abandoned stream: the session handles it."""

    def _end(self, size: int | None) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            try:
                ended(size)
            finally:
                super().close()


class ContentSource(io.RawIOBase):
    """Stream that reads a claim, and counts the bytes read; empty without a claim."""

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
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return whether the stream has content."""
        return self._source is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position, in bytes, and return it."""
        if self._source is None:
            return 0
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        """Return the position, in bytes."""
        return 0 if self._source is None else self._source.tell()

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into a buffer; return the number of bytes, 0 at the end.

        Raises:
            ValueError: The stream is closed.
        """
        with self._guard:
            if self.closed:
                raise ValueError("the content stream is closed because its session ended")
            if self._source is None:
                return 0
            count = self._source.readinto(buffer)
            self._count(count)
            return count

    def close(self) -> None:
        """Release the claim."""
        if self._source is not None:
            self._source.close()
        super().close()


def export_pieces(stream: io.BufferedReader, fs: FileSystem, path: str) -> int:
    """Write a stream to a file, completely and durably, or not at all; return the number of bytes.

    Raises:
        Unavailable: Disk full or I/O error; the file is unchanged.
        InvalidRequest: The path is invalid.
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
    except BaseException:
        with suppress(PenstockError):  # the first failure is reported
            fs.unlink(temporary)
        raise
    folder = path.rpartition("/")[0]
    fs.fsync_folder(folder or ("/" if path.startswith("/") else "."))
    return size


def file_pieces(fs: FileSystem, path: str) -> Iterator[Buffer]:
    """Yield the bytes of a file.

    Raises:
        NotFound: The file does not exist.
        Unavailable: The file cannot be read now.
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
