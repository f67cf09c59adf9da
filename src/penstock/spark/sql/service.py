"""SQL over the visible segments.

Owns queries: their limits, cancelling, and repetition. `views` makes the views, `query_statement`
decides which statements are allowed, `sql_guard` checks how Spark resolved them, `query_errors`
explains Spark's errors, `core.sql.druid_hints` has replacements for Druid's functions, `tables` the
visible files, `limited_tables` what the principal of a query sees of them. The JVM reads the rows
and returns them as Arrow; none passes through Python.

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
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa

from penstock.core.access.row_rules import RowRules, absent_columns
from penstock.core.cleanup import CleanupSteps
from penstock.core.clock import Clock, pause
from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    PenstockError,
    Unavailable,
)
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.sql.druid_hints import in_spark
from penstock.indexing.engine import EngineFailure, EngineLost, EngineUnavailable
from penstock.segments.segment_cache import NotCached
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import (
    EXACT_CONF,
    SparkDiskFull,
    SparkRefusal,
    SparkSessions,
)
from penstock.spark.projections.selector import (
    NO_PROJECTION_OPTIONS,
    ProjectionChoice,
    ProjectionOptions,
    Projections,
)
from penstock.spark.sql.answer_files import BATCH_BYTES, AnswerFolder, AnswersFull, SpilledRows
from penstock.spark.sql.case_tables import CaseTables, QuerySessions
from penstock.spark.sql.crash_principals import PrincipalSuspects
from penstock.spark.sql.crash_suspects import CrashSuspects
from penstock.spark.sql.fetcher import (
    FetchedAnswer,
    Fetcher,
    LargeStatements,
    RowSource,
    fits_at_once,
)
from penstock.spark.sql.information_schema import InformationSchema
from penstock.spark.sql.limited_tables import (
    SeenTables,
    SqlReader,
    readable_source,
    refused_explanation,
    refused_filter,
    refused_projection,
    refused_rows,
    seen_tables,
    without_details,
)
from penstock.spark.sql.lookup_tables import LookupSource, NoLookups, StatementLookups
from penstock.spark.sql.measured_plan import PLAN_TYPES, measured_plan
from penstock.spark.sql.metadata_rows import (
    MetadataRows,
    MetadataSource,
    metadata_views,
    outlined,
)
from penstock.spark.sql.query_errors import (
    DAMAGED_FILE,
    FILE_GONE,
    MISSING_PATH,
    explained_refusal,
    spark_message,
    unreadable_file,
)
from penstock.spark.sql.query_statement import ANALYZE, Statement, read_statement, with_stored_names
from penstock.spark.sql.read_sizes import check_read_size
from penstock.spark.sql_guard import (
    check_understood,
    explained,
    hidden_query,
    relation,
    without_paths,
)
from penstock.spark.tables import TableFile, TableSource
from penstock.spark.tables.local_segments import LocalSegments
from penstock.spark.tables.readable_tables import listed_tables
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.tables.table_files import Columns
from penstock.storage.queue.blocks import as_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructField

    from penstock.core.sql.metadata_reads import MetadataRead

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
_IF_AGAIN: Final = (
    "if the query fails again, it takes more memory than Spark has: select less at once, or"
    " give queries a Spark of their own (--query-memory)"
)
_LESS: Final = "select less at once, or run fewer queries at the same time"
_TRIES: Final = 2
# Maximum number of listings for one query, each after a file was replaced and deleted. Only a
# machine under load, whose tasks persist every second, needs more than two.
_LISTINGS_MAX: Final = 10
# Time after which a JVM that was ended is ready again, also on a busy host; for that, queries wait
# that are not why it ended.
_STARTS_AGAIN_S: Final = 60.0
_START_POLL_S: Final = 0.2
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
    interruption, as planning may, would keep a core of it forever. `limit_reason` returns why a
    limit of the host ended Spark, or "" if none did lately.
    """

    row_limit: int = 1_000_000
    timeout_ms: int = 300_000
    end_spark: Callable[[], object] | None = None
    limit_reason: Callable[[], str] = str


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """One statement with its positional parameters (`?`).

    `row_limit` and `timeout_ms` can only lower the service's own limits. `arrived_s` is the
    monotonic time at which the request arrived, from which the time limit counts; None: now.
    `is_probe`: Penstock itself sends the query, to check that queries are answered. `is_large`: the
    service found that the answer is too large to be fetched at once. `reader`: its principal; None:
    one that may read everything. `quota_ms` and `quota_bytes` are quotas of its principal: how long
    it may take, and how many bytes of files it may read; None: no limit. `on_read`: called with the
    datasources that the statement names, before their rows are read; with none for a command that
    lists datasources. `principal`: the id of who asks; empty: the owner of the server or Penstock.
    `engine`: the engine that must answer, `spark` or `fast`, or `auto`; empty: the server's choice.
    `uses_cache`: the answer may be kept, and that of an equal query over the same files be used.
    `metadata`: source of the tables of `sys`, as the principal may see them; None: there are none.
    `lookups`: the lookups that the principal may read; None: they cannot be read.
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
    reader: SqlReader | None = None
    quota_ms: int | None = None
    quota_bytes: int | None = None
    on_read: Callable[[Sequence[str]], None] | None = None
    principal: str = ""
    engine: str = ""
    uses_cache: bool = True
    metadata: MetadataSource | None = None
    lookups: LookupSource | None = None


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The rows, and the Spark SQL type of each column.

    `truncated`: the row limit cut the result. `projection`: the projection that answered instead of
    the rows. `engine`: the engine that answered, `spark` or `fast`. Rows of a large answer are in
    files until `close`.
    """

    rows: RowSource
    column_types: tuple[str, ...]
    truncated: bool
    projection: str = ""
    engine: str = "spark"

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
    """A query in progress: `named` are the datasources that it may read, of those with `files`.

    `lookups` are the versions of the lookups that it reads.
    """

    query: SqlQuery
    statement: Statement
    running: RunningCall
    seen: SeenTables
    files: Mapping[str, tuple[TableFile, ...]]
    named: Sequence[str]
    lookups: StatementLookups

    @property
    def limited(self) -> list[str]:
        """Return the datasources that it may name, and that it sees in part."""
        return [name for name in self.named if name in self.seen.limits]


