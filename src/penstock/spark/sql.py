"""SQL over the visible segments.

Owns the views of one Spark session, the check that a statement only reads, limits, cancelling and
the translation of errors. It does not decide which files are visible (`tables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.clock import Clock
from penstock.spark.session import SparkSessions
from penstock.spark.tables import TableSource

if TYPE_CHECKING:
    import pyarrow as pa

SqlValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """Bounds of a query."""

    row_limit: int = 1_000_000
    timeout_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """One statement with its positional parameters (`?`).

    `row_limit` and `timeout_ms` can only lower the service's own bounds.
    """

    sql: str
    parameters: Sequence[SqlValue] = ()
    query_id: str = ""
    row_limit: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows as an Arrow table, and the Spark SQL type of each column.

    `truncated`: the row limit cut the result.
    """

    table: pa.Table
    column_types: tuple[str, ...]
    truncated: bool


class SqlService:
    """Answers queries; any thread may call it, several at once."""

    def __init__(
        self,
        sessions: SparkSessions,
        source: TableSource,
        clock: Clock,
        options: SqlOptions | None = None,
    ) -> None:
        self._sessions = sessions
        self._source = source
        self._clock = clock
        self._options = options or SqlOptions()

    def query(self, query: SqlQuery) -> SqlResult:
        """Run one query and return all its rows.

        Raises:
            InvalidRequest: The statement does not parse, names what is not there, or writes.
            EngineUnavailable: Spark was lost; ask again.
            EngineFailure: The query failed while it ran.
        """
        raise NotImplementedError

    def cancel(self, query_id: str) -> bool:
        """Cancel a running query; False when no query of that id runs."""
        raise NotImplementedError

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()
