"""Small files that stand for much more, and the reading of them by a child with little memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import fastavro
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq

CHILD: Final = Path(__file__).with_name("bomb_child.py")
AvroSchema = dict[str, Any]
SHORT_LINES: Final = 3 << 16
WIDE_RECORDS: Final = 24
WIDE_VALUES: Final = 60_000
DICTIONARY_ROWS: Final = 600
PREFIX_ROWS: Final = 300
UNEVEN_ROWS: Final = 20_000
UNEVEN_LISTS: Final = 3_000
ORC_ROWS: Final = 2_048
KEYS: Final = 125_000
# Files of columns are that much smaller than the product's limits, which are lowered as much in a
# child that reads them: 600 MiB of values cost a test more than everything else that it does.
# `make soak ARGS="bombs"` reads such files in full size.
SMALLER: Final = 8
_MIB: Final = 1 << 20
_SMALL: Final = _MIB // SMALLER
_ZSTD: Final = pa.ipc.IpcWriteOptions(compression="zstd")
_MANY_ROWS: Final = pa.ipc.IpcWriteOptions(allow_64bit=True)


class Read(NamedTuple):
    """The result of reading a file in a child: rows, bad ones, reasons, columns found, an error."""

    rows: int = 0
    bad: int = 0
    reasons: tuple[str, ...] = ()
    columns: int = 0
    error: str = ""


class Child:
    """A process that reads each file in a fork of its own, which may allocate a given amount.

    `with` starts and ends it.

    Attributes:
        smaller: Divisor of the limits of files of columns.
    """

    def __init__(self, smaller: int = 1) -> None:
        self.smaller = smaller

    def __enter__(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(self.smaller)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Arrow's own allocator reserves a gigabyte at once, used or not.
            env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.communicate()

    def read(self, how: str, kind: str, path: Path, *, memory_mb: int = 250) -> Read:
        """Return what a fork made of a file.

        Args:
            how: `batch` reads rows as Spark's workers do, `look` finds columns as they do, `flow`
                reads records as processors do, `cast` with a schema of a text column `name`.
            kind: The format, by its name there.
            path: The file.
            memory_mb: The limit of what the fork allocates.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([how, kind, str(path), memory_mb]), file=self._process.stdin, flush=True)
        found = json.loads(self._process.stdout.readline())
        return Read(**{**found, "reasons": tuple(found.get("reasons", ()))})


def avro_file(
    path: Path, schema: AvroSchema, block: bytes, count: int, codec: str = "null"
) -> None:
    """Write an Avro file of one packed block, whose header announces `count` records."""
    stored = io.BytesIO()
    fastavro.writer(stored, schema, [], codec=codec)
    head = stored.getvalue()
    numbers = io.BytesIO()
    for number in (count, len(block)):
        fastavro.schemaless_writer(numbers, "long", number)
    path.write_bytes(head + numbers.getvalue() + block + head[-16:])


def avro_array_of_nulls(path: Path) -> None:
    """Write one record whose array has 2**31 nulls."""
    tags = {"type": "array", "items": "null"}
    schema = _record(("at", "string"), ("tags", tags))
    block = io.BytesIO()
    fastavro.schemaless_writer(block, "string", "2013-01-01")
    fastavro.schemaless_writer(block, "long", 2**31)
    block.write(b"\0")
    avro_file(path, schema, block.getvalue(), 1)


def avro_empty_records(path: Path) -> None:
    """Write a block of 2**40 records of nothing."""
    avro_file(path, _record(("at", "null")), b"", 2**40)


def avro_deep_record(path: Path) -> None:
    """Write a record that contains itself 200,000 times, in 400 kB."""
    schema = _record(("at", "string"), ("next", ["null", "row"]))
    avro_file(path, schema, b"\0\2" * 200_000 + b"\0\0", 1)


