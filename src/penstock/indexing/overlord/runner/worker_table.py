"""State of each worker in the runner, and its view for the API.

State of the overlord's mailbox; no I/O. Invariant: `items` are exactly the tasks of the worker, so
that no operation on one worker reads all tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.indexing.overlord.runner.reactions import Phase, TaskLocationSeen
from penstock.indexing.overlord.runner.selection import Kind, Pending, WorkerCandidate
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY, HistoryPlace, TaskLocation
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import WorkerChanges, WorkerClient, WorkerReport
    from penstock.indexing.task_spec import TaskSpec


@dataclass(slots=True)
class RunnerTask:
    """A task in the runner.

    Attributes:
        task: The task.
        number: Order of arrival: the older goes first.
        phase: Its progress.
        since: When the phase began, in the runner's count of events.
        worker: Its worker.
        location: Address of its peon.
        ended: Whether its end was reported to the queue, which is storing it.
        waits: Dependencies that it waits for, from its worker's last report.
    """

    task: TaskSpec
    number: int
    phase: Phase = Phase.PENDING
    since: int = 0
    worker: str | None = None
    location: TaskLocation | None = None
    ended: bool = False
    waits: tuple[DependencyWait, ...] = ()

    @property
    def taken(self) -> bool:
        """Whether it is certain that its worker has it; then it is never handed to another."""
        return self.confirmed or self.phase is Phase.RESTORED

    @property
    def confirmed(self) -> bool:
        """Whether its worker reported in this term that it has the task."""
        return self.phase in {Phase.ACCEPTED, Phase.RUNNING}

    def pending(self) -> Pending:
        """Return the task in the form that the selection uses."""
        task = self.task
        supervisor_id = task.supervisor_id if isinstance(task, StreamTaskSpec) else ""
        kind = Kind(task.type, task.datasource, supervisor_id)
        return Pending(task.id, kind, task.priority, self.number, task.availability_group)

    def place(self, worker: str) -> TaskLocationSeen:
        """Return its place relative to a worker."""
        if self.worker is None:
            return TaskLocationSeen.PENDING
        if self.worker != worker:
            return TaskLocationSeen.ELSEWHERE
        return TaskLocationSeen.HERE if self.phase is Phase.RUNNING else TaskLocationSeen.HANDED


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
        asking: Whether a poll for changes is running.
        resync: Whether the next poll requests a full report.
        items: Its tasks.
        last_end_ms: When one of its tasks last ended; 0 if none has.
        given_up: Whether its loss was reported.
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
    asking: bool = False
    resync: bool = False
    items: dict[str, RunnerTask] = field(default_factory=dict)
    last_end_ms: int = 0
    given_up: bool = False
    rests_until_s: float = 0.0

    @property
    def host(self) -> str:
        """Host and port, if known, else its name."""
        return self.name if self.client is None else self.client.host

    @property
    def unacknowledged(self) -> int:
        """Number of tasks that were sent to it and that it has not accepted yet."""
        return sum(item.phase in {Phase.SENDING, Phase.UNSURE} for item in self.items.values())

    def heard(self, report: WorkerReport, now_s: float) -> None:
        """Update the worker from a full report."""
        self.seen_s, self.given_up = now_s, False
        self.capacity, self.enabled = report.capacity, report.enabled
        self.category, self.version = report.category, report.version

    def heard_changes(self, changes: WorkerChanges, now_s: float) -> None:
        """Update the worker from an answer to a poll."""
        self.place = changes.place
        if changes.report is not None:
            self.heard(changes.report, now_s)
        else:
            self.seen_s, self.enabled, self.given_up = now_s, changes.enabled, False

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
