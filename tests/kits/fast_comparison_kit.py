"""Comparison of the answers of the fast path with those of Spark, over the same files.

`penstock.fastpath.comparison` owns the meaning of equal. The embedded engine runs in this process,
over the relations that the router would send. Spark runs the text that the front writes. Most of
the time of a small statement is that of a request and of a job. Therefore statements are parts of
one UNION ALL: each of their rows has the number of the statement, the names and types of its
columns, and its values as an array of integers, one of fractions and one of texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession as ConnectSession

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath import newest_rows
from penstock.fastpath.comparison import AnswerShape, answer_shape, difference
from penstock.fastpath.compiled_query import CompiledQuery, NotCompiled
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.engine_pool import EngineRefusal, typed_rows
from penstock.fastpath.engine_process import Engine
from penstock.fastpath.engine_protocol import EngineQuery, EngineSettings
from penstock.fastpath.snapshot_relations import SnapshotRelations, answer_schema
from penstock.spark.ddl import quoted
from penstock.spark.sql.service import QUERY_CONF
from penstock.spark.sql_guard import relation
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.table_files import Columns
from penstock.spark.views import table
from tests.kits.fast_rows_kit import DATASOURCE, RowSet, write_rows
from tests.kits.fast_statements_kit import Statement, statement_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as ClassicOrConnected
    from pyspark.sql import SparkSession

DATA_EVERY: Final = 250
"""Number of statements about the same rows."""
ATTEMPTS_MAX: Final = 20
"""Statements of a seed that are made until both engines answer one."""
BATCH: Final = 25
"""Statements that Spark answers at once."""
ORDERS: Final = 5
"""Orders of the rows in which Spark repeats a statement before it counts as one that differs."""
DECIDED_BY_ORDER: Final = "the order of the rows decides"

SETTINGS: Final[Mapping[str, str]] = {
    **QUERY_CONF,
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.parquet.filterPushdown": "true",
    # Descriptions of plans, which nobody reads, take a tenth of the time.
    "spark.sql.maxPlanStringLength": "100",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.subexpressionElimination.enabled": "true",
}
WITHOUT_CODE: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.subexpressionElimination.enabled": "false",
}
"""Settings with which Spark answers several times as many: it makes no code for a statement."""
_PUSHES: Final = "spark.sql.parquet.filterPushdown"
_MEMORY_BYTES: Final = 256 << 20
_ROWS_MAX: Final = 1_000_000
# Fewer rows than the files have, so that queries for the newest rows are tried with some of them.
_FIRST_ROWS: Final = 8


@dataclass(frozen=True)
class _Answered:
    """A statement with the answer of the embedded engine."""

    statement: Statement
    text: str
    compiled: CompiledQuery
    shape: AnswerShape
    rows: pa.Table


class Comparison:
    """Both engines over the files of one datasource.

    Args:
        spark: A session of Spark, with `SETTINGS`.
        rows: The datasource. If a number in it is NaN or -0.0, Spark passes no conditions to its
            reader of Parquet, which skips row groups as if NaN were not the largest number, and
            -0.0 not 0.0.
        is_kept: Whether Spark keeps the rows in memory, in one partition, after it read them.
    """

    def __init__(self, spark: SparkSession, rows: RowSet, *, is_kept: bool = False) -> None:
        spark.conf.set(_PUSHES, str(not rows.has_unreal).lower())
        self._spark = spark
        self._rows = rows
        self.columns = union_columns(rows.files)
        folder = str(Path(rows.files[0].path).parent)
        self._engine = Engine(EngineSettings((folder,), _MEMORY_BYTES, _MEMORY_BYTES, 1))
        self._relations = SnapshotRelations()
        self._view = table(spark, rows.files, self.columns)
        self._shown = _kept(spark, self._view) if is_kept else self._view
        self._shown.createOrReplaceTempView(DATASOURCE)

    def close(self) -> None:
        """Free the rows that Spark keeps."""
        self._spark.catalog.dropTempView(DATASOURCE)

    def answered(self, statement: Statement) -> _Answered | str:
        """Return a statement with the answer of the embedded engine, or why there is none."""
        try:
            checked = checked_query(self._rows.renamed(statement.sql))
        except InvalidRequest as error:
            return f"differs: the statement is not one: {error}"
        try:
            compiled = compile_query(checked.root, DATASOURCE, self.columns)
            token, made = self._relations.of(self._read_by(compiled), self._rows.files)
            schema = answer_schema(compiled.columns)
        except NotCompiled as error:
            return f"not compiled: {error.reason}"
        query = EngineQuery(
            *(1, token, compiled.sql, compiled.parameters, _ROWS_MAX, made),
            newest=compiled.newest,
            end_ms=compiled.end_ms,
        )
        with patch.object(newest_rows, "FIRST_ROWS", _FIRST_ROWS):
            answer = self._engine.answer(query)
        if answer.reason:
            return f"the embedded engine raises: {answer.reason}"
        try:
            rows = typed_rows(pa.ipc.open_stream(answer.content).read_all(), schema)
        except EngineRefusal as error:
            return f"differs: {error}"
        shape = answer_shape(checked.root, compiled)
        return _Answered(statement, checked.text, compiled, shape, rows)

    def _read_by(self, compiled: CompiledQuery) -> CompiledQuery:
        """Return a query with all columns, unless it leaves out files: views take their time."""
        if compiled.start_ms is not None or compiled.end_ms is not None:
            return compiled
        return replace(compiled, read=self.columns)

    def outcome(self, statement: Statement) -> str:
        """Compare a statement; return what became of it, or the difference, after `differs: `."""
        found = self.answered(statement)
        return found if isinstance(found, str) else self.compared([found])[0]

    def outcomes(self, statements: Iterable[Statement]) -> list[str]:
        """Compare statements at once; return as `outcome` does for each."""
        found = [self.answered(one) for one in statements]
        answered = [one for one in found if not isinstance(one, str)]
        compared = iter(self.compared(answered) if answered else ())
        return [one if isinstance(one, str) else next(compared) for one in found]

    def compared(self, some: Sequence[_Answered]) -> list[str]:
        """Return `equal` or the difference for each of some statements."""
        try:
            answers = self._answers_of_spark([(one.text, one.compiled) for one in some])
        except PySparkException as error:
            if len(some) > 1:  # which of them?
                half = len(some) // 2
                return self.compared(some[:half]) + self.compared(some[half:])
            return [self._told(some[0], f"Spark raises {str(error)[:300]}")]
        return [
            self._told(one, slow if isinstance(slow, str) else self._difference(one, slow))
            for one, slow in zip(some, answers, strict=True)
        ]

    def is_decided_by_order(self, one: _Answered) -> bool:
        """Return whether Spark's own answer changes with the order in which it reads the rows.

        Sums of fractions that cancel each other out do: what is left of them is the error of the
        additions. No answer is the right one then.
        """
        some = [(one.text, one.compiled)]
        before = self._answers_of_spark(some)[0]
        columns = [functions.col(quoted(name)) for name, _ in self.columns]
        try:
            for order in range(ORDERS):
                place = functions.xxhash64(functions.lit(order), *columns)
                other = self._view.repartition(1).sortWithinPartitions(place)
                _kept(self._spark, other).createOrReplaceTempView(DATASOURCE)
                after = self._answers_of_spark(some)[0]
                if isinstance(before, str) or isinstance(after, str):
                    return False
                if difference(one.shape, before, after, lambda: self._every(one)):
                    return True
        except PySparkException:
            return False
        else:
            return False
        finally:
            self._shown.createOrReplaceTempView(DATASOURCE)

    def _told(self, one: _Answered, found: str) -> str:
        sql = f"{one.compiled.sql} {one.compiled.parameters}"
        return f"differs: {found}\n  {one.text}\n  {sql}" if found else "equal"

    def _difference(self, one: _Answered, slow: pa.Table) -> str:
        return difference(one.shape, one.rows, slow, lambda: self._every(one))

    def _every(self, one: _Answered) -> pa.Table:
        """Return Spark's rows of a statement without its limit."""
        text = checked_query(self._rows.renamed(one.statement.unlimited)).text
        found = self._answers_of_spark([(text, one.compiled)])[0]
        assert isinstance(found, pa.Table), found
        return found

    def _answers_of_spark(self, some: Sequence[tuple[str, CompiledQuery]]) -> list[pa.Table | str]:
        """Return the rows of each statement; a text if their names or types differ."""
        rows = self._rows_of_spark(
            _rows_sql(number, text, compiled.columns)
            for number, (text, compiled) in enumerate(some)
        )
        answers: list[pa.Table | str] = []
        types = dict(zip(rows["q"].to_pylist(), rows["t"].to_pylist(), strict=True))
        unknown = [
            _types_sql(number, text)
            for number, (text, _) in enumerate(some)
            if types.get(number) is None  # no rows, or columns with equal names
        ]
        if unknown:
            found = self._rows_of_spark(unknown)
            types |= dict(zip(found["q"].to_pylist(), found["t"].to_pylist(), strict=True))
        for number, (_, compiled) in enumerate(some):
            wanted = ",".join(f"{name}:{type_}" for name, type_ in compiled.columns)
            if types[number] == f"struct<{wanted}>":
                own = rows.filter(pc.equal(rows["q"], number))
                answers.append(_table_of(own.combine_chunks(), compiled.columns))
            else:
                answers.append(f"names and types: {wanted} instead of {types[number]}")
        return answers

    def _rows_of_spark(self, parts: Iterable[str]) -> pa.Table:
        sql = f"SELECT /*+ COALESCE(1) */ * FROM ({' UNION ALL '.join(parts)})"
        rows = relation(self._spark, sql)
        assert isinstance(rows, DataFrame)
        found, _ = rows._to_table()  # `toArrow` asks for the schema before
        return found


