"""The task queue with 10,000 active tasks and 1,000 workers: how long an event takes.

On one thread with virtual time and workers that answer at once, so that the figures are the
queue's own; the store is real and its commits wait for the disk. The limit of adds is SQLite
itself: as many rows of the same size, with as many in a transaction, without anything of ours.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from benchmarks.table import Row, against, print_rows, start_timer
from penstock.indexing.lockbox.lock_store import MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.overlord.task_service import TASKS_PER_TRANSACTION, TaskSubmissions
from penstock.indexing.overlord.wait_reasons import reasons_of
from penstock.indexing.ports import (
    HistoryPlace,
    TaskState,
    WorkerChanges,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.event_mail import EventMail
from penstock.storage.metadata import MetadataStore, TaskFilter
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import InlineLanes, StepLanes, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.lockbox.lock_lane import LocksChanged
    from penstock.indexing.overlord.task_state import EndedTask
    from penstock.indexing.overlord.wait_reasons import WaitReason
    from penstock.indexing.task_spec import TaskSpec

TASKS = 10_000
WORKERS = 1_000
WAITING = 1_000
ASKED = 1_000
AIM_EVENT_MS = 1.0

TABLE = """
CREATE TABLE tasks (
  id TEXT PRIMARY KEY, datasource TEXT, type TEXT, group_id TEXT, created_ms INTEGER,
  updated_ms INTEGER, active INTEGER, state TEXT, status TEXT, payload TEXT
)
"""
INSERT = "INSERT INTO tasks VALUES (?, 'd', 'noop', 'g', 0, 0, 1, 'RUNNING', '{}', ?)"


class Worker:
    """A worker that takes what it is given."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = f"{name}:8091"
        self.tasks: dict[str, WorkerTask] = {}

    def report(self) -> WorkerReport:
        """Tell everything."""
        return WorkerReport(1, tuple(self.tasks.values()))

    def changes(self, _after: HistoryPlace, _wait_ms: int) -> WorkerChanges:
        """Tell everything, as one that was just started."""
        return WorkerChanges(HistoryPlace(), report=self.report())

    def assign(self, task: TaskSpec) -> None:
        """Take a task."""
        self.tasks[task.id] = WorkerTask(task.id, TaskState.RUNNING, None, "")

    def shutdown(self, task_id: str) -> None:
        """Forget a task."""
        self.tasks.pop(task_id, None)


class TaskQueueWorld:
    """A queue whose mail and lanes run on this thread; it is the directory of its workers."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = MetadataStore.open(f"sqlite:///{folder}/metadata.db", clock=self.clock)
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        self.known: list[Worker] = []
        self.ended = 0
        lockboxes = Lockboxes(
            MetadataLockStore(self.store.locks),
            InlineLanes(),
            clock=self.clock,
            changes=EventMail(self.processor, self._locks_changed, "locks changed"),
        )
        self.queue = TaskQueue(
            QueuePorts(
                *(self.store, lockboxes, self, self.lanes, self.processor, self.clock),
                ended=EventMail(self.processor, self._task_ended, "a task ended", is_urgent=True),
            ),
            options=TaskQueueOptions(max_tasks=2 * TASKS),
        )
        self.intake = TaskSubmissions(lambda: self.queue, self.processor)
        self.queue.start()
        self.settle()

    def workers(self) -> Sequence[Worker]:
        """List the workers."""
        return tuple(self.known)

    def _locks_changed(self, change: LocksChanged) -> None:
        self.queue.locks_changed(change)

    def _task_ended(self, _ended: EndedTask) -> None:
        self.ended += 1

    def settle(self, seconds: float = 0) -> None:
        """Run what is due."""
        settle(self.processor, self.clock, seconds, self.lanes)

    def timed_settle(self, seconds: float = 0) -> float:
        """Run what is due; return how long that took, in seconds."""
        began = start_timer()
        self.settle(seconds)
        return time.perf_counter() - began


def run() -> list[Row]:
    """Measure in a temporary folder, which is removed."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        world = TaskQueueWorld(folder)
        rows = [*adding(world, folder), *working(world), *asking(world)]
        world.store.close()
        return rows
    finally:
        shutil.rmtree(folder)


def noop(number: int) -> TaskSpec:
    """Return a task that waits for no lock."""
    task_id = f"task-{number:06}"
    return parse_batch_task({"type": "noop", "id": task_id, "dataSource": f"d{number % 50}"})


def kill(number: int) -> TaskSpec:
    """Return one of many tasks that want the same lock."""
    interval = "2024-01-01/2024-01-02"
    task_id = f"kill-{number:06}"
    return parse_batch_task(
        {"type": "kill", "id": task_id, "dataSource": "one", "interval": interval}
    )


