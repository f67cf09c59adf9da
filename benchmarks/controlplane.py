"""The control plane's own cost: 10,000 tasks, 1,000 workers, 1,000 supervisors, 1,000,000 segments.

Workers answer at once and do nothing, the topics are empty, and all runs on one thread on a virtual
clock: what is measured is the overlord and its metadata in SQLite. The supervisors are suspended at
first; in the end they are resumed, and each has a task that reads.
`PENSTOCK_SCALE=0.1` takes a tenth of everything.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.processes import peak_mib
from benchmarks.table import Row, print_rows
from penstock.core.intervals import Interval, format_time
from penstock.indexing.overlord import Overlord, OverlordPorts
from penstock.indexing.ports import (
    HistoryPlace,
    TaskLocation,
    TaskPhase,
    TaskReport,
    TaskState,
    WorkerChanges,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.read_plan import AvailableRange, SeenTopic
from penstock.mailbox import MailboxProcessor
from penstock.segments.catalog import Catalog
from penstock.segments.segment import Segment
from penstock.segments.shard_spec import ShardSpec
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import InlineLanes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydantic import JsonValue

    from penstock.indexing.task_spec import TaskSpec

TASKS = 10_000
WORKERS = 1_000
SUPERVISORS = 1_000
SEGMENTS = 1_000_000
SLOTS = 10
BATCH = 10_000
DAY_MS = 86_400_000
START_MS = 1_356_998_400_000


class IdleWorker:
    """A worker that takes what it is given, and says that it ended when told to."""

    def __init__(self, number: int) -> None:
        self.name = f"worker{number}"
        self.host = f"{self.name}:8091"
        self.tasks: dict[str, TaskState] = {}

    def report(self) -> WorkerReport:
        place = TaskLocation("127.0.0.1", 1)
        tasks = tuple(WorkerTask(task_id, state, place) for task_id, state in self.tasks.items())
        return WorkerReport(SLOTS, tasks)

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        del after, wait_ms
        return WorkerChanges(HistoryPlace(0, 0), reset=True, report=self.report())

    def assign(self, task: TaskSpec) -> None:
        self.tasks[task.id] = TaskState.RUNNING

    def shutdown(self, task_id: str) -> None:
        self.tasks.pop(task_id, None)


class ReadingPeons:
    """Peons of streaming tasks that have read all there is: nothing."""

    def within(self, answer_ms: int) -> ReadingPeons:
        del answer_ms
        return self

    def report(self, task_id: str) -> TaskReport:
        del task_id
        return TaskReport(TaskPhase.READING, {0: 0}, {0: 0}, None, {0: {0: 0}}, {})

    def pause(self, task_id: str) -> dict[int, int]:
        raise AssertionError(f"no end of {task_id} is agreed")

    def resume(self, task_id: str) -> None:
        raise AssertionError(f"no end of {task_id} is agreed")

    def set_end_offsets(self, task_id: str, end: Mapping[int, int], *, finish: bool) -> None:
        del end, finish
        raise AssertionError(f"no end of {task_id} is agreed")


class EmptyTopics:
    """A broker whose topics are all there, and empty."""

    def available(self, topic: str, **_asked: object) -> SeenTopic:
        return SeenTopic(topic, {0: AvailableRange(topic, 0, 0)})

    def append_time_ms(self, topic: str, partition: int, offset: int) -> None: ...

    def set_cursor(self, topic: str, name: str, offsets: Mapping[int, int]) -> None: ...

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None: ...


class Plane:
    """An overlord with everything that it works with."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.clock = VirtualClock()
        self.metadata = MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=self.clock)
        self.members = [IdleWorker(number) for number in range(workers)]
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        ports = OverlordPorts(
            metadata=self.metadata,
            broker=EmptyTopics(),
            peons=ReadingPeons(),
            workers=self,
            lanes=InlineLanes(),
            lock_lanes=InlineLanes(),
            clock=self.clock,
            new_token=lambda: "token",
        )
        self.overlord = Overlord(self.processor, ports)

    def workers(self) -> list[IdleWorker]:
        return self.members

    def settle(self) -> None:
        while self.processor.run_mailbox_step():
            pass

    def go_on(self, seconds: float) -> None:
        end_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < end_s:
            self.settle()
            self.clock.advance_to(min(end_s, self.processor.mailbox.alarm_s))