def _kept(spark: SparkSession, rows: ClassicOrConnected) -> ClassicOrConnected:
    """Return rows that Spark keeps in memory, in one partition.

    Not by `cache`, whose columns are read by code that is made for each choice of columns.
    """
    sessions = ConnectSession._active_session  # of this thread, for PySpark's answer
    before = getattr(sessions, "session", None)
    sessions.session = spark
    try:
        return rows.coalesce(1).localCheckpoint()
    finally:
        sessions.session = before


# The array that has the values of a type, the expression of a value, and the type of the array.
_WHOLE: Final = ("w", "bigint")
_REAL: Final = ("d", "double")
_TEXT: Final = ("b", "binary")
_KINDS: Final = {
    "boolean": (_WHOLE, "CAST(CAST({} AS INT) AS BIGINT)"),
    "int": (_WHOLE, "CAST({} AS BIGINT)"),
    "bigint": (_WHOLE, "{}"),
    "timestamp": (_WHOLE, "unix_micros({})"),
    "date": (_WHOLE, "CAST(unix_date({}) AS BIGINT)"),
    "float": (_REAL, "CAST({} AS DOUBLE)"),
    "double": (_REAL, "{}"),
    "string": (_TEXT, "CAST({} AS BINARY)"),
}
_OTHER: Final = (_TEXT, "CAST(CAST({} AS STRING) AS BINARY)")


