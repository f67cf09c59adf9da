"""A world for the tests of batch tasks: real locks, real metadata, an engine without a JVM."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from penstock.core.intervals import ETERNITY, Interval
from penstock.indexing.batch.batch_ports import BatchPorts
from penstock.indexing.batch.input_segments import visible_segments
from penstock.indexing.batch.task_kinds import batch_kinds
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.action_handler import ActionHandler
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.task_index import ActiveTask
from penstock.indexing.ports import TaskAction
from penstock.indexing.sequences import Offsets
from penstock.indexing.task import TaskResult
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import TaskSpec, parse_task
from penstock.indexing.worker.peon_task import PeonTask, TaskKinds
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from tests.harness.engine_kit import FakeBatchEngine, read_rows
from tests.harness.mailbox_kit import InlineLanes
from tests.harness.metadata_kit import MemoryMetadata

R = TypeVar("R")
START_MS = 1_767_225_600_000  # 2026-01-01
ABC = [(1, "x", 1), (1, "y", 2), (2, "z", 3)]
DAY_MS = 86_400_000
SCHEMA = {
    "dataSource": "d",
    "timestampSpec": {"column": "t"},
    "dimensionsSpec": {"dimensions": ["a", {"type": "long", "name": "n"}]},
    "granularitySpec": {"segmentGranularity": "day", "rollup": False},
}


def day(first: int, last: int | None = None) -> str:
    """Return the interval of a day of January 2026, or of several up to `last`."""
    start = START_MS + (first - 1) * DAY_MS
    return str(Interval(start, START_MS + (last or first) * DAY_MS))


def lines(*rows: tuple[int, str, int]) -> str:
    """Return JSON lines of (day of January 2026, a, n)."""
    found = [{"t": START_MS + (d - 1) * DAY_MS + 1, "a": a, "n": n} for d, a, n in rows]
    return "\n".join(orjson.dumps(row).decode() for row in found)


class Cut(BaseException):
    """The process died here."""


class SkippingClock(VirtualClock):
    """Time passes when somebody waits for it: there is one thread that does."""

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        assert timeout_s is not None, "nobody would wake it"
        self.advance(ms=max(1, int(timeout_s * 1000)))
        return True


class BatchWorld:
    """Everything a batch task meets, but for the engine; it is run on the caller's thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SkippingClock(START_MS + 40 * DAY_MS)
        self.store = MemoryMetadata(self.clock)
        self.lanes = InlineLanes()
        self.tasks: dict[str, TaskSpec] = {}
        self.lead_again()
        self.deep_store = DeepStore(str(folder / "deep"))
        self.deep_store.make_root()
        self.engine = FakeBatchEngine()
        self.at: Callable[[str], None] = lambda _kind: None
        self._numbers = itertools.count()

    def lead_again(self) -> None:
        """Begin a new term of the overlord: what it remembers is what is stored."""
        self.lockboxes = Lockboxes(
            MetadataLockStore(self.store.locks), self.lanes, clock=self.clock
        )
        assert self.lockboxes.sync([lock_task(spec) for spec in self.tasks.values()]) == []
        self.handler = ActionHandler(self.store, self.lockboxes, self.lanes, self, self, self.clock)

    def close(self) -> None:
        """Let go of threads and files."""
        self.lockboxes.close()
        self.lanes.close()
        self.store.close()

    # What the action handler asks

    def active_task(self, task_id: str) -> TaskSpec | None:
        return self.tasks.get(task_id)

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        return {}

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None: ...
    def waits(self, task_id: str, reason: str) -> None: ...

    # What tests do

    def add(self, value: Mapping[str, object]) -> TaskSpec:
        """Make a task active; one without an id is given one."""
        self.clock.advance(1)
        spec = parse_task({"id": f"task-{next(self._numbers)}", **value})
        self.tasks[spec.id] = spec
        self.lockboxes.add(lock_task(spec)).result()
        return spec

    def end(self, spec: TaskSpec) -> None:
        """Make a task inactive: its locks are released."""
        del self.tasks[spec.id]
        self.lockboxes.remove(lock_task(spec)).result()

    def make(self, spec: TaskSpec) -> PeonTask:
        """Return the task as its peon makes it, in its folder."""
        ports = BatchPorts(
            self.engine,
            _Actions(self, spec.id),
            self.deep_store,
            self.clock,
            lambda: f"token-{next(self._numbers)}",
            lambda: 0.5,
        )
        folder = TaskFolder(str(self.folder / "tasks" / spec.id), OsFileSystem())
        return TaskKinds(batch_kinds(lambda _spec: ports)).find(spec.type).make(spec, folder)

    def run(self, value: Mapping[str, object]) -> TaskResult:
        """Run a task from beginning to end."""
        spec = self.add(value)
        result = self.make(spec).run()
        self.end(spec)
        return result

    def visible(self, datasource: str = "d") -> list[Segment]:
        """Return the visible segments."""
        rows = self.store.segments.used(datasource)
        return [one.segment for one in visible_segments(rows, [ETERNITY])]

    def rows(self, datasource: str = "d") -> list[tuple[int, str, int]]:
        """Return what a query sees, as (day of January 2026, a, n), sorted."""
        found = []
        rows = self.store.segments.used(datasource)
        for one in visible_segments(rows, [ETERNITY]):
            for row in read_rows(self.deep_store.location(one.segment.load_spec)):
                ms = row["__time"]
                assert isinstance(ms, int)
                if one.interval.contains(ms):
                    found.append(((ms - START_MS) // DAY_MS + 1, str(row["a"]), int(str(row["n"]))))
        return sorted(found)

    def files(self) -> set[str]:
        """Return all files of deep storage."""
        root = self.folder / "deep"
        return {str(path) for path in root.rglob("*") if path.is_file()}


class _Actions:
    """The overlord, as one task sees it, over JSON as it goes over the wire."""

    def __init__(self, world: BatchWorld, task_id: str) -> None:
        self._world = world
        self._task_id = task_id

    def perform(self, action: TaskAction[R]) -> R:
        value = orjson.loads(orjson.dumps(action.to_json()))
        self._world.at(f"before {value['type']}")
        answer = self._world.handler.perform(self._task_id, value)
        self._world.at(f"after {value['type']}")
        return action.parse_result(orjson.loads(orjson.dumps(answer)))


def index(
    data: str, *, mode: str = "legacy", intervals: Iterable[str] = (), **more: object
) -> dict[str, Any]:
    """Return the JSON of an `index_parallel` of inline lines."""
    granularity = {**SCHEMA["granularitySpec"], **more.pop("granularity", {})}  # type: ignore[dict-item]
    if intervals:
        granularity["intervals"] = list(intervals)
    return {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {**SCHEMA, "granularitySpec": granularity, **more.pop("schema", {})},  # type: ignore[dict-item]
            "ioConfig": {
                "inputSource": {"type": "inline", "data": data},
                "inputFormat": {"type": "json"},
                "appendToExisting": mode == "append",
                "dropExisting": mode == "replace",
            },
            "tuningConfig": more.pop("tuning", {"type": "index_parallel"}),
        },
        **more,
    }


@contextmanager
def world_of(folder: Path, rows: Iterable[tuple[int, str, int]]) -> Iterator[BatchWorld]:
    """A world with a segment of each row, closed at the end."""
    made = BatchWorld(folder)
    for row in rows:
        made.run(index(lines(row), mode="append"))
    yield made
    made.close()
