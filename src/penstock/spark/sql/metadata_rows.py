"""Rows of metadata tables for one query: collected in batches, and shown to Spark under a name.

Few rows go to Spark with the plan. More go to a Parquet file in the folder of large answers, so
that neither this process nor the JVM holds more than a batch of a million segments. The rows belong
to one query and one principal: the view has a name that cannot be guessed, and ends with the query.

Owns the collection and the views. Does not own which rows there are (`MetadataSource`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.errors import InvalidRequest
from penstock.core.sql.metadata_tables import MetadataTable
from penstock.indexing.engine import EngineFailure
from penstock.spark.connect.spark_sessions import message_of
from penstock.spark.ddl import ddl, quoted
from penstock.spark.sql.answer_files import AnswerFolder, delete_answer
from penstock.spark.views import hidden_name
from penstock.storage.queue.blocks import as_messages

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.core.sql.metadata_reads import MetadataRead

INLINE_BYTES_MAX: Final = 1 << 20
"""Size of the rows that go to Spark with the plan, about 10,000 segments."""
_GROUP_BYTES: Final = 16 << 20
"""Size of the rows that are held in memory for one row group of the file."""
_NO_FOLDER_BYTES_MAX: Final = 64 << 20


class MetadataSource(Protocol):
    """Source of the rows of metadata tables that one principal may see."""

    def collect(self, read: MetadataRead, rows: MetadataRows) -> None:
        """Append the rows that a query needs.

        Raises:
            Forbidden: The principal may not read the table.
            Unavailable: The process that knows the rows does not answer.
        """
        ...


def table_schema(table: MetadataTable) -> pa.Schema:
    """Return the columns of a metadata table in Arrow."""
    return pa.schema(
        [(one.name, pa.int64() if one.is_number else pa.string()) for one in table.columns]
    )


def outlined(reads: Iterable[MetadataRead]) -> dict[str, str]:
    """Return SQL of the outlines of metadata tables, by their names in a query.

    An outline has one row without values. Not a view, which SHOW TABLES would list.
    """
    return {one.table.view: _outline(one.table) for one in reads}


def _outline(table: MetadataTable) -> str:
    columns = (f"CAST(NULL AS {one.spark_type}) AS {quoted(one.name)}" for one in table.columns)
    return " ".join(("SELECT", ", ".join(columns), "FROM range(1)"))


class MetadataRows:
    """The rows of one metadata table, in memory while they are few, then in a file.

    Args:
        read: The table, and the columns that are needed; all others are null.
        folder: The folder of large answers; None: all rows must fit into memory.
    """

    def __init__(self, read: MetadataRead, folder: AnswerFolder | None) -> None:
        self.read = read
        self._schema = table_schema(read.table)
        self._folder = folder
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._own: Path | None = None
        self._writer: pq.ParquetWriter | None = None

    def restart(self) -> None:
        """Forget all rows, because their source begins again."""
        self.close()
        self._batches, self._bytes = [], 0

    def append(self, columns: Mapping[str, Sequence[object]], count: int) -> None:
        """Append rows.

        Args:
            columns: Texts, whole numbers and None, by column; needed columns that are missing are
                null.
            count: Number of rows.

        Raises:
            EngineFailure: There are more rows than their file may have.
            AnswersFull: The files of other answers leave no room.
            InvalidRequest: There are too many rows, and there is no folder for a file.
            Unavailable: The folder cannot be written.
        """
        arrays = []
        for field in self._schema:
            values = columns.get(field.name) if field.name in self.read.columns else None
            arrays.append(
                pa.nulls(count, field.type) if values is None else _array(values, field.type)
            )
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._folder is None:
            if self._bytes > _NO_FOLDER_BYTES_MAX:
                raise InvalidRequest(
                    f"{self.read.table.full_name} has more than {_NO_FOLDER_BYTES_MAX >> 20} MiB of"
                    " rows: select fewer columns, or the rows of one datasource"
                )
        elif self._bytes > (INLINE_BYTES_MAX if self._writer is None else _GROUP_BYTES):
            self._spill(self._folder)

    def _spill(self, folder: AnswerFolder) -> None:
        """Move the rows from memory to the file."""
        if self._own is None:
            self._own = folder.new_answer()
        with folder.write_errors():
            if self._writer is None:
                path = self._own / "rows"
                self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
            self._writer.write_table(pa.Table.from_batches(self._batches, self._schema))
        self._batches, self._bytes = [], 0
        folder.check_room(self._own)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows in Spark, once all are appended.

        Raises:
            EngineFailure: Spark does not share the folder of the file.
            Unavailable: The file cannot be written.
        """
        if self._writer is None or self._own is None or self._folder is None:
            return local_rows(spark, pa.Table.from_batches(self._batches, self._schema))
        if self._batches:
            self._spill(self._folder)
        with self._folder.write_errors():
            self._writer.close()
        columns = [(one.name, one.spark_type) for one in self.read.table.columns]
        return spark.read.schema(ddl(columns)).parquet(str(self._own / "rows"))

    def close(self) -> None:
        """Delete the file."""
        if self._writer is not None:
            with suppress(OSError):  # the disk may be full, and the file is deleted
                self._writer.close()
            self._writer = None
        if self._own is not None:
            delete_answer(self._own)
            self._own = None


