"""Fetches the rows of a query from Spark: directly if they are few, otherwise through files.

Spark Connect has no back-pressure. The JVM keeps each partition of an answer as a whole, several
times over, and queues what its client has not read. So Penstock requests at most `ROWS_AT_ONCE`
rows directly, of at most `ROW_BYTES_AT_ONCE` each; a longer row ends the request. A larger answer
is computed a second time, and Spark's Python workers write it to files (`answer_files`) while it is
computed: neither the JVM nor a worker holds more than a batch, and no core of Spark waits for a
client.

Owns the decision and both methods. Does not own the files, nor the allowed queries.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from penstock.core.errors import InvalidRequest
from penstock.spark.connect.spark_sessions import is_of_closed_session, message_of
from penstock.spark.pieces import REPORT_SCHEMA, limited, reports_of
from penstock.spark.sql.answer_files import (
    UNSHARED,
    AnswerFolder,
    SpilledRows,
    SpillReport,
    SpillTarget,
    check_written,
    delete_answer,
    write_spill,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

logger = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 2_000
ROW_BYTES_AT_ONCE: Final = 16 << 10
"""Size of the values of one row that have no fixed width, such as texts."""
VALUES_AT_ONCE: Final = 4_000_000
"""Number of values: rows of very many columns are fewer."""

KEPT_BYTES_MAX: Final = 1 << 20
"""Size of an answer that is kept in memory while its client reads it."""

_STATEMENTS_MAX: Final = 1_000

# Text of the error for a row that is too long to be fetched at once. If a user's query raises the
# same text, its answer goes through files.
_LONG_ROW: Final = "penstock: a row is too long to be fetched at once"
# The types whose values may have any size.
_LONG_TYPES: Final = frozenset(
    {"string", "char", "varchar", "binary", "variant", "array", "map", "struct"}
)
_TEXT_TYPES: Final = frozenset({"string", "char", "varchar", "binary"})

# Errors of a remote Spark worker whose Python cannot run `write_spill`.
_NO_PENSTOCK: Final = ("No module named 'penstock", "[PYTHON_VERSION_MISMATCH]")

RowSource: TypeAlias = "pa.Table | SpilledRows"


@dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """The rows of an answer. `rows` is None if they are too many to be fetched at once."""

    rows: RowSource | None
    truncated: bool = False


class LargeStatements:
    """Statements whose last answer was large: their answers go through files from the start.

    Any thread may use it. A mutex is held for the time of a look-up.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._known: dict[bytes, None] = {}  # digests, the oldest first

    def __contains__(self, statement: object) -> bool:
        with self._mutex:
            return _digest(statement) in self._known

    def note(self, statement: object, *, is_large: bool) -> None:
        """Record how large the answer of a statement, with its parameters, was."""
        digest = _digest(statement)
        with self._mutex:
            self._known.pop(digest, None)
            if is_large:
                self._known[digest] = None
                if len(self._known) > _STATEMENTS_MAX:
                    del self._known[next(iter(self._known))]


def _digest(statement: object) -> bytes:
    return hashlib.sha256(repr(statement).encode(errors="surrogatepass")).digest()