def avro_zeros(path: Path) -> None:
    """Write a block that unpacks to 140 MiB."""
    length = io.BytesIO()
    fastavro.schemaless_writer(length, "long", 140 * _MIB)
    block = _deflated(length.getvalue(), b"0" * _MIB, 140)
    avro_file(path, _record(("at", "string")), block, 1, "deflate")


def avro_wide_records(path: Path) -> None:
    """Write a block of 1.4 MB whose records have arrays of tens of thousands of small values."""
    tags = {"type": "array", "items": {"type": "map", "values": "int"}}
    row = io.BytesIO()
    fastavro.schemaless_writer(row, "string", "2013-01-01")
    fastavro.schemaless_writer(row, "long", WIDE_VALUES)
    record = row.getvalue() + bytes(WIDE_VALUES + 1)
    schema = _record(("at", "string"), ("tags", tags))
    avro_file(path, schema, _deflated(b"", record, WIDE_RECORDS), WIDE_RECORDS, "deflate")


def parquet_long_value(path: Path) -> None:
    """Write a value of 40 MiB among others, in a few KB."""
    table = pa.table({"at": ["2013-01-01"] * 3, "name": ["a", "0" * (40 * _MIB), "b"]})
    pq.write_table(table, path, compression="zstd", write_statistics=False)


def parquet_huge_values(path: Path, unit: int = _SMALL) -> None:
    """Write a row group of one value of 520 units."""
    ends = pa.py_buffer(struct.pack("<2i", 0, 520 * unit))
    name = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(bytes(520 * unit))])
    table = pa.table({"at": ["2013-01-01"], "name": name})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def parquet_null_values(path: Path) -> None:
    """Write a row with a list of 8,192 nulls of 25 MiB: 667 bytes for 200 GiB."""
    size, count = 25 * _MIB, 8_192
    # Nulls are not read when they are written.
    data = pa.foreign_buffer(64, size * count)
    buffers = [pa.py_buffer(bytes(count // 8)), data]
    nulls = pa.Array.from_buffers(pa.binary(size), count, buffers, null_count=count)
    name = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), nulls)
    table = pa.table({"at": ["2013-01-01"], "name": name})
    pq.write_table(table, path, use_dictionary=False, write_statistics=False)


def parquet_dictionary(path: Path, rows: int = DICTIONARY_ROWS, unit: int = _SMALL) -> None:
    """Write rows of one value of one unit, which is stored once."""
    name = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["0" * unit])
    table = pa.table({"at": ["2013-01-01"] * rows, "name": name})
    # Without the schema, readers know no dictionary.
    form = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    pq.write_table(table, path, dictionary_pagesize_limit=4 * _MIB, **form)


def parquet_prefixes(path: Path, rows: int = PREFIX_ROWS, unit: int = _SMALL) -> None:
    """Write rows of one value of two units, of which all but the first consist of a prefix."""
    table = pa.table({"at": ["2013-01-01"] * rows, "name": pa.array([bytes(2 * unit)] * rows)})
    form = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    encoding = {"at": "PLAIN", "name": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encoding, **form)