def local_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return rows that go to Spark with the plan."""
    if not hasattr(spark, "client"):
        return spark.createDataFrame(table)
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.sql.connect.dataframe import DataFrame as Connected  # noqa: PLC0415
    from pyspark.sql.connect.plan import LocalRelation  # noqa: PLC0415

    # Unlike `createDataFrame`, this asks the server for no settings, and accepts no rows. PySpark's
    # type hints do not distinguish the two kinds of session and DataFrame.
    return Connected(LocalRelation(table), spark)  # type: ignore[arg-type]


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return values as an array. Not `pa.array`, which would import pandas: 0.4 s and 40 MB."""
    is_there = np.fromiter((value is not None for value in values), bool, len(values))
    if kind == pa.string():
        texts = ["" if value is None else str(value) for value in values]
        data = as_messages([text.encode(errors="replace") for text in texts]).buffers()[1:]
    else:
        numbers = (0 if value is None else value for value in cast("Sequence[int | None]", values))
        data = [pa.py_buffer(np.fromiter(numbers, np.int64, len(values)))]
    valid = None if is_there.all() else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [valid, *data])


def drop_view(spark: SparkSession, name: str) -> None:
    """Drop a view of a query at its end."""
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    # A Spark that does not answer has lost the view, too, and the query's own error counts.
    with suppress(PySparkException):
        spark.catalog.dropTempView(name)


@contextmanager
def metadata_views(
    spark: SparkSession,
    reads: Iterable[MetadataRead],
    source: MetadataSource,
    folder: AnswerFolder | None,
) -> Iterator[Mapping[str, str]]:
    """Provide the names of views with the rows of metadata tables, by their names in the query.

    Raises as `MetadataRows.append` and `MetadataSource.collect`.
    """
    # Imported here, like all of PySpark: see `connect.spark_sessions`.
    from pyspark.errors import PySparkException  # noqa: PLC0415

    hidden: dict[str, str] = {}
    with ExitStack() as stack:
        for read in reads:
            rows = MetadataRows(read, folder)
            stack.callback(rows.close)
            source.collect(read, rows)
            name = hidden_name()
            try:
                rows.frame(spark).createOrReplaceTempView(quoted(name))
            except PySparkException as error:  # narrow: translates
                if "PATH_NOT_FOUND" not in message_of(error):
                    raise
                raise EngineFailure(
                    f"{read.table.full_name} has more than {INLINE_BYTES_MAX >> 20} MiB of rows,"
                    " which go through a file, and Spark does not see the data folder: let both use"
                    " the same one, or select fewer columns, or the rows of one datasource"
                ) from error
            stack.callback(drop_view, spark, name)
            hidden[read.table.view] = name
        yield hidden
