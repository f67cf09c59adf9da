"""SQL over the visible segments.

Owns queries: their limits, cancelling, and the translation of errors into ones that name the
remedy. `views` makes the views, `query_statement` decides which statements are allowed, `sql_guard`
checks how Spark resolved them, `sql_dialect` has replacements for Druid's functions, `tables` the
visible files. The JVM reads the rows and returns them as Arrow; none passes through Python.

There are two Spark sessions. The first has an empty outline of each datasource under its own name:
Spark resolves queries there, and answers SHOW and DESCRIBE. The second has the rows, under names
that cannot be guessed, and runs the queries that passed. Two more sessions, which distinguish case
(`case_tables`), hold datasources with columns that differ only in case.

Invariants: a datasource is seen as of one revision of the metadata, which is not older than the
query; a statement that could change anything never reaches Spark.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import logging
import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from penstock.core.cleanup import CleanupSteps
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, PenstockError, StorageUnavailable
from penstock.indexing.engine import EngineFailure, EngineLost, EngineUnavailable
from penstock.segments.layout import deep_storage_of
from penstock.segments.local_files import folder_missing
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import (
    EXACT_CONF,
    SparkDiskFull,
    SparkRefusal,
    SparkSessions,
    message_of,
)
from penstock.spark.projections.selector import (
    NO_PROJECTION_OPTIONS,
    ProjectionChoice,
    ProjectionOptions,
    Projections,
)
from penstock.spark.sql.answer_files import BATCH_BYTES, AnswerFolder, AnswersFull, SpilledRows
from penstock.spark.sql.case_tables import CaseTables, QuerySessions
from penstock.spark.sql.crash_suspects import CrashSuspects
from penstock.spark.sql.fetcher import (
    FetchedAnswer,
    Fetcher,
    LargeStatements,
    RowSource,
    fits_at_once,
)
from penstock.spark.sql.query_statement import Statement, read_statement, with_stored_names
from penstock.spark.sql.sql_dialect import in_spark
from penstock.spark.sql_guard import (
    check_understood,
    error_without_places,
    explained,
    place_in,
    relation,
    relocated_error,
    without_paths,
)
from penstock.spark.tables import TableFile, Tables, TableSource, why_empty
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.views import damaged
from penstock.storage.queue.blocks import as_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

logger = logging.getLogger(__name__)

SqlValue = str | int | float | bool | dt.datetime | dt.date | None

# Settings of the Spark session of a statement, even on a remote server.
SQL_CONF: Final[Mapping[str, str]] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    "spark.sql.session.timeZone": "UTC",
    # Otherwise parquet.`/any/path` would read any file of the host.
    "spark.sql.runSQLOnFiles": "false",
    # The names in a query come before those that Penstock writes around it: see `sql_guard`.
    "spark.sql.legacy.ctePrecedencePolicy": "CORRECTED",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
# Adaptive execution starts stages on threads of its own, even after the query was cancelled; on a
# remote server these cannot be ended any longer: see decision 33.
QUERY_CONF: Final[Mapping[str, str]] = {
    **SQL_CONF,
    "spark.sql.adaptive.enabled": "false",
    # Rows of a large answer are sent to Python workers in batches of about this size.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
    # ORDER BY with a larger LIMIT sorts with files; with a smaller one all rows are in memory.
    "spark.sql.execution.topKSortFallbackThreshold": "10000",
}
_FILE_GONE: Final = re.compile(
    r"FILE_NOT_EXIST|FILE_NOT_FOUND|PATH_NOT_FOUND|FileNotFoundException|READ_CURRENT_FILE_NOT_FOUND"
)
_MISSING_PATH: Final = re.compile(
    r"(?:Path does not exist:|File) (?:file:)?/*(/.{1,4096}?\.parquet)"
)
# In this message Spark writes the path as a URL.
_DAMAGED_FILE: Final = re.compile(r"FAILED_READ_FILE.{0,200}?reading file (\S{1,8192}\.parquet)")
_MISSING_TABLE: Final = re.compile(r"TABLE_OR_VIEW_NOT_FOUND\][^`]*`((?:[^`]|``)+)` cannot")
_IF_AGAIN: Final = (
    "if the query fails again, it takes more memory than Spark has: select less at once, or"
    " give queries a Spark of their own (--query-memory)"
)
_TRIES: Final = 2
# Maximum number of listings for one query, each after a file was replaced and deleted. Only a
# machine under load, whose tasks persist every second, needs more than two.
_LISTINGS_MAX: Final = 10
# Time after which a JVM that was ended is ready again.
_STARTS_AGAIN_S: Final = 30.0
_ENDED: Final = (
    "the Spark of queries is restarting, because another query did not stop at its time limit:"
    " try again in a moment"
)
_CANCELLED: Final = "it was cancelled"
_STOPPED: Final = "Penstock was stopped; try again after its restart"


@dataclass(frozen=True, slots=True)
class SqlOptions:
    """Bounds of a query.

    `end_spark` ends the Spark that answers, if nothing else uses it: a query that ignores its
    interruption, as planning may, would keep a core of it forever.
    """

    row_limit: int = 1_000_000
    timeout_ms: int = 300_000
    end_spark: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """One statement with its positional parameters (`?`).

    `row_limit` and `timeout_ms` can only lower the service's own limits. `arrived_s` is the
    monotonic time at which the request arrived, from which the time limit counts; None: now.
    `is_probe`: Penstock itself sends the query, to check that queries are answered. `is_large`: the
    service found that the answer is too large to be fetched at once.
    """

    sql: str
    parameters: Sequence[SqlValue] = ()
    query_id: str = ""
    row_limit: int | None = None
    timeout_ms: int | None = None
    is_probe: bool = False
    is_large: bool = False
    projections: ProjectionOptions = NO_PROJECTION_OPTIONS
    arrived_s: float | None = None


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows, and the Spark SQL type of each column.

    `truncated`: the row limit cut the result. `projection`: the projection that answered instead of
    the rows. Rows of a large answer are in files until `close`.
    """

    rows: RowSource
    column_types: tuple[str, ...]
    truncated: bool
    projection: str = ""

    @property
    def table(self) -> pa.Table:
        """Return all rows, in memory."""
        if isinstance(self.rows, SpilledRows):
            return pa.Table.from_batches(self.rows.to_batches(), self.rows.schema)
        return self.rows

    @property
    def is_in_files(self) -> bool:
        """Return whether the rows are in files, which `close` deletes."""
        return isinstance(self.rows, SpilledRows)

    def close(self) -> None:
        """Delete the files of a large answer."""
        if isinstance(self.rows, SpilledRows):
            self.rows.close()


