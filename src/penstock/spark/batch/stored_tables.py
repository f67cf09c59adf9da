"""External tables of a statement: files that are read once, completely, before its query begins.

A query may name a table twice, or need few of its rows, and Spark may repeat a scan. Therefore
workers first convert the files to typed Parquet in the scratch folder, and count rows that do not
parse; the query reads that in the JVM. Owns the mapping of a signature's types.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.intervals import ETERNITY
from penstock.indexing.specs.inputs import extern_name
from penstock.spark.batch.input.input_work import InputWork, SplitReport, reports_of
from penstock.spark.chunk_files import write_groups, write_whole
from penstock.spark.pieces import numbers, reported, run_pieces
from penstock.spark.tables.table_files import TableFile
from penstock.spark.topic.row_shape import FieldType, RowShape
from penstock.spark.views import hidden_name, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.indexing.specs.inputs import ExternTable

_TYPES: Final[Mapping[str, FieldType]] = {
    "string": FieldType.STRING,
    "long": FieldType.LONG,
    "double": FieldType.DOUBLE,
    "float": FieldType.FLOAT,
    "complex<json>": FieldType.STRING,
    "array<string>": FieldType.STRINGS,
    "array<long>": FieldType.LONGS,
    "array<double>": FieldType.DOUBLES,
}


@dataclass(frozen=True, slots=True)
class StoredTable:
    """An external table that was read: its name in the query, and its files."""

    name: str
    columns: tuple[tuple[str, str], ...]
    files: tuple[TableFile, ...]

    def define(self, spark: SparkSession) -> str:
        """Define it as a view of a Spark session, and return the name of the view."""
        name = hidden_name()
        table(spark, self.files, self.columns).createOrReplaceTempView(name)
        return name


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """Result of one piece: a file, or none if it has no rows."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class StoreWork:
    """Pieces of input to convert to Parquet files of a folder."""

    reading: InputWork
    folder: str

    def store(self, number: int) -> StoredPiece:
        """Read one piece and write its file; a repeated attempt writes the same file."""
        target = Path(self.folder) / f"{number}.parquet"
        rows = 0

        def write(path: Path) -> None:
            nonlocal rows
            schema = self.reading.sources[0].shape.arrow_schema
            rows = write_groups(self.reading.read(number), schema, path)

        write_whole(target, write)
        return StoredPiece(str(target) if rows else "", rows)


def store_pieces(work: StoreWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Store the pieces whose numbers Spark passes in."""
    for number in numbers(batches):
        yield reported(work.store(number))


def shape_of(given: ExternTable) -> RowShape:
    """Return the columns to read of each row."""
    return RowShape(tuple((column.name, _TYPES[column.type]) for column in given.signature))


def stored(
    spark: SparkSession, work: InputWork, shape: RowShape, number: int
) -> tuple[StoredTable, list[SplitReport]]:
    """Read the files of an external table, the `number`th of its statement.

    Args:
        spark: The Spark session.
        work: The pieces, with a scratch folder of their own.
        shape: The columns to read.
        number: Number of the table, from 1.

    Raises:
        PenstockError: A file cannot be read.
    """
    columns = shape.spark_columns()
    if not work.pieces:  # all files end before their headers
        return StoredTable(extern_name(number), columns, ()), []
    scratch = Path(work.scratch)
    store = functools.partial(store_pieces, StoreWork(work, str(scratch / "rows")))
    made = [StoredPiece(**json.loads(text)) for text in run_pieces(spark, store, len(work.pieces))]
    files = tuple(TableFile(one.path, columns, ETERNITY) for one in made if one.rows)
    found = StoredTable(extern_name(number), columns, files)
    return found, reports_of(scratch, len(work.pieces))