class Fetcher:
    """Fetches the rows of one query.

    Args:
        fields: The columns of the answer, as Spark reports them.
        row_limit: Maximum number of rows.
        folder: Folder of large answers' files; None: every answer is fetched at once.
        is_large: Whether there are known to be too many rows to be fetched at once.
    """

    def __init__(
        self,
        fields: Sequence[StructField],
        row_limit: int,
        folder: AnswerFolder | None,
        *,
        is_large: bool,
    ) -> None:
        self._fields = fields
        self._limit = row_limit
        self._folder = folder
        self._is_large = is_large

    def fetch(self, rows: DataFrame) -> FetchedAnswer:
        """Fetch rows with the types of the fields.

        Raises:
            InvalidRequest: A column has a type that cannot be sent.
            EngineFailure: The answer is larger than its files may be.
            AnswersFull: The files of other answers leave no room.
            Unavailable: The folder cannot be written.
        """
        if self._folder is None:
            return self._whole(rows)
        if self._is_large:
            return self._spilled(rows, self._folder)
        return self._at_once(rows)

    def executed(self, rows: DataFrame) -> DataFrame:
        """Fetch rows as for a small answer, and return what was run, with its measurements.

        Raises:
            InvalidRequest: A row is too long, or a column has a type that cannot be sent.
        """
        # Imported here, like all of PySpark: see `connect.spark_sessions`.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        most = min(self._limit, _rows_at_once(len(self._fields)))
        run = _guarded(rows, self._fields).limit(most + 1)
        try:
            self._table(run)
        except PySparkException as error:  # narrow: translates
            if _LONG_ROW in message_of(error):
                raise InvalidRequest(
                    f"a row has more than {ROW_BYTES_AT_ONCE >> 10} KiB, which cannot be measured:"
                    " select fewer columns"
                ) from error
            raise
        return run

    def _whole(self, rows: DataFrame) -> FetchedAnswer:
        table = self._table(rows.limit(self._limit + 1))
        return self._cut(table)

    def _at_once(self, rows: DataFrame) -> FetchedAnswer:
        # Imported here, like all of PySpark: see `connect.spark_sessions`.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        most = min(self._limit, _rows_at_once(len(self._fields)))
        try:
            table = self._table(_guarded(rows, self._fields).limit(most + 1))
        except PySparkException as error:  # narrow: translates
            if _LONG_ROW in message_of(error):
                return FetchedAnswer(None)
            raise
        if table.num_rows > most and most < self._limit:
            return FetchedAnswer(None)
        return self._cut(table.select(range(len(self._fields))))

    def _spilled(self, rows: DataFrame, folder: AnswerFolder) -> FetchedAnswer:
        schema = self._schema()
        own = folder.new_answer()
        try:
            reports = self._written(rows, SpillTarget(str(own), str(folder.root), self._limit + 1))
            if _is_shared(reports):
                count = sum(report.rows for report in reports)
                files = [report.file for report in reports if report.rows]
                longest = max((report.row_bytes_max for report in reports), default=0)
                found = SpilledRows(schema, own, files, min(count, self._limit), longest)
                return FetchedAnswer(found, truncated=count > self._limit)
        except BaseException:
            delete_answer(own)
            raise
        delete_answer(own)
        logger.warning(
            "Spark's Python workers do not see %s or do not have this release of Penstock, so"
            " that large answers pass through the memory of Spark and of this process: let both"
            " use the same data folder, and install Penstock for Spark's Python",
            folder.root,
        )
        return self._whole(rows)

    def _written(self, rows: DataFrame, target: SpillTarget) -> list[SpillReport]:
        # Imported here, like all of PySpark: see `connect.spark_sessions`.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        # Two columns may share a name, but not in a batch.
        names = [f"c{at}" for at in range(len(self._fields))]
        spilled = rows.toDF(*names).mapInArrow(
            limited(functools.partial(write_spill, target)), REPORT_SCHEMA
        )
        try:
            return [SpillReport(**json.loads(text)) for text in reports_of(spilled)]
        except PySparkException as error:  # narrow: translates
            if any(text in message_of(error) for text in _NO_PENSTOCK):
                return [SpillReport("", 0, UNSHARED)]
            raise

    def _schema(self) -> pa.Schema:
        # Imported here, like all of PySpark: see `connect.spark_sessions`.
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415
        from pyspark.sql.types import StructType  # noqa: PLC0415

        try:
            return to_arrow_schema(
                StructType(list(self._fields)),
                error_on_duplicated_field_names_in_struct=True,
                timezone="UTC",
            )
        except ValueError as error:
            raise self._unsent(error) from error

    def _table(self, rows: DataFrame) -> pa.Table:
        try:
            return rows.toArrow()
        except ValueError as error:
            if is_of_closed_session(error):  # Spark was lost; the lender of the session translates
                raise
            raise self._unsent(error) from error

    def _unsent(self, error: ValueError) -> InvalidRequest:
        # For example, the keys of an empty map have no type.
        types = ", ".join(field.dataType.simpleString() for field in self._fields)
        return InvalidRequest(
            f"a column of the result has a type that cannot be sent ({types}): cast it to another"
            f" one: {error}"
        )

    def _cut(self, table: pa.Table) -> FetchedAnswer:
        named = table.rename_columns([field.name for field in self._fields])
        rows, truncated = named.slice(0, self._limit), named.num_rows > self._limit
        if self._folder is None or rows.nbytes <= KEPT_BYTES_MAX:
            return FetchedAnswer(rows, truncated)
        return FetchedAnswer(self._folder.write(rows), truncated)


def fits_at_once(rows: RowSource) -> bool:
    """Return whether an answer that was written to files could have been fetched at once."""
    if isinstance(rows, SpilledRows) and rows.row_bytes_max > ROW_BYTES_AT_ONCE:
        return False
    return rows.num_rows <= _rows_at_once(len(rows.schema))


def _rows_at_once(columns: int) -> int:
    return min(ROWS_AT_ONCE, VALUES_AT_ONCE // max(1, columns))


def _guarded(rows: DataFrame, fields: Sequence[StructField]) -> DataFrame:
    """Return rows with a guard column that fails for a row that is too long.

    Rows that cannot be too long are returned unchanged. A column does not change how Spark plans or
    moves the rows; a filter above the limit would cost small answers another stage.
    """
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    # Two columns may share a name.
    names = [f"c{at}" for at in range(len(fields))]
    sizes = [
        _size(sf.col(name), kind)
        for name, kind in zip(names, (one.dataType.typeName() for one in fields), strict=True)
        if kind in _LONG_TYPES
    ]
    if not sizes:
        return rows
    while len(sizes) > 1:  # a balanced sum, because Spark and its client are recursive
        pairs = zip_longest(sizes[::2], sizes[1::2])
        sizes = [one if other is None else one + other for one, other in pairs]
    is_short = sizes[0] <= sf.lit(ROW_BYTES_AT_ONCE)
    return rows.toDF(*names).select("*", sf.assert_true(is_short, _LONG_ROW))


def _size(column: Column, kind: str) -> Column:
    """Return the size of a value in bytes; for a nested value, the approximate size of its text."""
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    measured = sf.octet_length(column if kind in _TEXT_TYPES else column.cast("string"))
    return sf.coalesce(measured.cast("bigint"), sf.lit(0))


def _is_shared(reports: Sequence[SpillReport]) -> bool:
    """Return whether the workers could write; raise if they had to stop."""
    problem = next((report.problem for report in reports if report.problem), "")
    check_written(problem)
    return problem != UNSHARED
