"""Discovery of the dimensions of a stream whose spec does not list them, for each persist.

Owns which messages a worker inspects, and the merge of files with different columns. The types
follow the rules of batch tasks (`batch.input.dimension_discovery`). No result is kept between
persists, so a persist never depends on an earlier one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.core.errors import CorruptData
from penstock.indexing.specs import TIME_COLUMN, Dimension
from penstock.spark.batch.input.delimited import typed_columns
from penstock.spark.batch.input.dimension_discovery import (
    Found,
    FoundType,
    UniformColumns,
    found_one_by_one,
    inferred,
    is_too_wide,
    merge_found,
    small_pieces,
    type_of,
    type_of_value,
)
from penstock.spark.chunk_files import FileForm, WrittenParquet, write_parquet
from penstock.spark.chunk_work import Report
from penstock.spark.messages.delimited import lines_of
from penstock.spark.messages.headers import header_names
from penstock.spark.messages.keys import KeyGroup, first_value, groups
from penstock.spark.pieces import numbers, reported
from penstock.spark.schema_columns import output_columns
from penstock.spark.tables.parquet_reader import widened
from penstock.spark.tables.table_columns import wider
from penstock.spark.topic.arrow_times import NotCleanError
from penstock.spark.topic.parse import LEAF_MESSAGES, lines_of_objects
from penstock.spark.topic.row_shape import FieldType
from penstock.spark.topic.split_reader import read_messages, read_whole, translate_split_errors
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.indexing.engine import DataFile
    from penstock.indexing.specs import DataSchema
    from penstock.indexing.specs.rows.dimensions import DimensionType
    from penstock.spark.messages.formats import MetadataColumns, TextFormat
    from penstock.spark.topic.offset_splits import Split
    from penstock.spark.topic.whole_records import WholeRecords

_CUT_INTO: Final = 8
# Level of zstd for files that are read once and deleted.
_COPY_LEVEL: Final = 1
_DIMENSION_TYPES: Final[dict[str, DimensionType]] = {
    "string": "string",
    "bigint": "long",
    "float": "float",
    "double": "double",
}


@dataclass(frozen=True, slots=True)
class InspectWork:
    """Splits to inspect, one for each piece of work.

    With `metadata`, the result includes the metadata columns of records.
    """

    splits: tuple[Split, ...]
    format: TextFormat
    metadata: MetadataColumns | None = None

    def inspect(self, number: int) -> Found:
        """Return the columns of the messages of one split."""
        with translate_split_errors(self.splits[number]):
            return self._inspect(number)

    def _inspect(self, number: int) -> Found:
        found: Found = {}
        if self.metadata is None:
            for messages in read_messages(OsFileSystem(), self.splits[number]):
                _inspect_messages(messages, self.format, found)
            return found
        for records in read_whole(OsFileSystem(), self.splits[number], topic=""):
            _inspect_messages(records.values.drop_null(), self.format, found)
            merge_found(found, metadata_column_types(records, self.metadata))
        return found


def inspect_splits(
    work: InspectWork, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Report the columns of the splits whose numbers Spark passes in."""
    for number in numbers(batches):
        text = json.dumps([number, work.inspect(number)])
        yield pa.RecordBatch.from_arrays([pa.array([text])], names=["report"])


def found_in(texts: Iterable[str]) -> Found:
    """Return the columns of all splits from the reports about them, in the order of splits."""
    found: Found = {}
    for _, columns in sorted((json.loads(text) for text in texts), key=lambda pair: pair[0]):
        merge_found(found, columns)
    return found


def metadata_column_types(records: WholeRecords, names: MetadataColumns) -> Found:
    """Return the metadata columns for which at least one record has a value."""
    found: Found = {}
    if records.headers is not None and names.encoding is not None:
        headers = header_names(records.headers)
        merge_found(found, {f"{names.header_prefix}{name}": "string" for name in headers})
    times = records.times_ms
    own: Found = {
        names.time: "null" if times.null_count == len(times) else "long",
        names.topic: "string",
        names.partition: "long",
        names.offset: "long",
    }
    merge_found(found, own)
    if records.keys is not None and names.key_format is not None:
        for group in groups(records.keys, names.key_format):
            merge_found(found, {names.key: _type_of_keys(group, names.key_format)})
    return found


