"""From a row back to its messages, or to the input of the batch task that wrote it.

The row is given by its datasource, its time and values of columns. Its segment leads to the publish
that wrote it, and for a stream to a range of offsets, whose messages are read and parsed until some
make an equal row. The scan of one request is bounded; a cursor continues it.

For a row in a segment that was compacted, the publishes of the segments that it replaced are
scanned, as far as these still exist.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.core.intervals import END_OF_TIME_MS, Interval, format_time
from penstock.indexing.secrets import masked
from penstock.indexing.specs import TIME_COLUMN
from penstock.indexing.task_spec import TASK_TYPE, parse_task_spec
from penstock.services.api.traces.segments_at import (
    SegmentsAt,
    find_rows,
    publish_json,
    segment_json,
    segments_at,
)
from penstock.services.api.traces.topic_messages import id_text
from penstock.services.json_values import part
from penstock.spark.row_chunks import times_ms
from penstock.spark.traces.equal_rows import equal_rows
from penstock.spark.traces.message_rows import MessageRows, MessageSchema

if TYPE_CHECKING:
    from penstock.services.api.traces.message_trace import TraceParts
    from penstock.services.api.traces.topic_messages import TopicMessages
    from penstock.storage.metadata import PublishRecord, TaskRow
    from penstock.storage.metadata.segment_overview import SegmentOverview
    from penstock.storage.queue.log_reader import MessageSlice

MESSAGES_MAX: Final = 100
"""Messages in one answer."""
_SCAN_BYTES: Final = 16 << 20
_FETCH_BYTES: Final = 1 << 20
_SCAN_S: Final = 0.6
_COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True)
class TracedRow:
    """The row of a request.

    Attributes:
        datasource: Its datasource.
        time_ms: Its `__time`.
        values: Values of some of its columns.
        cursor: Cursor of an earlier answer, to continue its scan; None: begin.
    """

    datasource: str
    time_ms: int
    values: Mapping[str, object]
    cursor: ScanCursor | None = None


@dataclass(frozen=True, slots=True, order=True)
class ScanCursor:
    """The place at which a scan continues: sequence, stream partition and offset."""

    sequence: str
    partition: int
    offset: int

    def to_text(self) -> str:
        """Return its form in answers."""
        raw = orjson.dumps([self.sequence, self.partition, self.offset])
        return base64.urlsafe_b64encode(raw).decode().rstrip("=")

    @classmethod
    def parse(cls, text: object) -> ScanCursor:
        """Parse the output of `to_text`.

        Raises:
            InvalidRequest: It is not one.
        """
        try:
            raw = base64.urlsafe_b64decode(f"{text}==".encode("ascii"))
            sequence, partition, offset = orjson.loads(raw)
        except (binascii.Error, UnicodeEncodeError, ValueError, TypeError):
            sequence = partition = offset = None
        if (
            not isinstance(sequence, str)
            or not (isinstance(partition, int) and 0 <= partition < 1 << 31)
            or not (isinstance(offset, int) and 0 <= offset < 1 << 63)
        ):
            raise InvalidRequest(
                "is not a cursor: send the one of an earlier answer, or leave it out",
                place="cursor",
            )
        return cls(sequence, partition, offset)


@dataclass(frozen=True, slots=True)
class _Source:
    """A sequence whose messages may have made the row."""

    sequence: str
    reading: MessageSchema
    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(slots=True)
class _Scan:
    """The progress of a scan, and what it found."""

    messages: list[dict[str, object]] = field(default_factory=list)
    left_bytes: int = _SCAN_BYTES
    deleted: int = 0


class RowTraces:
    """Follows rows back. Any thread.

    Args:
        parts: Its dependencies.
    """

    def __init__(self, parts: TraceParts) -> None:
        self._parts = parts
        self._store = parts.store

    def trace(
        self,
        row: TracedRow,
        may_read_topic: Callable[[str], bool],
        may_read_task: Callable[[str], bool],
    ) -> dict[str, object]:
        """Return the answer for a row of a datasource that the principal may read as a whole.

        Args:
            row: The row.
            may_read_topic: Returns whether it may read a topic: messages of others are left out.
            may_read_task: Returns whether it may read the spec of a task: inputs of others are
                left out.

        Raises:
            InvalidRequest: A value cannot be of the type of its column.
            Unavailable: The broker or the metadata store does not answer.
        """
        at = segments_at(self._store, row.datasource, row.time_ms)
        found = find_rows(at, row.time_ms, row.values, self._parts.files)
        writers = self._store.publishes.of_segments(list(found.segments))
        tasks = {
            one.id: one
            for one in self._store.tasks.rows_of(sorted({w.task_id for w in writers.values()}))
        }
        texts = {one.id: one for one in at.visible}
        segments = [
            {
                **segment_json(texts[name]),
                "rows": count,
                **self._written(writers.get(name), tasks, may_read_task),
            }
            for name, count in found.segments.items()
        ]
        records = [one for name in found.segments if (one := writers.get(name)) is not None]
        if any(_type_of(tasks.get(one.task_id)) == _COMPACT for one in records):
            records += self._replaced(at)
        sources = [
            *self._published(records),
            *self._announced(at, found.sequences),
        ]
        return {
            "datasource": row.datasource,
            "time": format_time(row.time_ms),
            "rows": found.count,
            "unread": found.unread,
            "segments": segments,
            "running": [
                {"sequence": one.sequence_name, "task": one.task_id, "rows": count}
                for one in at.sequences
                if one.is_shown and (count := found.sequences.get(one.sequence_name))
            ],
            **self._scanned(
                row,
                sources,
                may_read_topic,
                self._ends(records, at, found.sequences, may_read_task),
            ),
        }

    def _written(
        self,
        record: PublishRecord | None,
        tasks: Mapping[str, TaskRow],
        may_read_task: Callable[[str], bool],
    ) -> dict[str, object]:
        """Return who wrote a segment, and the input of a batch task."""
        if record is None:
            return {"task": None, "reason": "published before publishes were recorded: unknown"}
        task = tasks.get(record.task_id)
        written = {**publish_json(record), "taskType": _type_of(task)}
        if record.supervisor_id or task is None:
            return written
        if not may_read_task(task.id):
            return {**written, "input": None, "reason": f"its input needs read task:{task.id}"}
        io = part(masked(task.payload), "spec", "ioConfig") or part(
            masked(task.payload), "ioConfig"
        )
        return {**written, "input": part(io, "inputSource") or io}

    def _replaced(self, at: SegmentsAt) -> list[PublishRecord]:
        """Return the publishes of sequences in segments that newer ones replaced."""
        interval = Interval(at.time_ms, min(at.time_ms + 1, END_OF_TIME_MS))
        unused = self._store.segment_overviews.read(partial(_unused, at.datasource, interval))
        ids = [*(one.id for one in at.others), *unused]
        found = {one.id: one for one in self._store.publishes.of_segments(ids).values()}
        return [one for one in found.values() if one.supervisor_id]

    def _published(self, records: Sequence[PublishRecord]) -> Iterator[_Source]:
        """Yield the sequences of publishes of streams whose task is known."""
        by_id = {one.id: one for one in records if one.supervisor_id}
        for record in by_id.values():
            row = self._store.tasks.get(record.task_id)
            if (reading := _reading_of(row)) is not None:
                yield _Source(
                    record.sequence_name, reading, record.start_offsets, record.end_offsets
                )

    def _announced(self, at: SegmentsAt, found: Mapping[str, int]) -> Iterator[_Source]:
        for one in at.sequences:
            if one.is_shown and one.reading is not None and one.sequence_name in found:
                reading = _reading_of(self._store.tasks.get(one.task_id))
                if reading is not None:
                    yield _Source(one.sequence_name, reading, one.reading.start, one.reading.end)

    def _ends(
        self,
        records: Sequence[PublishRecord],
        at: SegmentsAt,
        found: Mapping[str, int],
        may_read_task: Callable[[str], bool],
    ) -> list[str]:
        """Return why the trace ends at tasks of streams that are not topics of Penstock."""
        tasks = {one.task_id for one in records if one.supervisor_id}
        tasks |= {one.task_id for one in at.sequences if one.sequence_name in found}
        rows = {one.id: one for one in self._store.tasks.rows_of(sorted(tasks))}
        return list(
            dict.fromkeys(
                filter(None, (_end_at(one, rows.get(one), may_read_task) for one in sorted(tasks)))
            )
        )

    def _scanned(
        self,
        row: TracedRow,
        sources: Sequence[_Source],
        may_read_topic: Callable[[str], bool],
        ends: Sequence[str],
    ) -> dict[str, object]:
        """Return the messages that make the row, as far as one request scans.

        Args:
            row: The row.
            sources: Sequences of topics of Penstock.
            may_read_topic: Returns whether the principal may read a topic.
            ends: Why the trace ends at others.
        """
        topics = {one.reading.topic for one in sources}
        refused = sorted(name for name in topics if not may_read_topic(name))
        readable = [one for one in sources if one.reading.topic not in refused]
        readable.sort(key=lambda one: one.sequence)
        scan = _Scan()
        until_s = self._parts.clock.monotonic_s() + _SCAN_S
        total = done = 0
        cursor: ScanCursor | None = None
        for source in readable:
            for p in sorted(source.start):
                first, end = source.start[p], source.end[p]
                total += end - first
                begin = ScanCursor(source.sequence, p, first)
                if row.cursor is not None and row.cursor > begin:
                    is_here = (row.cursor.sequence, row.cursor.partition) == (source.sequence, p)
                    first = min(row.cursor.offset, end) if is_here else end
                    done += first - source.start[p]
                reached = first
                if cursor is None and first < end:
                    reached = self._scan(row, source, (p, first, end), scan, until_s)
                    done += reached - first
                    if reached < end:
                        cursor = ScanCursor(source.sequence, p, reached)
        notes = [*ends]
        notes += [f"the messages of topic {name} need read topic:{name}" for name in refused]
        if scan.deleted:
            notes.append(f"the topic deleted {scan.deleted} of the messages")
        if any(one.reading.in_spark for one in readable):
            notes.append(
                "transforms and filters are not evaluated here: messages are compared by the"
                " columns that they determine"
            )
        return {
            "rolledUp": any(one.reading.schema.rollup for one in sources),
            "messages": scan.messages,
            "scanned": done,
            "toScan": total,
            "cursor": None if cursor is None else cursor.to_text(),
            "notes": notes,
        }

    def _scan(
        self,
        row: TracedRow,
        source: _Source,
        within: tuple[int, int, int],
        scan: _Scan,
        until_s: float,
    ) -> int:
        """Scan a range of one stream partition until a limit; return the offset it reached."""
        p, at, end = within
        made = MessageRows(source.reading, list(row.values))
        topic, clock = source.reading.topic, self._parts.clock
        while at < end:
            is_full = len(scan.messages) >= MESSAGES_MAX or scan.left_bytes <= 0
            if is_full or clock.monotonic_s() >= until_s:
                return at
            try:
                read = self._parts.messages.read(topic, p, at, end, _FETCH_BYTES)
            except NotFound:
                kept = _kept_from(self._parts.messages, topic, p, end)
                scan.deleted += max(0, kept - at)
                if kept <= at:
                    return end
                at = kept
                continue
            for piece in read.slices:
                scan.left_bytes -= piece.messages.nbytes
            for offset, message in _matching(row, source, made, read.slices, p):
                if len(scan.messages) >= MESSAGES_MAX:
                    return offset
                scan.messages.append(message)
            at = read.next_offset
        return end


def _matching(
    row: TracedRow,
    source: _Source,
    made: MessageRows,
    slices: Sequence[MessageSlice],
    partition: int,
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the offsets of messages that make the row, and the messages for the answer."""
    if not slices:
        return
    read = made.read(slices, partition)
    mask = equal_rows(read.rows, {n: v for n, v in row.values.items() if n in made.columns})
    if source.reading.knows_time:
        mask &= times_ms(read.rows.column(TIME_COLUMN)) == row.time_ms
    starts = [piece.base_offset for piece in slices]
    for offset in read.offsets[mask].tolist():
        piece = max((start, at) for at, start in enumerate(starts) if start <= offset)[1]
        yield (
            offset,
            {
                "topic": source.reading.topic,
                "partition": partition,
                "offset": offset,
                "id": id_text(partition, offset),
                "publishedAt": format_time(slices[piece].append_time_ms),
            },
        )


