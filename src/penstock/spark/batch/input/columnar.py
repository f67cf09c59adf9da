"""Rows of Parquet, ORC and Avro files, a batch at a time.

Owns which row groups (stripes, in ORC) and columns are read. Columns that a file lacks are null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from penstock.core.orc_bounds import OrcTail, check_tail
from penstock.core.parquet_bounds import check_rows, runs_of_groups
from penstock.core.row_bytes import check_no_unions
from penstock.spark.batch.input.avro_files import read_avro
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.open_files import opened
from penstock.spark.topic.row_shape import RowShape

BATCH_ROWS: Final = 64 * 1024
_AS_THEY_ARE: Final[Mapping[str, str]] = MappingProxyType({})
FOUND_AS: Final = b"penstock.found_as"
"""Key of a Parquet field with the type of a text column for type discovery."""


def groups_of(file: InputFile, source: Source) -> int:
    """Return the number of row groups, or stripes, of a file.

    Raises:
        NotFound: The file does not exist.
        CorruptData: The file has another format.
        InvalidRequest: An ORC file has too many rows, or its footer is too large.
    """
    # Imported here and below: 9 MB that only readers of files need.
    import pyarrow.orc as po  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    with opened(file) as stored:
        if source.kind == "orc":
            check_tail(stored, file.shown)
            return int(po.ORCFile(stored).nstripes)
        return int(pq.ParquetFile(stored).num_row_groups)


def schema_of(file: InputFile, source: Source) -> pa.Schema:
    """Return the columns of a file. Raises as `groups_of`."""
    import pyarrow.orc as po  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    with opened(file) as stored:
        if source.kind == "orc":
            check_tail(stored, file.shown)
            return po.ORCFile(stored).schema
        return pq.ParquetFile(stored).schema_arrow


def read_columns(split: Split, source: Source) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of a split, each batch with the number of its first row in the file.

    In an ORC file whose tail cannot be interpreted, it is the number in the split, because Arrow
    does not return the number of rows of a stripe without reading the stripe.

    Raises:
        NotFound: The file does not exist.
        CorruptData: It is damaged, or has another format.
        InvalidRequest: A column has a union type, or the rows exceed a bound.
    """
    with opened(split.file) as stored:
        if source.kind == "avro":
            yield from read_avro(stored, split.file, _names(source.shape))
        elif source.kind == "orc":
            yield from _read_orc(stored, split, source.shape)
        else:
            yield from _read_parquet(stored, split, source.shape)


def _read_parquet(
    stored: pa.NativeFile, split: Split, shape: RowShape
) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow.parquet as pq  # noqa: PLC0415

    file = pq.ParquetFile(stored)
    check_rows(file.metadata, stored.size(), split.file.shown)
    renamed = dict(split.file.renamed)
    names = _wanted(file.schema_arrow.names, shape, renamed)
    end = split.end if split.end >= 0 else file.num_row_groups
    at = sum(file.metadata.row_group(group).num_rows for group in range(split.start))
    groups, shown = range(split.start, end), split.file.shown
    for run, rows in runs_of_groups(stored, file.metadata, groups, names, BATCH_ROWS, shown):
        for batch in file.iter_batches(rows, row_groups=run, columns=names, use_threads=False):
            yield at, _under_names(batch, renamed)
            at += batch.num_rows


def _read_orc(
    stored: pa.NativeFile, split: Split, shape: RowShape
) -> Iterator[tuple[int, pa.RecordBatch]]:
    import pyarrow.orc as po  # noqa: PLC0415

    shown = split.file.shown
    tail = OrcTail.open(stored, shown)
    file = po.ORCFile(stored)
    names = _wanted(file.schema.names, shape)
    fields = [field for field in file.schema if names is None or field.name in names]
    check_no_unions(fields, shown)
    end = split.end if split.end >= 0 else file.nstripes
    at = 0 if tail is None else tail.rows_before(split.start)
    for stripe in range(split.start, end):
        rows = None if tail is None else tail.rows_at_once(stripe, names, shown)
        if tail is None or rows is None:
            batches = iter((file.read_stripe(stripe, columns=names),))
        else:
            batches = _stripe_in_batches(tail, stripe, names, rows)
        for batch in batches:
            yield at, batch
            at += batch.num_rows


def _stripe_in_batches(
    tail: OrcTail, stripe: int, names: list[str] | None, rows: int
) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds  # noqa: PLC0415

    with pa.PythonFile(tail.with_stripe(stripe), mode="r") as view:
        yield from (
            ds.OrcFileFormat()
            .make_fragment(view)
            .to_batches(
                columns=names,
                batch_size=rows,
                batch_readahead=0,
                fragment_readahead=0,
                use_threads=False,
            )
        )


def _under_names(batch: pa.RecordBatch, renamed: Mapping[str, str]) -> pa.RecordBatch:
    if not renamed:
        return batch
    return batch.rename_columns([renamed.get(name, name) for name in batch.schema.names])


def _wanted(
    names: list[str], shape: RowShape, renamed: Mapping[str, str] = _AS_THEY_ARE
) -> list[str] | None:
    """Return the columns to read, or None for all if a name could be interpreted as a path."""
    fields = _names(shape)
    found = [name for name in names if renamed.get(name, name) in fields]
    return None if not found or any("." in name for name in found) else found


def _names(shape: RowShape) -> frozenset[str]:
    time = () if shape.time is None else (shape.time.name,)
    return frozenset((*(name for name, _ in shape.fields), *time))
