"""Bounds of the columns of files, from the statistics in their footers.

Owns which statistics count as bounds, their form in manifests, and the footers that are kept. A
file has no row outside its bounds, however loose they are. Source of the encoding: the Iceberg
table specification, "Binary single-value serialization"; of the statistics: the format of Parquet.

Rules:

- a column of numbers with a point has no greatest value: rows with NaN are not in the statistics,
  and engines differ in whether NaN is greater than other numbers;
- long texts are cut: the least one to a prefix, the greatest one to the next greater prefix;
- in manifests, only types have bounds that Iceberg never makes wider, so that the encoding of a
  file that is already in a manifest stays right.
"""

from __future__ import annotations

import math
import struct
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, Unavailable
from penstock.segments.parquet_footer import read_footer

if TYPE_CHECKING:
    import pyarrow.parquet as pq

TEXT_CHARACTERS_MAX: Final = 16
"""Longer bounds of texts are cut, as Iceberg's own writers do."""
COLUMNS_KEPT_MAX: Final = 200_000
"""Columns of files whose bounds are kept in memory, about 50 MB."""
COLUMNS_PER_FILE_MAX: Final = 100
"""Columns of a file that get bounds in a manifest, as with Iceberg's own writers."""

Value = int | float | str | None

_SURROGATES: Final = (0xD800, 0xE000)
_LAST_CHARACTER: Final = 0x10FFFF
_PHYSICAL: Final = {
    "BOOLEAN": "boolean",
    "INT32": "long",
    "INT64": "long",
    "FLOAT": "float",
    "DOUBLE": "double",
}
_UNITS_US: Final = {"milliseconds": (1_000, 1), "microseconds": (1, 1), "nanoseconds": (1, 1_000)}
"""Multiplier and divisor to microseconds, by Parquet's name of the unit."""
_IN_MANIFESTS: Final = frozenset({"boolean", "long", "date", "timestamp", "timestamptz", "string"})


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """Bounds and counts of the values of a column of a file.

    Attributes:
        kind: Iceberg's type of the values; a narrow whole number is a `long`.
        low: The least value or less, a date in days and a time in microseconds; None: unknown.
        high: The greatest value or more; None: unknown.
        values: Number of its values, with nulls.
        nulls: Number of nulls; None: unknown.
    """

    kind: str
    low: Value
    high: Value
    values: int
    nulls: int | None

    @property
    def is_only_null(self) -> bool:
        """Whether all values are null."""
        return self.nulls == self.values

    def encoded(self, type_: object) -> tuple[bytes, bytes] | None:
        """Return the bounds as manifests have them for a column of a type; None: it has none."""
        if self.kind != type_ or self.kind not in _IN_MANIFESTS:
            return None
        if self.low is None or self.high is None:
            return None
        return _encoded(self.kind, self.low), _encoded(self.kind, self.high)


class FileColumns:
    """Names of the columns of a file, which many files share.

    Args:
        paths: Paths of the leaves of its schema. A part before a dot may be a column with parts.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._names = frozenset((*paths, *(one.partition(".")[0] for one in paths)))
        self._by_case: defaultdict[str, list[str]] = defaultdict(list)
        for name in sorted(self._names):
            self._by_case[name.lower()].append(name)

    def has(self, name: str) -> bool:
        """Return whether the file may have a column of exactly this name."""
        return name in self._names

    def variants(self, name: str) -> Sequence[str]:
        """Return the names that equal this one, except for case."""
        return self._by_case.get(name.lower(), ())


@dataclass(frozen=True, slots=True)
class FileBounds:
    """The columns of a file.

    Attributes:
        names: Their names.
        columns: Bounds of columns by their names; other columns may have any values.
    """

    names: FileColumns
    columns: Mapping[str, ColumnBounds]


@dataclass(frozen=True, slots=True)
class _Footer:
    names: FileColumns
    columns: Mapping[str, ColumnBounds]
    # Names in lower case whose statistics were read, also without a result.
    read: frozenset[str]


class FooterBounds:
    """Bounds of files that do not change, kept after the first read. Any thread may call.

    Args:
        clock: Measures how long reads take.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Requests are on many threads.
        self._mutex = threading.Lock()
        self._footers: OrderedDict[str, _Footer] = OrderedDict()
        self._columns = 0

    def deadline(self, seconds: float) -> float:
        """Return the time after which `of` reads no further footers."""
        return self._clock.monotonic_s() + seconds

    def of(self, location: str, names: Collection[str], deadline_s: float) -> FileBounds | None:
        """Return the bounds of columns of a file; None if they are unknown and cannot be read now.

        Args:
            location: The file, as engines open it.
            names: The columns; case does not count.
            deadline_s: Afterwards no footer is read.
        """
        wanted = frozenset(name.lower() for name in names)
        with self._mutex:
            known = self._footers.get(location)
            if known is not None and wanted <= known.read:
                self._footers.move_to_end(location)
                return FileBounds(known.names, known.columns)
        if self._clock.monotonic_s() >= deadline_s:
            return None
        found = _read(location, wanted)
        if found is None:
            return None
        self._keep(location, found)
        return FileBounds(found.names, found.columns)

    def _keep(self, location: str, found: _Footer) -> None:
        with self._mutex:
            if (known := self._footers.pop(location, None)) is not None:
                self._columns -= len(known.read) + 1
                found = _Footer(
                    found.names, {**known.columns, **found.columns}, known.read | found.read
                )
            self._footers[location] = found
            self._columns += len(found.read) + 1
            while self._columns > COLUMNS_KEPT_MAX and len(self._footers) > 1:
                _, dropped = self._footers.popitem(last=False)
                self._columns -= len(dropped.read) + 1


