"""Rows of messages as a streaming task makes them, computed here without a Spark job.

Uses the task's own parser, the same functions that truncate times and shorten text, and its limits
for late and early rows. Transforms and the filter are evaluated by Spark alone, so columns that a
transform computes are left out, and the filter is reported as undecided. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from penstock.core.intervals import Granularity, format_time
from penstock.indexing.specs import TIME_COLUMN, DataSchema
from penstock.indexing.task_spec import MessageTimes
from penstock.spark.messages.formats import metadata_columns, text_format
from penstock.spark.messages.record_rows import RecordRows
from penstock.spark.rollup import RowFold
from penstock.spark.row_chunks import times_ms
from penstock.spark.schema_columns import metric_names, row_shape
from penstock.spark.topic.row_shape import FieldType, RowShape
from penstock.spark.topic.whole_records import whole_records

if TYPE_CHECKING:
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.specs.input_formats import DelimitedFormat
    from penstock.indexing.specs.rows.stream_formats import KafkaFormat
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.storage.queue.log_reader import MessageSlice

_PLAIN: Final = (str, int, float)
# Columns of one message that are compared. A row with the same time and as many equal columns is
# that of the message, and one message may have 60,000, which take 8 s.
_DISCOVERED_MAX: Final = 1_000
_UNCHANGED: Final = Granularity.parse("NONE")


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """How messages of a topic become rows.

    Attributes:
        schema: The schema of the rows.
        topic: The topic.
        delimited: The format, if messages are delimited text.
        record_format: The format, if rows have metadata of the messages.
        times: Limits for late and early rows of the task; None: the task is not known any longer.
        early_period_ms: How far after the current time rows may be, None without such a limit.
    """

    schema: DataSchema
    topic: str
    delimited: DelimitedFormat | None
    record_format: KafkaFormat | None
    times: MessageTimes | None
    early_period_ms: int | None = None

    @classmethod
    def of_task(cls, task: StreamTaskSpec) -> MessageSchema:
        """Return the reading of a task."""
        return cls(
            task.data_schema,
            task.topic,
            task.delimited,
            task.record_format,
            task.times,
            task.early_period_ms,
        )

    @classmethod
    def of_supervisor(cls, spec: SupervisorSpec) -> MessageSchema:
        """Return the reading of the tasks of a supervisor, whose limits depend on their start."""
        io = spec.io
        return cls(
            spec.data_schema,
            io.stream,
            io.delimited,
            io.record_format,
            None,
            io.early_message_rejection_period,
        )

    @property
    def computed(self) -> frozenset[str]:
        """The columns that transforms compute."""
        return frozenset(transform.name for transform in self.schema.transforms)

    @property
    def knows_time(self) -> bool:
        """Whether the time of a row is that of its message, and not computed by Spark."""
        return TIME_COLUMN not in self.computed

    @property
    def in_spark(self) -> tuple[str, ...]:
        """The steps that only Spark evaluates: `transforms`, `filter`, or none."""
        steps = {"transforms": bool(self.schema.transforms), "filter": bool(self.schema.filter)}
        return tuple(name for name, there in steps.items() if there)


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """Rows of some messages, and the reason why the others have none.

    Attributes:
        offsets: The offset of each row's message.
        rows: `__time` as in the files, and the columns that the message alone determines.
        times_ms: The time of each row before it was truncated.
        bad: The reason why a message has no row, by its offset.
    """

    offsets: npt.NDArray[np.int64]
    rows: pa.RecordBatch
    times_ms: npt.NDArray[np.int64]
    bad: Mapping[int, str]


class MessageRows:
    """Makes rows of messages. For one thread at a time.

    Args:
        reading: How messages become rows.
        also: Columns that tasks discover in messages, so that the schema does not name them.
    """

    def __init__(self, reading: MessageSchema, also: Sequence[str] = ()) -> None:
        schema = reading.schema
        self._reading = reading
        dimensions = [d for d in schema.dimensions if d.name not in reading.computed]
        known = {d.name for d in schema.dimensions} | metric_names(schema) | reading.computed
        found = [name for name in dict.fromkeys(also) if name not in known | {TIME_COLUMN}]
        if not schema.dimensions_spec.discovers:
            found = []
        shape = row_shape(schema)
        fields = dict(shape.fields) | {
            name: FieldType.STRING for name in found if name not in dict(shape.fields)
        }
        shape = RowShape(tuple(fields.items()), shape.time)
        format_ = text_format(reading.delimited)
        metadata = metadata_columns(reading.record_format)
        self._whole = None if metadata is None else RecordRows(shape, format_, metadata)
        self._bodies = format_.parser(shape)
        self.columns = (*(d.name for d in dimensions), *found)
        """The columns of the rows without `__time`."""
        self._fold = RowFold(
            schema.query_granularity if reading.knows_time else _UNCHANGED,
            (),
            (),
            tuple(
                (d.name, d.max_string_length) for d in dimensions if d.max_string_length is not None
            ),
            tuple((d.name, d.has_sets) for d in dimensions if d.orders_lists),
        )

    def read(self, slices: Sequence[MessageSlice], partition: int) -> ReadMessages:
        """Return the rows of messages of one stream partition, at least one slice."""
        starts = (np.arange(s.base_offset, s.base_offset + len(s.messages)) for s in slices)
        offsets = np.concatenate([*starts]).astype(np.int64)
        if self._whole is not None:
            parsed = self._whole.parse_records(
                whole_records(slices, self._reading.topic, partition)
            )
        else:
            parsed = self._bodies.parse(pa.concat_arrays([s.messages for s in slices]))
        bad = {int(offsets[one.index]): one.reason for one in parsed.bad}
        good = np.delete(offsets, [one.index for one in parsed.bad])
        times = times_ms(parsed.rows.column(TIME_COLUMN))
        kept = parsed.rows.select([TIME_COLUMN, *self.columns])
        return ReadMessages(good, self._fold.held(kept), times, bad)


@dataclass(frozen=True, slots=True)
class MessageOutcome:
    """The outcome of one message before Spark evaluates transforms and the filter.

    Attributes:
        kind: `row`, `unparseable`, `late`, `early` or, if a limit depends on the moment at which
            the message was read, `undecided`.
        reason: Why it has no row, else empty.
        time_ms: The time of its row before it was truncated, if it is known.
        stored_ms: The time of its row in the files.
        values: Values of its row that the message alone determines.
    """

    kind: str
    reason: str = ""
    time_ms: int | None = None
    stored_ms: int | None = None
    values: Mapping[str, object] | None = None


def outcome_of(
    reading: MessageSchema, message: MessageSlice, partition: int, read_by_ms: int
) -> MessageOutcome:
    """Return the outcome of one message.

    Args:
        reading: How it becomes a row.
        message: The message, alone in its slice.
        partition: Its stream partition.
        read_by_ms: A time at which it had been read, or the current time.
    """
    read = MessageRows(reading, _discovered(reading, message)).read([message], partition)
    if not len(read.offsets):
        return MessageOutcome("unparseable", read.bad[message.base_offset])
    values = read.rows.slice(0, 1).to_pylist()[0]
    del values[TIME_COLUMN]
    if not reading.knows_time:
        return MessageOutcome("row", values=values)
    time_ms = int(read.times_ms[0])
    stored_ms = int(times_ms(read.rows.column(TIME_COLUMN))[0])
    kind, reason = _in_limits(reading, time_ms, message.append_time_ms, read_by_ms)
    return MessageOutcome(kind, reason, time_ms, stored_ms, values)


def _discovered(reading: MessageSchema, message: MessageSlice) -> list[str]:
    """Return the columns that a task discovers in one message of JSON; values that nest are not."""
    spec = reading.schema.dimensions_spec
    if not spec.discovers:
        return []
    try:
        value = orjson.loads(message.messages[0].as_py())
    except orjson.JSONDecodeError:
        return []
    excluded = {*spec.dimension_exclusions, reading.schema.timestamp_spec.column}
    items = value.items() if isinstance(value, dict) else ()
    found = (name for name, one in items if isinstance(one, _PLAIN) and name not in excluded)
    return [*islice(found, _DISCOVERED_MAX)]


def _in_limits(
    reading: MessageSchema, time_ms: int, appended_ms: int, read_by_ms: int
) -> tuple[str, str]:
    """Return whether a row is in the limits of its task, and why not."""
    times = reading.times
    shown = format_time(time_ms)
    if times is None:
        return "row", ""
    if times.min_ms is not None and time_ms < times.min_ms:
        limit = format_time(times.min_ms)
        return "late", f"its time {shown} is before {limit}, the task's limit for late rows"
    if times.max_ms is None or time_ms < times.max_ms:
        return "row", ""
    # The limit follows the clock of the task: see `StreamTaskSpec.times_at`.
    period_ms = reading.early_period_ms or 0
    if time_ms < appended_ms + period_ms:
        return "row", ""
    if time_ms >= max(times.max_ms, read_by_ms + period_ms):
        limit = format_time(max(times.max_ms, read_by_ms + period_ms))
        return "early", f"its time {shown} is not before {limit}, the task's limit for early rows"
    return "undecided", f"its time {shown} may have been after the task's limit for early rows"
