"""Fakes and a world for the tests of indexing: one thread, virtual time, a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson

from penstock.core.errors import NotFound, PenstockError, Unavailable
from penstock.indexing.engine import EngineUnavailable, StreamRange, TopicRange
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.action_handler import ActionHandler
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.task_index import ActiveTask
from penstock.indexing.ports import TaskAction, TaskReport
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.indexing.specs import SupervisorSpec, parse_supervisor_spec
from penstock.indexing.task import StreamingTask
from penstock.indexing.task.streaming_state import TaskOptions, TaskPorts
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec
from penstock.segments.deep_storage import LOAD_SPEC_TYPE, PushedFile
from penstock.segments.layout import FILE_NAME, relative_folder
from penstock.segments.segment import Segment, SegmentId
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from tests.harness.engine_kit import FakeEngine, read_rows
from tests.harness.mailbox_kit import InlineLanes, StepLanes
from tests.harness.metadata_kit import MemoryMetadata

Answer = TypeVar("Answer")

DAY_MS = 86_400_000
START_MS = 1_356_998_400_000

_tokens = itertools.count()
_topic_numbers = itertools.count()


def spec_json(tuning: Mapping[str, object] | None = None, **io: Any) -> dict[str, Any]:
    return {
        "type": "penstock",
        "spec": {
            "dataSchema": {
                "dataSource": "flights",
                "timestampSpec": {"column": "time", "format": "millis"},
                "dimensionsSpec": {"dimensions": ["carrier", {"type": "long", "name": "n"}]},
                "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
            },
            "ioConfig": {
                "topic": "flights",
                "useEarliestOffset": True,
                "taskDuration": "PT20S",
                "period": "PT5S",
                "startDelay": "PT1S",
                **io,
            },
            "tuningConfig": dict(tuning or {"maxRowsPerSegment": 1000, "maxTotalRows": 5000}),
        },
    }


def make_spec(tuning: Mapping[str, object] | None = None, **io: Any) -> SupervisorSpec:
    return parse_supervisor_spec(spec_json(tuning, **io))


def make_task(start: Mapping[int, int] | None = None, **changes: object) -> StreamTaskSpec:
    spec = make_spec()
    return StreamTaskSpec(
        id="task-1",
        group_id=0,
        supervisor_id="flights",
        base_sequence_name="base",
        data_schema=spec.data_schema,
        tuning_config=spec.tuning,
        topic="flights",
        dead_letter_topic="flights.dead-letter",
        start_offsets=dict(start or {0: 0}),
    ).model_copy(update=changes)


def event(n: int, *, day: int | None = None) -> bytes:
    day = n % 3 if day is None else day
    return orjson.dumps({"time": START_MS + day * DAY_MS + n, "carrier": "UA", "n": n})


@dataclass
class FakeBroker:
    """Topics in memory: a `BrokerPort`, a `DeadLetterPort`, and what a `FakeEngine` reads."""

    topics: dict[str, list[list[bytes]]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    earliest: dict[tuple[str, int], int] = field(default_factory=dict)
    cursors: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    producers: dict[tuple[str, str], int] = field(default_factory=dict)
    message_bytes: int = 0
    times_ms: dict[tuple[str, int, int], int] = field(default_factory=dict)
    times_asked: int = 0
    down: bool = False
    lose_answers: Callable[[], bool] = lambda: False
    wait: Callable[[int], None] = lambda _wait_ms: None

    def create(self, topic: str, partitions: int = 1) -> None:
        """Make a topic, another one if there was one of the name."""
        self.topics[topic] = [[] for _ in range(partitions)]
        self.ids[topic] = f"{topic}{next(_topic_numbers)}"
        for place in [place for place in self.cursors if place[0] == topic]:
            del self.cursors[place]

    def add(self, topic: str, partition: int, messages: Iterable[bytes]) -> None:
        self.topics[topic][partition].extend(messages)

    def contents(self) -> object:
        """Return what is another value when there is anything new."""
        ends = {topic: [len(one) for one in parts] for topic, parts in self.topics.items()}
        return self.down, ends, dict(self.ids), dict(self.earliest)

    def available(
        self,
        topic: str,
        *,
        after: Mapping[int, int] | None = None,
        wait_ms: int = 0,
        topic_id: str = "",
    ) -> SeenTopic:
        self._answer()
        if topic not in self.topics:
            raise NotFound(f"topic {topic}: there is none")
        now = self.ids.get(topic, "")
        ends = {p: len(messages) for p, messages in enumerate(self.topics[topic])}
        known = after if after is not None and topic_id in {"", now} else {-1: 0}
        if all(ends.get(p, 1) <= offset for p, offset in known.items()):
            self.wait(wait_ms)
        partitions = {
            p: AvailableRange(
                f"{topic}/{p}", self.earliest.get((topic, p), 0), len(messages), self.message_bytes
            )
            for p, messages in enumerate(self.topics[topic])
        }
        return SeenTopic(now, partitions)

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int | None:
        self._answer()
        self.times_asked += 1
        return self.times_ms.get((topic, partition, offset))

    def set_cursor(self, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        self._answer()
        self.cursors[topic, name] = dict(offsets)

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None:
        self._answer()
        self.cursors.pop((topic, name), None)

    def publish(
        self, topic: str, messages: Sequence[bytes], *, producer: str, sequence: int
    ) -> None:
        self._answer()
        if self.producers.get((topic, producer), -1) < sequence:
            self.topics.setdefault(topic, [[]])[0].extend(messages)
            self.producers[topic, producer] = sequence
        if self.lose_answers():
            raise Unavailable("the answer was lost")

    def read(self, wanted: StreamRange) -> Iterable[tuple[int, bytes]]:
        assert isinstance(wanted, TopicRange)
        topic, _, partition = wanted.folder.rpartition("/")
        messages = self.topics[topic][int(partition)]
        return list(enumerate(messages))[wanted.start : wanted.end]

    def _answer(self) -> None:
        if self.down:
            raise Unavailable("the broker is down")


@dataclass
class FakeDeepStore:
    """Deep storage in a folder, which syncs nothing."""

    folder: Path

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> PushedFile:
        relative = f"{relative_folder(segment_id, unique)}/{FILE_NAME}"
        path = self.folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        data = Path(local_file).read_bytes()
        path.write_bytes(data)
        return PushedFile({"type": LOAD_SPEC_TYPE, "path": relative}, len(data))

    def kill(self, load_spec: Mapping[str, object]) -> None:
        Path(self.location(load_spec)).unlink(missing_ok=True)

    def files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if path.is_file()}

    def location(self, load_spec: Mapping[str, object]) -> str:
        return f"{self.folder}/{load_spec['path']}"


@dataclass
class DirectActions:
    """An `ActionClient` that calls the handler through the JSON forms."""

    handler: ActionHandler
    task_id: str
    chaos: Callable[[str], None] = lambda _moment: None

    def perform(self, action: TaskAction[Answer]) -> Answer:
        self.chaos("before action")
        form = orjson.loads(orjson.dumps(action.to_json()))
        answer = orjson.loads(orjson.dumps(self.handler.perform(self.task_id, form)))
        self.chaos("after action")
        return action.parse_result(answer)


@dataclass
class RecordedNotices:
    checkpoints: list[tuple[str, Mapping[int, int]]] = field(default_factory=list)
    reasons: list[tuple[str, str]] = field(default_factory=list)

    def checkpoint_wanted(self, task_id: str, start: Mapping[int, int]) -> None:
        self.checkpoints.append((task_id, dict(start)))

    def waits(self, task_id: str, reason: str) -> None:
        if reason:
            self.reasons.append((task_id, reason))


class OneTask:
    """A world with one task and no overlord: the handler answers its actions directly."""

    def __init__(
        self,
        folder: Path,
        *,
        options: TaskOptions | None = None,
        beside: OneTask | None = None,
        **task: Any,
    ) -> None:
        self.clock: VirtualClock = beside.clock if beside else VirtualClock()
        self.folder = folder
        self.fs = OsFileSystem()
        self.broker = FakeBroker()
        self.broker.wait = lambda wait_ms: self.clock.advance(ms=wait_ms)
        self.broker.create("flights", 2)
        self.engine = FakeEngine(read=self.broker.read)
        self.metadata: MemoryMetadata = beside.metadata if beside else MemoryMetadata(self.clock)
        self.deep_store = FakeDeepStore(folder / "segments")
        self.metadata.roots.register("w", str(folder / "tasks"))
        self.notices = RecordedNotices()
        self.spec = make_task({0: 0, 1: 0}, **task)
        self.active = True
        lock_lanes = InlineLanes()
        self.lockboxes = Lockboxes(
            MetadataLockStore(self.metadata.locks), lock_lanes, clock=self.clock
        )
        self.lockboxes.sync([])
        self.handler = ActionHandler(
            self.metadata, self.lockboxes, lock_lanes, self, self.notices, self.clock
        )
        self.actions = DirectActions(self.handler, self.spec.id)
        self.options = options or TaskOptions()
        self.metadata.begin_offsets("flights", {0: 0, 1: 0})
        self.start()

    def active_task(self, task_id: str) -> TaskSpec | None:
        return self.spec if self.active and task_id == self.spec.id else None

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        return {}

    def start(self) -> None:
        """Start the task, as a peon does: in the same folder, with nothing else of before."""
        self.lockboxes.add(lock_task(self.spec))
        self.lanes = StepLanes()
        self.task = StreamingTask(
            self.spec,
            TaskFolder(str(self.folder / "tasks" / self.spec.id), self.fs),
            TaskPorts(
                engine=self.engine,
                broker=self.broker,
                dead_letters=self.broker,
                actions=self.actions,
                deep_store=self.deep_store,
                fs=self.fs,
                lanes=self.lanes,
                clock=self.clock,
                new_token=lambda: f"token{next(_tokens)}",
            ),
            self.options,
        )

    def kill(self) -> None:
        """End the process at once; `start` again makes a new one."""
        self.lanes.close()

    def step(self, choose: random.Random | None = None) -> bool:
        """Run one mail or one piece of work; polls that would only wait are left for last."""
        processor = self.task.processor
        if processor.is_mailbox_loop_running and processor.run_mailbox_step():
            return True
        lanes = self.lanes.waiting()
        busy = [lane for lane in lanes if lane != "broker"] or lanes
        if not busy:
            return False
        self.lanes.run_one(choose.choice(busy) if choose else busy[0])
        return True

    def run(self, until: Callable[[], bool], *, max_steps: int = 3000) -> None:
        for _ in range(max_steps):
            if until():
                return
            if not self.step():
                alarm = self.task.processor.mailbox.alarm_s
                assert alarm != float("inf"), f"stuck: {self.report()}"
                self.clock.advance_to(alarm)
        raise AssertionError(f"no end: {self.report()}")

    def ask(self, future: Future[Answer]) -> Answer:
        self.run(future.done)
        return future.result()

    def report(self) -> TaskReport:
        return self.task._report()

    def announced(self) -> list[int]:
        rows = self.metadata.latest("flights").announced
        return sorted(int(str(row["n"])) for r in rows for row in read_rows(r.file.path))

    def published(self) -> list[int]:
        rows = self.metadata.latest("flights").segments
        segments = [Segment.from_row(row) for row in rows if row.used]
        return sorted(
            int(str(row["n"]))
            for s in segments
            for row in read_rows(self.deep_store.location(s.load_spec))
        )


__all__ = ["EngineUnavailable", "OneTask", "PenstockError", "make_spec", "make_task"]
