"""Small files that stand for much more, and the reading of them by a child with little memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

CHILD: Final = Path(__file__).with_name("bombchild.py")
TIMEOUT_S: Final = 170
SHORT_LINES: Final = 2 << 20
_MIB: Final = 1 << 20


class Read(NamedTuple):
    """What a child made of a file: rows, those that are bad, why, columns found, an error."""

    rows: int = 0
    bad: int = 0
    reasons: tuple[str, ...] = ()
    columns: int = 0
    error: str = ""


def read_in_child(how: str, kind: str, path: Path, *, memory_mb: int = 1_000) -> Read:
    """Have a child read a file that may allocate so much for it.

    Args:
        how: `batch` reads rows as Spark's workers do, `look` finds columns as they do, `flow` reads
            records as processors do.
        kind: The format, by its name there.
        path: The file.
        memory_mb: The limit.
    """
    done = subprocess.run(
        [sys.executable, str(CHILD), how, kind, str(path), str(memory_mb)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        # Arrow's own allocator reserves a gigabyte at once, used or not.
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )
    assert not done.returncode, done.stderr[-3_000:]
    found = json.loads(done.stdout)
    return Read(**{**found, "reasons": tuple(found["reasons"])})


def avro_file(path: Path, schema: object, block: bytes, count: int) -> None:
    """Write an Avro file of one block, which announces so many records."""
    stored = io.BytesIO()
    fastavro.writer(stored, schema, [])
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


def avro_zeros(path: Path) -> None:
    """Write a block that unpacks to 300 MB."""
    with path.open("wb") as file:
        rows = [{"at": "0" * (300 * _MIB)}]
        fastavro.writer(file, _record(("at", "string")), rows, codec="deflate")


def avro_wide_records(path: Path) -> None:
    """Write blocks of 16 MB whose records have arrays of tens of thousands of small values."""
    tags = {"type": "array", "items": {"type": "map", "values": "int"}}
    schema = _record(("at", "string"), ("tags", tags))
    rows = ({"at": "2013-01-01", "tags": [{}] * 60_000} for _ in range(400))
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec="deflate", sync_interval=16 * _MIB)


def parquet_long_value(path: Path) -> None:
    """Write a value of 200 MB among others, in some 10 KB."""
    table = pa.table({"at": ["2013-01-01"] * 3, "name": ["a", "0" * (200 * _MIB), "b"]})
    pq.write_table(table, path, compression="zstd", write_statistics=False)


def parquet_huge_values(path: Path) -> None:
    """Write a row group of one value of 600 MB."""
    table = pa.table({"at": ["2013-01-01"], "name": ["0" * (600 * _MIB)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)


def parquet_dictionary(path: Path) -> None:
    """Write 4,000 rows of one value of 1 MB, which is stored once."""
    name = pa.DictionaryArray.from_arrays(pa.array([0] * 4_000, pa.int32()), ["0" * _MIB])
    table = pa.table({"at": ["2013-01-01"] * 4_000, "name": name})
    # Without the schema, readers know no dictionary.
    form = {"compression": "zstd", "write_statistics": False, "store_schema": False}
    pq.write_table(table, path, dictionary_pagesize_limit=4 * _MIB, **form)


def json_many_keys(path: Path) -> None:
    """Write an object of 1,000,000 keys."""
    path.write_text(
        '{"at":"2013-01-01",' + ",".join(f'"k{number}":1' for number in range(1_000_000)) + "}\n"
    )


def json_keys_of_their_own(path: Path) -> None:
    """Write rows of which each has another key."""
    path.write_text("".join(f'{{"k{number}":1}}\n' for number in range(300_000)))


def json_nested_keys(path: Path) -> None:
    """Write an object in an object, of 1,000,000 keys."""
    keys = ",".join(f'"k{number}":1' for number in range(1_000_000))
    path.write_text(f'{{"at":"2013-01-01","name":{{{keys}}}}}\n')


def json_open_braces(path: Path) -> None:
    """Write a list whose object opens others for 80 MB, packed."""
    _packed(path, b'[{"a":', b'{"\\\\":' * _MIB, 16)


def short_lines(path: Path) -> None:
    """Write `SHORT_LINES` lines of one character, packed."""
    _packed(path, b"", b"x\n" * SHORT_LINES, 1)


def zeros(path: Path) -> None:
    """Write a line of 1 GB, packed."""
    _packed(path, b"", bytes(16 * _MIB), 64)


def csv_many_columns(path: Path) -> None:
    """Write a header of 1,000,000 columns, and a row."""
    names = ",".join(f"c{number}" for number in range(1_000_000))
    path.write_text(f"at,{names}\n2013-01-01{',1' * 1_000_000}\n")


def csv_many_values(path: Path) -> None:
    """Write a line of 20,000,000 values, and one of two."""
    path.write_text(f"at,name\n2013-01-01{',ab' * 20_000_000}\n2013-01-01,b\n")


def csv_open_quote(path: Path) -> None:
    """Write a quote that does not end within 200 MB of lines."""
    with path.open("wb") as file:
        file.write(b'at,name\n2013-01-01,a\n2013-01-02,"b\n')
        for _ in range(200):
            file.write(b"2013-01-03,cccccc\n" * (_MIB // 18))


def _record(*fields: tuple[str, object]) -> dict[str, object]:
    named = [{"name": name, "type": type_} for name, type_ in fields]
    return {"type": "record", "name": "row", "fields": named}


def _packed(path: Path, head: bytes, part: bytes, parts: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(parts):
            file.write(part)


Make = Callable[[Path], None]
