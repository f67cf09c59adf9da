"""Job that makes a projection's files: rows of segment files, aggregated file by file.

Owns one Spark job and how its workers write. It runs in one of Spark's tasks, which leaves the
other cores to queries. A file is written to a folder of the worker, copied under a temporary name
next to its final one, synced, and renamed: it exists complete and durable, or not at all.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as sf

from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineFailure
from penstock.segments.deep_storage import files_below
from penstock.segments.layout import projection_file
from penstock.spark.pieces import REPORT_SCHEMA, limited, reported, reports_of
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.relation import stored_columns, summed
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.spark.views import table
from penstock.storage.disk import OsFileSystem
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession

_ROW_GROUP_ROWS: Final = 256 * 1024
_LEVEL: Final = 3  # of zstd, as in segments
# Names that no column of Penstock has: the number of the file, and the mark of a row that only
# represents a file without remaining rows.
_NUMBER: Final = "penstock: file"
_MARK: Final = "penstock: mark"


@dataclass(frozen=True, slots=True)
class ProjectionFolder:
    """Location of a projection's files: `root` is a path or a URL of fsspec."""

    root: str
    relative: str


@dataclass(frozen=True, slots=True)
class ProjectionFileReport:
    """Report of a worker about a file."""

    name: str
    bytes: int
    rows: int


def make_files(
    spark: SparkSession,
    plan: ProjectionPlan,
    columns: Columns,
    files: Sequence[TableFile],
    folder: ProjectionFolder,
) -> Mapping[str, ProjectionFileReport]:
    """Make the projection's file of each given file; return the written files by name.

    Args:
        spark: Session with `OUTLINE_CONF`, and with the settings of queries, which determine how
            expressions are parsed.
        plan: The projection.
        columns: Columns of the whole datasource.
        files: The files to read.
        folder: Location of the new files.

    Raises:
        EngineFailure: Spark resolves an expression to more than reading its row.
        Exception: Any error of Spark; some files may exist.
    """
    try:
        stored_columns(spark, plan, columns)
    except InvalidRequest as error:
        raise EngineFailure(str(error)) from error
    whole: DataFrame | None = None
    for number, file in enumerate(files):
        part = table(spark, [file], columns).withColumn(_NUMBER, sf.lit(number))
        whole = part if whole is None else whole.unionAll(part)
    assert whole is not None
    groups = summed(whole.coalesce(1), plan, sf.col(f"`{_NUMBER}`"))
    types = [field.dataType for field in groups.schema.fields]
    marks = spark.range(len(files)).select(
        sf.col("id").cast("int").alias(_NUMBER),
        *(sf.lit(None).cast(type_) for type_ in types[1:]),
        sf.expr("true").alias(_MARK),
    )
    rows = groups.withColumn(_MARK, sf.expr("false")).unionAll(marks)
    ordered = rows.coalesce(1).sortWithinPartitions(f"`{_NUMBER}`")
    names = tuple(projection_file(file.path) for file in files)
    stored = (*(key.stored for key in plan.keys), *(one.stored for one in plan.measures))
    write = functools.partial(write_files, folder, names, stored)
    texts = reports_of(ordered.mapInArrow(limited(write), REPORT_SCHEMA))
    return {one.name: one for one in map(_wrote, texts)}


def write_files(
    folder: ProjectionFolder,
    names: Sequence[str],
    columns: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the files of rows ordered by file number, which is in the first column.

    Raises:
        Unavailable: A file cannot be written.
    """
    _, files = files_below(folder.root, OsFileSystem())
    with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
        local = Path(scratch) / "rows.parquet"
        for number, parts in itertools.groupby(_cut(batches), key=operator.itemgetter(0)):
            name = names[number]
            try:
                rows = _write(local, (_kept(part, columns) for _, part in parts))
            except OSError as error:
                raise translate_error(error, str(local), "write") from error
            temporary = f".{name}.{uuid.uuid4().hex}.tmp"
            size = files.put(str(local), folder.relative, name, temporary)
            yield reported(ProjectionFileReport(name, size, rows))


def _write(path: Path, parts: Iterator[pa.RecordBatch]) -> int:
    """Write rows as they arrive, a row group at a time; return their number."""
    # Imported here: 9 MB that only workers that write files need.
    import pyarrow.parquet as pq  # noqa: PLC0415

    first = next(parts)  # each number has at least a mark
    schema = first.schema
    rows, held = 0, [first]
    text = [field.name for field in schema if field.type == pa.string()]
    form = {"compression": "zstd", "compression_level": _LEVEL, "use_dictionary": text or False}
    # NaN is not included in the extremes, so rows would be skipped: see `chunk_files`.
    told = [field.name for field in schema if not pa.types.is_floating(field.type)]
    with pq.ParquetWriter(
        path, schema, store_schema=False, write_statistics=told, **form
    ) as writer:
        for part in parts:
            held.append(part)
            if sum(one.num_rows for one in held) >= _ROW_GROUP_ROWS:
                rows += _flush(writer, held)
        rows += _flush(writer, held)
    return rows


def _flush(writer: pq.ParquetWriter, held: list[pa.RecordBatch]) -> int:
    rows = sum(int(one.num_rows) for one in held)
    if rows:
        writer.write_table(pa.Table.from_batches(held))
    held.clear()
    return rows


def _cut(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        numbers = batch.column(0).to_numpy()
        edges = np.flatnonzero(np.diff(numbers)) + 1
        bounds = [0, *edges.tolist(), len(numbers)]
        for start, end in itertools.pairwise(bounds):
            if end > start:
                yield int(numbers[start]), batch.slice(start, end - start)


def _wrote(report: str) -> ProjectionFileReport:
    raw = json.loads(report)
    return ProjectionFileReport(raw["name"], raw["bytes"], raw["rows"])


def _kept(part: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the rows without marks, under the names of the file's columns."""
    is_row = pc.invert(part.column(part.num_columns - 1))
    kept = part.filter(is_row)
    return pa.RecordBatch.from_arrays(kept.columns[1:-1], names=list(columns))
