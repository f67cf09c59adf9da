"""SQL over the visible segments.

Owns queries: their limits, cancelling, and the translation of errors into ones that say what to
mend. The views are `views`' affair, what may be asked `statement`'s, what to write instead of
Druid's functions `dialect`'s, which files are visible `tables`'. Rows are read by the JVM and come
back as Arrow; none passes through Python.

Invariants: a datasource is seen as of one revision of the metadata, which is not older than the
query; a statement that could change something never reaches Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.connect.running import Running
from penstock.spark.connect.session import SparkDiskFull, SparkRefusal, SparkSessions
from penstock.spark.projections.choosing import NO_WISH, Choice, Projections, ProjectionWish
from penstock.spark.sql.dialect import in_spark
from penstock.spark.sql.statement import check_reads_only
from penstock.spark.tables import TableFile, Tables, TableSource, why_empty
from penstock.spark.views import Views, damaged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SqlValue = str | int | float | bool | None

# Settings of the Spark session of a statement, also on a server that is not ours.
SQL_CONF: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise parquet.`/any/path` would read any file of the host.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
# Adaptive execution begins stages on threads of its own, also after the query was cancelled; on a
# server of somebody else nobody can end those any more: see decision 33.
QUERY_CONF: Final[Mapping[str, str]] = {**SQL_CONF, "spark.sql.adaptive.enabled": "false"}
_FILE_GONE: Final = re.compile(
    r"FILE_NOT_EXIST|FILE_NOT_FOUND|PATH_NOT_FOUND|FileNotFoundException|READ_CURRENT_FILE_NOT_FOUND"
)
_MISSING_PATH: Final = re.compile(r"(?:Path does not exist:|File) (?:file:)?/*(/\S+\.parquet)")
_DAMAGED_FILE: Final = re.compile(r"FAILED_READ_FILE.*?reading file (?:file://)?(\S+\.parquet)")
_MISSING_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\][^`]*`((?:[^`]|``)+)` cannot")
_IF_AGAIN: Final = (
    "if it ends so again, this query takes more memory than Spark has: ask for less at once, or"
    " give queries a Spark of their own (--query-memory)"
)
_TRIES: Final = 2
_STOPPED: Final = "Penstock was stopped; ask again when it is there"


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
    projections: ProjectionWish = NO_WISH


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows as an Arrow table, and the Spark SQL type of each column.

    `truncated`: the row limit cut the result. `projection`: the name of the one that answered
    instead of the rows.
    """

    table: pa.Table
    column_types: tuple[str, ...]
    truncated: bool
    projection: str = ""


