"""Files in a store that Spark's JVM has no driver for, read by its Python workers through fsspec.

A JVM opens `s3://` only with jars that Spark does not bring along. Where they are, the JVM reads,
as it leaves out columns and rows that a query does not need; where they are not, each file is read
whole here, which is slower and right.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.twins import twins_in
from penstock.spark.pieces import limited
from penstock.spark.schematext import ddl
from penstock.spark.tables.reading import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.tables.model import Columns, TableFile

_NO_DRIVER = "No FileSystem for scheme"


def needs_workers(session: SparkSession, files: Sequence[TableFile]) -> bool:
    """Tell whether the JVM lacks a driver for the store of a file; asks it if any is remote."""
    remote = next((file for file in files if "://" in file.path), None)
    if remote is None:
        return False
    try:
        # Planning looks whether the file is there.
        _ = session.read.schema(ddl(remote.columns)).parquet(remote.path).schema
    except PySparkException as error:  # narrow: translates
        if _NO_DRIVER in str(error):
            return True
        raise
    return False


def read_by_workers(
    session: SparkSession, files: Sequence[TableFile], columns: Columns
) -> DataFrame:
    """Return the rows of files that count, each file by one Python worker."""
    text = ddl(columns)
    schema = to_arrow_schema(session.createDataFrame([], text).schema, timezone="UTC")
    exact = bool(twins_in(name for name, _ in columns))
    numbers = session.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(limited(functools.partial(_read, tuple(files), schema, exact)), text)


def _read(
    files: Sequence[TableFile],
    schema: pa.Schema,
    exact: bool,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_file(files[number], schema, exact=exact)
