"""Rows of a query over datasources and external tables, as the input of a batch task.

Owns the allowed queries: one statement that only reads, and only these tables; and the types with
which the columns of its result are read. Each query has its own Spark session, so that its tables
stay as they were when it was first planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from penstock.core.errors import InvalidRequest, counted
from penstock.core.sql.druid_hints import in_spark
from penstock.indexing.engine import EngineFailure
from penstock.indexing.specs import TIME_COLUMN
from penstock.indexing.specs.text.clauses import overwrite_clause
from penstock.spark.batch.input.dimension_discovery import Found, FoundType
from penstock.spark.batch.stored_tables import StoredTable
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import EXACT_CONF, SparkRefusal, SparkSessions
from penstock.spark.pipeline import KEEP_COUNTING
from penstock.spark.sql.case_tables import CaseTables
from penstock.spark.sql.query_statement import read_statement
from penstock.spark.sql.service import SQL_CONF
from penstock.spark.sql_guard import (
    OUTLINE_CONF,
    check_understood,
    constants_kept,
    error_without_places,
    relation,
)
from penstock.spark.tables import TableSource
from penstock.spark.tables.table_columns import KnownColumns
from penstock.spark.tables.table_files import TableFile
from penstock.spark.views import OutlineViews, Views, define_outline_view, hidden_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.core.intervals import Interval
    from penstock.indexing.batch.batch_engine import SqlInput
    from penstock.spark.tables.table_files import Tables

# Spark's type names; values of other types are stored as Spark's text.
_TYPES: Final[dict[str, FoundType]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "boolean"), "long"),
    **dict.fromkeys(("float", "double", "decimal"), "double"),
    **dict.fromkeys(("array", "map", "struct"), "json"),
    "void": "null",
}


class QueryRows:
    """Provides the rows of queries; thread-safe."""

    def __init__(self, sessions: SparkSessions, tables: TableSource) -> None:
        self._sessions = sessions
        self._tables = tables

    @contextlib.contextmanager
    def opened(
        self, asked: SqlInput, externs: Sequence[StoredTable], running: RunningCall
    ) -> Iterator[tuple[SparkSession, DataFrame]]:
        """Provide the rows and their Spark session for a block.

        Unpublished rows of running tasks are not read, because those tasks will publish them.

        Args:
            asked: The query.
            externs: Its external tables, already read.
            running: Its cancellable work.

        Raises:
            InvalidRequest: The statement is not a query, or names something that does not exist.
            EngineUnavailable: Spark was lost.
            EngineFailure: Spark refuses the query, or it was cancelled.
        """
        statement = read_statement(asked.query)
        query = statement.query
        if not statement.is_query:
            raise InvalidRequest("the statement returns no rows: begin with SELECT or WITH")
        files = _published(self._tables.tables()) | _given(asked)
        names = [name for name in files if name.lower() in statement.tables]
        case_variants = CaseTables(files, names, KnownColumns())
        conf = {**SQL_CONF, **OUTLINE_CONF, KEEP_COUNTING[0]: KEEP_COUNTING[1]}
        sessions = self._sessions.with_conf(conf)
        try:
            if case_variants:
                # The query may name datasources with case variants in other places, but read only
                # others.
                others = case_variants.without(files)
                plain = [one for one in names if one in others]
                if self._understands(sessions, query, others, plain, externs, running):
                    files, names = others, plain
                else:
                    case_variants.are_read = True
                    sessions.close()
                    sessions = self._sessions.with_conf({**conf, **EXACT_CONF})
            with sessions.use() as spark, running.tagged(spark):
                _understand(spark, query, files, names, externs)
                views = Views(spark)
                views.update(files, names)
                hidden = views.hidden(names)
                hidden |= {table.name: table.define(spark) for table in externs}
                yield spark, relation(spark, query, (), hidden)
        except SparkRefusal as error:
            # The query is a part of the user's statement, and does not have its lines and columns.
            shown = error_without_places(str(error), query)
            shown = case_variants.explained(shown) if case_variants.are_read else shown
            hint = in_spark(query, shown)
            if not hint:
                raise SparkRefusal(shown) from error
            # After the first line, because task lists and commands show only the first line of an
            # error.
            first, _, rest = shown.partition("\n")
            raise InvalidRequest(f"{first}. {hint}\n{rest}".rstrip()) from error
        finally:
            running.end_late_work()
            sessions.close()

    def _understands(
        self,
        sessions: SparkSessions,
        query: str,
        files: Mapping[str, tuple[TableFile, ...]],
        names: Sequence[str],
        externs: Sequence[StoredTable],
        running: RunningCall,
    ) -> bool:
        """Return whether a query reads only these datasources; other errors are raised."""
        try:
            with sessions.use() as spark, running.tagged(spark):
                _understand(spark, query, files, names, externs)
        except SparkRefusal as error:
            if "TABLE_OR_VIEW_NOT_FOUND" not in str(error):
                raise
            return False
        return True


def _understand(
    spark: SparkSession,
    query: str,
    files: Mapping[str, tuple[TableFile, ...]],
    names: Sequence[str],
    externs: Sequence[StoredTable],
) -> None:
    """Check how Spark resolves a query."""
    OutlineViews(spark).update(files, names)
    for table in externs:
        define_outline_view(spark, table.name, table.columns)
    with constants_kept(spark):
        check_understood(spark, query)


def _published(tables: Tables) -> dict[str, tuple[TableFile, ...]]:
    return {
        name: tuple(file for file in files if not file.announced)
        for name, files in tables.files.items()
    }


def _given(asked: SqlInput) -> dict[str, tuple[TableFile, ...]]:
    return {
        name: tuple(
            TableFile(
                file.path,
                file.columns,
                file.interval,
                None if interval == file.interval else interval,
                size_bytes=file.bytes,
            )
            for file, interval in rows.files
        )
        for name, rows in asked.given
    }


def columns_found(rows: DataFrame) -> Found:
    """Return the columns of a query's result, in its order, with the types of dimensions.

    Raises:
        InvalidRequest: A name occurs twice, or a column has binary values.
    """
    found: Found = {}
    for field in rows.schema.fields:
        type_ = field.dataType.simpleString().partition("(")[0].partition("<")[0]
        if field.name in found:
            raise InvalidRequest(
                f"the query returns two columns {field.name!r}: rename one of them with AS"
            )
        if type_ == "binary":
            raise InvalidRequest(
                f"the query's column {field.name!r} is binary, which dimensions cannot store:"
                " leave it out, or convert it to text or a number, such as hex(…) or"
                " hll_sketch_estimate(…)"
            )
        found[field.name] = _TYPES.get(type_, "string")
    return found


def with_exact_names(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """Return the rows in the same session, in which names are case-sensitive from now on.

    Spark has resolved the query already, so its meaning does not change.
    """
    name = hidden_name()
    rows.createOrReplaceTempView(name)
    for key, value in EXACT_CONF.items():
        spark.conf.set(key, value)
    return spark.table(name)


def unseen(rows: DataFrame) -> tuple[int, int]:
    """Return the numbers of rows without and with a time, for rows that were not counted.

    Spark reads nothing if it knows beforehand that no row will be kept.
    """
    every, timed = rows.agg(sf.count("*"), sf.count(sf.col(TIME_COLUMN))).collect()[0]
    return every - timed, timed


def check_times(without: int, outside: int, intervals: Sequence[Interval]) -> None:
    """Refuse rows that a statement would lose, because it replaces the interval.

    Args:
        without: Rows without a time.
        outside: Rows outside of the intervals.
        intervals: The intervals that the statement overwrites.

    Raises:
        EngineFailure: There are such rows.
    """
    if without:
        raise EngineFailure(
            f"the query returns {counted(without, 'row')} without __time: set it with coalesce,"
            " or leave them out with WHERE"
        )
    if outside:
        raise EngineFailure(
            f"the query returns {counted(outside, 'row')} outside of {overwrite_clause(intervals)}:"
            " widen it, or add the same condition to the query"
        )


def as_read(rows: DataFrame, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """Return the columns that the schema reads; columns that the query lacks are null.

    Raises:
        InvalidRequest: The query has no time column.
    """
    # Imported here, like everything that needs a running PySpark: see `connect.spark_sessions`.
    from pyspark.sql import functions as sf  # noqa: PLC0415

    from penstock.spark.expressions import column  # noqa: PLC0415

    given = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    if TIME_COLUMN not in given:
        raise InvalidRequest("the query returns no column __time: add one, such as … AS __time")
    if _TYPES.get(given[TIME_COLUMN].partition("(")[0]) in {"long", "double"}:
        millis = column(TIME_COLUMN).cast("bigint")  # as in Druid; to Spark they are seconds
    else:
        millis = sf.unix_millis(column(TIME_COLUMN).cast("timestamp"))
    time = sf.timestamp_millis(millis)
    made = []
    for name, type_ in columns:
        if name == TIME_COLUMN:
            continue
        value = column(name) if name in given else sf.lit(None)
        if given.get(name, "").startswith(("array<", "map<", "struct<")):
            value = sf.to_json(value)  # a cast would return Spark's display form
        made.append(value.cast(type_).alias(name))
    return rows.select(time.alias(TIME_COLUMN), *made)
