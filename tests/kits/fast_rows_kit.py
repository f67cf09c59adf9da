"""Random datasources for the comparison of the fast path with Spark: schemas, rows and files.

The rows have what engines disagree on: NaN, -0.0, infinities, extreme integers, empty texts, texts
that are not UTF-8, letters whose case differs by language, dates around the change of calendars,
and nulls everywhere. The files have what Penstock's segments have: columns that some lack, types
that are narrower than the datasource's, names in another case, and row cuts.
"""

from __future__ import annotations

import datetime as dt
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.intervals import Interval
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.fragments import of_column
from penstock.fastpath.snapshot_relations import arrow_type
from penstock.spark.ddl import quoted
from penstock.spark.tables.table_files import Columns, TableFile

DATASOURCE: Final = "wiki"
_EVERY_COLUMN: Final[Columns] = (
    ("__time", "timestamp"),
    ("channel", "string"),
    ("page", "string"),
    ("added", "bigint"),
    ("big", "bigint"),
    ("small", "int"),
    ("price", "double"),
    ("rate", "double"),
    ("ratio", "float"),
    ("flag", "boolean"),
    ("day", "date"),
    ("cost", "decimal(9,2)"),
    ("worth", "decimal(20,4)"),
)


def _is_covered(name: str, type_: str) -> bool:
    try:
        of_column(name, type_)
    except NotCompiled:
        return False
    return True


COLUMNS: Final[Columns] = tuple(one for one in _EVERY_COLUMN if _is_covered(*one))
"""Columns of types that the compiler covers, by the names that generated statements have.

`RowSet.renamed` gives them others.
"""

