"""Convert whole records to typed rows: columns of their values, and of their other fields.

A column of the value takes precedence over another field of the same name; if the value lacks it or
has null, the other field is used, also for the row's time. A record without a value becomes a row
of its other fields. All of this works on whole columns, as the parsing of values does. Pure.

Invariant: every record becomes exactly one row, or one `BadMessage` with its index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.batch.input.schema_casts import conformed
from penstock.spark.messages.headers import header_texts, header_values
from penstock.spark.messages.keys import KeyReader
from penstock.spark.topic.arrow_times import as_times
from penstock.spark.topic.parse import BadMessage, ParsedRows
from penstock.spark.topic.row_shape import TIME_COLUMN, FieldType, RowShape

if TYPE_CHECKING:
    from penstock.spark.messages.formats import MetadataColumns, TextFormat
    from penstock.spark.topic.whole_records import WholeRecords

_Places = npt.NDArray[np.int64]


class RecordRows:
    """Parser of batches of records of one shape. For one thread at a time.

    Args:
        shape: The rows to make.
        value_format: Format of values.
        columns: Columns of the other fields.
    """

    def __init__(self, shape: RowShape, value_format: TextFormat, columns: MetadataColumns) -> None:
        time = shape.time
        assert time is not None, "rows of streams have a time"
        self._shape = shape
        self._time = time
        self._columns = columns
        self._has_time = columns.has(time.name)
        # It is missing only if it is not among the other fields either.
        value_time = replace(time, missing_ms=None, optional=True) if self._has_time else time
        self._values = value_format.parser(replace(shape, time=value_time))
        self._metadata = RowShape(
            tuple((name, type_) for name, type_ in shape.fields if columns.has(name)),
            value_time if self._has_time else None,
        )

    def parse_records(self, records: WholeRecords) -> ParsedRows:
        """Return the rows and the bad records of a batch."""
        bad: dict[int, str] = {}
        rows, places = self._rows_of_values(records, bad)
        rows, places = self._with_metadata(rows, places, records, bad)
        rows = self._timed(rows, places, bad)
        return ParsedRows(rows, tuple(BadMessage(at, bad[at]) for at in sorted(bad)))

    def _rows_of_values(
        self, records: WholeRecords, bad: dict[int, str]
    ) -> tuple[pa.RecordBatch, _Places]:
        """Return the rows of the values, and the positions of their records."""
        values = records.values
        there = np.arange(len(values))
        if values.null_count:
            there = np.flatnonzero(values.is_valid())
            values = values.drop_null()
        parsed = self._values.parse(values)
        bad.update((int(there[one.index]), one.reason) for one in parsed.bad)
        if len(there) == len(records):
            return parsed.rows, _without(there, (one.index for one in parsed.bad))
        row = np.full(len(records), -1)
        row[_without(there, (one.index for one in parsed.bad))] = np.arange(parsed.rows.num_rows)
        places = _without(np.arange(len(records)), bad)
        wanted = row[places]
        return parsed.rows.take(pa.array(wanted, mask=wanted < 0)), places

    def _with_metadata(
        self, rows: pa.RecordBatch, places: _Places, records: WholeRecords, bad: dict[int, str]
    ) -> tuple[pa.RecordBatch, _Places]:
        """Return the rows with missing values replaced by the other fields."""
        names = [name for name, _ in self._metadata.fields]
        if not names and not self._has_time:
            return rows, places
        if len(places) < len(records):
            records = records.take(pa.array(places))
        wrong: dict[int, str] = {}
        found = {name: self._column(name, records, rows, wrong) for name in names}
        if self._has_time and self._time.name not in found:
            found[self._time.name] = self._column(self._time.name, records, rows, wrong)
        raw = pa.RecordBatch.from_arrays(list(found.values()), names=list(found))
        if wrong:
            kept = _without(np.arange(len(places)), wrong)
            bad.update((int(places[at]), reason) for at, reason in wrong.items())
            raw, rows = raw.take(pa.array(kept)), rows.take(pa.array(kept))
            places = places[kept]
        metadata, more = conformed(raw, self._metadata)
        if more:
            kept = _without(np.arange(len(places)), (index for index, _ in more))
            bad.update((int(places[index]), reason) for index, reason in more)
            rows, places = rows.take(pa.array(kept)), places[kept]
        return self._filled(rows, metadata), places

    def _column(
        self, name: str, records: WholeRecords, rows: pa.RecordBatch, wrong: dict[int, str]
    ) -> pa.Array:
        """Return the other fields of a name, unless all values have it themselves.

        Headers come first, as in Druid, then the fields of every record, then the key.
        """
        shown = TIME_COLUMN if name not in rows.schema.names else name
        open_ = rows.column(shown).is_null()
        column: pa.Array | None = None
        header, encoding = self._columns.header_of(name), self._columns.encoding
        if header is not None and encoding is not None and records.headers is not None:
            values = pc.if_else(open_, header_values(records.headers, header), None)
            column, bad = header_texts(values, header, encoding)
            _note(wrong, bad)
        own = self._own(name, records)
        if own is not None:
            own = pc.if_else(open_, own, None)
        elif name == self._columns.key:
            own = self._key(name, records, open_, wrong)
        if own is None:
            own = pa.nulls(len(records))
        return own if column is None else pc.coalesce(column, own.cast(pa.string()))

    def _own(self, name: str, records: WholeRecords) -> pa.Array | None:
        """Return a field that every record has, if the name is one of these."""
        columns = self._columns
        if name == columns.time:
            return records.times_ms
        if name == columns.topic:
            return pa.repeat(records.topic, len(records))
        if name == columns.partition:
            return pa.repeat(records.partition, len(records))
        return records.offsets if name == columns.offset else None

    def _key(
        self, name: str, records: WholeRecords, open_: pa.BooleanArray, wrong: dict[int, str]
    ) -> pa.Array | None:
        """Return the keys' values for rows that may use them; None: there are no keys."""
        if records.keys is None or self._columns.key_format is None:
            return None
        type_ = dict(self._metadata.fields).get(name, FieldType.STRING)
        keys = pc.if_else(open_, records.keys, None)
        column, bad = KeyReader(self._columns.key_format, name, type_).read(keys)
        _note(wrong, bad)
        return column

    def _filled(self, rows: pa.RecordBatch, metadata: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with missing values filled from the other fields."""
        known = set(metadata.schema.names)
        columns = [
            pc.coalesce(column, metadata.column(field.name)) if field.name in known else column
            for field, column in zip(rows.schema, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._shape.arrow_schema)

    def _timed(self, rows: pa.RecordBatch, places: _Places, bad: dict[int, str]) -> pa.RecordBatch:
        """Return the rows that have a time, their own or one of the other fields."""
        times = rows.column(TIME_COLUMN)
        if not times.null_count:
            return rows
        if self._time.missing_ms is not None:
            missing = as_times(pa.array([self._time.missing_ms], pa.int64()))[0]
            return rows.set_column(0, rows.schema.field(0), pc.fill_null(times, missing))
        without = np.flatnonzero(times.is_null())
        bad.update((int(places[at]), self._time.why_none) for at in without)
        return rows.filter(times.is_valid())


def _note(wrong: dict[int, str], bad: Iterable[BadMessage]) -> None:
    for one in bad:
        wrong.setdefault(one.index, one.reason)


def _without(places: _Places, indices: Iterable[int]) -> _Places:
    return np.delete(places, list(indices))
