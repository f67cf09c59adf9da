"""Streams of the content of FlowFiles, and files that are copied in and out piece by piece.

Owns what processors read from and write to. Does not own whose content it is, nor what becomes of
what was written (`content`). Invariant: a stream is used while its session is, and no longer.
"""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from penstock.core.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from penstock.storage.content.reading import ContentReader
    from penstock.storage.content.repository import ContentWriter
    from penstock.storage.filesystem import FileSystem

PIECE_BYTES: Final = 1 << 20


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


class ContentSource(io.RawIOBase):
    """Reads a claim, and counts what is read of it; empty without one."""

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
        """Say that it is for reading."""
        return True

    def seekable(self) -> bool:
        """Say whether there is anything to be read."""
        return self._source is not None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, in bytes; return it."""
        if self._source is None:
            return 0
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        """Return the position, in bytes."""
        return 0 if self._source is None else self._source.tell()

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into a buffer; return how many bytes, 0 at the end.

        Raises:
            ValueError: The stream is closed.
        """
        with self._guard:
            if self.closed:
                raise ValueError("the stream of content is closed: the session ended")
            if self._source is None:
                return 0
            count = self._source.readinto(buffer)
            self._count(count)
            return count

    def close(self) -> None:
        """Let go of the claim."""
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
    except BaseException:
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