def _types_sql(number: int, text: str) -> str:
    """Return the part of a UNION ALL that has the names and types of a statement."""
    return f"SELECT {number} AS q, typeof(any_value(struct(*))) AS t FROM ({text})"


def _rows_sql(number: int, text: str, columns: Columns) -> str:
    """Return the part of a UNION ALL that has the rows of a statement."""
    types, names = "typeof(struct(*))", [quoted(name) for name, _ in columns]
    alias = ""
    if len({name.lower() for name in names}) < len(names):
        # Columns with equal names cannot be named.
        names = [f"c{at}" for at in range(len(names))]
        types, alias = "CAST(NULL AS STRING)", f" AS s({', '.join(names)})"
    arrays = []
    for array, type_ in (_WHOLE, _REAL, _TEXT):
        values = [
            _KINDS.get(own, _OTHER)[1].format(name)
            for name, (_, own) in zip(names, columns, strict=True)
            if _KINDS.get(own, _OTHER)[0][0] == array
        ]
        arrays.append(f"CAST(array({', '.join(values)}) AS ARRAY<{type_}>) AS {array}")
    return f"SELECT {number} AS q, {types} AS t, {', '.join(arrays)} FROM ({text}){alias}"


def _table_of(rows: pa.Table, columns: Columns) -> pa.Table:
    """Return the rows of a statement."""
    taken = {array: 0 for array, _ in (_WHOLE, _REAL, _TEXT)}
    widths = Counter(_KINDS.get(type_, _OTHER)[0][0] for _, type_ in columns)
    found = []
    schema = answer_schema(columns)
    for (_, type_), wanted in zip(columns, schema.types, strict=True):
        array = _KINDS.get(type_, _OTHER)[0][0]
        values = pc.list_flatten(rows[array])
        count = rows.num_rows * widths[array]
        places = pa.array(range(taken[array], count, widths[array]), pa.int64())
        taken[array] += 1
        own = values.take(places)
        if pa.types.is_date(wanted):
            own = own.cast(pa.int32())
        elif array == _TEXT[0]:
            own = own.cast(pa.string(), safe=False)  # it may not be UTF-8
        found.append(own.cast(wanted))
    return pa.Table.from_arrays(found, schema=schema)