def _kept_from(messages: TopicMessages, topic: str, partition: int, end: int) -> int:
    """Return the first offset that a topic still has, at most `end`."""
    try:
        parts = messages.topic(topic).partitions
    except NotFound:
        return end
    return min(end, parts[partition].earliest) if partition < len(parts) else end


def _unused(datasource: str, interval: Interval, overview: SegmentOverview) -> list[str]:
    return [one.id for one in overview.texts(datasource, interval, used=False)]


def _type_of(task: TaskRow | None) -> str | None:
    return None if task is None else task.type


def _end_at(task_id: str, task: TaskRow | None, may_read_task: Callable[[str], bool]) -> str:
    """Return why messages of a streaming task are not searched; empty: they are."""
    if task is None:
        return (
            f"task {task_id} was deleted, so its stream is not known: its messages are not searched"
        )
    if task.type != TASK_TYPE:
        return ""
    try:
        place = parse_task_spec(dict(task.payload)).place
    except PenstockError:  # narrow: the task is of another release
        return f"the spec of task {task_id} is of another release: its messages are not searched"
    if place is None:
        return ""
    if not may_read_task(task_id):
        where = f"a stream whose name needs read task:{task_id}"
    elif place.type == "folder":
        where = f"the files {place.name}/{place.pattern}"
    else:
        where = f"the Kafka topic {place.name}"
    return (
        f"task {task_id} read it from {where}: only messages of Penstock's own topics are searched."
        " The offsets of its segment's publish say where it was"
    )


def _reading_of(task: TaskRow | None) -> MessageSchema | None:
    """Return the reading of a task of a topic; None if it is gone, or reads another stream."""
    if task is None or task.type != TASK_TYPE:
        return None
    try:
        spec = parse_task_spec(dict(task.payload))
    except PenstockError:  # narrow: the task is of another release
        return None
    return MessageSchema.of_task(spec) if spec.place is None else None
