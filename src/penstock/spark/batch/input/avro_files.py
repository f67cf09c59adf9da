"""Rows of Avro object container files, a batch at a time.

Owns the conversion of Avro's types: numbers, texts, bytes and times become Arrow columns; records,
lists, maps and values of several types in one batch become JSON text. One worker reads a whole
file with fastavro, because PySpark does not include Spark's Avro reader.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, cast

import fastavro
import pyarrow as pa

from penstock.core.avro_bounds import (
    BLOCK_BYTES_MAX,
    AvroBlock,
    AvroBlocks,
    bounded_blocks,
    gathered_records,
)
from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.out_of_memory import is_out_of_memory
from penstock.spark.batch.input.file_splits import InputFile
from penstock.spark.batch.input.open_files import opened
from penstock.spark.batch.input.schema_casts import as_text
from penstock.spark.connect.worker_memory import out_of_memory

BATCH_ROWS: Final = 64 * 1024
AvroType = Literal["long", "double", "string", "json", "null"]

# Errors that fastavro raises for bytes that are not Avro: any error of its decoder.
_BROKEN: Final = (
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    StopIteration,
    SystemError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)
# If a column has only one of these types, Arrow has the same type.
_PLAIN: Final = (
    {bool},
    {bytes},
    {str},
    {dt.date},
    {dt.datetime},
    {decimal.Decimal},
)
_NAMED: Final[Mapping[str, AvroType]] = {
    "null": "null",
    "boolean": "long",
    "int": "long",
    "long": "long",
    "float": "double",
    "double": "double",
    "record": "json",
    "array": "json",
    "map": "json",
}
# A number with one of these logical types is not read as a number.
_LOGICAL: Final[Mapping[str, AvroType]] = {"decimal": "double"}


def avro_columns(file: InputFile) -> dict[str, AvroType]:
    """Return the columns of a file.

    Raises:
        NotFound: The file does not exist.
        CorruptData: It is not an Avro file.
        InvalidRequest: It has no records, or cannot be read here.
    """
    with opened(file) as stored, _translated(file, _Reached(stored)):
        return {
            str(field["name"]): _type_of(field["type"])
            for field in _fields(file, fastavro.block_reader(stored).writer_schema)
        }


def read_avro(
    stored: pa.NativeFile,
    file: InputFile,
    wanted: frozenset[str],
    *,
    block_bytes_max: int = BLOCK_BYTES_MAX,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows, each batch with the number of its first row. Raises as `avro_columns`.

    Args:
        stored: The open file.
        file: The file's name for messages.
        wanted: The columns to read; all of them exist in the file.
        block_bytes_max: Limit of a block's size after decompression.
    """
    at = 0
    reached = _Reached(stored)
    with _translated(file, reached):
        blocks = fastavro.block_reader(stored)
        fields = (str(field["name"]) for field in _fields(file, blocks.writer_schema))
        names = [name for name in fields if name in wanted]
        bounded = bounded_blocks(stored, cast("AvroBlocks", blocks), file.shown, block_bytes_max)
        for held in gathered_records(reached.blocks(bounded), BATCH_ROWS):
            batch = _batch(held, names)
            held.clear()  # before reading the next ones
            yield at, batch
            at += batch.num_rows


class _Reached:
    """Current position of the reader in a file.

    Args:
        stored: The file.
    """

    def __init__(self, stored: pa.NativeFile) -> None:
        self._stored = stored
        self._block_at: int | None = None

    def blocks(self, blocks: Iterator[AvroBlock]) -> Iterator[AvroBlock]:
        """Yield the blocks; while one is in use, its start is the position."""
        for block in blocks:
            self._block_at = block.offset
            yield block
            self._block_at = None

    def byte(self) -> int:
        """Return the start of the block in use, or where the next byte is read."""
        return int(self._stored.tell()) if self._block_at is None else self._block_at


def _batch(records: Sequence[Mapping[str, object]], names: Sequence[str]) -> pa.RecordBatch:
    columns = [_column([record[name] for record in records]) for name in names]
    if columns:
        return pa.RecordBatch.from_arrays(columns, names=list(names))
    # Without columns Arrow loses the number of rows.
    return pa.RecordBatch.from_arrays([pa.nulls(len(records))], names=[""])


def _column(values: list[object]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds in _PLAIN or kinds <= {int, float}:
        try:
            return pa.array(values)
        except pa.ArrowInvalid:
            pass  # an integer too large for a double, next to a fraction: use text
    return pa.array([as_text(value) for value in values], pa.string())


def _fields(file: InputFile, schema: object) -> list[Mapping[str, object]]:
    if isinstance(schema, Mapping) and schema.get("type") == "record":
        return list(schema["fields"])
    raise InvalidRequest(f"{file.shown} has values that are not records, and thus no columns")


def _type_of(type_: object) -> AvroType:
    if isinstance(type_, list):
        found = {_type_of(one) for one in type_} - {"null"}
        if len(found) == 1:
            return found.pop()
        return "double" if found == {"long", "double"} else ("string" if found else "null")
    if isinstance(type_, Mapping):
        logical = type_.get("logicalType")
        if isinstance(logical, str):
            return _LOGICAL.get(logical, "string")
        return _type_of(type_.get("type"))
    # Another name is a type defined in the file: text, unless it is a record.
    return _NAMED.get(str(type_), "string")


@contextmanager
def _translated(file: InputFile, reached: _Reached) -> Iterator[None]:
    """Translate errors of fastavro to ones that name the file and the position."""
    try:
        yield
    except MemoryError:
        raise out_of_memory(f"reading {file.shown}") from None
    except (*_BROKEN, fastavro.schema.SchemaParseException) as error:
        if is_out_of_memory(error):
            raise out_of_memory(f"reading {file.shown}") from None
        reason = f"{str(error) or type(error).__name__}: check that the file is complete and Avro"
        raise CorruptData(file.shown, reached.byte(), reason) from None
