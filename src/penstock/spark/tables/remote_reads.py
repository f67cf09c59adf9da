"""Files in a store for which Spark's JVM has no driver, read by Python workers through fsspec.

A JVM opens `s3://` only with jars that Spark does not include. With these jars, the JVM reads the
files, because it skips columns and rows that a query does not need. Without them, each file is read
completely here, which is slower but correct.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.core.column_case import case_variants_in
from penstock.spark.ddl import ddl
from penstock.spark.pieces import limited
from penstock.spark.tables.parquet_reader import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from penstock.spark.tables.table_files import Columns, TableFile

_NO_DRIVER = "No FileSystem for scheme"


def needs_workers(session: SparkSession, files: Sequence[TableFile]) -> bool:
    """Return whether the JVM lacks a driver for a file's store; asks it if a file is remote."""
    remote = next((file for file in files if "://" in file.path), None)
    if remote is None:
        return False
    try:
        # Planning checks whether the file exists.
        _ = session.read.schema(ddl(remote.columns)).parquet(remote.path).schema
    except PySparkException as error:  # narrow: translates
        if _NO_DRIVER in str(error):
            return True
        raise
    return False


def read_by_workers(
    session: SparkSession, files: Sequence[TableFile], columns: Columns
) -> DataFrame:
    """Return the visible rows of files; one Python worker reads each file."""
    text = ddl(columns)
    schema = to_arrow_schema(session.createDataFrame([], text).schema, timezone="UTC")
    exact = bool(case_variants_in(name for name, _ in columns))
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
