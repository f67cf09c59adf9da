"""The runner's workers and pending tasks, and its requests to its owner.

State of the overlord's mailbox; no I/O. `RunnerTasks` is shared by the parts of the runner: they
add events of tasks and calls of workers to it, and the task queue handles both at the end of each
turn. Invariants:

- a task is among the pending ones exactly while its state is `PENDING`;
- `items` are exactly the tasks of a worker, so that no operation on one worker reads all tasks.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from penstock.indexing.overlord.runner.selection import (
    Kind,
    PendingTask,
    PendingTasks,
    WorkerCandidate,
)
from penstock.indexing.overlord.task_state import ActiveTaskState, ReportedEvent
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY, HistoryPlace
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.indexing.overlord.task_state import QueuedTask
    from penstock.indexing.ports import WorkerChanges, WorkerClient, WorkerReport

T = TypeVar("T")

_UNACKNOWLEDGED: Final = frozenset({ActiveTaskState.SENDING, ActiveTaskState.UNSURE})


@dataclass(slots=True)
class KnownWorker:
    """A worker; `client` is None if only a former overlord has seen it.

    Attributes:
        name: Its name.
        seen_s: When it last answered, or became known.
        client: Client for calling it.
        capacity: Number of its slots; 0 until it has reported.
        enabled: Whether it takes new tasks.
        category: Its category, by which tasks are sent to it.
        version: Its version.
        place: Position up to which its changes are known.
        is_polled: Whether a poll for changes is running.
        resync: Whether the next poll requests a full report.
        items: Its tasks.
        last_end_ms: When one of its tasks last ended; 0 if none has.
        loss_reported: Whether its loss was reported.
        rests_until_s: It gets no tasks until then, because it did not answer a request to take one.
    """

    name: str
    seen_s: float
    client: WorkerClient | None = None
    capacity: int = 0
    enabled: bool = True
    category: str = DEFAULT_WORKER_CATEGORY
    version: str = "0"
    place: HistoryPlace = field(default_factory=HistoryPlace)
    is_polled: bool = False
    resync: bool = False
    items: dict[str, QueuedTask] = field(default_factory=dict)
    last_end_ms: int = 0
    loss_reported: bool = False
    rests_until_s: float = 0.0

    @property
    def host(self) -> str:
        """Host and port, if known, otherwise its name."""
        return self.name if self.client is None else self.client.host

    @property
    def unacknowledged(self) -> int:
        """Number of tasks that were sent to it and that it has not accepted yet."""
        return sum(item.state in _UNACKNOWLEDGED for item in self.items.values())

    def apply_report(self, report: WorkerReport, now_s: float) -> None:
        """Update the worker from a full report."""
        self.seen_s, self.loss_reported = now_s, False
        self.capacity, self.enabled = report.capacity, report.enabled
        self.category, self.version = report.category, report.version

    def apply_changes(self, changes: WorkerChanges, now_s: float) -> None:
        """Update the worker from an answer to a poll."""
        self.place = changes.place
        if changes.report is not None:
            self.apply_report(changes.report, now_s)
        else:
            self.seen_s, self.enabled, self.loss_reported = now_s, changes.enabled, False

    def candidate(self, handovers_max: int) -> WorkerCandidate:
        """Return the worker in the form that the selection uses."""
        items = self.items.values()
        return WorkerCandidate(
            name=self.name,
            host=self.host,
            capacity=self.capacity,
            used=len(self.items),
            category=self.category,
            groups={item.task.availability_group for item in items},
            used_by_type=dict(Counter(item.task.type for item in items)),
            room=handovers_max - self.unacknowledged,
        )


@dataclass(slots=True)
class WorkerCall(Generic[T]):
    """A call of a worker: `work` runs on a lane, then `done` or `failed` on the mailbox."""

    lane: str
    work: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[PenstockError], None]


class RunnerTasks:
    """The tasks at workers, the pending tasks, and the requests to the owner.

    Args:
        entries: All active tasks by id; read only.
        clock: Time at which a worker became known.

    Attributes:
        entries: All active tasks by id.
        pending: The tasks that wait for a worker.
        workers: The workers, by name; unannounced ones too, as long as they have tasks.
        reports: Events that the owner must handle.
        calls: Calls that the owner must begin.
        may_place: Whether a task may be handed to a worker now that could not before.
    """

    def __init__(self, entries: Mapping[str, QueuedTask], clock: Clock) -> None:
        self.entries: Final = entries
        self.pending: Final = PendingTasks()
        self.workers: Final[dict[str, KnownWorker]] = {}
        self.reports: list[ReportedEvent] = []
        self.calls: list[WorkerCall[object]] = []
        self.may_place = False
        self._clock = clock
        self._orders = itertools.count()
        self._event = 0

    # Requests to the owner

    def call(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[PenstockError], None],
    ) -> None:
        """Have the owner run `work` on a lane, then `done` or `failed` on the mailbox."""
        self.calls.append(cast("WorkerCall[object]", WorkerCall(lane, work, done, failed)))

    def take_reports(self) -> list[ReportedEvent]:
        """Return the events since the last call."""
        taken, self.reports = self.reports, []
        return taken

    def take_calls(self) -> list[WorkerCall[object]]:
        """Return the calls to begin since the last call."""
        taken, self.calls = self.calls, []
        return taken

    # Tasks and workers

    def next_event(self) -> int:
        """Count an event, such as a request to a worker, whose answer cannot show later events."""
        self._event += 1
        return self._event

    def worker(self, name: str) -> KnownWorker:
        """Return a worker; a new one counts as silent from now on."""
        known = self.workers.get(name)
        if known is None:
            known = self.workers[name] = KnownWorker(name, self._clock.monotonic_s())
        return known

    def enter(self, entry: QueuedTask, state: ActiveTaskState) -> None:
        """Set the state of a task; one that leaves `WAITING` is the newest of those with locks."""
        before, entry.state, entry.since = entry.state, state, self.next_event()
        if before is ActiveTaskState.WAITING:
            entry.order = next(self._orders)
        if state is ActiveTaskState.PENDING:
            self.pending.add(pending_task(entry))
        elif before is ActiveTaskState.PENDING:
            self.pending.remove(entry.task.id)

    def assign(self, entry: QueuedTask, name: str) -> None:
        """Set the worker of a task."""
        self.clear(entry)
        entry.worker = name
        self.worker(name).items[entry.task.id] = entry

    def clear(self, entry: QueuedTask) -> KnownWorker | None:
        """Remove a task from its worker; return the worker, None if it has no worker."""
        if entry.worker is None:
            return None
        worker = self.workers[entry.worker]
        del worker.items[entry.task.id]
        entry.worker = None
        return worker


def pending_task(entry: QueuedTask) -> PendingTask:
    """Return a task in the form that the selection uses."""
    task = entry.task
    supervisor_id = task.supervisor_id if isinstance(task, StreamTaskSpec) else ""
    kind = Kind(task.type, task.datasource, supervisor_id)
    return PendingTask(task.id, kind, task.priority, entry.order, task.availability_group)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker in the API; `silent_s` is the time since its last answer."""

    name: str
    host: str
    capacity: int
    enabled: bool
    category: str
    version: str
    running: tuple[str, ...]
    used_by_type: dict[str, int]
    availability_groups: tuple[str, ...]
    last_end_ms: int
    blacklisted_until_ms: int | None
    silent_s: float


def view_of(
    worker: KnownWorker, *, silent_s: float, blacklisted_until_ms: int | None
) -> WorkerView:
    """Return the API's view of a worker."""
    seen = worker.candidate(0)
    return WorkerView(
        name=worker.name,
        host=worker.host,
        capacity=worker.capacity,
        enabled=worker.enabled,
        category=worker.category,
        version=worker.version,
        running=tuple(sorted(worker.items)),
        used_by_type=seen.used_by_type,
        availability_groups=tuple(sorted(seen.groups)),
        last_end_ms=worker.last_end_ms,
        blacklisted_until_ms=blacklisted_until_ms,
        silent_s=silent_s,
    )
