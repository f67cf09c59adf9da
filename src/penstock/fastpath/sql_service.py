"""Choice of the engine that answers a query: the embedded one, or Spark.

Owns the choice and its counters. Wraps `penstock.spark.sql.service.SqlService`, which registers
every query, so that its id, its time limit and its end are the same with both engines. The embedded
engine answers what it certainly answers like Spark, over the same files; for everything else, and
after any error, Spark answers, and its errors are the answer.

Invariant: a principal sees by the embedded engine nothing that Spark would not show to it. Tables
that it sees in part are left to Spark.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.column_case import case_variants_in
from penstock.core.errors import InvalidRequest, PenstockError, TooLargeForQuota
from penstock.core.metrics import Sample
from penstock.fastpath.answer_checks import AnswerChecks, FastAnswer
from penstock.fastpath.comparison import answer_shape
from penstock.fastpath.compiled_query import CompiledQuery, NotCompiled
from penstock.fastpath.engine_pool import EngineCall, EngineRefusal, EngineRequest
from penstock.fastpath.engine_protocol import ENGINE_FAILED, OUT_OF_MEMORY, VALUES
from penstock.fastpath.quick_answers import (
    KeptAnswers,
    count_from_metadata,
    count_table,
    query_key,
)
from penstock.fastpath.snapshot_relations import (
    SnapshotRelations,
    answer_schema,
    is_read,
    rows_read,
)
from penstock.indexing.engine import EngineUnavailable
from penstock.segments.segment_cache import NotCached
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.fetcher import KEPT_BYTES_MAX
from penstock.spark.sql.limited_tables import seen_tables
from penstock.spark.sql.query_statement import Statement, read_statement, with_stored_names
from penstock.spark.sql.read_sizes import check_read_size
from penstock.spark.sql.service import (
    LargeAnswer,
    RegisteredQuery,
    SqlOptions,
    SqlQuery,
    SqlResult,
    stored_tables,
)
from penstock.spark.tables.local_segments import LocalSegments
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.tables.table_files import Columns, TableFile, Tables, TableSource

if TYPE_CHECKING:
    from penstock.core.sql import tree

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
SPARK: Final = "spark"
FAST: Final = "fast"
ENGINES: Final = (AUTO, SPARK, FAST)
DEFAULT_ENGINE: Final = SPARK
"""Engine of queries that name none: `auto` once the engines agreed on enough statements.

Of 100,000 generated ones in `tests/soak/record.jsonl`, one differed: a sum of distinct fractions.
"""

_ANSWERS: Final = "Answers of queries, by the engine that answered"
_LEFT: Final = "Queries that the fast engine left to Spark, by reason"

_REPEATED: Final = "Queries whose answer was kept from an earlier one"

TURN_MAX_S: Final = 5.0
"""Time for which a query waits for a process before it is left to Spark, if it may be."""
TIME_MAX_S: Final = 20.0
"""Time limit of the embedded engine, which has few processes; longer queries are Spark's."""

# With more rows to read, queries of datasources with projections are Spark's. Reading this number
# of rows takes about the shortest time in which Spark answers.
_ROWS_WITH_PROJECTIONS_MAX: Final = 10_000_000

# The compiler matches constants with patterns, as in TIME_PARSE; each takes up to a tenth of a
# second, in which no other thread runs.
_PATTERN_FUNCTION: Final = "regexp_extract"
PATTERNS_MAX: Final = 20
"""Calls of `regexp_extract` of a query; with more, it is left to Spark."""

# Bounds of the queries that warm up a process: datasources, and files of each.
_WARM_DATASOURCES_MAX: Final = 16
_WARM_FILES_MAX: Final = 100

# Reasons for which a process was replaced, after which its query is not sent again for a while.
_COSTLY: Final = frozenset({OUT_OF_MEMORY, ENGINE_FAILED, "ended", "hung"})
_EXCLUDED_S: Final = 600.0
_EXCLUDED_MAX: Final = 1_000
# After as many lost processes within that time, all queries of a principal are Spark's.
_LOST_MAX: Final = 3
# Reasons that may have passed when the query is sent again.
_PASSING: Final = frozenset(
    {"busy", "engine starts", "files", "deep storage", *_COSTLY - {ENGINE_FAILED}}
)