def json_columns(messages: pa.BinaryArray) -> Iterator[Found]:
    """Yield the columns that Arrow finds in JSON objects; other values have no columns.

    The batch is parsed in small pieces. A piece that Arrow cannot parse is divided again, down to
    single messages.
    """
    count = len(messages)
    if not count:
        return
    offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :][: count + 1]
    is_wide = False
    alike = UniformColumns()
    for first, last in small_pieces(offsets[:-1], int(offsets[-1])):
        piece = messages.slice(first, last - first)
        if first and alike.is_open:
            with contextlib.suppress(NotCleanError):
                rest = messages.slice(first)
                if alike.holds(lines_of_objects(rest), len(rest)):
                    return
        if is_wide:
            yield from found_one_by_one(piece)
            continue
        for columns in _piece_columns(piece, alike):
            is_wide = is_wide or is_too_wide(columns, len(piece))
            yield columns


def _piece_columns(messages: pa.BinaryArray, alike: UniformColumns) -> Iterator[Found]:
    try:
        yield inferred(lines_of_objects(messages), len(messages), alike)
    except NotCleanError:
        if len(messages) <= LEAF_MESSAGES:
            yield from found_one_by_one(messages)
            return
        step = max(LEAF_MESSAGES, -(-len(messages) // _CUT_INTO))
        for start in range(0, len(messages), step):
            yield from _piece_columns(messages.slice(start, step), alike)


def _inspect_messages(messages: pa.BinaryArray, format_: TextFormat, found: Found) -> None:
    if not len(messages):
        return
    if format_.columns:
        typed = typed_columns(lines_of(messages), format_.columns, format_.separator)
        merge_found(found, {name: type_of(type_) for name, type_ in typed.items()})
        return
    for columns in json_columns(messages):
        merge_found(found, columns)


def _type_of_keys(group: KeyGroup, format_: TextFormat) -> FoundType:
    seen: Found = {}
    if group.name is not None:
        _inspect_messages(group.keys, format_, seen)
        return seen.get(group.name, "null")
    for key in group.keys.to_pylist():
        value = first_value(key, "")
        if not isinstance(value, str):
            merge_found(seen, {name: type_of_value(inner) for name, inner in value.items()})
    return seen.get("", "null")


def united(schema: DataSchema, files: Sequence[DataFile]) -> DataSchema:
    """Return the schema with the dimensions that any of the files has, the wider type of each.

    Names that differ only in case are separate columns, so that the column of a value does not
    depend on the file that contains its row.
    """
    known = {name for name, _ in output_columns(schema)}
    types: dict[str, str] = {}
    for file in files:
        for name, type_ in file.columns:
            if name not in known:
                types[name] = wider(types.get(name, type_), type_)
    added = [Dimension(name=name, type=_DIMENSION_TYPES[type_]) for name, type_ in types.items()]
    spec = schema.dimensions_spec
    update = {"dimensions": (*spec.dimensions, *added)}
    return schema.model_copy(update={"dimensions_spec": spec.model_copy(update=update)})


@dataclass(frozen=True, slots=True)
class AlikeWork:
    """Files to write again into a folder, with other types of some columns.

    Columns without a new type stay unchanged.
    """

    paths: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    interval: Interval
    folder: str

    def write(self, number: int) -> WrittenParquet:
        """Write one file."""
        # Imported here: see `chunk_files.write_table`.
        import pyarrow.parquet as pq  # noqa: PLC0415

        path = self.paths[number]
        try:
            rows = pq.read_table(path, use_threads=False).combine_chunks()
        except (pa.ArrowException, OSError) as error:
            reason = f"{error}: the next task reads its events again"
            raise CorruptData(path, None, reason) from None
        wanted = {name: type_ for name, type_ in self.columns if name != TIME_COLUMN}
        columns = []
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            type_ = wanted.get(name)
            columns.append(column if type_ is None else _of_type(column, FieldType(type_)))
        table = pa.Table.from_arrays(columns, names=rows.column_names)
        return write_parquet(table, Path(self.folder), self.interval, number, FileForm(_COPY_LEVEL))


def write_alike(work: AlikeWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the files whose numbers Spark passes in."""
    for number in numbers(batches):
        yield reported(Report((work.write(number),)))


def unlike(files: Sequence[DataFile], columns: Sequence[tuple[str, str]]) -> list[DataFile]:
    """Return the files that have a column of another type."""
    return [file for file in files if not set(file.columns) <= set(columns)]


def _of_type(column: pa.ChunkedArray, type_: FieldType) -> pa.ChunkedArray:
    if column.type == type_.arrow:
        return column
    # Convert types as queries do, so that a merge does not change results.
    return pa.chunked_array([widened(chunk, type_.arrow) for chunk in column.chunks], type_.arrow)
