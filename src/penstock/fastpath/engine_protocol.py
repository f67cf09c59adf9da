"""Frames between the router and a process of the embedded engine.

Owns the records, their bytes (uint32 length, then msgpack) and the limits of both directions. The
router sends `EngineSettings`, then queries and interruptions; the process answers `EngineReady`,
then one `EngineAnswer` for each query. Neither side decodes anything but these records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.fastpath.compiled_query import FastValue, NewestRows

if TYPE_CHECKING:
    import socket

LENGTH: Final = struct.Struct("<I")

QUERY_BYTES_MAX: Final = 64 << 20
"""Size of a frame with a query: the list of files is most of it."""
CONTENT_BYTES_MAX: Final = 16 << 20
"""Size of an answer; larger ones are left to Spark, which writes them to files."""
ANSWER_BYTES_MAX: Final = CONTENT_BYTES_MAX + (64 << 10)

FILES_MAX: Final = 100_000
"""Number of files of all relations that are kept together, and so of each of them."""

UNKNOWN_RELATION: Final = "unknown relation"
"""Reason of an answer: the process has forgotten the files of a query, which are sent again."""
OUT_OF_MEMORY: Final = "engine memory"
"""Reason of an answer: the query exceeded the memory of the process."""
ENGINE_FAILED: Final = "engine failed"
"""Reason of an answer: the engine found an error of its own, and may answer nothing more."""

VALUES: Final = "values"
"""Reason of an answer: the query read values for which the engine could differ from Spark."""

_TEXT_CHARACTERS_MAX: Final = 2_000


class FrameError(Exception):
    """A frame is too long, or does not have the expected record."""


class EngineSettings(msgspec.Struct, frozen=True, tag=True):
    """Limits of a process.

    Attributes:
        folders: Folders whose files it may read.
        memory_bytes: Memory of the engine.
        process_bytes: Memory that the process may allocate, the engine's included.
        threads: Number of threads of a query.
        calls: Filter of system calls, as an array of `struct sock_filter`; empty: there is none.
    """

    folders: tuple[str, ...]
    memory_bytes: int
    process_bytes: int
    threads: int
    calls: bytes = b""


class PartColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column of the files of a part.

    Attributes:
        own_name: Its name in the files; empty: they lack it, so it is NULL.
        own_type: The engine's type of it there.
    """

    own_name: str
    own_type: str


class RelationPart(msgspec.Struct, frozen=True, array_like=True):
    """Files with the same columns and the same row cut.

    Attributes:
        paths: The files.
        sizes: Their sizes in bytes when they were written; 0: unknown.
        columns: One for each column of the relation.
        start_ms: Only rows with this time or later count, in epoch milliseconds; None: all.
        end_ms: Only rows before this time count; None: all.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    columns: tuple[PartColumn, ...]
    start_ms: int | None = None
    end_ms: int | None = None


class Relation(msgspec.Struct, frozen=True, array_like=True):
    """The relation `rows` of a query.

    Attributes:
        columns: Names and the engine's types of its columns.
        parts: Its files, in each part those with the latest times first.
        newest: The files with the latest times of all; empty: there are none, or it lacks the time.
    """

    columns: tuple[tuple[str, str], ...]
    parts: tuple[RelationPart, ...]
    newest: tuple[str, ...] = ()

    @property
    def file_count(self) -> int:
        """Return the number of its files."""
        return sum(len(part.paths) for part in self.parts)


class EngineQuery(msgspec.Struct, frozen=True, tag=True):
    """A query.

    Attributes:
        number: Its number, which the answer repeats.
        token: Names the relation; a process keeps some of them.
        sql: The engine's SQL.
        parameters: Its values.
        rows_max: Maximum number of rows that are returned.
        relation: The relation; None: the process has it.
        newest: Its limit, if it is a query for the newest rows.
        end_ms: Only rows before this time can count, in epoch milliseconds; None: all.
    """

    number: int
    token: str
    sql: str
    parameters: tuple[FastValue, ...]
    rows_max: int
    relation: Relation | None = None
    newest: NewestRows | None = None
    end_ms: int | None = None


class EngineInterrupt(msgspec.Struct, frozen=True, tag=True):
    """Ends a query, which is then answered with a reason."""

    number: int


class EngineReady(msgspec.Struct, frozen=True, tag=True):
    """The process can answer queries."""


class EngineAnswer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a query.

    Attributes:
        number: The number of the query.
        reason: Why there are no rows, as a short fixed text; empty: there are.
        text: The engine's own text, for logs.
        content: The rows as an Arrow IPC stream.
    """

    number: int
    reason: str = ""
    text: str = ""
    content: bytes = b""


def refused(number: int, reason: str, error: object = "") -> EngineAnswer:
    """Return the answer to a query that has no rows."""
    return EngineAnswer(number, reason, str(error)[:_TEXT_CHARACTERS_MAX])


def send_frame(to: socket.socket, record: msgspec.Struct) -> None:
    """Send a record. Raises OSError."""
    send_content(to, msgspec.msgpack.encode(record))


def send_content(to: socket.socket, content: bytes) -> None:
    """Send a record that was encoded before. Raises OSError."""
    to.sendall(LENGTH.pack(len(content)) + content)


def query_content(query: EngineQuery) -> bytes:
    """Return an encoded query.

    Raises:
        FrameError: It is longer than allowed, or has a value that a frame cannot have: an integer
            of more than 64 bits, or a text that is not Unicode.
    """
    try:
        content = msgspec.msgpack.encode(query)
    except (OverflowError, UnicodeError) as error:
        raise FrameError(f"a query cannot be sent: {error}") from None
    if len(content) > QUERY_BYTES_MAX:
        raise FrameError(f"a query has {len(content)} bytes, more than {QUERY_BYTES_MAX}")
    return content


def receive_frame(source: socket.socket, bytes_max: int) -> bytearray | None:
    """Return the content of the next frame; None at the end of the stream.

    Raises:
        FrameError: It is longer than allowed.
        OSError: It cannot be received, or not in time.
    """
    head = _exactly(source, LENGTH.size)
    if head is None:
        return None
    length: int = LENGTH.unpack(head)[0]
    if length > bytes_max:
        raise FrameError(f"a frame has {length} bytes, more than {bytes_max}")
    return _exactly(source, length)


def _exactly(source: socket.socket, length: int) -> bytearray | None:
    found = bytearray(length)
    view, got = memoryview(found), 0
    while got < length:
        count = source.recv_into(view[got:])
        if not count:
            return None
        got += count
    return found
