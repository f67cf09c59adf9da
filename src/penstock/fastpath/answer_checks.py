"""Checks of the embedded engine in a running service: a few of its answers are compared with Spark.

Owns the choice of answers, the thread that has Spark answer the same statement over the same files,
and the differences on disk. `comparison` owns the meaning of equal.

    FastSqlService --offer--> one answer that waits --thread--> Spark --> equal, or a difference

Invariants: a check never delays a query. There is at most one; none begins while Spark answers a
query of this router, and one that runs is cancelled when such a query begins. A check that cannot
run is dropped and counted, never queued. It reads the files that the answer was made from, with the
rights of its principal.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.intervals import format_time
from penstock.core.metrics import Sample
from penstock.core.threads import OnDeath, OwnedThread, start_job
from penstock.fastpath.comparison import AnswerShape, difference
from penstock.fastpath.compiled_query import CompiledQuery
from penstock.fastpath.quick_answers import query_key
from penstock.spark.sql.service import RegisteredQuery, SqlQuery, SqlResult
from penstock.spark.tables.table_files import Feeder, Tables, TableSource

if TYPE_CHECKING:
    from penstock.indexing.specs.rows.declared_projections import DeclaredProjections
    from penstock.spark.sql.service import LargeAnswer

logger = logging.getLogger(__name__)

CHECKED_ONE_IN: Final = 101
"""Answers of which one is checked; a prime, so that no pattern of a dashboard escapes."""
REST_S: Final = 10.0
"""Time after a check in which none begins: checks take a bounded share of the processors."""
CHECK_TIME_MAX_MS: Final = 60_000
ROWS_MAX: Final = 2_000
"""Rows of an answer that is checked: comparing takes the router's own time."""
APPROXIMATE_ROWS_MAX: Final = 200
"""Rows of an answer with approximate numbers, of which each is compared with each."""
ANSWER_BYTES_MAX: Final = 1 << 20
"""Size of an answer that is checked, and of the rows that are kept of one that differs."""
KEPT_MAX: Final = 20
"""Differences that stay on disk; the oldest ones are deleted."""

EQUAL: Final = "equal"
DIFFERENT: Final = "different"
BUSY: Final = "busy"
INTERRUPTED: Final = "interrupted"
FAILED: Final = "failed"
LARGE: Final = "large"
OUTCOMES: Final = (EQUAL, DIFFERENT, BUSY, INTERRUPTED, FAILED, LARGE)
"""Outcomes of checks in metrics; `docs/concepts/fast-engine.md` explains them."""

_CHECKS: Final = "Answers of the fast engine chosen to be checked against Spark, by outcome"
_KNOWN_MAX: Final = 1_000
_FILES_SHOWN_MAX: Final = 1_000
_STATEMENT: Final = "statement.json"
_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600

OnDifference = Callable[[str, Mapping[str, str]], object]
"""Takes the text and the details of an alert; never blocks, never raises."""


class CheckingSpark(Protocol):
    """Service that runs queries with Spark over pinned files: `penstock.spark.sql.service`."""

    def registered(self, query: SqlQuery) -> AbstractContextManager[RegisteredQuery]:
        """Register a query, which can be cancelled from now on."""
        ...


@dataclass(frozen=True, slots=True)
class FastAnswer:
    """An answer of the embedded engine that may be checked.

    Attributes:
        query: The query.
        compiled: The compiled query.
        shape: The properties that decide when two answers to it are equal.
        tables: The files of its datasource, as the answer saw them.
        rows: The answer.
    """

    query: SqlQuery
    compiled: CompiledQuery
    shape: AnswerShape
    tables: Tables
    rows: pa.Table

    @property
    def is_large(self) -> bool:
        """Return whether comparing it would take too long."""
        rows_max = APPROXIMATE_ROWS_MAX if self.shape.approximate else ROWS_MAX
        rows, size = int(self.rows.num_rows), int(self.rows.nbytes)
        return rows > rows_max or size > ANSWER_BYTES_MAX


