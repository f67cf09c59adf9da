"""Following one event with 1,000,000 segments, each of a publish of its own.

    .venv/bin/python -m benchmarks.traces [SEGMENTS]

One datasource with a segment an hour; a tenth of the hours has a second segment, which hides the
first. Each of the older ones is that of one sequence of 10 messages. The metadata is written
directly, because a million publishes would take hours. All segments name one small file, so the
time to read the file of a segment is included, and that of a large file is not.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import insert

from benchmarks.table import Row, print_rows
from penstock.broker.broker_client import PartitionOffsets, TopicOffsets
from penstock.core.intervals import Interval
from penstock.indexing.specs.supervisor_spec import parse_supervisor_spec
from penstock.indexing.task_spec import TASK_TYPE, make_task, message_times
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.services.api.traces.message_trace import MessageTraces, TraceParts
from penstock.services.api.traces.row_trace import RowTraces, TracedRow
from penstock.services.api.traces.segments_at import ReadableLocalFiles
from penstock.services.api.traces.topic_messages import ReadSlices, TopicMessages
from penstock.spark.topic.row_shape import TIME_TYPE
from penstock.storage.metadata import CommittedRow, MetadataStore, PublishRequest, TaskRow, schema
from penstock.storage.queue.log_reader import MessageSlice
from penstock.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Table

SEGMENTS: Final = 1_000_000
BATCH: Final = 10_000
HOUR_MS: Final = 3_600_000
MESSAGES: Final = 10
REPEATED: Final = 20
SPEC: Final = {
    "type": "penstock",
    "spec": {
        "dataSchema": {
            "dataSource": "d",
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["name"]},
            "granularitySpec": {"segmentGranularity": "HOUR"},
        },
        "ioConfig": {"topic": "t", "useEarliestOffset": True},
    },
}


class Messages:
    """Messages of a topic, of which ten have the time of each hour."""

    def __init__(self, count: int) -> None:
        self._count = count

    def topic(self, name: str) -> TopicOffsets:
        """Return the offsets."""
        return TopicOffsets(name, "T", "", "", (PartitionOffsets(0, 0, self._count, ""),))

    def one(self, topic: str, partition: int, offset: int) -> MessageSlice:
        """Return a message."""
        return self.read(topic, partition, offset, offset + 1, 1).slices[0]

    def read(self, _topic: str, _partition: int, start: int, end: int, _bytes: int) -> ReadSlices:
        """Return messages."""
        bodies = [
            orjson.dumps({"time": at // MESSAGES * HOUR_MS, "name": "a"})
            for at in range(start, end)
        ]
        return ReadSlices([MessageSlice(start, pa.array(bodies, pa.binary()), 0)], end)


def segment(hour: int, version: str, path: str) -> Segment:
    """Return the segment of an hour."""
    return Segment(
        "d",
        Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS),
        version,
        {"type": "local", "path": path},
        ShardSpec(0, 1),
        size=1_000,
        total_rows=MESSAGES,
        columns=(("__time", "timestamp"), ("name", "string")),
    )


def rows_of(hours: range, path: str) -> Iterator[tuple[Table, dict[str, object]]]:
    """Yield the rows of tables for hours with one or two segments each."""
    for hour in hours:
        first = hour * MESSAGES
        made = segment(hour, "v1", path)
        yield (
            schema.publishes,
            {
                "id": hour + 1,
                "datasource": "d",
                "task_id": "task",
                "sequence_name": f"s{hour}",
                "kind": "append",
                "supervisor_id": "d",
                "topic_id": "T",
                "start_offsets": f'{{"0":{first}}}',
                "end_offsets": f'{{"0":{first + MESSAGES}}}',
                "counts": f'{{"processed":{MESSAGES}}}',
                "segments": orjson.dumps([str(made.id)]).decode(),
                "published_ms": hour,
            },
        )
        yield (
            schema.publish_ranges,
            {
                "supervisor_id": "d",
                "stream_partition": 0,
                "start_offset": first,
                "publish_id": hour + 1,
                "end_offset": first + MESSAGES,
            },
        )
        for version in ("v1", "v2")[: 2 if hour % 10 == 0 else 1]:
            one = segment(hour, version, path).to_row()
            yield (
                schema.segments,
                {
                    "id": one.id,
                    "datasource": "d",
                    "start_ms": one.interval.start_ms,
                    "end_ms": one.interval.end_ms,
                    "version": version,
                    "partition_number": 0,
                    "core_partitions": 1,
                    "used": True,
                    "created_ms": hour,
                    "used_changed_ms": hour,
                    "payload": orjson.dumps(one.payload).decode(),
                    "upgraded_from": "",
                    "changed_revision": 1,
                    "publish_id": hour + 1 if version == "v1" else 0,
                },
            )


def _insert(tables: dict[Table, list[dict[str, object]]], connection: Connection) -> None:
    for table, rows in tables.items():
        connection.execute(insert(table), rows)


def fill(store: MetadataStore, hours: int, path: str) -> None:
    """Write the metadata."""
    for begin in range(0, hours, BATCH):
        tables: dict[Table, list[dict[str, object]]] = {}
        for table, row in rows_of(range(begin, min(begin + BATCH, hours)), path):
            tables.setdefault(table, []).append(row)

        store._database.write(partial(_insert, tables))  # noqa: SLF001 - see the top
    spec = parse_supervisor_spec(SPEC)  # type: ignore[arg-type]  # a constant
    store.supervisors.put("d", spec.to_json())
    store.reset_offsets("d", {0: hours * MESSAGES}, "T")
    made = make_task(
        spec, 0, {0: 0}, None, topic_id="T", times=message_times(spec.io, 0), token="t"
    )
    store.tasks.insert_new([TaskRow("task", "d", TASK_TYPE, "g", made.to_json())])
    assert store.committed("d") == CommittedRow("T", {0: hours * MESSAGES})


def slowest_ms(work: Callable[[int], object], places: range) -> float:
    """Return the longest time of several calls."""
    longest = 0.0
    for place in places:
        begun = time.perf_counter()
        work(place)
        longest = max(longest, time.perf_counter() - begun)
    return longest * 1e3


def run(count: int = SEGMENTS) -> list[Row]:
    """Measure."""
    hours = count * 10 // 11
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "part.parquet"))
        store = MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=VirtualClock())
        fill(store, hours, path)
        messages = cast("TopicMessages", Messages(hours * MESSAGES))
        parts = TraceParts(store, messages, ReadableLocalFiles(), VirtualClock())
        traces, back = MessageTraces(parts), RowTraces(parts)
        outcomes: list[object] = []

        def write(hour: int) -> None:
            times = pa.array([hour * HOUR_MS * 1000] * MESSAGES, pa.int64()).cast(TIME_TYPE)
            pq.write_table(pa.table({"__time": times, "name": ["a"] * MESSAGES}), path)

        def message(hour: int) -> None:
            found = traces.trace("t", 0, hour * MESSAGES, lambda _: True, lambda _: True, {})
            readers = cast("list[dict[str, object]]", found["readers"])
            outcomes.append(readers[0]["outcome"])

        def row(hour: int) -> None:
            wanted = TracedRow("d", hour * HOUR_MS, {"name": "a"})
            found = back.trace(wanted, lambda _: True, lambda _: True)
            assert len(cast("list[object]", found["messages"])) == MESSAGES, found

        def publish(number: int) -> None:
            at = hours * MESSAGES + number * MESSAGES
            hour = hours + number
            request = PublishRequest(
                f"t{number}",
                "d",
                (segment(hour, "v1", path).to_row(),),
                "d",
                {0: at},
                {0: at + MESSAGES},
                sequence_name=f"more{number}",
                topic_id="T",
            )
            assert store.publish(request).ok

        step = max(10, hours // REPEATED // 10 * 10)
        hidden, shown = range(0, hours, step), range(1, hours, step)
        write(1)
        rows = [
            Row("trace of a hidden message", slowest_ms(message, hidden), "ms"),
            Row("trace of a message, its row elsewhere", slowest_ms(message, shown), "ms"),
        ]
        middle = hours // 20 * 10 + 1
        write(middle)
        again = range(middle, middle + 1)
        rows.append(Row("trace of a visible message", slowest_ms(message, again), "ms"))
        rows.append(Row("trace of a row to its messages", slowest_ms(row, again), "ms"))
        rows.append(Row("publish of a sequence", slowest_ms(publish, range(REPEATED)), "ms"))
        assert outcomes[0] == "hidden", outcomes[0]
        store.close()
        return rows


if __name__ == "__main__":
    print_rows(run(int(sys.argv[1]) if len(sys.argv) > 1 else SEGMENTS))