def parquet_dictionary_then_prefixes(path: Path) -> None:
    """Write a dictionary of one short value, and rows as `parquet_prefixes` without it."""
    name = pa.field("name", pa.binary(), nullable=False)
    table = pa.table([pa.array([bytes(2 * _SMALL)] * PREFIX_ROWS)], schema=pa.schema([name]))
    form = {"compression": "none", "write_statistics": False, "store_schema": False}
    encoding = {"name": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, path, use_dictionary=False, column_encoding=encoding, **form)
    column = pq.read_metadata(path).row_group(0).column(0)
    start = column.data_page_offset
    pages = path.read_bytes()[start : start + column.total_compressed_size]

    def number(value: int, kind: bytes = b"\x15") -> bytes:
        """Return a field with the next id, in Thrift's compact protocol."""
        text, value = b"", value * 2
        while value >= 0x80:
            text, value = text + bytes([value & 0x7F | 0x80]), value >> 7
        return kind + text + bytes([value])

    value = struct.pack("<I", 5) + b"hello"
    sizes = number(2) + number(len(value)) * 2
    head = sizes + b"\x4c" + number(1) + number(0) + b"\0\0"
    size, rows = len(head + value + pages), number(PREFIX_ROWS, b"\x16")
    # Encodings: RLE_DICTIONARY, DELTA_BYTE_ARRAY and RLE.
    details = number(6) + b"\x19\x35\x10\x0e\x06" + b"\x19\x18\x04name" + number(0) + rows
    details += number(size, b"\x16") * 2 + number(4 + len(head + value), b"\x26")
    details += number(4, b"\x26") + b"\0"
    group = b"\x19\x1c" + number(4, b"\x26") + b"\x1c" + details + b"\0"
    group += number(size, b"\x16") + rows + b"\0"
    schema = b"\x48\x04root" + number(1) + b"\0" + number(6) + number(0, b"\x25")
    schema += b"\x18\x04name\0"
    footer = number(1) + b"\x19\x2c" + schema + rows + b"\x19\x1c" + group + b"\0"
    end = struct.pack("<I", len(footer)) + b"PAR1"
    path.write_bytes(b"PAR1" + head + value + pages + footer + end)


def parquet_uneven_values(path: Path) -> None:
    """Write 120 values of 7/8 MiB, and thousands of empty ones."""
    long, empty = 120, UNEVEN_ROWS - 120
    ends = struct.pack(f"<{long + 1}i", *range(0, (long + 1) * 7 * _SMALL, 7 * _SMALL))
    data = [None, pa.py_buffer(ends), pa.py_buffer(bytes(long * 7 * _SMALL))]
    values = [pa.Array.from_buffers(pa.binary(), long, data), pa.array([b""] * empty)]
    table = pa.table({"name": pa.chunked_array(values)})
    form = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    pq.write_table(table, path, use_dictionary=False, write_batch_size=4, **form)


def parquet_uneven_lists(path: Path) -> None:
    """Write 12 lists of 625,000 zeros, and thousands of empty ones."""
    long, each = 12, 5_000_000 // SMALLER
    ends = [*range(0, (long + 1) * each, each)]
    ends += [ends[-1]] * (UNEVEN_LISTS - long)
    size = long * each
    zeros = pa.Array.from_buffers(pa.int8(), size, [None, pa.py_buffer(bytes(size))])
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), zeros)
    pq.write_table(pa.table({"name": lists}), path, compression="zstd", write_statistics=False)


def parquet_large_page(path: Path, unit: int = _SMALL) -> None:
    """Write a page of three values of 350 units."""
    size = 350 * unit
    ends = pa.py_buffer(struct.pack("<4i", *range(0, 4 * size, size)))
    name = pa.Array.from_buffers(pa.binary(), 3, [None, ends, pa.py_buffer(bytes(3 * size))])
    table = pa.table({"at": ["2013-01-01"] * 3, "name": name})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def arrow_dictionary(path: Path) -> None:
    """Write rows of one value of 1 MiB, which is stored once."""
    indices = pa.array([0] * DICTIONARY_ROWS, pa.int32())
    name = pa.DictionaryArray.from_arrays(indices, ["0" * _MIB])
    batch = pa.RecordBatch.from_arrays([name], names=["name"])
    with pa.ipc.new_stream(path, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)


def orc_long_value(path: Path) -> None:
    """Write a value of 40 MiB among others, in a few KB."""
    table = pa.table({"at": ["2013-01-01"] * 3, "name": ["a", "0" * (40 * _MIB), "b"]})
    po.write_table(table, path, compression="zstd")


def orc_repeated_values(path: Path, rows: int = ORC_ROWS, unit: int = _SMALL) -> None:
    """Write a stripe of rows of one value of one unit, which is stored once."""
    batch = pa.table({"at": ["2013-01-01"], "name": ["0" * unit]})
    form = {"compression": "zstd", "stripe_size": 64 << 30, "dictionary_key_size_threshold": 1.0}
    with po.ORCWriter(path, **form) as writer:
        for _ in range(rows):
            writer.write(batch)