def _read(location: str, wanted: frozenset[str]) -> _Footer | None:
    """Return bounds from the footer of a file; None: it cannot be read."""
    try:
        return _footer(read_footer(location), wanted)
    except (CorruptData, Unavailable, ValueError):
        return None  # The engine that reads the file reports the reason.


@lru_cache(maxsize=1_000)
def _file_columns(paths: tuple[str, ...]) -> FileColumns:
    return FileColumns(paths)


def _footer(metadata: pq.FileMetaData, wanted: frozenset[str]) -> _Footer:
    schema = metadata.schema
    leaves = [schema.column(number) for number in range(len(schema))]
    paths = [leaf.path for leaf in leaves]
    columns = {}
    for number, leaf in enumerate(leaves):
        # A leaf of a struct or a list has another name than path, or is repeated.
        is_flat = leaf.name == leaf.path and not leaf.max_repetition_level
        if is_flat and leaf.path.lower() in wanted and paths.count(leaf.path) == 1:
            kind, multiplier, divisor = _kind(leaf)
            if kind:
                columns[leaf.path] = _bounds(metadata, number, kind, (multiplier, divisor))
    return _Footer(_file_columns(tuple(paths)), columns, wanted)


def _kind(leaf: pq.ColumnSchema) -> tuple[str, int, int]:
    """Return Iceberg's type of a column, and the factor of its values; empty: without bounds."""
    physical = str(leaf.physical_type)
    logical = orjson.loads(leaf.logical_type.to_json())
    name = logical["Type"]
    if name == "String" and physical == "BYTE_ARRAY":
        return "string", 1, 1
    if name == "Date" and physical == "INT32":
        return "date", 1, 1
    if name == "Timestamp" and physical == "INT64":
        kind = "timestamptz" if logical["isAdjustedToUTC"] else "timestamp"
        return kind, *_UNITS_US[logical["timeUnit"]]
    is_plain = name == "None" or (name == "Int" and logical["isSigned"])
    return (_PHYSICAL.get(physical, "") if is_plain else ""), 1, 1


def _bounds(
    metadata: pq.FileMetaData, number: int, kind: str, factor: tuple[int, int]
) -> ColumnBounds:
    lows: list[Value] = []
    highs: list[Value] = []
    values, nulls = 0, 0
    are_nulls_known = True
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        statistics = chunk.statistics
        values += chunk.num_values
        has_nulls = statistics is not None and statistics.has_null_count
        are_nulls_known &= has_nulls
        nulls += statistics.null_count if has_nulls else 0
        if has_nulls and statistics.null_count == chunk.num_values:
            continue
        if statistics is None or not statistics.has_min_max:
            lows.append(None)
            highs.append(None)
            continue
        lows.append(_low(kind, statistics.min_raw, factor))
        highs.append(_high(kind, statistics.max_raw, factor))
    return ColumnBounds(
        kind,
        _extreme(lows, least=True),
        _extreme(highs, least=False),
        values,
        nulls if are_nulls_known else None,
    )


def _extreme(values: Sequence[Value], *, least: bool) -> Value:
    known = [one for one in values if one is not None]
    if not known or len(known) < len(values):
        return None
    return min(known) if least else max(known)


def _low(kind: str, raw: object, factor: tuple[int, int]) -> Value:
    if kind == "string":
        text = _text(raw)
        return None if text is None else text[:TEXT_CHARACTERS_MAX]
    if kind in {"float", "double"}:
        return _number(kind, raw)
    assert isinstance(raw, int)
    return raw * factor[0] // factor[1]


def _high(kind: str, raw: object, factor: tuple[int, int]) -> Value:
    if kind == "string":
        text = _text(raw)
        return None if text is None else _cut_high(text)
    if kind in {"float", "double"}:
        return None
    assert isinstance(raw, int)
    return -(-raw * factor[0] // factor[1])


def _text(raw: object) -> str | None:
    """Return a text in statistics; None: it is not UTF-8, so its order is not that of texts."""
    try:
        return raw.decode() if isinstance(raw, bytes) else None
    except UnicodeDecodeError:
        return None


def _cut_high(text: str) -> str | None:
    """Return a text of limited length that is not less than another one; None: there is none."""
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    for end in range(TEXT_CHARACTERS_MAX, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == _SURROGATES[0]:
            code = _SURROGATES[1]
        if code <= _LAST_CHARACTER:
            return text[: end - 1] + chr(code)
    return None


def _number(kind: str, raw: object) -> float | None:
    """Return a bound of a number with a point, a little lower if engines may round literals."""
    if not isinstance(raw, float) or math.isnan(raw):
        return None
    if kind == "double" or math.isinf(raw):
        return raw
    # A literal may be rounded to 32 bits, or not: all numbers that round to this one count.
    return raw - abs(raw) * 2**-22 - 2**-148


def _encoded(kind: str, value: int | float | str) -> bytes:  # noqa: PYI041 - a bound has one of them
    if isinstance(value, str):
        return value.encode()
    if kind == "boolean":
        return struct.pack("<?", bool(value))
    return struct.pack("<i" if kind == "date" else "<q", value)