class _NoMetadata:
    """`MetadataSource` without any table."""

    def collect(self, read: MetadataRead, rows: MetadataRows) -> None:
        del rows  # there are none
        raise Unavailable(
            f"{read.table.full_name} cannot be read here: send the query to the router of an"
            " installation"
        )


class SqlService:
    """Answers queries; thread-safe, with several queries at once.

    Projections, if given, answer the queries that they can. Without a folder for large answers,
    large answers pass through the memory of Spark and of this process. With `segments`, files of a
    remote deep storage are read from their copies on this host.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        source: TableSource,
        clock: Clock,
        options: SqlOptions | None = None,
        projections: Projections | None = None,
        answers: AnswerFolder | None = None,
        segments: LocalSegments | None = None,
    ) -> None:
        self._answers = answers
        self._segments = segments
        self._large = LargeStatements()
        self._known = KnownColumns()
        self._limits_log = RateLimitedLog(logger, clock)
        own = sessions.with_conf(QUERY_CONF)
        self._sessions = QuerySessions(own, self._known)
        # Connected at their first use, because datasources with case variants are rare.
        self._exact = QuerySessions(own.with_conf(EXACT_CONF), self._known)
        self._projections = projections
        self._spark = own
        self._suspects = CrashSuspects(clock)
        self._principals = PrincipalSuspects(clock)
        self._source = source
        self._clock = clock
        self._options = options or SqlOptions()
        self._running: dict[str, RunningCall] = {}
        # When Spark was ended for a query, and when it was found to have ended by itself; replaced
        # in one step; any thread reads them.
        self._ended_at_s = self._lost_at_s = -math.inf
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
            SparkEndsRefused: Spark ended too often over statements of its principal.
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
        is_quota = query.quota_ms == self.timeout_ms(query)
        remedy = "ask an administrator for a larger quota query_time"
        too_long = (
            f"it took longer than {self.timeout_ms(query)} ms; select less, or"
            f" {remedy if is_quota else 'raise its time limit'}"
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
        wanted = (self._options.timeout_ms, query.timeout_ms, query.quota_ms)
        return min(limit_ms for limit_ms in wanted if limit_ms)

    def _end_spark(self, query: SqlQuery, since_s: float) -> None:
        """End the Spark of queries, because a query that began at this time ignores its end."""
        if self._options.end_spark is not None:
            logger.warning("a query does not stop: restarting the Spark of queries")
            self._suspects.ended(query.sql, query.parameters, since_s)
            self._principals.ended(query.principal, since_s, is_cause=True)
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
        statement = read_statement(query.sql, query.parameters, has_metadata=True)
        rights = "" if query.reader is None else query.reader.rights
        known = (query.sql, *query.parameters, self._limit(query), rights)
        if known in self._large and not query.is_large:
            return self._later(query, running)
        if query.is_probe:
            answer = self._try(query, statement, running)
        else:
            self._check_spark()
            with (
                self._principals.admitted(query.principal),
                self._suspects.admitted(query.sql, query.parameters),
            ):
                answer = self._try_for_reader(query, statement, running)
        if answer is None:
            self._large.note(known, is_large=True)
            return self._later(query, running)
        if query.is_large and fits_at_once(answer.rows):
            self._large.note(known, is_large=False)
        return answer

    def _check_spark(self) -> None:
        """Report whether Spark can be reached, if it ended lately."""
        if self._principals.is_watching:
            self._principals.found(is_up=self._spark.is_reachable())

    def _later(self, query: SqlQuery, running: RunningCall) -> LargeAnswer:
        return LargeAnswer(partial(self._large_answer, replace(query, is_large=True), running))

    def _large_answer(self, query: SqlQuery, running: RunningCall) -> SqlResult:
        answer = self._answer(query, running)
        assert isinstance(answer, SqlResult)
        return answer

    def _try_for_reader(
        self, query: SqlQuery, statement: Statement, running: RunningCall
    ) -> SqlResult | None:
        """Run a query as `_try`, without details in errors that its reader must not see."""
        try:
            return self._try(query, statement, running)
        except PenstockError as error:  # narrow: translates
            # The time limit, a cancellation and the end of Penstock have messages of their own.
            reader = query.reader
            if running.stopped or reader is None:
                raise
            # Listing them may fail, too, for a reason that names datasources of others.
            if not reader.sees_part_of(listed_tables(self._source).files):
                raise
            shown = without_details(error)
            if shown is error:
                raise
            logger.warning("a query failed: %s", error)
            raise shown from error

    def _try(self, query: SqlQuery, statement: Statement, running: RunningCall) -> SqlResult | None:
        """Run a query; return None if its answer is too large to be fetched at once."""
        was_lost = False
        for attempt in range(1, _LISTINGS_MAX + 1):
            began_s = self._clock.monotonic_s()
            try:
                answer = self._run(query, statement, running)
            except EngineUnavailable as error:  # narrow: `was_lost` belongs to this call
                was_lost |= isinstance(error, EngineLost)
                # On a full disk, a retry would take as long and fail in the same way.
                if running.stopped or isinstance(error, SparkDiskFull | AnswersFull):
                    raise
                missing = MISSING_PATH.search(spark_message(error))
                replaced = missing is not None and self._visible(query, missing[1]) is None
                # A session that ended by itself is available again at once; a lost JVM is not.
                if attempt < _TRIES or (replaced and attempt < _LISTINGS_MAX):
                    continue
                if missing:
                    raise unreadable_file(
                        missing[1], "is missing", self._visible(query, missing[1])
                    ) from error
                # A query that was running may be why Spark ended by itself.
                is_ended = self._is_starting(self._ended_at_s)
                is_cleared = is_ended or (not was_lost and self._is_starting(self._lost_at_s))
                may_wait = is_cleared and not query.is_probe and attempt < _LISTINGS_MAX
                if may_wait and self._wait_for_start(running):
                    continue
                if is_ended:
                    raise EngineUnavailable(_ENDED) from error
                # The query had not begun, or its files were deleted: memory is not the cause.
                is_known = running.session is None or FILE_GONE.search(spark_message(error))
                if is_known or query.is_probe:
                    raise
                raise EngineUnavailable(f"{error}; {self._reason_of_loss()}") from error
            else:
                self._answered_from_s = max(began_s, self._answered_from_s)
                return answer
        raise AssertionError("the last attempt returns or raises")

    def _is_starting(self, ended_at_s: float) -> bool:
        """Return whether Spark may still start again after an end at this time."""
        is_recent = self._clock.monotonic_s() - ended_at_s < _STARTS_AGAIN_S
        return is_recent and self._answered_from_s <= ended_at_s

    def _wait_for_start(self, running: RunningCall) -> bool:
        """Wait until Spark can be reached again; return whether the query may be tried again.

        So it may after it was stopped, which `_run` reports.
        """
        ended_at_s = max(self._ended_at_s, self._lost_at_s)
        while self._is_starting(ended_at_s):
            pause(self._clock, _START_POLL_S)
            if running.stopped or self._spark.is_reachable():
                return True
        return False

    def _reason_of_loss(self) -> str:
        """Return why Spark was lost, as far as it is known, and the remedy."""
        limit = self._options.limit_reason()
        return f"{limit}: {_LESS}" if limit else _IF_AGAIN

    def _run(self, query: SqlQuery, statement: Statement, running: RunningCall) -> SqlResult | None:
        case_variants: CaseTables | None = None
        lookups = StatementLookups()
        began_s = self._clock.monotonic_s()
        spelt = query.sql
        try:
            running.check()
            may_be_none = not statement.reads_datasources_alone
            seen = seen_tables(self._source, query.reader, may_be_none=may_be_none)
            files = stored_tables(seen)
            spelt = with_stored_names(query.sql, files)
            asked = replace(query, sql=spelt)
            if spelt != query.sql:
                statement = read_statement(spelt, query.parameters, has_metadata=True)
            # A command may list all datasources.
            lists = not statement.query
            named = [name for name in files if lists or name.lower() in statement.tables]
            self._known.keep(seen.every.keys())
            case_variants = CaseTables(files, named, self._known)
            lookups = StatementLookups.of(statement.lookups, query.lookups or NoLookups())
            return self._run_in(
                _Asked(asked, statement, running, seen, files, named, lookups), case_variants
            )
        except PenstockError as error:  # narrow: translates
            if isinstance(error, EngineLost) and not query.is_probe:
                self._suspect(query, running, began_s, error)
            if running.stopped:
                kind = EngineUnavailable if running.stopped == _STOPPED else EngineFailure
                raise kind(f"the query did not end: {running.stopped}") from error
            if FILE_GONE.search(spark_message(error)):
                # A segment was replaced and its file deleted since the view was defined.
                self._forget_views()
                raise EngineUnavailable(f"a file was deleted during the query: {error}") from error
            unreadable = DAMAGED_FILE.search(spark_message(error))
            if unreadable:
                self._forget_views()
                path = unquote(unreadable[1].removeprefix("file://"))
                if self._segments is not None and self._segments.discard(path):
                    damaged = f"{path} cannot be read: it is copied again"
                    raise EngineUnavailable(damaged) from error
                raise unreadable_file(path, "cannot be read", self._visible(query, path)) from error
            if isinstance(error, SparkRefusal):
                # Spark counts columns in its text with the values of the parameters.
                is_sent = not query.parameters and statement.reads_datasources_alone
                is_sent = is_sent and _same_lines(spelt, query.sql)
                source = readable_source(self._source, query.reader)
                explained = explained_refusal(
                    error, statement.query, case_variants, source, is_sent=is_sent
                )
                if isinstance(explained, Conflict):
                    raise explained from error
                hint = lookups.hint(statement.query, str(error))
                hint = hint or in_spark(query.sql, str(error))
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
            self._principals.ended(query.principal, began_s)
            self._lost_at_s = self._clock.monotonic_s()
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
        reader = "" if query.reader is None else query.reader.rights
        opened = sessions.analysis_session(asked.running, asked.files, asked.named, reader)
        with opened as spark:
            if statement.query:
                outlines = {**outlined(statement.metadata), **asked.lookups.empty_tables()}
                check_understood(spark, statement.query, query.parameters, outlines)
            return self._command(spark, asked) if statement.command else None

    def _answered(
        self, sessions: QuerySessions, asked: _Asked, answer: SqlResult | None
    ) -> SqlResult | None:
        """Return the answer of a resolved query, unless it has an answer already.

        None means that it is too large to be fetched at once.
        """
        if answer is not None:
            return answer
        query, statement = asked.query, asked.statement
        if query.on_read is not None:
            query.on_read(asked.named)
        if asked.limited:
            if statement.explain:
                raise refused_explanation(asked.limited)
            if query.projections.is_required:
                raise refused_projection(asked.limited, query.projections.place)
            # Spark's errors are translated at the end of the session's block.
            try:
                return self._over_rows(sessions, asked)
            except SparkRefusal as error:
                raise refused_rows(error, asked.limited) from error
        return self._over_rows(sessions, asked)

    def _over_rows(self, sessions: QuerySessions, asked: _Asked) -> SqlResult | None:
        """Return the answer or the plan of a query over the rows, or over a projection of them."""
        query, statement = asked.query, asked.statement
        choice = None
        may_choose = sessions is self._sessions and not asked.limited
        may_choose = may_choose and statement.reads_datasources_alone
        checked = None if statement.explain or not may_choose else statement.checked
        if self._projections is not None and checked is not None:
            choice = self._projections.choice(
                checked, query.projections, asked.named, asked.seen.tables
            )
        # A projection reads few bytes, and of other files.
        segments = self._segments if choice is None else None
        with (
            self._local_files(asked, segments) as every,
            sessions.row_session(every, asked.named) as (spark, views),
            self._metadata_views(spark, asked) as metadata,
            asked.lookups.views(spark, self._answers) as lookups,
        ):
            hidden = {**views, **metadata, **lookups}
            if statement.explain == ANALYZE:
                return self._measured(spark, asked, hidden)
            if statement.explain:
                maps = asked.lookups.maps(is_shown=True)
                rows = relation(spark, statement.query, query.parameters, hidden, maps)
                return explanation(explained(rows, statement.explain), hidden)
            return self._collect(spark, asked, hidden, choice)

    @contextlib.contextmanager
    def _local_files(
        self, asked: _Asked, segments: LocalSegments | None
    ) -> Iterator[Mapping[str, tuple[TableFile, ...]]]:
        """Provide the files of all datasources: for the query copies, if all can be made."""
        every, explain = asked.seen.every, asked.statement.explain
        reads_no_rows = explain and explain != ANALYZE
        if segments is None or reads_no_rows or not segments.spark_is_here():
            yield every
            return
        wanted = [file for name in asked.named for file in every[name]]
        with contextlib.ExitStack() as leases:
            try:
                leases.enter_context(segments.leased(wanted, asked.running.check, math.inf))
            except NotCached as error:
                logger.debug("Spark reads the deep storage: %s", error)
            else:
                local = {name: segments.paths(name, every[name]) for name in asked.named}
                every = {**every, **local}
            yield every

    def _metadata_views(
        self, spark: SparkSession, asked: _Asked
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Provide the views of metadata tables of a query. Raises as `metadata_views`."""
        reads = asked.statement.metadata
        if not reads:
            return contextlib.nullcontext({})
        files = stored_tables(asked.seen)
        source = InformationSchema(
            files,
            self._known,
            asked.query.metadata or _NoMetadata(),
            asked.query.lookups or NoLookups(),
        )
        return metadata_views(spark, reads, source, self._answers)

    def _measured(self, spark: SparkSession, asked: _Asked, hidden: Mapping[str, str]) -> SqlResult:
        """Run a query over the rows, and return what its operators did."""
        query = asked.query
        check_read_size(asked.statement.checked, asked.named, asked.files, query.quota_bytes)
        with asked.running.tagged(spark):
            maps = asked.lookups.maps()
            rows = relation(spark, asked.statement.query, query.parameters, hidden, maps)
            fields = rows.schema.fields
            run = Fetcher(fields, self._limit(query), None, is_large=False).executed(rows)
        table = measured_plan(run, partial(_shown, hidden=hidden))
        return SqlResult(table, PLAN_TYPES, truncated=False)

    def _limited_tables(self, asked: _Asked, hidden: Mapping[str, str]) -> dict[str, str]:
        """Return the SQL of the tables that the reader of a query sees in part."""
        limited: dict[str, str] = {}
        for name in asked.limited:
            if name in hidden:
                columns = self._known.of(name, asked.files[name])
                self._check_columns(name, columns, asked.seen.limits[name])
                limited[name] = asked.seen.sql_of(name, hidden[name], columns)
        return limited

    def _check_columns(self, name: str, columns: Columns, rules: RowRules) -> None:
        """Report columns of a filter or mask that a datasource does not have.

        Raises:
            InvalidRequest: The filter names one, so no row can be shown.
        """
        names = [column for column, _ in columns]
        absent = absent_columns(rules, names)
        if absent:
            self._limits_log.warning("%s", absent.text(name, names))
        if absent.filtered:
            raise refused_filter(name)

    def _visible(self, query: SqlQuery, path: str) -> TableFile | None:
        """Return the file of a path, if queries that begin now read it."""
        tables = self._source.tables() if query.reader is None else listed_tables(self._source)
        files = itertools.chain.from_iterable(tables.files.values())
        return next((file for file in files if file.path == path), None)

    def _forget_views(self) -> None:
        """List the files again, because Spark remembers their sizes as long as a view exists."""
        self._sessions.forget_views()
        self._exact.forget_views()

    def _command(self, spark: SparkSession, asked: _Asked) -> SqlResult:
        """Answer a SHOW or DESCRIBE from the outlines."""
        query, statement = asked.query, asked.statement
        text = statement.command
        if statement.query:
            outlines = {**outlined(statement.metadata), **asked.lookups.empty_tables()}
            text = f"{text} {hidden_query(statement.query, {}, outlines)}"
        rows = spark.sql(text, args=list(query.parameters) or None)
        fields = rows.schema.fields
        found = Fetcher(fields, self._limit(query), None, is_large=False).fetch(rows)
        return SqlResult(found.rows, _type_names(fields), found.truncated)

    def _collect(
        self,
        spark: SparkSession,
        asked: _Asked,
        hidden: Mapping[str, str],
        choice: ProjectionChoice | None,
    ) -> SqlResult | None:
        query, running = asked.query, asked.running
        limited = {**self._limited_tables(asked, hidden), **asked.lookups.maps()}
        with running.tagged(spark):
            rows = relation(spark, asked.statement.query, query.parameters, hidden, limited)
            fields = rows.schema.fields
        types = _type_names(fields)
        fetcher = Fetcher(fields, self._limit(query), self._answers, is_large=query.is_large)
        if choice is not None and self._projections is not None:
            wanted = (choice, query.parameters, fetcher.fetch, types, running)
            if (found := self._projections.answered(*wanted)) is not None:
                return _result(found, types, choice.plan.name)
        check_read_size(asked.statement.checked, asked.named, asked.files, query.quota_bytes)
        with running.tagged(spark):
            return _result(fetcher.fetch(rows), types)

    def _limit(self, query: SqlQuery) -> int:
        return min(query.row_limit or self._options.row_limit, self._options.row_limit)


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
    shown = _shown(text, hidden)
    # Not from a Python list: Arrow would import pandas, which takes the router 0.4 s and 40 MB.
    column = as_messages([shown.encode()]).view(pa.string())
    return SqlResult(pa.table({"plan": column}), ("string",), truncated=False)


def _shown(text: str, hidden: Mapping[str, str]) -> str:
    shown = without_paths(text)
    for name, own in hidden.items():
        shown = shown.replace(own, name)
    return shown


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


def stored_tables(seen: SeenTables) -> Mapping[str, tuple[TableFile, ...]]:
    """Return the files of the datasources that a statement may name.

    Datasources whose names differ only in case are left out: one would show the other's rows.
    """
    files = seen.tables.files
    counts = Counter(name.lower() for name in files)
    if len(counts) == len(files):
        return files
    return {name: found for name, found in files.items() if counts[name.lower()] == 1}


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
    "stored_tables",
]
