"""Row mapper: rows of the tables as records, and records as values of rows.

Owns which column holds which field of a record, and in which form. A field has the column of its
name, with three exceptions: an interval has the columns of its start and its end; a codec stores a
field in another form, such as JSON text; and fields at the end of a record that have no column are
computed by its reader. A table may have further columns, which its writer adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict

from penstock.core.intervals import Interval
from penstock.storage.metadata import schema
from penstock.storage.metadata.payloads import (
    JsonObject,
    dump,
    dump_list,
    dump_offsets,
    load,
    load_list,
    load_offsets,
)
from penstock.storage.metadata.rows.cluster import AuditRow, LeaseRow, RuleRow, SupervisorRow
from penstock.storage.metadata.rows.pending_segments import PendingRow
from penstock.storage.metadata.rows.publish import CommittedRow, CountsRow
from penstock.storage.metadata.rows.segments import SegmentRow
from penstock.storage.metadata.rows.tasks import LockRow, TaskRow, TaskSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Row, Table

R = TypeVar("R")

ALL_PARTITIONS: Final = -1
"""Partition number of a lock on a whole time chunk."""


class ColumnCodec(NamedTuple):
    """Another form of a field in its column.

    Attributes:
        read: Returns the field for the value of the column.
        write: Returns the value of the column for the field.
    """

    read: Callable[..., object]
    write: Callable[..., object]


class RowMapper(Generic[R]):
    """Maps rows of a table to records of one class and back.

    Args:
        table: The table.
        kind: The class of the records.
        codecs: Fields that are stored in another form.
        columns: Names of the columns of a query; by default all, in the order of the table. Those
            of a struct are its fields.
    """

    def __init__(
        self,
        table: Table,
        kind: Callable[..., R],
        codecs: Mapping[str, ColumnCodec] = MappingProxyType({}),
        columns: Sequence[str] | None = None,
    ) -> None:
        names = list(columns or table.c.keys())
        self.columns = tuple(table.c[name] for name in names)
        self._kind = kind
        fields = _stored(kind, names)
        wanted = ["start_ms" if name == "interval" else name for name in fields]
        # Rows of long lists are read in the order of the fields, so no values need to be picked.
        self._pick: Callable[[Row[tuple[object, ...]]], Iterable[object]] = (
            iter if wanted == names else itemgetter(*map(names.index, wanted))
        )
        self._reads = [(fields.index(name), codec.read) for name, codec in codecs.items()]
        self._writes = [(name, codec.write) for name, codec in codecs.items()]
        self._interval_at: int | None = None
        stored = {name: name for name in fields}
        if "interval" in fields:
            self._interval_at = fields.index("interval")
            self._times = itemgetter(names.index("start_ms"), names.index("end_ms"))
            del stored["interval"]
            stored |= {"start_ms": "interval.start_ms", "end_ms": "interval.end_ms"}
        self._stored = tuple(stored)
        self._fields = attrgetter(*stored.values())
        # Reading all fields of a struct at once is several times as fast as one by one.
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        assert not is_struct or len(fields) == len(_field_names(kind)), "all are columns"
        self._asdict: Callable[..., dict[str, object]] | None = asdict if is_struct else None

    def record(self, found: Row[tuple[object, ...]]) -> R:
        """Return the record of a row, which has the columns of this mapper in their order."""
        values = list(self._pick(found))
        for at, read in self._reads:
            values[at] = read(values[at])
        if self._interval_at is not None:
            values[self._interval_at] = Interval(*self._times(found))
        return self._kind(*values)

    def values(self, record: R) -> dict[str, object]:
        """Return the values of a record by column; the writer adds those of further columns."""
        if self._asdict is not None:
            values = self._asdict(record)
            if self._interval_at is not None:
                interval = values.pop("interval")
                assert isinstance(interval, Interval)
                values["start_ms"], values["end_ms"] = interval.start_ms, interval.end_ms
        else:
            # A strict zip takes half as long again, and the two have one length by construction.
            values = dict(zip(self._stored, self._fields(record), strict=False))
        for name, write in self._writes:
            values[name] = write(values[name])
        return values


def _stored(kind: Callable[..., object], columns: Sequence[str]) -> Sequence[str]:
    """Return the fields of a class that have a column."""
    names = _field_names(kind)
    while names[-1] not in columns:
        names.pop()
    return names


def _field_names(kind: Callable[..., object]) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return list(kind.__struct_fields__)
    assert is_dataclass(kind)
    return [field.name for field in fields(kind)]


_NO_STATUS: Final[JsonObject] = MappingProxyType({})


def _read_status(text: str) -> JsonObject:
    # Lists of tasks are long, and most of their statuses are empty.
    return _NO_STATUS if text == "{}" else load(text)


_JSON: Final = ColumnCodec(load, dump)
_OFFSETS: Final = ColumnCodec(load_offsets, dump_offsets)
_RULES: Final = ColumnCodec(lambda text: tuple(load_list(text)), dump_list)
_PARTITION: Final = ColumnCodec(
    lambda number: None if number == ALL_PARTITIONS else number,
    lambda number: ALL_PARTITIONS if number is None else number,
)

TASKS: Final = RowMapper(schema.tasks, TaskRow, {"payload": _JSON, "status": _JSON})
SUMMARIES: Final = RowMapper(
    schema.tasks,
    TaskSummary,
    {"status": ColumnCodec(_read_status, dump)},
    TaskSummary.__struct_fields__,
)
LOCKS: Final = RowMapper(schema.task_locks, LockRow, {"partition_number": _PARTITION})
SUPERVISORS: Final = RowMapper(schema.supervisors, SupervisorRow, {"payload": _JSON})
SEGMENTS: Final = RowMapper(schema.segments, SegmentRow, {"payload": _JSON})
PENDING: Final = RowMapper(schema.pending, PendingRow)
COMMITTED: Final = RowMapper(schema.offsets, CommittedRow, {"offsets": _OFFSETS})
COUNTS: Final = RowMapper(schema.counts, CountsRow)
LEASES: Final = RowMapper(schema.leases, LeaseRow, {"extra": _JSON})
RULES: Final = RowMapper(schema.rules, RuleRow, {"rules": _RULES})
AUDIT: Final = RowMapper(schema.audit, AuditRow, {"payload": _JSON})