def arrow_zeros(path: Path) -> None:
    """Write a record batch of 1,025 MiB of zeros, as a stream."""
    batch = pa.RecordBatch.from_arrays([_zeros(1_025)], names=["name"])
    with pa.ipc.new_stream(path, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)


def arrow_file_of_zeros(path: Path) -> None:
    """Write a dictionary of 600 MiB of zeros, and a record batch of as many, as a file."""
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * 600), _zeros(600))
    batch = pa.RecordBatch.from_arrays([coded, _zeros(600)], names=["name", "more"])
    with pa.ipc.new_file(path, batch.schema, options=_ZSTD) as writer:
        writer.write_batch(batch)


def _zeros(rows: int) -> pa.Array:
    """Return values of 1 MiB of zeros, which take no memory until they are written."""
    return pa.Array.from_buffers(pa.binary(_MIB), rows, [None, pa.py_buffer(bytes(rows * _MIB))])


def arrow_many_rows(path: Path) -> None:
    """Write 2**40 rows of nothing."""
    nothing = pa.Array.from_buffers(pa.null(), 1 << 40, [None])
    batch = pa.RecordBatch.from_arrays([nothing], names=["name"])
    with pa.ipc.new_stream(path, batch.schema, options=_MANY_ROWS) as writer:
        writer.write_batch(batch)


def json_many_keys(path: Path, keys: int = KEYS) -> None:
    """Write an object of one more key than that."""
    path.write_text(
        '{"at":"2013-01-01",' + ",".join(f'"k{number}":1' for number in range(keys)) + "}\n"
    )


def json_a_million_keys(path: Path) -> None:
    """Write an object of 1,000,000 keys, one of 1,000,001 of which one does not fit, and a row."""
    keys = ",".join(f'"k{number}":1' for number in range(999_998))
    many, more = f'{{"at":"2013-01-01","size":1,{keys}}}', f'{{"at":"2013-01-01","size":"x",{keys}'
    path.write_text(f'{many}\n{more},"":1}}\n{{"at":"2013-01-01","name":"a"}}\n')


def json_keys_of_their_own(path: Path) -> None:
    """Write rows of which each has another key."""
    path.write_text("".join(f'{{"k{number:040}":1}}\n' for number in range(KEYS)))


def json_deep_arrays(path: Path) -> None:
    """Write a record of 1,000,000 arrays within each other, in 2 MB."""
    path.write_bytes(b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}\n")