# A query, its datasource and columns, its parameters, and the current time in microseconds.
CompileQuery = Callable[["tree.Query", str, Columns, Sequence[object], int], CompiledQuery]


class SparkQueries(Protocol):
    """Service that runs queries with Spark: `penstock.spark.sql.service.SqlService`."""

    def registered(self, query: SqlQuery) -> AbstractContextManager[RegisteredQuery]:
        """Register a query, which can be cancelled from now on."""
        ...

    def timeout_ms(self, query: SqlQuery) -> int:
        """Return how long a query may take after the arrival of its request."""
        ...

    def cancel(self, query_id: str) -> bool:
        """Cancel a registered query; return False if there is none with this id."""
        ...


class Engines(Protocol):
    """Processes of the embedded engine: `penstock.fastpath.engine_pool.EnginePool`."""

    def new_call(self) -> EngineCall:
        """Return a query that can be cancelled before it runs."""
        ...

    def run(self, request: EngineRequest, until_s: float, call: EngineCall) -> pa.Table:
        """Return the rows of a query, or raise `EngineRefusal`."""
        ...


@dataclass(frozen=True, slots=True)
class FastOptions:
    """Options of `FastSqlService`.

    Attributes:
        bounds: Bounds of a query.
        answers: Folder of large answers; None: they stay in memory.
        segments: Copies of the files of a remote deep storage; None: there are none.
        checks: Checks a few answers against Spark; None: none is checked.
    """

    bounds: SqlOptions = field(default_factory=SqlOptions)
    answers: AnswerFolder | None = None
    segments: LocalSegments | None = None
    checks: AnswerChecks | None = None


