"""Random rows of datasources for the comparison of engines, and their form for comparison.

The rows have what engines read differently: NaN, -0.0, extreme integers, empty texts, nulls, lists,
decimals and dates. The names have quotes, dots, spaces and signs with a meaning in URLs.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.intervals import Interval
from penstock.spark.tables.table_files import Columns

Row: TypeAlias = Mapping[str, object]
"""Values by column; times in microseconds, days since 1970 for dates."""

TIME: Final = ("__time", "timestamp")
_TEXTS: Final = (
    "",
    " ",
    "a",
    "A",
    "ß",
    "é",
    "e\u0301",
    "👍",
    "it's",
    '"',
    "\\",
    "\n",
    "%20",
    "null",
    "0",
)
_LONGS: Final = (0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 53)
_REALS: Final = (0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324)
_SCALE: Final = 4
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "decimal(20,4)": pa.decimal128(20, _SCALE),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True)
class NamedKind:
    """A datasource: its name, and the columns and types that its rows may have.

    Attributes:
        name: The name.
        columns: Types of each column; the first one is usual.
        first: Columns that all rows have.
        has_case_variants: Whether names differ in case alone, so that case counts.
        swaps_case: Whether some segments spell the names in another case; Delta refuses that.
        first_day: The first of its days, since 1970.
    """

    name: str
    columns: Mapping[str, Sequence[str]]
    first: Sequence[str]
    has_case_variants: bool = False
    swaps_case: bool = False
    first_day: int = 20_000


KINDS: Final = (
    NamedKind(
        "clicks",
        {
            "page": ["string"],
            "ms": ["bigint"],
            "price": ["double", "float"],
            "real": ["double", "float"],
            "big": ["bigint"],
            "cost": ["decimal(20,4)"],
            "day": ["date"],
            "flag": ["boolean"],
            "tags": ["array<string>"],
            "status": ["int", "string"],
            "code": ["string", "bigint"],
        },
        ("page", "ms"),
    ),
    # Its name differs in case alone. Days before 1970 have negative partitions.
    NamedKind(
        "Clicks",
        {"ms": ["bigint"], "Ms2": ["bigint"], "page": ["string"], "real": ["float", "double"]},
        ("ms",),
        swaps_case=True,
        first_day=-20,
    ),
    NamedKind(
        'na\u00efve "q" it\'s 50%.a?b#c&d+日本',
        {
            "ms": ["bigint"],
            "a.b": ["bigint", "double"],
            'quo"te': ["string"],
            "it's": ["double"],
            "select": ["int"],
            " sp  ace ": ["string"],
            "100%?#&+": ["bigint"],
            "Straße👍": ["boolean"],
            "tags": ["array<string>"],
            "tags.element": ["string"],
            "__time_day": ["date"],
        },
        ("ms",),
    ),
    NamedKind(
        "Case.Variants",
        {"Page": ["string"], "page": ["string"], "ms": ["bigint"], "MS": ["double"]},
        ("Page", "page"),
        has_case_variants=True,
    ),
)
RESERVED: Final = frozenset({"tags.element", "__time_day"})
"""Columns that Iceberg's tables never have."""


def random_rows(
    chance: random.Random, interval: Interval, columns: Columns, count: int
) -> list[Row]:
    """Return rows with times in an interval."""
    found: list[Row] = []
    for _ in range(count):
        at_ms = chance.choice(
            (
                interval.start_ms,
                interval.end_ms - 1,
                chance.randrange(interval.start_ms, interval.end_ms),
            )
        )
        row: dict[str, object] = {"__time": at_ms * 1000 + chance.choice((0, 999))}
        for name, type_ in columns:
            if name != "__time":
                row[name] = None if chance.random() < 0.15 else _value(chance, name, type_)
        found.append(row)
    return found