@dataclass(frozen=True, slots=True)
class LargeAnswer:
    """An answer that is too large to be fetched at once.

    `run` repeats the query, and writes the rows to files. It raises as `SqlService.query`.
    """

    run: Callable[[], SqlResult]


@dataclass(frozen=True, slots=True)
class RegisteredQuery:
    """A query that was registered under its id.

    `run` runs it once, and raises as `SqlService.query`. `cancel` cancels it and no other query of
    the same id, on any thread; after its end it does nothing.
    """

    run: Callable[[], SqlResult | LargeAnswer]
    cancel: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query in progress: `named` are the datasources that it may read, of those with `files`."""

    query: SqlQuery
    statement: Statement
    running: RunningCall
    tables: Tables
    files: Mapping[str, tuple[TableFile, ...]]
    named: Sequence[str]


class SqlService:
    """Answers queries; thread-safe, with several queries at once.

    Projections, if given, answer the queries that they can. Without a folder for large answers,
    large answers pass through the memory of Spark and of this process.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        source: TableSource,
        clock: Clock,
        options: SqlOptions | None = None,
        projections: Projections | None = None,
        answers: AnswerFolder | None = None,
    ) -> None:
        self._answers = answers
        self._large = LargeStatements()
        self._known = KnownColumns()
        own = sessions.with_conf(QUERY_CONF)
        self._sessions = QuerySessions(own, self._known)
        # Connected at their first use, because datasources with case variants are rare.
        self._exact = QuerySessions(own.with_conf(EXACT_CONF), self._known)
        self._projections = projections
        self._spark = own
        self._suspects = CrashSuspects(clock)
        self._source = source
        self._clock = clock
        self._options = options or SqlOptions()
        self._running: dict[str, RunningCall] = {}
        self._ended_at_s = -math.inf  # replaced in one step; any thread reads it
        # When a query that succeeded had begun: Spark has started again if that was after its end.
        # Any thread replaces it, without a mutex: if a newer value is lost, an error that follows
        # before the next success names the restart of Spark instead of the memory.
        self._answered_from_s = -math.inf
        self._is_finishing = False  # replaced in one step; any thread reads it

    def query(self, query: SqlQuery) -> SqlResult:
        """Run one query and return its rows, which are in files if they are many.

        Raises:
            InvalidRequest: The statement is wrong, names something that does not exist, or writes.
            Conflict: A query of the same id is running, or a datasource has no rows yet.
            StorageUnavailable: The folder of the deep storage is missing.
            EngineUnavailable: Spark was lost, or `finish` was called; try again.
            EngineFailure: The query failed while it ran, took too long or was cancelled.
        """
        with self.registered(query) as registered:
            answer = registered.run()
            return answer.run() if isinstance(answer, LargeAnswer) else answer

    @contextlib.contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        """Register a query.

        The query can be cancelled from now on, even before it runs. Its time limit counts from the
        arrival of its request.

        Raises:
            Conflict: A query with the same id is registered.
            EngineUnavailable: `finish` was called; try again.
        """
        query_id = query.query_id or uuid.uuid4().hex
        since_s = self._clock.monotonic_s() if query.arrived_s is None else query.arrived_s
        ends = partial(self._end_spark, query, since_s)
        running = RunningCall(None if self._options.end_spark is None else ends)
        until_s = since_s + self.timeout_ms(query) / 1000
        too_long = (
            f"it took longer than {self.timeout_ms(query)} ms; select less, or raise its time limit"
        )
        if self._running.setdefault(query_id, running) is not running:
            raise Conflict(f"a query with the id {query_id!r} is running: use another id")
        try:
            # Checked after the registration, so that `finish` stops every query that passes this
            # check.
            if self._is_finishing:
                raise EngineUnavailable(_STOPPED)
            with running.limited(until_s - self._clock.monotonic_s(), too_long):
                yield RegisteredQuery(
                    partial(self._answer, query, running), partial(running.stop, _CANCELLED)
                )
        finally:
            del self._running[query_id]
            running.end()

    def timeout_ms(self, query: SqlQuery) -> int:
        """Return how long a query may take after the arrival of its request."""
        return min(query.timeout_ms or self._options.timeout_ms, self._options.timeout_ms)

    def _end_spark(self, query: SqlQuery, since_s: float) -> None:
        """End the Spark of queries, because a query that began at this time ignores its end."""
        if self._options.end_spark is not None:
            logger.warning("a query does not stop: restarting the Spark of queries")
            self._suspects.ended(query.sql, query.parameters, since_s)
            self._ended_at_s = self._clock.monotonic_s()
            self._options.end_spark()

    def cancel(self, query_id: str) -> bool:
        """Cancel a registered query; return False if there is none with this id."""
        running = self._running.get(query_id)
        if running is None:
            return False
        running.stop(_CANCELLED)
        return True

    def finish(self, grace_s: float) -> None:
        """Let running queries end within a time; then stop the others with an error.

        New queries are refused from now on.
        """
        self._is_finishing = True
        until_s = self._clock.monotonic_s() + grace_s
        steps = CleanupSteps()
        for running in tuple(self._running.values()):
            steps.take(running.wait, max(0.0, until_s - self._clock.monotonic_s()))
        for running in tuple(self._running.values()):
            steps.take(running.stop, _STOPPED)
        steps.finish()

    def close(self) -> None:
        """End the Spark sessions."""
        self._sessions.close()
        self._exact.close()

    def _answer(self, query: SqlQuery, running: RunningCall) -> SqlResult | LargeAnswer:
        statement = read_statement(query.sql, query.parameters)
        known = (query.sql, *query.parameters, self._limit(query))
        if known in self._large and not query.is_large:
            return self._later(query, running)
        if query.is_probe:
            answer = self._try(query, statement, running)
        else:
            with self._suspects.admitted(query.sql, query.parameters):
                answer = self._try(query, statement, running)
        if answer is None:
            self._large.note(known, is_large=True)
            return self._later(query, running)
        if query.is_large and fits_at_once(answer.rows):
            self._large.note(known, is_large=False)
        return answer

    def _later(self, query: SqlQuery, running: RunningCall) -> LargeAnswer:
        return LargeAnswer(partial(self._large_answer, replace(query, is_large=True), running))

    def _large_answer(self, query: SqlQuery, running: RunningCall) -> SqlResult:
        answer = self._answer(query, running)
        assert isinstance(answer, SqlResult)
        return answer

    def _try(self, query: SqlQuery, statement: Statement, running: RunningCall) -> SqlResult | None:
        """Run a query; return None if its answer is too large to be fetched at once."""
        for attempt in range(1, _LISTINGS_MAX + 1):
            began_s = self._clock.monotonic_s()
            try:
                answer = self._run(query, statement, running)
            except EngineUnavailable as error:
                # On a full disk, a retry would take as long and fail in the same way.
                if running.stopped or isinstance(error, SparkDiskFull | AnswersFull):
                    raise
                missing = _MISSING_PATH.search(_said(error))
                replaced = missing is not None and self._visible(missing[1]) is None
                # A session that ended by itself is available again at once; a lost JVM is not.
                if attempt < _TRIES or (replaced and attempt < _LISTINGS_MAX):
                    continue
                if missing:
                    raise self._damaged(missing[1], "is missing") from error
                is_ended = self._answered_from_s <= self._ended_at_s
                if is_ended and self._clock.monotonic_s() - self._ended_at_s < _STARTS_AGAIN_S:
                    raise EngineUnavailable(_ENDED) from error
                # The query had not begun, or its files were deleted: memory is not the cause.
                is_known = running.session is None or _FILE_GONE.search(_said(error))
                if is_known or query.is_probe:
                    raise
                raise EngineUnavailable(f"{error}; {_IF_AGAIN}") from error
            else:
                self._answered_from_s = max(began_s, self._answered_from_s)
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _run(self, query: SqlQuery, statement: Statement, running: RunningCall) -> SqlResult | None:
        case_variants: CaseTables | None = None
        began_s = self._clock.monotonic_s()
        spelt = query.sql
        try:
            running.check()
            tables = self._source.tables()
            files = _without_ambiguous(tables.files)
            spelt = with_stored_names(query.sql, files)
            asked = replace(query, sql=spelt)
            if spelt != query.sql:
                statement = read_statement(spelt, query.parameters)
            text = spelt.lower()
            # A command may list all datasources.
            every = not statement.query
            named = [name for name in files if every or mentions(text, name)]
            self._known.keep(files.keys())
            case_variants = CaseTables(files, named, self._known)
            return self._run_in(
                _Asked(asked, statement, running, tables, files, named), case_variants
            )
        except PenstockError as error:  # narrow: translates
            if isinstance(error, EngineLost) and not query.is_probe:
                self._suspect(query, running, began_s, error)
            if running.stopped:
                kind = EngineUnavailable if running.stopped == _STOPPED else EngineFailure
                raise kind(f"the query did not end: {running.stopped}") from error
            if _FILE_GONE.search(_said(error)):
                # A segment was replaced and its file deleted since the view was defined.
                self._forget_views()
                raise EngineUnavailable(f"a file was deleted during the query: {error}") from error
            unreadable = _DAMAGED_FILE.search(_said(error))
            if unreadable:
                self._forget_views()
                path = unquote(unreadable[1].removeprefix("file://"))
                raise self._damaged(path, "cannot be read") from error
            if isinstance(error, SparkRefusal):
                # Spark counts columns in its text with the values of the parameters.
                is_sent = not query.parameters and _same_lines(spelt, query.sql)
                explained = self._explained(error, statement.query, case_variants, is_sent=is_sent)
                if isinstance(explained, Conflict):
                    raise explained from error
                hint = in_spark(query.sql, str(error))
                raise InvalidRequest(f"{explained}\n{hint}" if hint else explained) from error
            raise

    def _suspect(
        self, query: SqlQuery, running: RunningCall, began_s: float, error: EngineLost
    ) -> None:
        """Report the query during which Spark ended, unless it was stopped or another one is why.

        Spark may be ended for another query also during the wait for its end.
        """
        if running.stopped or self._ended_since(began_s):
            return
        if self._spark.has_ended(self._clock, error) and not self._ended_since(began_s):
            self._suspects.ended(query.sql, query.parameters, began_s)
            # One end counts once: the next try would find it again in another session.
            self._sessions.drop()
            self._exact.drop()

    def _ended_since(self, began_s: float) -> bool:
        """Return whether Spark was ended for a query since a time."""
        return began_s <= self._ended_at_s

    def _run_in(self, asked: _Asked, case_variants: CaseTables) -> SqlResult | None:
        """Run a query in the sessions for its datasources."""
        if not case_variants:
            return self._answered(self._sessions, asked, self._understood(self._sessions, asked))
        if not _lists_datasources(asked.statement):
            # The query may name datasources with case variants in other places, but read only
            # others.
            others = case_variants.without(asked.files)
            rest = replace(asked, files=others, named=[n for n in asked.named if n in others])
            try:
                answer = self._understood(self._sessions, rest)
            except SparkRefusal as error:
                if "TABLE_OR_VIEW_NOT_FOUND" not in str(error):
                    raise
            else:
                return self._answered(self._sessions, rest, answer)
        case_variants.are_read = True
        if asked.query.projections.is_required:
            options = asked.query.projections
            raise InvalidRequest(
                f"no projection answers this query: {case_variants.why()}, and such datasources"
                " have none. Leave it out, and the rows answer",
                place=options.place,
            )
        return self._answered(self._exact, asked, self._understood(self._exact, asked))

    def _understood(self, sessions: QuerySessions, asked: _Asked) -> SqlResult | None:
        """Check how Spark resolves a query; return the answer of a command."""
        query, statement = asked.query, asked.statement
        with sessions.analysis_session(asked.running, asked.files, asked.named) as spark:
            if statement.query:
                check_understood(spark, statement.query, query.parameters)
            return self._command(spark, query, statement) if statement.command else None

    def _answered(
        self, sessions: QuerySessions, asked: _Asked, answer: SqlResult | None
    ) -> SqlResult | None:
        """Return the answer of a resolved query, unless it has an answer already.

        None means that it is too large to be fetched at once.
        """
        if answer is not None:
            return answer
        query, statement = asked.query, asked.statement
        with sessions.row_session(asked.files, asked.named) as (spark, hidden):
            if statement.explain:
                rows = relation(spark, statement.query, query.parameters, hidden)
                return explanation(explained(rows, statement.explain), hidden)
            choice = None
            if self._projections is not None and sessions is self._sessions:
                choice = self._projections.choice(
                    statement.query, query.projections, asked.named, asked.tables
                )
            return self._collect(spark, query, statement, asked.running, hidden, choice)

    def _damaged(self, path: str, what: str) -> PenstockError:
        root = deep_storage_of(path)
        if root is not None and not Path(root).is_dir():
            return StorageUnavailable(f"{folder_missing(root)}. The query needs {path} from there")
        file = self._visible(path)
        announced = file is not None and file.announced
        return EngineFailure(damaged(path, what, announced=announced))

    def _visible(self, path: str) -> TableFile | None:
        """Return the file of a path, if queries that begin now read it."""
        files = itertools.chain.from_iterable(self._source.tables().files.values())
        return next((file for file in files if file.path == path), None)

    def _forget_views(self) -> None:
        """List the files again, because Spark remembers their sizes as long as a view exists."""
        self._sessions.forget_views()
        self._exact.forget_views()

    def _command(self, spark: SparkSession, query: SqlQuery, statement: Statement) -> SqlResult:
        """Answer a SHOW or DESCRIBE from the outlines."""
        text = statement.command
        if statement.query:
            text = f"{text} (\n{statement.query}\n)"
        rows = spark.sql(text, args=list(query.parameters) or None)
        fields = rows.schema.fields
        found = Fetcher(fields, self._limit(query), None, is_large=False).fetch(rows)
        return SqlResult(found.rows, _type_names(fields), found.truncated)

    def _collect(
        self,
        spark: SparkSession,
        query: SqlQuery,
        statement: Statement,
        running: RunningCall,
        hidden: Mapping[str, str],
        choice: ProjectionChoice | None,
    ) -> SqlResult | None:
        with running.tagged(spark):
            rows = relation(spark, statement.query, query.parameters, hidden)
            fields = rows.schema.fields
        types = _type_names(fields)
        fetcher = Fetcher(fields, self._limit(query), self._answers, is_large=query.is_large)
        if choice is not None and self._projections is not None:
            asked = (choice, query.parameters, fetcher.fetch, types, running)
            if (found := self._projections.answered(*asked)) is not None:
                return _result(found, types, choice.plan.name)
        with running.tagged(spark):
            return _result(fetcher.fetch(rows), types)

    def _limit(self, query: SqlQuery) -> int:
        return min(query.row_limit or self._options.row_limit, self._options.row_limit)

    def _explained(
        self, error: SparkRefusal, query: str, case_variants: CaseTables | None, *, is_sent: bool
    ) -> str | Conflict:
        """Return Spark's error for a query, in terms of the user's text.

        It is a `Conflict` if a datasource of the query is known but has no rows yet.

        Args:
            error: The error.
            query: The query that Spark got; empty for a command, whose text Penstock composes.
            case_variants: Datasources with columns that differ only in case.
            is_sent: Whether lines and columns of the query are those of the user's statement.
        """
        if query and is_sent:
            text = relocated_error(str(error), query)
        else:
            text = error_without_places(str(error), query)
        if "TABLE_OR_VIEW_NOT_FOUND" not in text:
            return (
                case_variants.explained(text) if case_variants and case_variants.are_read else text
            )
        missing = _MISSING_TABLE.search(text)
        tables = self._source.tables()
        if missing:
            name = missing[1].replace("``", "`")
            alike = [one for one in tables.files if one.lower() == name.lower()]
            if len(alike) > 1:
                names = " and ".join(f'"{one}"' for one in alike)
                return (
                    f"{names} differ only in case, which SQL does not distinguish: ingest one of"
                    " them under another name"
                )
            if (
                case_variants
                and case_variants.are_read
                and (meant := case_variants.explained_table(name, tables.files))
            ):
                return meant
            if why := why_empty(self._source, name):
                # The statement is correct, and may be repeated unchanged.
                return Conflict(why)
        known = tables.known_names()
        first = text.split("\n", 1)[0].split(". Verify", 1)[0]
        where = place_in(text)
        place = f" ({where})" if where else ""
        return f"{first}{place}. Datasources with data: {known}"


