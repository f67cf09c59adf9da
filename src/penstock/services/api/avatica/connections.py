"""Connections of Avatica's clients, and the statements and results that they keep.

Owns their limits and their expiry. Each principal has its own connections, whose ids the clients
choose. Limits are those of Druid (`druid.sql.avatica.*`), for each principal. Only
the event loop calls this module; `Frames.next` runs on a thread.

A result is read forwards only. Its last frame is kept, because clients repeat a request whose
answer was lost. It is kept in Arrow: as values of Python, a frame of short texts takes twenty times
the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from starlette.concurrency import run_in_threadpool

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.services.api.avatica.result_columns import JsonObject, rows_of
from penstock.services.api.sql_answer import close_soon
from penstock.spark.sql.answer_files import pieces
from penstock.spark.sql.service import SqlResult

CONNECTIONS_MAX: Final = 25
"""Connections of one principal."""
STATEMENTS_MAX: Final = 4
"""Open statements of one connection."""
IDLE_S: Final = 300.0
"""Time after its last request at which a connection is closed, in seconds."""
LARGE_RESULTS_MAX: Final = 4
"""Results of one principal whose rows are in files; each has up to 2 GiB."""
FRAME_ROWS_MAX: Final = 5_000
FRAME_BYTES: Final = 1 << 20
"""Approximate size in Arrow of the rows of one frame."""

Row = Sequence[object]


class MissingConnection(NotFound):
    """The client must open a connection again; its driver can do that by itself."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Consecutive rows of a result.

    Attributes:
        offset: Number of the first row, from 0.
        rows: The rows.
        is_last: Whether no row follows.
    """

    offset: int
    rows: Sequence[Row]
    is_last: bool

    def to_json(self) -> JsonObject:
        """Return the frame as Avatica writes it."""
        return {"offset": self.offset, "done": self.is_last, "rows": self.rows}


@dataclass(frozen=True, slots=True)
class _KeptFrame:
    """A frame whose rows are in Arrow; `batch` is None if it has none."""

    offset: int
    batch: pa.RecordBatch | None
    is_last: bool

    def frame(self) -> Frame:
        """Return the frame with its rows as values of Python."""
        rows = [] if self.batch is None else rows_of(self.batch)
        return Frame(self.offset, rows, self.is_last)


class Frames:
    """The rows of a result, frame by frame.

    Args:
        result: The result.
        rows_max: Maximum number of rows; None: all.
        rights: The rights with which it was read, as a text.
    """

    def __init__(self, result: SqlResult, rows_max: int | None, rights: str = "") -> None:
        self.result = result
        self.rights = rights
        self.schema: pa.Schema = result.rows.schema
        self._left = rows_max
        self._batches = self._bounded(result)
        self._batch: pa.RecordBatch | None = None
        self._offset = 0
        self._last: _KeptFrame | None = None
        self._mutex = asyncio.Lock()

    @staticmethod
    def _bounded(result: SqlResult) -> Iterator[pa.RecordBatch]:
        for batch in result.rows.to_batches():
            yield from pieces(batch, FRAME_BYTES, FRAME_ROWS_MAX)

    async def at(self, offset: int, rows_max: int) -> Frame:
        """Return the frame at an offset, which follows the last one or is the last one.

        Args:
            offset: Number of the first row, from 0.
            rows_max: Maximum number of rows of the frame; not positive: as many as usual.

        Raises:
            InvalidRequest: Another offset.
        """
        async with self._mutex:
            if self._last is None or offset != self._last.offset:
                if offset != self._offset:
                    raise InvalidRequest(
                        f"must be {self._offset}, because rows are read forwards only",
                        place="offset",
                    )
                taken = await run_in_threadpool(self._next, rows_max)
                self._last = _KeptFrame(offset, taken, self._batch is None)
                self._offset += 0 if taken is None else taken.num_rows
            return await run_in_threadpool(self._last.frame)

    def _next(self, rows_max: int) -> pa.RecordBatch | None:
        """Return the next rows; None: there are none."""
        batch = self._batch if self._batch is not None else next(self._batches, None)
        wanted = FRAME_ROWS_MAX if rows_max <= 0 else min(rows_max, FRAME_ROWS_MAX)
        if self._left is not None:
            wanted = min(wanted, self._left)
        if batch is None or not wanted:
            self._batch = None
            return None
        taken = batch.slice(0, wanted)
        if self._left is not None:
            self._left -= taken.num_rows
        rest = batch.slice(taken.num_rows)
        # The client must know whether this frame is the last one.
        if self._left == 0:
            self._batch = None
        else:
            self._batch = rest if rest.num_rows else next(self._batches, None)
        return taken


@dataclass(slots=True)
class AvaticaStatement:
    """A statement: its SQL if it was prepared, and its result while there is one."""

    sql: str = ""
    rows_max: int | None = None
    frames: Frames | None = None

    def drop_result(self) -> None:
        """Delete the result."""
        if self.frames is not None:
            result, self.frames = self.frames.result, None
            if result.is_in_files:
                close_soon(result)


@dataclass(slots=True)
class AvaticaConnection:
    """A connection of a principal.

    `engine` answers its queries; empty: the server's choice. `running` is the number of its queries
    that run.
    """

    used_s: float
    engine: str = ""
    properties: JsonObject = field(default_factory=dict)
    statements: dict[int, AvaticaStatement] = field(default_factory=dict)
    last_statement: int = 0
    running: int = 0

    def create(self, statement: AvaticaStatement) -> int:
        """Add a statement and return its id.

        Raises:
            Unavailable: Too many are open.
        """
        if len(self.statements) >= STATEMENTS_MAX:
            raise Unavailable(f"{STATEMENTS_MAX} statements of this connection are open: close one")
        self.last_statement += 1
        self.statements[self.last_statement] = statement
        return self.last_statement


class AvaticaConnections:
    """The connections of all principals.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By the principal and the id.
        self._connections: dict[tuple[str, str], AvaticaConnection] = {}

    def open(self, connection_id: str, principal: str, engine: str = "") -> AvaticaConnection:
        """Open a connection.

        Args:
            connection_id: Its id.
            principal: Its principal.
            engine: The engine that answers its queries; empty: the server's choice.

        Raises:
            Conflict: The id is used.
            Unavailable: The principal has too many.
        """
        self.expire()
        if (principal, connection_id) in self._connections:
            raise Conflict("a connection with this id is open: use another id")
        count = sum(owner == principal for owner, _ in self._connections)
        if count >= CONNECTIONS_MAX:
            raise Unavailable(
                f"you have {CONNECTIONS_MAX} open connections: close one, or wait until one that is"
                f" not used has expired, {IDLE_S:.0f} seconds after its last request"
            )
        made = AvaticaConnection(self._clock.monotonic_s(), engine)
        self._connections[principal, connection_id] = made
        return made

    def of(self, connection_id: str, principal: str) -> AvaticaConnection:
        """Return a connection of a principal, which is used now.

        Raises:
            MissingConnection: There is none.
        """
        found = self._connections.get((principal, connection_id))
        if found is None:
            raise MissingConnection("there is no such connection: it was closed, or has expired")
        found.used_s = self._clock.monotonic_s()
        return found

    def close(self, connection_id: str, principal: str) -> None:
        """Close a connection of a principal, if there is one."""
        if (principal, connection_id) in self._connections:
            self._close((principal, connection_id))

    def check_large_results(self, principal: str) -> None:
        """Return if a principal may keep another result whose rows are in files.

        Raises:
            Unavailable: It has too many.
        """
        count = sum(
            statement.frames is not None and statement.frames.result.is_in_files
            for (owner, _), connection in self._connections.items()
            if owner == principal
            for statement in connection.statements.values()
        )
        if count >= LARGE_RESULTS_MAX:
            raise Unavailable(
                f"you have {LARGE_RESULTS_MAX} open results with many rows: read one to its end"
                " and close its statement"
            )

    def expire(self) -> bool:
        """Close the connections that were not used for a while; return whether any is left."""
        before_s = self._clock.monotonic_s() - IDLE_S
        for key, one in list(self._connections.items()):
            if one.used_s <= before_s and not one.running:
                self._close(key)
        return bool(self._connections)

    def _close(self, key: tuple[str, str]) -> None:
        statements = self._connections.pop(key).statements
        for statement in statements.values():
            statement.drop_result()
        statements.clear()  # one that still runs then finds that it was closed