class PinnedTables:
    """The source of the files that the query of a check sees; the thread of checks pins them.

    Args:
        source: Source of everything else.
    """

    def __init__(self, source: TableSource) -> None:
        self._source = source
        self._tables = Tables(0, {})  # replaced in one step; queries of checks read it

    def pin(self, tables: Tables) -> None:
        """Show these files from now on."""
        self._tables = tables

    def revision(self) -> int:
        """Return the revision of the pinned files."""
        return self._tables.revision

    def tables(self) -> Tables:
        """Return the pinned files."""
        return self._tables

    def feeders(self, datasource: str) -> Sequence[Feeder]:
        """Return the supervisors of a datasource."""
        return self._source.feeders(datasource)

    def is_dropped(self, datasource: str) -> bool:
        """Return whether a datasource has segments, but no used ones."""
        return self._source.is_dropped(datasource)

    def projections(self, datasource: str) -> Sequence[DeclaredProjections]:
        """Return the projections of a datasource."""
        return self._source.projections(datasource)


class AnswerChecks:
    """Checks a few answers. `start` and `stop` by one thread, everything else by any.

    Args:
        spark: Runs the queries of checks over the files of `pinned`.
        pinned: The files that it sees.
        folder: Folder of differences.
        on_difference: Reports a difference; each statement is reported once.
        clock: Time.
    """

    def __init__(
        self,
        spark: CheckingSpark,
        pinned: PinnedTables,
        folder: Path,
        on_difference: OnDifference,
        clock: Clock,
    ) -> None:
        self._spark = spark
        self._pinned = pinned
        self._folder = _DifferenceFolder(folder, clock)
        self._on_difference = on_difference
        self._clock = clock
        # Guards the fields below; not mail, because a query must not wait for a thread.
        self._changed = threading.Condition()
        self._offered = 0
        self._counts: Counter[str] = Counter()
        self._waiting: FastAnswer | None = None
        self._running: RegisteredQuery | None = None
        self._queries = 0  # that Spark answers now
        self._rests_until_s = 0.0
        self._known: OrderedDict[bytes, None] = OrderedDict()  # statements that differed
        self._thread = OwnedThread("answer-checks", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel the check that runs, and end the thread."""
        with self._changed:
            running = self._running
        self._thread.expect_end()
        if running is not None:
            running.cancel()
        self._thread.end(self._changed)

    def is_chosen(self) -> bool:
        """Return whether the next answer is to be offered: one in `CHECKED_ONE_IN`, the first too.

        If it is chosen and cannot be checked now, this is counted, and it is not offered.
        """
        with self._changed:
            self._offered += 1
            if self._offered % CHECKED_ONE_IN != 1:
                return False
            is_resting = self._clock.monotonic_s() < self._rests_until_s
            if self._queries or self._waiting is not None or is_resting:
                self._counts[BUSY] += 1
                return False
            return True

    def offer(self, answer: FastAnswer) -> None:
        """Have an answer that was chosen checked, unless Spark has become busy."""
        with self._changed:
            if answer.is_large:
                self._counts[LARGE] += 1
            elif self._queries or self._waiting is not None or self._thread.is_end_expected:
                self._counts[BUSY] += 1
            else:
                self._waiting = answer
                self._changed.notify_all()

    @contextlib.contextmanager
    def spark_in_use(self) -> Iterator[None]:
        """Keep checks away from Spark in a block that has it answer a query."""
        with self._changed:
            self._queries += 1
            running = self._running
        try:
            if running is not None:
                # Not here: it asks Spark, and the query would wait for it. Without a thread for it,
                # the check continues beside the query.
                with contextlib.suppress(RuntimeError):
                    start_job("end of a check", running.cancel)
            yield
        finally:
            with self._changed:
                self._queries -= 1

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics."""
        with self._changed:
            counts = dict(self._counts)
        for outcome in OUTCOMES:
            labels, count = (("outcome", outcome),), float(counts.get(outcome, 0))
            yield Sample("penstock_sql_engine_checks_total", "counter", _CHECKS, labels, count)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._thread.is_end_expected:
                    self._changed.wait()
                answer = self._waiting
                if self._thread.is_end_expected or answer is None:
                    return
            outcome = FAILED
            try:
                outcome = self._outcome(answer)
            finally:
                with self._changed:
                    self._waiting, self._running = None, None
                    self._counts[outcome] += 1
                    self._rests_until_s = self._clock.monotonic_s() + REST_S

    def _outcome(self, answer: FastAnswer) -> str:
        """Return the outcome of a check, after it reported a difference."""
        self._pinned.pin(answer.tables)
        try:
            with self._spark.registered(_of_check(answer.query)) as registered:
                with self._changed:
                    if self._queries or self._thread.is_end_expected:
                        return INTERRUPTED
                    self._running = registered
                try:
                    found = registered.run()
                finally:
                    with self._changed:
                        self._running = None
        except InvalidRequest as error:  # such as a division by zero, or a sum of more than 64 bits
            self._report(answer, None, f"Spark raises: {error}")
            return DIFFERENT
        except PenstockError as error:  # narrow: counted
            with self._changed:
                was_interrupted = self._queries > 0 or self._thread.is_end_expected
            logger.debug("an answer was not checked: %s", error)
            return INTERRUPTED if was_interrupted else FAILED
        return self._compared(answer, found)

    def _compared(self, answer: FastAnswer, found: SqlResult | LargeAnswer) -> str:
        if not isinstance(found, SqlResult):
            self._report(answer, None, "Spark's answer is too large to be fetched at once")
            return DIFFERENT
        try:
            slow = found.table
        finally:
            found.close()
        text = difference(answer.shape, answer.rows, slow)
        if not text:
            return EQUAL
        self._report(answer, slow, text)
        return DIFFERENT

    def _report(self, answer: FastAnswer, slow: pa.Table | None, text: str) -> None:
        """Keep both answers and raise the alert, once for each statement."""
        key = query_key(answer.query.sql, tuple(answer.query.parameters))
        is_known = key in self._known
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        if is_known:
            return
        try:
            kept = self._folder.keep(answer, slow, text)
        except OSError as error:  # narrow: the alert matters more than the files
            logger.warning("the two answers of a difference cannot be kept: %s", error)
            kept = ""
        self._on_difference(
            f"the fast engine and Spark answered a query of {answer.compiled.datasource}"
            " differently: set context.engine to spark for such queries, and report"
            f" the difference{f' with {kept}' if kept else ''}",
            {"dataSource": answer.compiled.datasource, "kept": kept},
        )


def _of_check(query: SqlQuery) -> SqlQuery:
    """Return the query with which Spark repeats an answered one."""
    return replace(
        query,
        query_id="",
        timeout_ms=CHECK_TIME_MAX_MS,
        arrived_s=None,
        quota_ms=None,
        quota_bytes=None,
        on_read=None,
        engine="",
        uses_cache=False,
    )


class _DifferenceFolder:
    """Differences on disk, each in a folder of its own that only the owner may read.

    Args:
        path: The folder of all.
        clock: Time.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._numbers = itertools.count(1)

    def keep(self, answer: FastAnswer, slow: pa.Table | None, text: str) -> str:
        """Write a difference, delete the oldest ones, and return its folder. Raises OSError."""
        self._path.mkdir(_PRIVATE_FOLDER, exist_ok=True)
        self._path.chmod(_PRIVATE_FOLDER)
        now_ms = self._clock.now_ms()
        folder = self._path / f"{now_ms:015d}-{next(self._numbers):06d}"
        folder.mkdir(_PRIVATE_FOLDER)
        compiled = answer.compiled
        files = answer.tables.files[compiled.datasource]
        record = {
            "time": format_time(now_ms),
            "datasource": compiled.datasource,
            "difference": text,
            "sql": answer.query.sql,
            "parameters": [repr(one) for one in answer.query.parameters],
            "principal": answer.query.principal,
            "engineSql": compiled.sql,
            "engineParameters": [repr(one) for one in compiled.parameters],
            "revision": answer.tables.revision,
            "files": [one.path for one in files[:_FILES_SHOWN_MAX]],
            "fileCount": len(files),
        }
        _write(folder / _STATEMENT, json.dumps(record, indent=2, ensure_ascii=True).encode())
        for name, rows in (("fast.arrow", answer.rows), ("spark.arrow", slow)):
            if rows is not None:
                _write(folder / name, _content(rows))
        for old in sorted(one for one in self._path.iterdir() if one.is_dir())[:-KEPT_MAX]:
            shutil.rmtree(old)
        return str(folder)


def _content(rows: pa.Table) -> pa.Buffer:
    """Return the first rows as an Arrow file, as many as `ANSWER_BYTES_MAX` holds."""
    if rows.nbytes > ANSWER_BYTES_MAX:
        rows = rows.slice(0, rows.num_rows * ANSWER_BYTES_MAX // rows.nbytes)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    return sink.getvalue()


def _write(path: Path, content: bytes | pa.Buffer) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