class SqlService:
    """Answers queries; any thread may call it, several at once.

    A mutex is held while views are defined, which all queries of the session share and wait for.
    With projections they answer what they can.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        source: TableSource,
        clock: Clock,
        options: SqlOptions | None = None,
        projections: Projections | None = None,
    ) -> None:
        self._sessions = sessions.with_conf(QUERY_CONF)
        self._projections = projections
        self._source = source
        self._clock = clock
        self._options = options or SqlOptions()
        self._mutex = threading.Lock()
        self._views: Views | None = None
        self._running: dict[str, Running] = {}
        self._is_finishing = False  # one word, read by any thread

    def query(self, query: SqlQuery) -> SqlResult:
        """Run one query and return all its rows.

        Raises:
            InvalidRequest: The statement does not parse, names what is not there, or writes.
            Conflict: A query of the same id is running.
            EngineUnavailable: Spark was lost, or `finish` was called; ask again.
            EngineFailure: The query failed while it ran, took too long or was cancelled.
        """
        with self.registered(query) as run:
            return run()

    @contextlib.contextmanager
    def registered(self, query: SqlQuery) -> Iterator[Callable[[], SqlResult]]:
        """Give what runs a query, once; it can be cancelled from now on, before it runs, too.

        Its time begins when it runs. What runs it raises as `query` does.

        Raises:
            Conflict: A query of the same id is there.
            EngineUnavailable: `finish` was called; ask again.
        """
        query_id = query.query_id or uuid.uuid4().hex
        running = Running()
        if self._running.setdefault(query_id, running) is not running:
            raise Conflict(f"a query with the id {query_id!r} is running: use another id")
        try:
            # Looked at once it is registered: what sees no end coming, `finish` sees and stops.
            if self._is_finishing:
                raise EngineUnavailable(_STOPPED)
            yield lambda: self._answer(query, running)
        finally:
            del self._running[query_id]
            running.end()

    def cancel(self, query_id: str) -> bool:
        """Cancel a query that is registered; False when none of that id is."""
        running = self._running.get(query_id)
        if running is None:
            return False
        running.stop("it was cancelled")
        return True

    def finish(self, grace_s: float) -> None:
        """Let the queries that run end, for so long; then stop the others, which say so.

        Those that come from now on are refused: nobody would wait for them.
        """
        self._is_finishing = True
        until_s = self._clock.monotonic_s() + grace_s
        for running in tuple(self._running.values()):
            running.wait(max(0.0, until_s - self._clock.monotonic_s()))
        for running in tuple(self._running.values()):
            running.stop(_STOPPED)

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()

    def _answer(self, query: SqlQuery, running: Running) -> SqlResult:
        is_query = check_reads_only(query.sql)
        timeout_ms = min(query.timeout_ms or self._options.timeout_ms, self._options.timeout_ms)
        until_s = self._clock.monotonic_s() + timeout_ms / 1000
        too_long = f"it took longer than {timeout_ms} ms; ask for less, or for more time"
        for attempt in range(1, _TRIES + 1):
            left_s = until_s - self._clock.monotonic_s()
            with running.limited(left_s, too_long):
                try:
                    return self._run(query, running, is_query=is_query)
                except EngineUnavailable as error:
                    # On a full disk another try would take as long to end in the same way.
                    if running.stopped or isinstance(error, SparkDiskFull):
                        raise
                    # A session that ended by itself is back at once; a lost JVM is not.
                    if attempt == _TRIES:
                        missing = _MISSING_PATH.search(_said(error))
                        if missing:
                            raise self._damaged(missing[1], "is missing") from error
                        # It had not begun, or what it reads is gone: no matter of memory.
                        if running.session is None or _FILE_GONE.search(_said(error)):
                            raise
                        raise EngineUnavailable(f"{error}; {_IF_AGAIN}") from error
        raise AssertionError("the last try returns or raises")

    def _run(self, query: SqlQuery, running: Running, *, is_query: bool) -> SqlResult:
        try:
            running.check()
            with self._sessions.use() as spark:
                named, tables = self._bring_views(spark, query.sql, all_of_them=not is_query)
                choice = None
                if self._projections is not None and is_query:
                    choice = self._projections.choice(query.sql, query.projections, named, tables)
                return self._collect(spark, query, running, choice)
        except PenstockError as error:
            if running.stopped:
                kind = EngineUnavailable if running.stopped == _STOPPED else EngineFailure
                raise kind(f"the query did not end: {running.stopped}") from error
            if _FILE_GONE.search(_said(error)):
                # A segment was replaced and its file removed since the view was defined.
                self._forget_views()
                raise EngineUnavailable(f"a file went away under the query: {error}") from error
            unreadable = _DAMAGED_FILE.search(_said(error))
            if unreadable:
                self._forget_views()
                raise self._damaged(unreadable[1], "cannot be read") from error
            if isinstance(error, SparkRefusal):
                hint = in_spark(query.sql, str(error))
                text = self._explained(error)
                raise InvalidRequest(f"{text}\n{hint}" if hint else text) from error
            raise

    def _damaged(self, path: str, what: str) -> EngineFailure:
        files = itertools.chain.from_iterable(self._source.tables().files.values())
        announced = any(file.announced and file.path == path for file in files)
        return EngineFailure(damaged(path, what, announced=announced))

    def _forget_views(self) -> None:
        """Look at the files anew: Spark remembers their sizes for as long as a view stands."""
        with self._mutex:
            if self._views is not None:
                self._views.forget()

    def _collect(
        self, spark: SparkSession, query: SqlQuery, running: Running, choice: Choice | None
    ) -> SqlResult:
        limit = min(query.row_limit or self._options.row_limit, self._options.row_limit)
        with running.tagged(spark):
            rows: DataFrame = spark.sql(query.sql, args=list(query.parameters) or None)
            limited = rows.limit(limit + 1)
            fields = limited.schema.fields
        types = tuple(field.dataType.simpleString() for field in fields)
        if choice is not None and self._projections is not None:
            asked = (choice, query.parameters, limit + 1, types, running)
            if (found := self._projections.answered(*asked)) is not None:
                table = found.rename_columns([field.name for field in fields])
                cut = table.num_rows > limit
                return SqlResult(table.slice(0, limit), types, cut, choice.plan.name)
        with running.tagged(spark):
            table = limited.toArrow()
        return SqlResult(table.slice(0, limit), types, table.num_rows > limit)

    def _bring_views(
        self, spark: SparkSession, sql: str, *, all_of_them: bool
    ) -> tuple[Sequence[str], Tables]:
        """Define the views that a query may name; return their names, and what is visible."""
        with self._mutex:
            tables = self._source.tables()
            if self._views is None or self._views.session is not spark:
                self._views = Views(spark)
            text = sql.lower()
            files = _told_apart(tables.files)
            names = [name for name in files if all_of_them or mentions(text, name)]
            self._views.bring(files, names)
            return names, tables

    def _explained(self, error: PenstockError) -> str:
        text = str(error)
        if "TABLE_OR_VIEW_NOT_FOUND" not in text:
            return text
        missing = _MISSING_TABLE.search(text)
        tables = self._source.tables()
        if missing:
            name = missing[1].replace("``", "`")
            alike = [one for one in tables.files if one.lower() == name.lower()]
            if len(alike) > 1:
                names = " and ".join(f'"{one}"' for one in alike)
                return (
                    f"{names} differ in case alone, which SQL does not tell apart: ingest one of"
                    " them under another name"
                )
            if why := why_empty(self._source, name):
                return why
        known = tables.known_names()
        first = text.split("\n", 1)[0].split(". Verify", 1)[0]
        where = re.search(r"line (\d+),? pos(?:ition)? (\d+)", text)
        place = f" (line {where[1]}, column {int(where[2]) + 1})" if where else ""
        return f"{first}{place}. Datasources with data: {known}"


def _said(error: BaseException) -> str:
    """Return what Spark said with the names of its classes, which users are spared."""
    said: BaseException = error
    while said.__cause__ is not None:
        said = said.__cause__
    return f"{error}\n{said}"


def _told_apart(files: Mapping[str, tuple[TableFile, ...]]) -> Mapping[str, tuple[TableFile, ...]]:
    """Leave out datasources whose names differ in case alone: one would show the other's rows."""
    counts = Counter(name.lower() for name in files)
    if len(counts) == len(files):
        return files
    return {name: found for name, found in files.items() if counts[name.lower()] == 1}


def mentions(text: str, name: str) -> bool:
    """Tell whether a query, in lower case, may name a datasource; rather too often than not."""
    # Quotes within a name are doubled in SQL; such names are rare, so they always count.
    folded = name.lower()
    return folded in text or not folded.isprintable() or '"' in folded or "`" in folded


__all__ = [
    "QUERY_CONF",
    "SQL_CONF",
    "SqlOptions",
    "SqlQuery",
    "SqlResult",
    "SqlService",
    "SqlValue",
    "mentions",
]