class FastSqlService:
    """Answers queries with the embedded engine or Spark. Any thread.

    Args:
        spark: Answers with Spark.
        source: The visible files.
        engines: The processes of the embedded engine.
        compile_query: Compiles a query for the embedded engine, or raises `NotCompiled`.
        clock: Time.
        options: Its options.
    """

    def __init__(
        self,
        spark: SparkQueries,
        source: TableSource,
        engines: Engines,
        compile_query: CompileQuery,
        clock: Clock,
        options: FastOptions | None = None,
    ) -> None:
        options = options or FastOptions()
        self._checks = options.checks
        self._spark = spark
        self._segments = options.segments
        self._source = source
        self._engines = engines
        self._compile_query = compile_query
        self._clock = clock
        self._bounds = options.bounds
        self._answers = options.answers
        self._known = KnownColumns()
        self._relations = SnapshotRelations()
        # The calls of registered queries, by id; each is added and removed in one step.
        self._calls: dict[str, EngineCall] = {}
        # Guards the counters, which have few keys; mail would cost more than the addition.
        self._mutex = threading.Lock()
        self._answered: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._repeated = 0
        self._kept = KeptAnswers()
        self._costly = _CostlyQueries(clock)

    @contextlib.contextmanager
    def registered(self, query: SqlQuery) -> Iterator[RegisteredQuery]:
        """Register a query. Raises as `SqlService.registered`."""
        since_s = self._clock.monotonic_s() if query.arrived_s is None else query.arrived_s
        until_s = since_s + self.timeout_ms(query) / 1000
        call = self._engines.new_call()
        with self._spark.registered(query) as of_spark:
            if query.query_id:
                self._calls[query.query_id] = call

            def cancel() -> None:
                of_spark.cancel()  # first, because the query then asks Spark why it ended
                call.cancel()

            try:
                yield RegisteredQuery(partial(self._run, query, of_spark, call, until_s), cancel)
            finally:
                if query.query_id:
                    del self._calls[query.query_id]

    def timeout_ms(self, query: SqlQuery) -> int:
        """Return how long a query may take after the arrival of its request."""
        return self._spark.timeout_ms(query)

    def cancel(self, query_id: str) -> bool:
        """Cancel a registered query; return False if there is none with this id."""
        call = self._calls.get(query_id)
        is_known = self._spark.cancel(query_id)
        if call is not None:
            call.cancel()
        return is_known

    def cancel_all(self) -> None:
        """End the running queries of the embedded engine, after Spark's were stopped."""
        for call in tuple(self._calls.values()):
            call.cancel()

    def first_requests(self) -> Iterator[EngineRequest]:
        """Yield queries for the newest row of datasources.

        They warm up a new process and this one: metadata, compiler, and the footers of files.
        """
        try:
            tables = self._source.tables().files
        except PenstockError as error:
            logger.debug("the engine is not warmed up: %s", error)
            return
        for name in itertools.islice(tables, _WARM_DATASOURCES_MAX):
            with contextlib.suppress(NotCompiled, PenstockError):
                yield self._first_request(name, tables[name])

    def _first_request(self, name: str, files: Sequence[TableFile]) -> EngineRequest:
        """Return a query for the newest row of a datasource.

        Raises:
            NotCompiled: The engine does not cover it.
            PenstockError: The statement is not valid.
        """
        quoted = name.replace('"', '""')
        sql = f'SELECT * FROM "{quoted}" ORDER BY __time DESC LIMIT 1'  # noqa: S608 - quoted
        root = _root(read_statement(sql, ()))
        columns = self._known.of(name, files)
        compiled = self._compile_query(root, name, columns, (), self._clock.now_ms() * 1_000)
        ends_ms = sorted(file.interval.end_ms for file in files)
        if len(ends_ms) > _WARM_FILES_MAX:
            compiled = replace(compiled, start_ms=ends_ms[-_WARM_FILES_MAX - 1])
        token, relation = self._relations.of(compiled, files)
        return EngineRequest(
            *(token, relation, compiled.sql, compiled.parameters, answer_schema(compiled.columns)),
            rows_max=1,
            newest=compiled.newest,
        )

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        with self._mutex:
            answered, left = dict(self._answered), dict(self._left)
            repeated = float(self._repeated)
        yield Sample("penstock_sql_repeated_total", "counter", _REPEATED, (), repeated)
        for engine in (FAST, SPARK):
            labels, count = (("engine", engine),), float(answered.get(engine, 0))
            yield Sample("penstock_sql_answers_total", "counter", _ANSWERS, labels, count)
        for reason, count in sorted(left.items()):
            labels = (("reason", reason),)
            yield Sample("penstock_sql_left_to_spark_total", "counter", _LEFT, labels, count)

    def _run(
        self, query: SqlQuery, of_spark: RegisteredQuery, call: EngineCall, until_s: float
    ) -> SqlResult | LargeAnswer:
        engine = query.engine or DEFAULT_ENGINE
        if engine != SPARK and not query.is_probe and not query.is_large:
            try:
                answer = self._fast_answer(query, call, until_s)
            except NotCompiled as error:
                self._leave(error.reason, may_raise=engine == FAST)
            except EngineRefusal as error:
                logger.debug("query %s is left to Spark: %s", query.query_id, error)
                # Spark has the reason of an end, and raises it.
                is_over = call.is_cancelled or self._clock.monotonic_s() >= until_s
                is_late = error.reason == "interrupted" and not call.is_cancelled
                reason = "time limit" if is_late else error.reason
                self._leave(reason, may_raise=engine == FAST and not is_over)
            except PenstockError as error:
                if engine == FAST:
                    raise
                reason = "quota" if isinstance(error, TooLargeForQuota) else "refused"
                self._leave(reason, may_raise=False)
            else:
                self._count_answer(FAST)
                return answer
        with self._spark_in_use():
            found = of_spark.run()
        if isinstance(found, LargeAnswer):
            return LargeAnswer(partial(self._large_answer, found))
        self._count_answer(SPARK)
        return found

    def _large_answer(self, answer: LargeAnswer) -> SqlResult:
        with self._spark_in_use():
            found = answer.run()
        self._count_answer(SPARK)
        return found

    def _spark_in_use(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._checks is None else self._checks.spark_in_use()

    def _leave(self, reason: str, *, may_raise: bool) -> None:
        """Count why the embedded engine does not answer a query; raise if Spark must not either.

        Args:
            reason: Why.
            may_raise: Whether the query requires the embedded engine; False if Spark has the error.

        Raises:
            InvalidRequest: The embedded engine does not cover the query.
            EngineUnavailable: The embedded engine failed.
        """
        with self._mutex:
            self._left[reason] += 1
        if not may_raise:
            return
        text = f"the fast engine does not answer this query ({reason})"
        if reason in _PASSING:
            raise EngineUnavailable(f"{text}: try again, or set context.engine to auto")
        raise InvalidRequest(
            f"{text}: leave it out or set it to auto, and Spark answers", place="context.engine"
        )

    def _count_answer(self, engine: str) -> None:
        with self._mutex:
            self._answered[engine] += 1

    def _fast_answer(self, query: SqlQuery, call: EngineCall, until_s: float) -> SqlResult:
        """Return the answer of the embedded engine.

        Raises:
            NotCompiled: The engine does not cover the query.
            EngineRefusal: The engine does not answer.
            PenstockError: The statement is not valid, or its principal may not run it.
        """
        if query.projections.is_required:
            raise NotCompiled("projection required")
        statement = read_statement(query.sql, query.parameters, has_metadata=True)
        root = _root(statement)
        seen = seen_tables(self._source, query.reader)
        files = stored_tables(seen)
        spelt = with_stored_names(query.sql, files)
        if spelt != query.sql:
            statement = read_statement(spelt, query.parameters, has_metadata=True)
            root = _root(statement)
        named = [name for name in files if name.lower() in statement.tables]
        if len(named) != 1 or len(statement.tables) != 1:
            raise NotCompiled("several datasources" if len(named) > 1 else "no datasource")
        name = named[0]
        if name in seen.limits:
            raise NotCompiled("row filter or mask")
        if not files[name]:
            raise NotCompiled("no rows")
        self._known.keep(seen.every.keys())
        self._relations.keep(seen.every.keys())
        columns = self._known.of(name, files[name])
        if case_variants_in(column for column, _ in columns):
            raise NotCompiled("case of columns")
        now_us = self._clock.now_ms() * 1_000
        compiled = self._compile_query(root, name, columns, query.parameters, now_us)
        schema = answer_schema(compiled.columns)
        self._leave_to_projections(query, compiled, files[name])
        check_read_size(statement.checked, named, files, query.quota_bytes)
        local = files[name] if self._segments is None else self._segments.paths(name, files[name])
        token, relation = self._relations.of(compiled, local)
        if query.on_read is not None:
            query.on_read(named)
        limit = min(query.row_limit or self._bounds.row_limit, self._bounds.row_limit)
        turn_s = math.inf if query.engine == FAST else TURN_MAX_S
        request = EngineRequest(
            *(token, relation, compiled.sql, compiled.parameters, schema, limit + 1),
            *(self._clock.monotonic_s() + turn_s, query.principal),
            *(compiled.newest, compiled.end_ms),
        )
        number = count_from_metadata(root, compiled, files[name])
        if number is not None:
            found = count_table(number, schema)
        else:
            lease = self._lease(compiled, files[name], call, until_s)
            found = self._found(query, name, request, until_s, call, lease)
        rows = found.slice(0, limit)
        if self._checks is not None and self._checks.is_chosen():
            later = self._compile_query(root, name, columns, query.parameters, now_us + 1)
            if later == compiled:  # otherwise its answer depends on the current time
                shape = answer_shape(root, compiled)
                shape = replace(shape, is_limited=shape.is_limited or found.num_rows > limit)
                snapshot = Tables(seen.tables.revision, {name: files[name]})
                self._checks.offer(FastAnswer(query, compiled, shape, snapshot, rows))
        types = tuple(type_ for _, type_ in compiled.columns)
        kept = rows
        if self._answers is not None and rows.nbytes > KEPT_BYTES_MAX:
            kept = self._answers.write(rows)
        return SqlResult(kept, types, found.num_rows > limit, engine=FAST)

    def _leave_to_projections(
        self, query: SqlQuery, compiled: CompiledQuery, files: Sequence[TableFile]
    ) -> None:
        """Raise `NotCompiled` if Spark probably answers sooner, from fewer rows of a projection."""
        if query.engine == FAST or query.projections.none:
            return
        if rows_read(compiled, files) <= _ROWS_WITH_PROJECTIONS_MAX:
            return
        if self._source.projections(compiled.datasource):
            raise NotCompiled("projections")

    @contextlib.contextmanager
    def _lease(
        self, compiled: CompiledQuery, files: Sequence[TableFile], call: EngineCall, until_s: float
    ) -> Iterator[None]:
        """Keep the copies of the files that a query reads for a block; fetch them before.

        Raises:
            EngineRefusal: A copy is missing, and cannot be made in time.
        """
        if self._segments is None:
            yield
            return

        def check() -> None:
            if call.is_cancelled:
                raise EngineRefusal("cancelled")

        chosen = [file for file in files if is_read(file, compiled)]
        with contextlib.ExitStack() as leases:
            try:
                leases.enter_context(self._segments.leased(chosen, check, until_s))
            except NotCached as error:
                raise EngineRefusal("deep storage", error.reason) from None
            yield

    def _found(
        self,
        query: SqlQuery,
        datasource: str,
        request: EngineRequest,
        until_s: float,
        call: EngineCall,
        lease: AbstractContextManager[None],
    ) -> pa.Table:
        """Return the rows of a query, which may have been kept; the lease is entered to read."""
        key = KeptAnswers.key(
            *(request.token, request.sql, request.parameters, request.schema, request.rows_max)
        )
        if query.uses_cache and (kept := self._kept.get(key)) is not None:
            with self._mutex:
                self._repeated += 1
            return kept
        until_s = min(until_s, self._clock.monotonic_s() + TIME_MAX_S)
        # Not by the token, which changes with the files.
        costly = query_key(datasource, request.sql, request.parameters, request.rows_max)
        with self._costly.admitted(costly, query.principal), lease:
            found = self._engines.run(request, until_s, call)
        if query.uses_cache:
            self._kept.keep(key, found)
        return found


class _CostlyQueries:
    """Queries that ended a process of the engine lately, or read values that it leaves to Spark.

    Spark answers them, so that they do not cost the time of both engines again.

    A principal that changes its text would end processes as often as before. So all queries of a
    principal that ended several are Spark's for a while, except those of the owner.

    Any thread; the mutex is held while an entry is looked up or added.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        # The end of each exclusion as monotonic time, and its reason, the oldest first.
        self._until_s: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        # When each principal ended processes, as monotonic times; the last ones.
        self._lost_s: OrderedDict[str, deque[float]] = OrderedDict()

    @contextlib.contextmanager
    def admitted(self, key: bytes, principal: str) -> Iterator[None]:
        """Run a query in a block; note if it ends its process, or reads values left to Spark.

        Raises:
            NotCompiled: It did that before, or its principal ended processes several times.
        """
        with self._mutex:
            now_s = self._clock.monotonic_s()
            until_s, reason = self._until_s.get(key, (-math.inf, ""))
            if until_s > now_s:
                raise NotCompiled(reason)
            lost_s = self._lost_s.get(principal)
            if lost_s and len(lost_s) == _LOST_MAX and lost_s[0] + _EXCLUDED_S > now_s:
                raise NotCompiled("ended the engine often")
        try:
            yield
        except EngineRefusal as error:  # narrow: adds a note
            if error.reason in _COSTLY:
                self._note(key, "ended the engine before", principal)
            elif error.reason == VALUES:
                self._note(key, VALUES, "")
            raise

    def _note(self, key: bytes, reason: str, principal: str) -> None:
        """Exclude a query, and add a lost process to a principal; empty: to none."""
        with self._mutex:
            now_s = self._clock.monotonic_s()
            self._until_s[key] = now_s + _EXCLUDED_S, reason
            self._until_s.move_to_end(key)
            if len(self._until_s) > _EXCLUDED_MAX:
                self._until_s.popitem(last=False)
            if principal:
                self._lost_s.setdefault(principal, deque(maxlen=_LOST_MAX)).append(now_s)
                self._lost_s.move_to_end(principal)
                if len(self._lost_s) > _EXCLUDED_MAX:
                    self._lost_s.popitem(last=False)


def _root(statement: Statement) -> tree.Query:
    if not statement.is_query or statement.root is None:
        raise NotCompiled("no query")
    if statement.metadata:
        raise NotCompiled("metadata table")
    if statement.lookups:
        raise NotCompiled("lookup")
    if statement.query.lower().count(_PATTERN_FUNCTION) > PATTERNS_MAX:
        raise NotCompiled("size")
    return statement.root