def adding(world: TaskQueueWorld, folder: Path) -> list[Row]:
    """Time adds: one after the other, and many that are submitted at once."""
    tasks = [noop(number) for number in range(TASKS - WAITING)]
    singles, rest = tasks[:200], tasks[200:]
    payload = orjson.dumps(tasks[0].to_json()).decode()
    began = start_timer()
    for task in singles:
        answer = world.intake.submit(task)
        world.settle()
        answer.result(0)
    single = len(singles) / (time.perf_counter() - began)
    answers = [world.intake.submit(task) for task in rest]
    many = len(rest) / world.timed_settle()
    for answer in answers:
        answer.result(0)
    raw_single = raw_rate(folder / "one.db", payload, 200, 1)
    raw_many = raw_rate(folder / "many.db", payload, len(rest), TASKS_PER_TRANSACTION)
    for number in range(WAITING):
        world.intake.submit(kill(number))
    locked = WAITING / world.timed_settle()
    unit = "tasks/s"
    return [
        against("queue: adds, one at a time", single, unit, "SQLite", raw_single),
        against("queue: adds, many at once", many, unit, "SQLite", raw_many),
        against("queue: adds that wait for one lock", locked, unit, "SQLite", raw_many),
    ]


def raw_rate(path: Path, payload: str, count: int, together: int) -> float:
    """Return the rows a second that SQLite takes, so many in a transaction."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(TABLE)
    began = time.perf_counter()
    for begin in range(0, count, together):
        connection.execute("BEGIN IMMEDIATE")
        numbers = range(begin, min(begin + together, count))
        connection.executemany(INSERT, [(f"task-{number}", payload) for number in numbers])
        connection.execute("COMMIT")
    took = time.perf_counter() - began
    connection.close()
    return count / took


def working(world: TaskQueueWorld) -> list[Row]:
    """Time the assignment of 1,000 tasks to 1,000 workers, their end, and the next ones."""
    queue = world.queue
    world.known = [Worker(f"worker-{number:04}") for number in range(WORKERS)]
    assigned_s = world.timed_settle(3)
    running = len(queue.index.in_state(RunnerState.RUNNING))
    assert running == WORKERS, running
    for worker in world.known:
        worker.tasks = {
            task_id: WorkerTask(task_id, TaskState.SUCCESS, None, "") for task_id in worker.tasks
        }
    ended_s = world.timed_settle(3)
    assert world.ended == WORKERS, world.ended
    # These workers answer each second; real ones let a question wait while they have no news.
    resting_s = world.timed_settle(10) / 10
    sync_s = world.timed_settle(60) - 60 * resting_s
    return [
        against(
            f"queue: handing over, {WORKERS:,} workers",
            1000 * assigned_s / WORKERS,
            "ms/task",
            "aim",
            AIM_EVENT_MS,
            "< 1",
        ),
        against(
            "queue: an end and the next task",
            1000 * ended_s / WORKERS,
            "ms/task",
            "aim",
            2 * AIM_EVENT_MS,
            "< 1",
        ),
        against(
            f"queue: {WORKERS:,} full reports, nothing new",
            1000 * resting_s,
            "ms",
            "aim",
            200,
            "< 1",
        ),
        Row("queue: comparing with the store", 1000 * max(0.0, sync_s), "ms"),
    ]


def asking(world: TaskQueueWorld) -> list[Row]:
    """Time what users ask while 9,000 tasks wait."""
    queue = world.queue

    def why(task_id: str) -> list[WaitReason]:
        return reasons_of(queue.wait_facts(task_id))

    pending = list(queue.index.in_state(RunnerState.PENDING))[:ASKED]
    waiting = list(queue.index.in_state(RunnerState.WAITING))[-ASKED:]
    questions = (
        ("why, for a slot", lambda: [why(task_id) for task_id in pending[:20]], 20),
        ("why, for a lock", lambda: [why(task_id) for task_id in waiting], len(waiting)),
        ("a list of all active", queue.index.all, 1),
        ("a list of a datasource", lambda: queue.index.of_datasource("d1"), 1),
        (
            "a list from the store",
            lambda: world.store.tasks.summaries(TaskFilter(active=True)),
            1,
        ),
    )
    rows = []
    for what, question, count in questions:
        began = start_timer()
        question()
        rows.append(Row(f"queue: {what}", 1000 * (time.perf_counter() - began) / count, "ms"))
    return rows


if __name__ == "__main__":
    print_rows(run())