TEXTS: Final = (
    *("", "  ", "a", "A", "b", "a ", "ab", "aB", "abc", "ß", "SS", "é", "É", "e\u0301", "İ", "i"),
    *("👍", "a👍b", "a%b", "a_b", "it's", '"', "\\", "a\\b", "\n", "null", "0", "-1", "\u00a0"),
    *("ﬁ", "\ud7ff", "\U0010ffff", "ä", "z", "channel", "zażółć", "2026-01-01", "1e3", " 7", "A👍"),
    *("\0", "a\0", "a\0b"),
)
_LONGS: Final = (0, 1, -1, 2, 5, 10, 255, 1 << 31, -(1 << 31), 1 << 53, (1 << 53) + 1)
_EXTREMES: Final = ((1 << 63) - 1, -(1 << 63), (1 << 63) - 2, 1 << 62, -(1 << 62))
_REALS: Final = (0.0, 0.1, 0.3, 1.5, -2.25, 1e-300, 5e-324, 1e15, 123456.789)
_UNREAL: Final = (math.nan, math.inf, -math.inf, -0.0)
_COSTS: Final = ("0.00", "0.01", "-0.01", "1.00", "9999999.99", "-9999999.99", "2.50")
_WORTHS: Final = ("0.0000", "0.0001", "9999999999999999.9999", "-9999999999999999.9999", "3.1400")
_DAYS: Final = ("0001-01-01", "1582-10-04", "1582-10-10", "1582-10-15", "1969-12-31", "1970-01-01")
_LATER_DAYS: Final = ("2024-02-29", "2025-12-29", "2026-01-01", "2026-03-31", "9999-12-31")
_EPOCH: Final = dt.date(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
_STORED: Final = {"timestamp": pa.int64(), "date": pa.int32()}
_RENAMED: Final = ("channel", "page", "added", "big", "small", "price", "rate", "ratio", "flag")
_NAMES: Final = (
    *("Added", "order", "select", "sum", "c0", "g0", "a0", "rows", "groups", "a b", "naïve", "1st"),
    *('quo"te', "semi;colon", "per%", "a.b", "Straße", "$1", "it's", "null", "wiki", "price", "{}"),
)
# Texts of a statement, and the columns in it that may have other names.
_COLUMN: Final = re.compile(
    rf"'(?:[^'\\]|\\.)*'|\b(?:{'|'.join(_RENAMED)})\b", re.IGNORECASE | re.DOTALL
)
_MILLIS: Final = 1_000


@dataclass(frozen=True)
class RowSet:
    """A datasource in files.

    Attributes:
        seed: Its seed.
        files: Its files.
        has_unreal: Whether a number is NaN or -0.0.
        names: The names of columns that differ from those in `COLUMNS`.
    """

    seed: int
    files: tuple[TableFile, ...]
    has_unreal: bool
    names: Mapping[str, str]

    def renamed(self, sql: str) -> str:
        """Return a statement over `COLUMNS` as one over the columns of this datasource."""
        if not self.names:
            return sql

        def name(found: re.Match[str]) -> str:
            text = found[0]
            stored = self.names.get(text.lower())
            if stored is None:
                return text
            # A statement may spell a name in another case, if that is certain.
            is_other = not text.islower() and stored.isascii()
            return quoted(stored.upper() if is_other else stored)

        return _COLUMN.sub(name, sql)


def write_rows(seed: int, folder: Path, *, is_plain: bool = False) -> RowSet:
    """Write the rows of a seed to a few files of a folder.

    Args:
        seed: The seed.
        folder: The folder.
        is_plain: Whether the columns have the names of `COLUMNS`, and each file has all of them.
    """
    table = _rows_of(seed)
    chance = random.Random(f"files {seed}")
    names = {} if is_plain or chance.random() < 0.5 else _other_names(chance)
    if chance.random() < 0.5:
        table = table.sort_by("__time")
    count = chance.choice((1, 1, 2, 3, 5))
    size = max(1, -(-table.num_rows // count))
    broken = chance.randrange(count) if not is_plain and chance.random() < 0.04 else -1
    files = []
    for number, start in enumerate(range(0, max(1, table.num_rows), size)):
        rows = table.slice(start, size)
        whole = _interval_of(rows)
        clip = None
        if not is_plain and chance.random() < 0.25:
            clip = _part_of(whole, chance)
        columns = dict(COLUMNS)
        if not is_plain and number:
            rows, columns = _changed(rows, columns, chance)
        if number == broken and columns.get("page") == "string":
            rows = _not_utf8(rows)
        stored = {name: names.get(name, name) for name in columns}
        if not is_plain and number and chance.random() < 0.2:
            stored = {
                name: own.swapcase() if own.isascii() else own for name, own in stored.items()
            }
            stored["__time"] = "__time"
        path = folder / f"rows-{seed}-{number}.parquet"
        pq.write_table(
            rows.rename_columns([stored[name] for name in rows.column_names]),
            path,
            row_group_size=chance.choice((7 if rows.num_rows < 60 else 40, 64, 1000)),
            store_schema=False,
        )
        files.append(
            TableFile(
                str(path),
                tuple((stored[name], type_) for name, type_ in columns.items()),
                whole,
                clip,
                size_bytes=path.stat().st_size,
                rows=rows.num_rows,
            )
        )
    return RowSet(seed, tuple(files), _has_unreal(table), names)


def _rows_of(seed: int) -> pa.Table:
    chance = random.Random(f"rows {seed}")
    count = chance.choice((0, 1, 3, 40, 40, 200, 200, 300, 300, 300))
    holes = chance.choice((0.0, 0.1, 0.1, 0.5))
    unreal = chance.random() < 0.5

    def column(make: object, values: Sequence[object]) -> list[object]:
        some = chance.sample(list(values), min(len(values), chance.choice((2, 5, 12))))
        assert make is None or callable(make)
        return [
            None
            if chance.random() < holes
            else (make() if callable(make) and chance.random() < 0.3 else chance.choice(some))
            for _ in range(count)
        ]

    days = [(dt.date.fromisoformat(one) - _EPOCH).days for one in (*_DAYS, *_LATER_DAYS)]
    recent = (dt.date(2026, 1, 1) - _EPOCH).days

    def time() -> int:
        if chance.random() < 0.2:
            day = chance.choice(days)
            return day * _DAY_US + chance.choice((0, 1, _DAY_US - 1, chance.randrange(_DAY_US)))
        return (recent + chance.randrange(60)) * _DAY_US + chance.randrange(_DAY_US)

    columns: dict[str, list[object]] = {
        "__time": [time() for _ in range(count)],
        "channel": column(None, TEXTS),
        "page": column(None, TEXTS),
        "added": column(lambda: chance.randint(-1000, 1000), _LONGS[:7]),
        "big": column(lambda: chance.randint(-(1 << 40), 1 << 40), (*_LONGS, *_EXTREMES)),
        "small": column(lambda: chance.randint(-100, 100), (0, 1, (1 << 31) - 1, -(1 << 31))),
        # Sums of these are exact in any order.
        "price": column(
            lambda: chance.randint(-4000, 4000) / 4, (0.0, 0.25, *(-0.0,) * unreal, -7.75)
        ),
        "rate": column(None, (*_REALS, *(_UNREAL * unreal))),
        "ratio": column(lambda: chance.randint(-400, 400) / 8, (0.0, 1.5, *(_UNREAL * unreal))),
        "flag": column(None, (True, False)),
        "day": column(None, days),
        "cost": column(
            lambda: Decimal(chance.randint(-100_000, 100_000)).scaleb(-2), [*map(Decimal, _COSTS)]
        ),
        "worth": column(None, [*map(Decimal, _WORTHS)]),
    }
    arrays = []
    for name, type_ in COLUMNS:
        wanted = arrow_type(type_)
        array = pa.array(columns[name], _STORED.get(type_, wanted))
        arrays.append(array.cast(wanted))
    return pa.table(arrays, names=[name for name, _ in COLUMNS])


def _has_unreal(table: pa.Table) -> bool:
    return any(
        value is not None and (math.isnan(value) or repr(value) == "-0.0")
        for name in ("rate", "ratio", "price")
        for value in table[name].to_pylist()
    )


def _other_names(chance: random.Random) -> dict[str, str]:
    """Return other names of some columns, none of which is the name of another one."""
    taken = {name for name, _ in COLUMNS}
    found = {}
    for name in chance.sample(_RENAMED, chance.randint(1, 5)):
        other = chance.choice(_NAMES)
        if other.lower() not in taken or other.lower() == name:
            found[name] = other
            taken.add(other.lower())
    return found


def _interval_of(rows: pa.Table) -> Interval:
    """Return an interval that has all rows."""
    times = rows["__time"].cast(pa.int64()).to_pylist()
    if not times:
        return Interval(0, 86_400_000)
    return Interval(min(times) // _MILLIS, max(times) // _MILLIS + 1)


def _part_of(whole: Interval, chance: random.Random) -> Interval:
    ends = (whole.start_ms, whole.end_ms)
    first, last = sorted(chance.choice((*ends, chance.randint(*ends))) for _ in range(2))
    return Interval(first, last)


def _changed(
    rows: pa.Table, columns: dict[str, str], chance: random.Random
) -> tuple[pa.Table, dict[str, str]]:
    """Return rows without some columns, and with narrower types of others."""
    for name in [name for name in columns if name != "__time" and chance.random() < 0.08]:
        rows = rows.drop_columns([name])
        del columns[name]
    narrower = {"price": ("float", pa.float32()), "rate": ("bigint", pa.int64())}
    for name, (type_, arrow) in narrower.items():
        if name in columns and chance.random() < 0.15:
            values = rows[name] if name == "price" else rows["__time"].cast(pa.int64())
            rows = rows.set_column(rows.column_names.index(name), name, values.cast(arrow))
            columns[name] = type_
    if "page" in columns and chance.random() < 0.1:
        numbers = rows["__time"].cast(pa.int64())
        rows = rows.set_column(rows.column_names.index("page"), "page", numbers)
        columns["page"] = "bigint"
    return rows, columns


def _not_utf8(rows: pa.Table) -> pa.Table:
    """Return rows with a text in the column `page` that is not UTF-8."""
    texts = [b"a\xff", b"b", b"\xc3"] * rows.num_rows
    array = pa.array(texts[: rows.num_rows], pa.binary())
    broken = pa.StringArray.from_buffers(len(array), array.buffers()[1], array.buffers()[2])
    return rows.set_column(rows.column_names.index("page"), "page", broken)