def _same_lines(spelt: str, sent: str) -> bool:
    """Return whether the lines of a statement are as long as those that the user sent.

    Names of datasources may be spelt with more or fewer characters (`with_stored_names`).
    """
    return [*map(len, spelt.split("\n"))] == [*map(len, sent.split("\n"))]


def explanation(text: str, hidden: Mapping[str, str]) -> SqlResult:
    """Return Spark's explanation of a query as a table, without names of views and paths of files.

    Args:
        text: Spark's explanation.
        hidden: Names of tables by the names of their views.
    """
    shown = without_paths(text)
    for name, own in hidden.items():
        shown = shown.replace(own, name)
    # Not from a Python list: Arrow would import pandas, which takes the router 0.4 s and 40 MB.
    column = as_messages([shown.encode()]).view(pa.string())
    return SqlResult(pa.table({"plan": column}), ("string",), truncated=False)


def _type_names(fields: Sequence[StructField]) -> tuple[str, ...]:
    return tuple(field.dataType.simpleString() for field in fields)


def _result(found: FetchedAnswer, types: tuple[str, ...], projection: str = "") -> SqlResult | None:
    if found.rows is None:
        return None
    return SqlResult(found.rows, types, found.truncated, projection)


def _lists_datasources(statement: Statement) -> bool:
    """Return whether a command is about all datasources."""
    words = statement.command.upper().split(maxsplit=2)
    return words[:1] == ["SHOW"] and words[1] in {"TABLES", "VIEWS"}


def _said(error: BaseException) -> str:
    """Return Spark's message without the names of its classes."""
    said: BaseException = error
    while said.__cause__ is not None:
        said = said.__cause__
    return f"{error}\n{message_of(said)}"


def _without_ambiguous(
    files: Mapping[str, tuple[TableFile, ...]],
) -> Mapping[str, tuple[TableFile, ...]]:
    """Leave out datasources whose names differ only in case: one would show the other's rows."""
    counts = Counter(name.lower() for name in files)
    if len(counts) == len(files):
        return files
    return {name: found for name, found in files.items() if counts[name.lower()] == 1}


def mentions(text: str, name: str) -> bool:
    """Return whether a query, in lower case, may name a datasource; true in case of doubt."""
    # Quotes within a name are doubled in SQL; such names are rare, so they always count.
    folded = name.lower()
    return folded in text or not folded.isprintable() or '"' in folded or "`" in folded


__all__ = [
    "QUERY_CONF",
    "SQL_CONF",
    "LargeAnswer",
    "RegisteredQuery",
    "SqlOptions",
    "SqlQuery",
    "SqlResult",
    "SqlService",
    "SqlValue",
    "mentions",
]
