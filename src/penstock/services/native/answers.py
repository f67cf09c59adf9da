"""The answers of native queries: rows of a statement in the shapes of Druid's JSON.

Owns the shapes. Each is a generator over chunks of rows, so a large answer is written while it is
read; a chunk has few enough rows to be in memory. Times are text in ISO 8601, except in scans,
where they are milliseconds. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.instants import format_time
from penstock.services.native.written_sql import to_ms

Row = Sequence[object]
Chunks = Iterable[Sequence[Row]]
Elements = Iterator[object]


@dataclass(frozen=True, slots=True)
class NativeStatement:
    """A statement, and the function that gives its rows the shape of the answer."""

    sql: str
    shape: Callable[[Chunks], Elements]


@dataclass(frozen=True, slots=True)
class TimeseriesShape:
    """The shape of the answer of a timeseries.

    Attributes:
        names: The names of the values.
        start_ms: The time of the only bucket; None: the rows have their own.
        starts: The buckets that are filled, in the order of the answer.
        empty: The values of a bucket without rows.
        has_kinds: Whether the rows begin with their kind: 0 for the values of a bucket without
            rows, 1 for a bucket, 2 for the total.
        is_descending: Whether the latest bucket comes first.
        limit: Number of buckets; None: all.
    """

    names: Sequence[str]
    start_ms: int | None
    starts: Sequence[int]
    empty: Sequence[object]
    has_kinds: bool = False
    is_descending: bool = False
    limit: int | None = None


def timeseries(chunks: Chunks, shape: TimeseriesShape) -> Elements:
    """Yield the values of each bucket, then the total."""
    rows = itertools.chain.from_iterable(chunks)
    kinds = rows if shape.has_kinds else ((1, *row) for row in rows)
    reader = _Kinds(kinds)
    empty = reader.first(0) or (None, *shape.empty)
    buckets = itertools.islice(_filled(reader, shape, list(empty[1:])), shape.limit)
    for start_ms, values in buckets:
        named = dict(zip(shape.names, values, strict=False))
        yield {"timestamp": format_time(start_ms), "result": named}
    total = reader.last()
    if total is not None:
        values = total if shape.start_ms is not None else total[1:]
        yield {"timestamp": None, "result": dict(zip(shape.names, values, strict=False))}


class _Kinds:
    """Reads rows that begin with their kind, and are ordered by it."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = iter(rows)
        self._next = next(self._rows, None)

    def first(self, kind: int) -> Row | None:
        """Return the next row without its kind, if it is of this kind."""
        found = self._next
        if found is None or found[0] != kind:
            return None
        self._next = next(self._rows, None)
        return found[1:]

    def last(self) -> Row | None:
        """Return the total; buckets that were not read are skipped."""
        while self.first(1) is not None:
            pass
        return self.first(2)


def _filled(
    reader: _Kinds, shape: TimeseriesShape, empty: Sequence[object]
) -> Iterator[tuple[int, Sequence[object]]]:
    starts = iter(shape.starts)
    waiting = next(starts, None)
    while (row := reader.first(1)) is not None:
        if shape.start_ms is not None:
            yield shape.start_ms, row
            continue
        start_ms = to_ms(row[0])
        while waiting is not None and _is_before(waiting, start_ms, shape):
            yield waiting, empty
            waiting = next(starts, None)
        if waiting == start_ms:
            waiting = next(starts, None)
        yield start_ms, row[1:]
    while waiting is not None:
        yield waiting, empty
        waiting = next(starts, None)


def _is_before(one: int, other: int, shape: TimeseriesShape) -> bool:
    return one > other if shape.is_descending else one < other


def _timed(chunks: Chunks, start_ms: int | None) -> Iterator[tuple[str, Row]]:
    """Yield the text of the bucket of each row, and the rest of it."""
    rows = itertools.chain.from_iterable(chunks)
    if start_ms is not None:
        text = format_time(start_ms)
        for row in rows:
            yield text, row
        return
    last: object = None
    text = ""
    for row in rows:
        if row[0] != last:
            last = row[0]
            text = format_time(to_ms(last))
        yield text, row[1:]


def grouped(chunks: Chunks, names: Sequence[str], start_ms: int | None) -> Elements:
    """Yield the rows of a groupBy."""
    for time, row in _timed(chunks, start_ms):
        event = dict(zip(names, row, strict=False))
        yield {"version": "v1", "timestamp": time, "event": event}


def top(chunks: Chunks, names: Sequence[str], start_ms: int | None) -> Elements:
    """Yield the list of each bucket: of a topN or a search."""
    for time, group in itertools.groupby(_timed(chunks, start_ms), lambda pair: pair[0]):
        found = [dict(zip(names, row, strict=False)) for _, row in group]
        yield {"timestamp": time, "result": found}


def scanned(
    chunks: Chunks, columns: Sequence[tuple[str, str]], batch_size: int, *, is_compact: bool
) -> Elements:
    """Yield the rows of a scan, in batches.

    Args:
        chunks: The rows.
        columns: Names and Druid's types of the columns.
        batch_size: Maximum number of rows in a batch; a batch has at most the rows of a chunk.
        is_compact: Whether a row is a list instead of an object.
    """
    names = [name for name, _ in columns]
    signature = [{"name": name, "type": type_} for name, type_ in columns]
    for chunk in chunks:
        for begin in range(0, len(chunk), batch_size):
            batch = chunk[begin : begin + batch_size]
            events: list[object] = [
                list(row) if is_compact else dict(zip(names, row, strict=True)) for row in batch
            ]
            yield {
                "segmentId": None,
                "columns": names,
                "events": events,
                "rowSignature": signature,
            }


def boundary(chunks: Chunks, names: Sequence[str]) -> Elements:
    """Yield the times that the only row has, under these names; nothing if there are no rows."""
    (row,) = itertools.chain.from_iterable(chunks)
    if row[0] is None:
        return
    times = [format_time(to_ms(value)) for value in row]
    yield {"timestamp": times[0], "result": dict(zip(names, times, strict=True))}


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column in the answer of a segmentMetadata.

    Attributes:
        name: Its name.
        type: Druid's type of it.
        is_counted: Whether the row has the number of its values.
        has_cardinality: Whether the row has its approximate number of distinct values.
        has_bounds: Whether the row has its least and its greatest value.
    """

    name: str
    type: str
    is_counted: bool = False
    has_cardinality: bool = False
    has_bounds: bool = False


def described(
    chunks: Chunks, columns: Sequence[ColumnFacts], facts: Mapping[str, object]
) -> Elements:
    """Yield the description of a datasource.

    Args:
        chunks: One row: the number of rows, then the numbers of each column.
        columns: The columns.
        facts: Other fields of the answer.
    """
    (row,) = itertools.chain.from_iterable(chunks)
    values = iter(row)
    count = next(values)
    described_columns: dict[str, object] = {}
    for column in columns:
        has_nulls = column.name != "__time"
        if column.is_counted:
            has_nulls = next(values) != count
        cardinality = next(values) if column.has_cardinality else None
        least, greatest = (next(values), next(values)) if column.has_bounds else (None, None)
        described_columns[column.name] = {
            "typeSignature": column.type,
            "type": column.type.removeprefix("COMPLEX<").removesuffix(">"),
            "hasMultipleValues": False,
            "hasNulls": has_nulls,
            "size": 0,
            "cardinality": cardinality,
            "minValue": least,
            "maxValue": greatest,
            "errorMessage": None,
        }
    yield {"id": "merged", **facts, "columns": described_columns, "numRows": count}
