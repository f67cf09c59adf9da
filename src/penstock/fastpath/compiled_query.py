"""Compiled queries, which the compiler of the fast path gives to the engine. Plain records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.spark.tables.table_files import Columns

FastValue = str | int | float | bool | None


LEFT_TO_SPARK: Final = "left to Spark: "
"""Beginning of the errors that compiled SQL raises for values for which the engine could differ."""


class NotCompiled(Exception):
    """The fast path does not cover a statement, so Spark answers it.

    Args:
        reason: A short fixed text, such as `join`; metrics count by it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


NEWEST_ROWS_MAX: Final = 10_000
"""Largest sum of limit and offset of a query that reads the newest times first."""


@dataclass(frozen=True, slots=True)
class NewestRows:
    """Limit of a query for rows, not groups, whose first key of order is `__time DESC NULLS LAST`.

    Attributes:
        limit: Its limit.
        offset: Its offset.
    """

    limit: int
    offset: int = 0

    @property
    def tail(self) -> str:
        """Return the end of the SQL of such a query."""
        return f" LIMIT {self.limit}" + (f" OFFSET {self.offset}" if self.offset else "")


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """A query over one datasource for the embedded engine.

    Attributes:
        datasource: The name of the datasource, as it is stored.
        sql: DuckDB's SQL. It reads the relation `rows`, whose columns are `read`, and returns
            `columns`. It has no text of the statement: values are parameters `$1`, `$2`, …
        parameters: The values of `sql`.
        read: Names and Spark types of the datasource's columns that it reads.
        columns: Names and Spark types of its result.
        start_ms: Only rows with this time or later can count, in epoch milliseconds; None: all.
        end_ms: Only rows before this time can count; None: all.
        orders: Whether the statement orders its rows.
        newest: Its limit, if it is a query for the newest rows; None: it is none.
    """

    datasource: str
    sql: str
    parameters: tuple[FastValue, ...]
    read: Columns
    columns: Columns
    start_ms: int | None = None
    end_ms: int | None = None
    orders: bool = False
    newest: NewestRows | None = None