def shrunk(comparison: Comparison, statement: Statement) -> Statement:
    """Return a smaller statement that differs, too."""
    for one in statement.smaller():
        if comparison.outcome(one).startswith("differs"):
            return shrunk(comparison, one)
    return statement


def compare_seeds(
    spark: SparkSession, folder: Path, seeds: Iterable[int], *, is_kept: bool = False
) -> tuple[list[str], Counter[str]]:
    """Compare a statement of each seed; return what differs, and what became of how many.

    Args:
        spark: A session of Spark, with `SETTINGS`.
        folder: A folder for files.
        seeds: The seeds.
        is_kept: As in `Comparison`.
    """
    counts: Counter[str] = Counter()
    failures: list[str] = []
    of_rows: dict[int, list[int]] = {}
    for seed in seeds:
        of_rows.setdefault(seed // DATA_EVERY, []).append(seed)
    for number, some in of_rows.items():
        comparison = Comparison(spark, write_rows(number, folder), is_kept=is_kept)
        for start in range(0, len(some), BATCH):
            answered = [
                (seed, one)
                for seed in some[start : start + BATCH]
                if (one := _first_answered(comparison, seed, counts, failures)) is not None
            ]
            outcomes = comparison.compared([one for _, one in answered]) if answered else []
            for (seed, one), outcome in zip(answered, outcomes, strict=True):
                if outcome != "equal" and comparison.is_decided_by_order(one):
                    counts[DECIDED_BY_ORDER] += 1
                    continue
                counts[outcome.partition(":")[0]] += 1
                if outcome != "equal":
                    small = shrunk(comparison, one.statement)
                    failures.append(f"seed {seed}: {small.sql}\n  {comparison.outcome(small)}")
        comparison.close()
    return failures, counts


def _first_answered(
    comparison: Comparison, seed: int, counts: Counter[str], failures: list[str]
) -> _Answered | None:
    """Return the first statement of a seed that the embedded engine answers."""
    for attempt in range(ATTEMPTS_MAX):
        statement = statement_of(seed, attempt)
        found = comparison.answered(statement)
        if not isinstance(found, str):
            return found
        counts[found.partition(":")[0] if found.startswith("differs") else found] += 1
        if found.startswith("differs"):
            failures.append(f"seed {seed}: {statement.sql}\n  {found}")
    return None
