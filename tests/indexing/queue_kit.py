"""The task queue over a real store and lockboxes, on one thread, with workers that say anything."""

from __future__ import annotations

from pathlib import Path

from penstock.indexing.lockbox.lock_lane import LocksChanged
from penstock.indexing.lockbox.lock_store import AlertingLockStore, MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.overlord.task_state import EndedTask
from penstock.indexing.overlord.wait_reasons import WaitReason, reasons_of
from penstock.indexing.ports import (
    HistoryPlace,
    TaskLocation,
    TaskState,
    WorkerChanges,
    WorkerReport,
    WorkerTask,
)
from penstock.indexing.specs.batch.batch_task_specs import (
    KillSpec,
    NoopSpec,
    parse_batch_task,
)
from penstock.indexing.task_spec import TaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.event_mail import EventMail
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import InlineLanes, StepLanes, settle
from tests.harness.metadata_kit import MemoryMetadata
from tests.indexing.indexing_kit import make_task


class HeldPeon:
    """A peon's process that lives until it is asked to end, or a test sets its exit code."""

    def __init__(self, task_id: str, folder: str) -> None:
        self.task_id = task_id
        self.folder = folder
        self.code: int | None = None

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = 0

    def kill(self) -> None:
        self.code = -9


class SaidWorker:
    """Reports what a test has it say."""

    def __init__(self, name: str, capacity: int = 4, version: str = "0") -> None:
        self.name = name
        self.host = f"{name}:8091"
        self.capacity = capacity
        self.version = version
        self.says: dict[str, WorkerTask] = {}
        self.taken: list[str] = []
        self.forgotten: list[str] = []
        self.error: Exception | None = None
        self.takes = True
        self.asked_wait_ms = 0

    def say(
        self,
        task_id: str,
        state: TaskState = TaskState.RUNNING,
        location: TaskLocation | None = None,
        error: str = "",
    ) -> None:
        self.says[task_id] = WorkerTask(task_id, state, location, error)

    def report(self) -> WorkerReport:
        if self.error:
            raise self.error
        return WorkerReport(self.capacity, tuple(self.says.values()), version=self.version)

    def changes(self, _after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        self.asked_wait_ms = wait_ms
        return WorkerChanges(HistoryPlace(), report=self.report())

    def assign(self, task: TaskSpec) -> None:
        if self.error:
            raise self.error
        self.taken.append(task.id)
        if self.takes:
            self.say(task.id)

    def shutdown(self, task_id: str) -> None:
        self.forgotten.append(task_id)
        self.says.pop(task_id, None)


class KeptEvents:
    """What operators were told."""

    def __init__(self) -> None:
        self.measures: list[tuple[str, float, dict[str, str]]] = []
        self.alerts: list[tuple[str, dict[str, str]]] = []

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        self.measures.append((metric, value, dimensions))

    def alert(self, description: str, **data: str) -> None:
        self.alerts.append((description, data))

    def of(self, metric: str) -> list[tuple[float, dict[str, str]]]:
        return [(value, dims) for name, value, dims in self.measures if name == metric]


class TaskQueueWorld:
    def __init__(self, folder: str | Path, options: TaskQueueOptions | None = None) -> None:
        self.clock = VirtualClock()
        self.metadata = MemoryMetadata(self.clock)
        self.announced: list[SaidWorker] = []
        self.ended: list[tuple[str, TaskState, str]] = []
        self.events = KeptEvents()
        self.options = options or TaskQueueOptions(max_tasks=2_000, payload_bytes_max=20_000)
        self.start()

    def start(self) -> None:
        """Begin as the next overlord does."""
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="overlord", clock=self.clock)
        self.lockboxes = Lockboxes(
            AlertingLockStore(MetadataLockStore(self.metadata.locks), self.events),
            InlineLanes(),
            clock=self.clock,
            changes=EventMail(self.processor, self._locks_changed, "locks changed"),
        )
        self.queue = TaskQueue(
            QueuePorts(
                self.metadata,
                self.lockboxes,
                self,
                self.lanes,
                self.processor,
                self.clock,
                events=self.events,
                ended=EventMail(self.processor, self._task_ended, "a task ended", is_urgent=True),
            ),
            options=self.options,
        )
        self.queue.start()
        self.settle()

    def _locks_changed(self, change: LocksChanged) -> None:
        self.queue.locks_changed(change)

    def _task_ended(self, ended: EndedTask) -> None:
        self.ended.append((ended.task.id, ended.state, ended.error))

    def workers(self) -> tuple[SaidWorker, ...]:
        return tuple(self.announced)

    def worker(self, name: str, capacity: int = 4, version: str = "0") -> SaidWorker:
        made = SaidWorker(name, capacity, version)
        self.announced.append(made)
        self.settle(1)
        return made

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds, self.lanes)

    def add(self, task_id: str) -> None:
        names = {"id": task_id, "base_sequence_name": f"base-{task_id}"}
        self.queue.add(make_task().model_copy(update=names))
        self.settle()

    def why(self, task_id: str) -> list[WaitReason]:
        return reasons_of(self.queue.wait_facts(task_id))

    def status(self, task_id: str) -> tuple[str, object]:
        row = self.metadata.tasks.get(task_id)
        assert row is not None
        return row.state, row.status.get("errorMsg")


def noop(task_id: str) -> NoopSpec:
    made = parse_batch_task({"type": "noop", "id": "n", "dataSource": "d"})
    assert isinstance(made, NoopSpec)
    return made.with_id(task_id)


def kill(
    task_id: str,
    days: tuple[int, int] = (1, 2),
    *,
    priority: int = 50,
    datasource: str = "d",
    group: str | None = None,
) -> KillSpec:
    start, end = days
    made = parse_batch_task(
        {
            "type": "kill",
            "id": task_id,
            "groupId": group,
            "dataSource": datasource,
            "interval": f"2024-01-{start:02}/2024-01-{end:02}",
            "context": {"priority": priority},
        }
    )
    assert isinstance(made, KillSpec)
    return made


def submit(world: TaskQueueWorld, *tasks: TaskSpec) -> None:
    for task in tasks:
        world.queue.add(task)
    world.settle()


def states(world: TaskQueueWorld) -> dict[str, RunnerState]:
    return {task_id: one.state for task_id, one in world.queue.index.all().items()}


def held(world: TaskQueueWorld, datasource: str = "d") -> set[str]:
    return {row.task_id for row in world.metadata.locks.every().get(datasource, [])}