def run() -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    scale = float(os.environ.get("PENSTOCK_SCALE", "1"))
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        return list(measure(folder, scale))
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, scale: float) -> list[Row]:
    """Return what each operation costs in processor time, and the memory at the end."""
    tasks, segments = int(TASKS * scale), int(SEGMENTS * scale)
    supervisors = int(SUPERVISORS * scale)
    plane = Plane(folder, int(WORKERS * scale))
    rows = []

    def timed(name: str, count: int, work: Callable[[], None]) -> None:
        begun_s = time.process_time()
        work()
        took_s = time.process_time() - begun_s
        rows.append(Row(f"{name}, {count:,}", 1e6 * took_s / count, "µs each"))

    timed("publish segments", segments, lambda: publish(plane, segments))
    timed("first view of all segments", segments, lambda: view(plane, segments))
    plane.overlord.start()
    plane.go_on(3)
    timed("submit a supervisor", supervisors, lambda: supervise(plane, supervisors))
    timed("submit a task", tasks, lambda: submit(plane, tasks))
    timed("hand over a task", tasks, lambda: plane.go_on(10))
    running = sum(len(worker.tasks) for worker in plane.members)
    assert running == tasks, f"{running} of {tasks} tasks run"
    timed("a quiet minute of all tasks", tasks, lambda: plane.go_on(60))
    timed("begin a term with all tasks", tasks, lambda: again(plane))
    timed("take the end of a task", tasks, lambda: end(plane))
    timed("resume a supervisor and start its task", supervisors, lambda: resume(plane, supervisors))
    timed("a quiet minute of a supervisor that works", supervisors, lambda: plane.go_on(60))
    rows.append(Row("memory at most", peak_mib(), "MiB"))
    plane.metadata.close()
    return rows


def publish(plane: Plane, count: int) -> None:
    for first in range(0, count, BATCH):
        number = range(first, min(count, first + BATCH))
        made = tuple(segment(n).to_row() for n in number)
        plane.metadata.publish(
            PublishRequest(f"load{first}", "wiki", made, sequence_name=f"{first}")
        )


def segment(number: int) -> Segment:
    start_ms = START_MS + number // 100 * DAY_MS // 24
    version = format_time(START_MS)
    return Segment(
        "wiki",
        Interval(start_ms, start_ms + DAY_MS // 24),
        version,
        {"type": "local", "path": f"/deep/{number}"},
        ShardSpec(number % 100, 100),
        size=1,
        total_rows=1,
        dimensions=(),
        metrics=(),
        columns=(("__time", "TIMESTAMP"),),
    )


def view(plane: Plane, count: int) -> None:
    visible = Catalog().view(plane.metadata.snapshot()).visible("wiki")
    assert len(visible) == count, f"{len(visible)} of {count} segments are visible"


def supervise(plane: Plane, count: int) -> None:
    for number in range(count):
        name = f"stream{number}"
        schema: JsonValue = {
            "dataSource": name,
            "timestampSpec": {"column": "time", "format": "millis"},
            "dimensionsSpec": {"dimensions": ["a"]},
            "granularitySpec": {"segmentGranularity": "DAY"},
        }
        spec: JsonValue = {"dataSchema": schema, "ioConfig": {"topic": name}, "tuningConfig": {}}
        plane.overlord.supervisor_service.submit(
            {"type": "penstock", "spec": spec, "suspended": True}
        )
    plane.settle()


def submit(plane: Plane, count: int) -> None:
    for number in range(count):
        plane.overlord.task_service.submit(
            {"type": "noop", "id": f"t{number}", "dataSource": f"d{number % 1000}"}
        )
    plane.settle()


def again(plane: Plane) -> None:
    plane.overlord.stop()
    plane.overlord.start()
    plane.go_on(3)


def end(plane: Plane) -> None:
    for worker in plane.members:
        worker.tasks = dict.fromkeys(worker.tasks, TaskState.SUCCESS)
    plane.go_on(10)
    assert not plane.overlord.active_tasks()


def resume(plane: Plane, count: int) -> None:
    plane.overlord.supervisor_service.suspend_all(suspended=False)
    plane.go_on(20)
    running = sum(len(worker.tasks) for worker in plane.members)
    assert running == count, f"{running} tasks of {count} supervisors run"


if __name__ == "__main__":
    print_rows(run())