def _value(chance: random.Random, name: str, type_: str) -> object:
    if type_ == "string":
        return chance.choice(_TEXTS)
    if type_ == "bigint":
        return chance.choice(_LONGS) if name == "big" else chance.randint(-1000, 1000)
    if type_ == "int":
        return chance.choice((0, 200, 404, (1 << 31) - 1, -(1 << 31)))
    if type_ in {"double", "float"}:
        # Sums of quarters are exact in any order.
        found = chance.choice(_REALS) if name == "real" else chance.randint(-4000, 4000) / 4
        return found if type_ == "double" else struct.unpack("<f", struct.pack("<f", found))[0]
    if type_ == "boolean":
        return chance.random() < 0.5
    if type_ == "date":
        return chance.choice((-700_000, 0, 20_000, 2_932_896))
    if type_.startswith("decimal"):
        return Decimal(chance.choice((0, 1, -1, 10**19, 99))).scaleb(-_SCALE)
    return [chance.choice((*_TEXTS, None)) for _ in range(chance.randint(0, 3))]


def is_within(row: Row, interval: Interval) -> bool:
    """Return whether a row's time is in an interval."""
    return interval.start_ms * 1000 <= int(str(row["__time"])) < interval.end_ms * 1000


def as_type(value: object, type_: str) -> object:
    """Return a value of a file in another file whose column has a wider type."""
    if value is None or type_ != "string" or isinstance(value, str):
        return float(value) if type_ == "double" and isinstance(value, int) else value
    return str(value)


def write_file(path: Path, columns: Columns, rows: Sequence[Row]) -> None:
    """Write rows to a Parquet file."""
    arrays = []
    for name, type_ in columns:
        arrow = _ARROW[type_]
        values = [row.get(name) for row in rows]
        stored = {"timestamp": pa.int64(), "date": pa.int32()}.get(type_, arrow)
        arrays.append(pa.array(values, stored).cast(arrow))
    table = pa.table(arrays, names=[name for name, _ in columns])
    pq.write_table(table, path, row_group_size=7, store_schema=False)


@dataclass(frozen=True)
class Answer:
    """Rows in a form that is equal for all engines.

    Attributes:
        columns: The names of the columns.
        count: Number of rows.
        sums: Sum of each column of quarters or of small integers.
        digest: A hash of all rows, in any order.
        rows: The rows as text.
    """

    columns: frozenset[str]
    count: int
    sums: Mapping[str, float]
    digest: str
    rows: Sequence[str]

    def difference(self, other: Answer) -> str:
        """Return how another answer differs; empty: it does not."""
        if self.columns != other.columns:
            return f"columns {sorted(self.columns)} instead of {sorted(other.columns)}"
        if (self.count, self.digest) == (other.count, other.digest):
            return "" if self.sums == other.sums else f"sums {self.sums}, not {other.sums}"
        more = _without(self.rows, other.rows)[:3]
        fewer = _without(other.rows, self.rows)[:3]
        return f"{self.count} rows, not {other.count}; has {more}, lacks {fewer}"


SUMMED: Final = frozenset({"ms", "price", "it's", "100%?#&+"})


def answer_of(rows: Iterable[Row], columns: Iterable[str]) -> Answer:
    """Return the answer with some columns of rows."""
    names, found = sorted(columns), list(rows)
    texts = sorted(
        json.dumps([_comparable(row.get(name)) for name in names], ensure_ascii=False)
        for row in found
    )
    sums = {
        name: sum(value for row in found if isinstance(value := row.get(name), int | float))
        for name in names
        if name in SUMMED
    }
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return Answer(frozenset(names), len(texts), sums, digest, texts)


def rows_of(table: pa.Table, *, is_exact: bool) -> list[Row]:
    """Return the rows of a table in Arrow; names in lower case unless they are exact."""
    names = [name if is_exact else name.lower() for name in table.column_names]
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            stored = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        elif pa.types.is_date32(column.type):
            stored = column.cast(pa.int32())
        else:
            stored = column
        columns.append(stored.to_pylist())
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _comparable(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value.hex()
    if isinstance(value, Decimal):
        return str(value.quantize(Decimal(1).scaleb(-_SCALE)))
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return value


def _without(some: Sequence[str], others: Sequence[str]) -> list[str]:
    left = list(some)
    for one in others:
        if one in left:
            left.remove(one)
    return left
