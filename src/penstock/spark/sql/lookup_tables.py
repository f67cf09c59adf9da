"""Lookups of one statement: their versions, and how Spark gets their rows.

Owns the choice of the versions, which is made once, so that each part of a statement sees the same
rows. A lookup in FROM is a view with its rows. LOOKUP reads a map that is written into the
statement as one text, because Spark finds keys of a constant map by their hash, and compares a key
with each one of any other map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import orjson
import pyarrow as pa

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.similar_names import most_similar
from penstock.core.sql.lookup_calls import (
    LOOKUP_SCHEMA,
    MAP_COLUMN,
    LookupRead,
    written_call,
)
from penstock.indexing.engine import EngineFailure
from penstock.spark.connect.spark_sessions import message_of
from penstock.spark.ddl import ddl, quoted
from penstock.spark.sql.answer_files import AnswerFolder, delete_answer
from penstock.spark.sql.metadata_rows import INLINE_BYTES_MAX, drop_view, local_rows
from penstock.spark.tables.table_files import Columns
from penstock.spark.views import hidden_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.indexing.specs.lookup_spec import LookupSpec
    from penstock.storage.lookup_rows import LookupTable

MAP_BYTES_MAX: Final = 2 << 20
"""Size of the maps of one statement as text, about 50,000 short entries; Spark keeps the plans of
its last statements."""
_SIMILAR_MIN: Final = 0.6
_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.float64(): "double",
}
# Codes of Spark's errors about types, before and while a query runs.
_TYPE_ERRORS: Final = ("DATATYPE_MISMATCH", "CAST_INVALID_INPUT")
_SPEC_TYPES: Final = {"string": "string", "long": "bigint", "double": "double"}


class LookupSource(Protocol):
    """The lookups that one principal may read. For it, others do not exist."""

    def names(self) -> Sequence[str]:
        """Return the names of all, in order.

        Raises:
            Unavailable: The metadata does not answer.
        """
        ...

    def current(self, name: str) -> LookupTable | None:
        """Return the current version of one, whose name may differ in case; None: there is none.

        Raises:
            CorruptData: The stored rows are damaged.
            Unavailable: The metadata does not answer.
        """
        ...

    def described(self) -> Iterator[tuple[str, Columns]]:
        """Yield the names and columns of all, in order, without reading rows.

        Raises:
            Unavailable: The metadata does not answer.
        """
        ...


class NoLookups:
    """`LookupSource` where lookups cannot be read."""

    def names(self) -> Sequence[str]:
        """Return no names."""
        return ()

    def current(self, name: str) -> LookupTable | None:
        """Refuse."""
        raise Unavailable(
            f"the lookup {name:.80} cannot be read here: send the query to the router of an"
            " installation"
        )

    def described(self) -> Iterator[tuple[str, Columns]]:
        """Yield nothing."""
        return iter(())


def lookup_columns(rows: pa.Schema) -> Columns:
    """Return the columns of a lookup with the types of Spark, the key first."""
    return tuple((field.name, _TYPES[field.type]) for field in rows)


def declared_columns(spec: LookupSpec) -> Columns:
    """Return the columns that the rows of a spec have, with the types of Spark, the key first."""
    others = ((one.name, _SPEC_TYPES[one.type]) for one in spec.columns)
    return ((spec.key, "string"), *others)


@dataclass(frozen=True, slots=True)
class StatementLookups:
    """The lookups that a statement reads, each in one version.

    Attributes:
        reads: The lookups and columns that it reads.
        tables: The versions by their names in lower case.
    """

    reads: tuple[LookupRead, ...] = ()
    tables: Mapping[str, LookupTable] = field(default_factory=dict)

    @classmethod
    def of(cls, reads: tuple[LookupRead, ...], source: LookupSource) -> StatementLookups:
        """Choose the versions that a statement reads.

        Raises:
            InvalidRequest: A lookup or a column does not exist for the principal.
            CorruptData: The stored rows are damaged.
            Unavailable: The metadata does not answer.
        """
        tables: dict[str, LookupTable] = {}
        for read in reads:
            if read.name in tables:
                continue
            found = source.current(read.name)
            if found is None:
                near = most_similar(read.name, source.names(), resemblance=_SIMILAR_MIN)
                guess = "" if near is None else f"did you mean {near}? "
                raise InvalidRequest(
                    f"there is no lookup {read.name:.80} that you may read, {read.place}: {guess}"
                    "penstock lookup list shows all"
                )
            tables[read.name] = found
        found_lookups = cls(reads, tables)
        for read in reads:
            if read.is_map:
                found_lookups._column(read)
        return found_lookups

    def empty_tables(self) -> dict[str, str]:
        """Return SQL of tables with the same columns and no values, by their names for Spark."""
        found = {}
        for read in self.reads:
            columns = lookup_columns(self.tables[read.name].rows.schema)
            if read.is_map:
                columns = ((MAP_COLUMN, f"MAP<STRING, {dict(columns)[self._column(read)]}>"),)
            shown = (f"CAST(NULL AS {type_}) AS {quoted(name)}" for name, type_ in columns)
            found[read.view] = " ".join(("SELECT", ", ".join(shown), "FROM range(1)"))
        return found

    def maps(self, *, is_shown: bool = False) -> dict[str, str]:
        """Return SQL of the tables of one row with the maps that LOOKUP reads.

        Args:
            is_shown: The text is part of an explanation: the maps have no entries.

        Raises:
            InvalidRequest: The maps are larger than those of one statement may be.
        """
        found = {}
        size = 0
        for read in self.reads:
            if not read.is_map:
                continue
            table, column = self.tables[read.name], self._column(read)
            type_ = dict(lookup_columns(table.rows.schema))[column]
            text = "{}" if is_shown else _map_text(table.rows, column)
            size += len(text)
            if size > MAP_BYTES_MAX:
                raise InvalidRequest(
                    f"LOOKUP reads maps of more than {MAP_BYTES_MAX >> 20} MiB, {read.place}: join"
                    f" {LOOKUP_SCHEMA}.{table.name} instead, on its column {table.key}"
                )
            value = f"from_json('{text}', 'MAP<STRING, {type_}>')"
            found[read.view] = f"SELECT {value} AS {quoted(MAP_COLUMN)}"
        return found

    @contextmanager
    def views(
        self, spark: SparkSession, folder: AnswerFolder | None
    ) -> Iterator[Mapping[str, str]]:
        """Provide the names of views with the rows of lookups in FROM, by their names for Spark.

        Args:
            spark: The session of the statement.
            folder: The folder of large answers, for rows that do not go with the plan.

        Raises:
            EngineFailure: Spark does not share the folder.
            AnswersFull: The files of other answers leave no room.
            Unavailable: The folder cannot be written.
        """
        # Imported here, like all of PySpark: see `connect.spark_sessions`.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        hidden: dict[str, str] = {}
        with ExitStack() as stack:
            for read in self.reads:
                if read.is_map:
                    continue
                table, name = self.tables[read.name], hidden_name()
                try:
                    frame = _frame(spark, table, folder, stack)
                    frame.createOrReplaceTempView(quoted(name))
                except PySparkException as error:  # narrow: translates
                    if "PATH_NOT_FOUND" not in message_of(error):
                        raise
                    raise EngineFailure(
                        f"the lookup {table.name} has more than {INLINE_BYTES_MAX >> 20} MiB of"
                        " rows, which go through a file, and Spark does not see the data folder:"
                        " let both use the same one"
                    ) from error
                stack.callback(drop_view, spark, name)
                hidden[read.view] = name
            yield hidden

    def hint(self, query: str, error: str) -> str:
        """Return which types replacements in LOOKUP must have, if one may be why Spark refuses.

        Spark casts a text to the type of a number beside it, or reports types of an expression that
        the user did not write.

        Args:
            query: The text of the query for Spark.
            error: Spark's error.
        """
        if not any(code in error for code in _TYPE_ERRORS):
            return ""
        types: dict[str, str] = {}
        for read in self.reads:
            call, _, _ = written_call(read, ("", "")).partition(", CAST(")
            if read.is_map and f"coalesce({call}" in query:
                table, column = self.tables[read.name], self._column(read)
                type_ = dict(lookup_columns(table.rows.schema))[column]
                types[f"{table.name}.{column}"] = type_
        if not types:
            return ""
        shown = ", ".join(f"{name} is {type_}" for name, type_ in types.items())
        return f"the third argument of LOOKUP must have the type of the column: {shown}"

    def _column(self, read: LookupRead) -> str:
        """Return the name of the column that LOOKUP reads.

        Raises:
            InvalidRequest: It does not exist.
        """
        table = self.tables[read.name]
        if not read.column:
            return table.values[0]
        found = next((one for one in table.values if one.lower() == read.column), None)
        if found is None:
            raise InvalidRequest(
                f"the lookup {table.name} has no column {read.column:.80}, {read.place}: its"
                f" columns are {', '.join(table.values)}"
            )
        return found


def _frame(
    spark: SparkSession, table: LookupTable, folder: AnswerFolder | None, stack: ExitStack
) -> DataFrame:
    if folder is None or table.rows.nbytes <= INLINE_BYTES_MAX:
        return local_rows(spark, table.rows)
    import pyarrow.parquet as pq  # noqa: PLC0415 - 9 MB that only processes with lookups need

    own = folder.new_answer()
    stack.callback(delete_answer, own)
    with folder.write_errors():
        pq.write_table(table.rows, own / "rows", compression="zstd")
    folder.check_room(own)
    return spark.read.schema(ddl(lookup_columns(table.rows.schema))).parquet(str(own / "rows"))


def _map_text(rows: pa.Table, column: str) -> str:
    """Return a map as JSON within a text of Spark SQL.

    Spark replaces `${…}` anywhere in a statement, and backslashes in a text.
    """
    keys, values = rows.column(0).to_pylist(), rows.column(column).to_pylist()
    text = orjson.dumps(dict(zip(keys, values, strict=True))).decode()
    text = text.replace("\\", "\\\\").replace("'", "\\\\u0027")
    return text.replace("$", "\\\\u0024").replace("?", "\\\\u003f")
