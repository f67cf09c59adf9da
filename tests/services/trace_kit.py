"""A topic, its supervisor's tasks and segments for traces: rows in real files, no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.broker.broker_client import PartitionOffsets, TopicOffsets
from penstock.core.access.access_control import AccessControl
from penstock.core.errors import NotFound, PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.specs import SupervisorSpec
from penstock.indexing.specs.supervisor_spec import parse_supervisor_spec
from penstock.indexing.task_spec import TASK_TYPE, StreamTaskSpec, make_task, message_times
from penstock.segments.segment import Segment, ShardSpec
from penstock.services.api.asgi import application
from penstock.services.api.traces.flow_history import FlowHistory, NoFlowHistory
from penstock.services.api.traces.message_trace import TraceParts
from penstock.services.api.traces.segments_at import ReadableLocalFiles
from penstock.services.api.traces.topic_messages import ReadSlices, TopicMessages
from penstock.services.api.traces.trace_routes import TraceRoutes
from penstock.spark.topic.row_shape import TIME_TYPE
from penstock.storage.metadata import (
    AnnouncedFile,
    AnnouncedOffsets,
    CountsRow,
    PublishRequest,
    TaskRow,
)
from penstock.storage.queue.log_reader import MessageSlice
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.overlord_kit import Api

DAY_MS = 86_400_000
TOPIC, DATASOURCE = "flights", "flights"
COLUMNS = (("__time", "timestamp"), ("carrier", "string"), ("n", "bigint"))
Row = tuple[int, str, int | None]
"""Time, carrier and n."""


def spec_json(**changes: Mapping[str, object]) -> dict[str, object]:
    """The spec of the supervisor, with changed parts of its schema or io config."""
    schema = {
        "dataSource": DATASOURCE,
        "timestampSpec": {"column": "time", "format": "millis"},
        "dimensionsSpec": {"dimensions": ["carrier", {"type": "long", "name": "n"}]},
        "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
        **changes.get("schema", {}),
    }
    io = {
        "topic": TOPIC,
        "useEarliestOffset": True,
        "lateMessageRejectionPeriod": "P2D",
        "earlyMessageRejectionPeriod": "P5D",
        **changes.get("io", {}),
    }
    return {"type": "penstock", "spec": {"dataSchema": schema, "ioConfig": io}}


@dataclass
class Topic:
    """Messages of one stream partition with their times."""

    id: str = "T1"
    bodies: list[bytes] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    earliest: int = 0


class Topics:
    """Stands for `TopicMessages`."""

    def __init__(self) -> None:
        self.all: dict[str, Topic] = {TOPIC: Topic()}
        self.error: PenstockError | None = None
        self.redriven: set[tuple[str, int, int]] = set()

    def topic(self, name: str) -> TopicOffsets:
        if self.error is not None:
            raise self.error
        if name not in self.all:
            raise NotFound(f"there is no topic {name}")
        one = self.all[name]
        part = PartitionOffsets(0, one.earliest, len(one.bodies), "")
        return TopicOffsets(name, one.id, "", "", (part,))

    def one(self, topic: str, partition: int, offset: int) -> MessageSlice | None:
        found = self.read(topic, partition, offset, offset + 1, 1)
        return found.slices[0] if found.slices else None

    def read(self, topic: str, partition: int, start: int, end: int, bytes_max: int) -> ReadSlices:
        del partition
        one = self.all[topic]
        if start < one.earliest:
            raise NotFound("deleted")
        slices = []
        for at in range(start, min(end, len(one.bodies))):
            slices.append(
                MessageSlice(at, pa.array([one.bodies[at]], pa.binary()), one.times_ms[at])
            )
            bytes_max -= len(one.bodies[at])
            if bytes_max <= 0:
                break
        return ReadSlices(slices, slices[-1].base_offset + 1 if slices else end)

    def dead_letter(
        self, topic: str, source: tuple[str, int, int], since_ms: int, bytes_max: int
    ) -> tuple[int, int] | None:
        del since_ms, bytes_max
        for at, body in enumerate(self.all[topic].bodies if topic in self.all else []):
            letter = orjson.loads(body)
            if (letter["topic"], letter["partition"], letter["offset"]) == source:
                return 0, at
        return None

    def is_redriven(self, topic: str, partition: int, offset: int) -> bool:
        return (topic, partition, offset) in self.redriven


class TraceWorld:
    """All of it; close it at the end."""

    def __init__(
        self,
        folder: Path,
        access: AccessControl | None = None,
        flows: FlowHistory | None = None,
        **changes: Mapping[str, object],
    ) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.store = open_metadata(folder, self.clock)
        self.topics = Topics()
        self.day = self.clock.now_ms() // DAY_MS * DAY_MS
        self.spec: SupervisorSpec = parse_supervisor_spec(spec_json(**changes))  # type: ignore[arg-type]
        self.store.supervisors.put(self.spec.supervisor_id, self.spec.to_json())
        self._numbers = 0
        parts = TraceParts(
            self.store,
            cast("TopicMessages", self.topics),
            ReadableLocalFiles(),
            self.clock,
            flows or NoFlowHistory(),
        )
        self.routes = TraceRoutes(parts).routes()
        self.api = Api(application(self.routes, access=access or with_token(None)))

    def close(self) -> None:
        self.api.close()
        self.store.close()

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    # The topic

    def send(self, body: bytes, topic: str = TOPIC) -> int:
        """Append a message; return its offset."""
        one = self.topics.all.setdefault(topic, Topic(f"id of {topic}"))
        one.bodies.append(body)
        one.times_ms.append(self.clock.now_ms())
        return len(one.bodies) - 1

    def send_row(self, row: Row) -> int:
        time_ms, carrier, n = row
        return self.send(orjson.dumps({"time": time_ms, "carrier": carrier, "n": n}))

    # Tasks

    def task(self, start: int, *, active: bool = True, error: str = "") -> StreamTaskSpec:
        """A task that reads from an offset; it is stored."""
        made = make_task(
            self.spec,
            0,
            {0: start},
            None,
            topic_id=self.topics.all[TOPIC].id,
            times=message_times(self.spec.io, self.clock.now_ms()),
            token=f"t{self.number()}",
        )
        self.add_task(made.id, TASK_TYPE, made.to_json())
        if not active:
            self.end(made.id, error)
        return made

    def add_task(self, name: str, kind: str, payload: Mapping[str, object]) -> None:
        self.store.tasks.insert_new([TaskRow(name, DATASOURCE, kind, name, payload)])

    def end(self, task_id: str, error: str = "") -> None:
        state = "FAILED" if error else "SUCCESS"
        self.store.tasks.set_status(task_id, state, {"errorMsg": error} if error else None)

    def segment(self, day: int, rows: Sequence[Row], version: str, number: int) -> Segment:
        """A segment of a day with its file."""
        path = self.file(rows)
        start = self.day + day * DAY_MS
        return Segment(
            DATASOURCE,
            Interval(start, start + DAY_MS),
            version,
            {"type": "local", "path": path},
            ShardSpec(number, 0),
            size=Path(path).stat().st_size,
            total_rows=len(rows),
            columns=COLUMNS,
        )

    def file(self, rows: Sequence[Row]) -> str:
        times, carriers, numbers = zip(*sorted(rows), strict=True) if rows else ((), (), ())
        table = pa.table(
            {
                "__time": pa.array([t * 1000 for t in times], pa.int64()).cast(TIME_TYPE),
                "carrier": pa.array(carriers, pa.string()),
                "n": pa.array(numbers, pa.int64()),
            }
        )
        path = str(self.folder / f"file-{self.number()}.parquet")
        pq.write_table(table, path)
        return path

    def publish(
        self,
        task: StreamTaskSpec,
        within: tuple[int, int],
        segments: Sequence[Segment],
        counts: CountsRow,
        number: int = 0,
    ) -> str:
        """Publish a sequence; return its name."""
        name = f"{task.base_sequence_name}_{number}"
        outcome = self.store.publish(
            PublishRequest(
                task.id,
                DATASOURCE,
                tuple(one.to_row() for one in segments),
                self.spec.supervisor_id,
                {0: within[0]},
                {0: within[1]},
                sequence_name=name,
                counts=counts,
                topic_id=task.topic_id,
            )
        )
        assert outcome.ok, outcome.reason
        return name

    def announce(self, task: StreamTaskSpec, within: tuple[int, int], rows: Sequence[Row]) -> None:
        files = []
        for day in sorted({(row[0] - self.day) // DAY_MS for row in rows}):
            start = self.day + day * DAY_MS
            own = [row for row in rows if start <= row[0] < start + DAY_MS]
            path = self.file(own)
            payload = {"columns": [list(c) for c in COLUMNS], "bytes": Path(path).stat().st_size}
            files.append(AnnouncedFile(path, Interval(start, start + DAY_MS), len(own), payload))
        reading = AnnouncedOffsets(
            self.spec.supervisor_id, {0: within[0]}, {0: within[1]}, task.topic_id
        )
        assert self.store.announce(
            task.id, DATASOURCE, f"{task.base_sequence_name}_0", files, reading
        )

    def replace(self, task_id: str, kind: str, segments: Sequence[Segment]) -> None:
        """Publish segments of a batch task."""
        payload = {"type": kind, "ioConfig": {"inputSource": {"type": "inline", "data": task_id}}}
        self.add_task(task_id, kind, {"type": kind, "spec": payload})
        rows = tuple(one.to_row() for one in segments)
        assert self.store.publish(
            PublishRequest(task_id, DATASOURCE, rows, sequence_name=task_id)
        ).ok
        self.end(task_id)

    # Traces

    def message(self, offset: int, **more: object) -> dict[str, object]:
        """The answer for a message."""
        query = {"topic": TOPIC, "partition": 0, "offset": offset, **more}
        answer = self.api.get("/penstock/v1/trace/message", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found

    def reader(self, offset: int) -> dict[str, object]:
        """The part of its only supervisor."""
        (found,) = cast("list[dict[str, object]]", self.message(offset)["readers"])
        return found

    def row(self, time_ms: int, cursor: object = None, **columns: object) -> dict[str, object]:
        """The answer for a row."""
        body = {"datasource": DATASOURCE, "time": time_ms, "columns": columns}
        if cursor is not None:
            body["cursor"] = cursor
        answer = self.api.post("/penstock/v1/trace/row", json=body)
        assert answer.status_code == 200, answer.text
        found: dict[str, object] = answer.json()
        return found
