"""What the runner knows of each worker, and what others are shown of it.

State of the overlord's mailbox; no I/O. Invariant: `items` are exactly the tasks that are with the
worker, so that no question about one worker looks at all tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.indexing.overlord.runner.reactions import Phase, Place
from penstock.indexing.overlord.runner.selection import Candidate, Kind, Pending
from penstock.indexing.ports import DEFAULT_WORKER_CATEGORY, HistoryPlace, TaskLocation
from penstock.indexing.taskspec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import WorkerChanges, WorkerClient, WorkerReport
    from penstock.indexing.taskspec import TaskSpec


@dataclass(slots=True)
class Item:
    """A task that the runner has.

    Attributes:
        task: The task.
        number: Counts arrivals: the older goes first.
        phase: How far it is.
        since: When it came into the phase, in the runner's count of events.
        worker: Whose it is.
        location: Where its peon answers.
        ended: Whether its end was told to the queue, which is storing it.
        waits: Dependencies that it waits for, as its worker reported last.
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
        """Whether its worker is sure to have it: it is never handed to another then."""
        return self.confirmed or self.phase is Phase.RESTORED

    @property
    def confirmed(self) -> bool:
        """Whether its worker said in this term that it has the task."""
        return self.phase in {Phase.ACCEPTED, Phase.RUNNING}

    def pending(self) -> Pending:
        """Return it as the selection sees it."""
        task = self.task
        supervisor_id = task.supervisor_id if isinstance(task, StreamTaskSpec) else ""
        kind = Kind(task.type, task.datasource, supervisor_id)
        return Pending(task.id, kind, task.priority, self.number, task.availability_group)

    def place(self, worker: str) -> Place:
        """Return where it is, seen from a worker."""
        if self.worker is None:
            return Place.PENDING
        if self.worker != worker:
            return Place.ELSEWHERE
        return Place.HERE if self.phase is Phase.RUNNING else Place.HANDED


@dataclass(slots=True)
class Worker:
    """A worker; `client` is None for one that only a former overlord has seen.

    Attributes:
        name: Its name.
        seen_s: When it last answered, or was first heard of.
        client: How it is called.
        capacity: Its slots; 0 until it has said.
        enabled: Whether it takes new tasks.
        category: Which tasks are sent to it.
        version: Its version.
        place: Up to where its changes are known.
        asking: Whether a question for changes is under way.
        resync: Whether everything is to be asked for next.
        items: The tasks that are with it.
        last_end_ms: When a task of it last ended; 0 if none has.
        given_up: Whether it was told that it is lost.
        rests_until_s: It gets no tasks until then: it did not answer when it was to take one.
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
    items: dict[str, Item] = field(default_factory=dict)
    last_end_ms: int = 0
    given_up: bool = False
    rests_until_s: float = 0.0

    @property
    def host(self) -> str:
        """Host and port, where it is known."""
        return self.name if self.client is None else self.client.host

    @property
    def unacknowledged(self) -> int:
        """Tasks that it was asked to take and has not said yes to."""
        return sum(item.phase in {Phase.SENDING, Phase.UNSURE} for item in self.items.values())

    def heard(self, report: WorkerReport, now_s: float) -> None:
        """Take over what a full report says of the worker itself."""
        self.seen_s, self.given_up = now_s, False
        self.capacity, self.enabled = report.capacity, report.enabled
        self.category, self.version = report.category, report.version

    def heard_changes(self, changes: WorkerChanges, now_s: float) -> None:
        """Take over what an answer says of the worker itself."""
        self.place = changes.place
        if changes.report is not None:
            self.heard(changes.report, now_s)
        else:
            self.seen_s, self.enabled, self.given_up = now_s, changes.enabled, False

    def candidate(self, handovers_max: int) -> Candidate:
        """Return it as the selection sees it."""
        items = self.items.values()
        return Candidate(
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
    """A worker as the API shows it; `silent_s` is how long it has not answered."""

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


def view_of(worker: Worker, *, silent_s: float, blacklisted_until_ms: int | None) -> WorkerView:
    """Return what is shown of a worker."""
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