def json_deep_objects(path: Path) -> None:
    """Write a record of 100,000 objects within each other, with brackets in texts between them."""
    path.write_bytes(b'{"}":"}\\"","a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n")


def json_many_brackets(path: Path) -> None:
    """Write a record of 2,000 short arrays, and texts with brackets, quotes and backslashes."""
    texts = ["[" * 600, '{"[\\', "\\"]
    path.write_text(json.dumps({"a": [[1]] * 2_000, "b": texts, "[{": "]"}) + "\n")


def json_nested_keys(path: Path) -> None:
    """Write an object in an object, of `KEYS` keys."""
    keys = ",".join(f'"k{number}":1' for number in range(KEYS))
    path.write_text(f'{{"at":"2013-01-01","name":{{{keys}}}}}\n')


def json_open_braces(path: Path) -> None:
    """Write a list whose object opens others for 12 MiB, packed."""
    _packed(path, b'[{"a":', b'{"\\\\":' * _MIB, 2)


def short_lines(path: Path) -> None:
    """Write `SHORT_LINES` lines of one character, packed."""
    _packed(path, b"", b"x\n" * SHORT_LINES, 1)


def zeros(path: Path) -> None:
    """Write a line of 256 MiB, packed."""
    _packed(path, b"", bytes(16 * _MIB), 16)


def json_line_without_end(path: Path) -> None:
    """Write the beginning of a text of 20 MiB."""
    path.write_bytes(b'{"at":"' + b"x" * (20 * _MIB))


def json_object_without_end(path: Path) -> None:
    """Write objects that open others for 20 MiB, with braces in their keys."""
    path.write_bytes(b'[{"a":' + b'{"{":' * (4 * _MIB))


def json_objects_of_a_list(path: Path) -> None:
    """Write a list of 5,000,000 objects in 14 MiB, of which one has 9,000 keys."""
    path.write_bytes(b'{"a":[{' + _keys(9_000) + b"}" + b",{}" * 5_000_000 + b"]}\n")


def json_lists_of_objects(path: Path) -> None:
    """Write a record with 4,000 keys in the object of a list, and lists of empty objects."""
    empty = b'{"a":[{}' + b",{}" * 10_000 + b"]}\n"
    path.write_bytes(b'{"a":[{' + _keys(4_000) + b"}]}\n" + empty * 60)


def json_alike_lists(path: Path) -> None:
    """Write lists of an object of 1,500 keys and 5,000 empty ones."""
    path.write_bytes((b'{"a":[{' + _keys(1_500) + b"}" + b",{}" * 5_000 + b"]}\n") * 20)


def json_empty_records(path: Path) -> None:
    """Write a record of 9,000 keys and 200,000 empty ones."""
    path.write_bytes(b"{" + _keys(9_000) + b"}\n" + b"{}\n" * 200_000)


def json_nested_keys_of_their_own(path: Path) -> None:
    """Write rows with an object of which each has another key."""
    path.write_text("".join(f'{{"a":{{"k{number:040}":1}}}}\n' for number in range(KEYS)))


def json_numbers(path: Path) -> None:
    """Write a list of 2,000,000 numbers in 4 MiB, which take 16 MB."""
    path.write_bytes(b'{"a":[1' + b",1" * 1_999_999 + b"]}\n")


def csv_line_without_end(path: Path) -> None:
    """Write a line of 20 MiB."""
    path.write_bytes(b"x" * (20 * _MIB))


def csv_values_of_one_line(path: Path) -> None:
    """Write a line of 1,500,000 values."""
    path.write_text(f"at,name\n2013-01-01{',1' * 1_500_000}\n2013-01-01,b\n")


def csv_many_columns(path: Path, columns: int = 200_000) -> None:
    """Write a header of one more column than that, and a row."""
    names = ",".join(f"c{number}" for number in range(columns))
    path.write_text(f"at,{names}\n2013-01-01{',1' * columns}\n")


def csv_many_values(path: Path) -> None:
    """Write a line of 2,700,000 values, each of which takes 84 bytes in Python, and one of two."""
    path.write_text(f"at,name\n2013-01-01{',ŀ' * 2_700_000}\n2013-01-01,b\n", "utf-8")


def csv_open_quote(path: Path, mib: int = 20) -> None:
    """Write a quote that does not end within some MiB of lines."""
    with path.open("wb") as file:
        file.write(b'at,name\n2013-01-01,a\n2013-01-02,"b\n')
        for _ in range(mib):
            file.write(b"2013-01-03,cccccc\n" * (_MIB // 18))


def _keys(count: int) -> bytes:
    return ",".join(f'"k{number}":1' for number in range(count)).encode()


def _record(*fields: tuple[str, object]) -> dict[str, object]:
    named = [{"name": name, "type": type_} for name, type_ in fields]
    return {"type": "record", "name": "row", "fields": named}


def _deflated(head: bytes, part: bytes, parts: int) -> bytes:
    """Return the packed block of an Avro file."""
    packer = zlib.compressobj(1, wbits=-15)
    pieces = [packer.compress(head), *(packer.compress(part) for _ in range(parts))]
    return b"".join([*pieces, packer.flush()])


def _packed(path: Path, head: bytes, part: bytes, parts: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(parts):
            file.write(part)


Make = Callable[[Path], None]
