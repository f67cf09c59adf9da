"""The active tasks: their entries, and an index by id, supervisor, datasource and state.

`QueuedTasks` has the entries, and belongs to the overlord's mailbox. Only the mailbox changes the
`TaskIndex`, one entry at a time; any thread may read it. Invariants: its entries are immutable and
replaced, never changed. A reader copies one dictionary in one step of the interpreter, so each
entry in the copy was current at that time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.core.errors import LockRevoked, Unavailable
from penstock.indexing.overlord.task_state import ActiveTaskState, QueuedTask
from penstock.indexing.supervisor.supervisor_ports import ActiveStream
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task_spec import TaskSpec


class RunnerState(StrEnum):
    """Progress of an active task, in Druid's terms.

    WAITING: for locks. PENDING: for a worker, or on its way to one. RUNNING: at a worker. NONE: not
    active.
    """

    WAITING = "WAITING"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class ActiveTask:
    """An active task.

    Attributes:
        task: Its spec.
        created_ms: When it was submitted.
        state: Its progress.
        worker: The worker that it was handed to, None if none.
        location: Address of its peon.
        taken: The worker has confirmed the task, so no other worker ever gets it.
        confirmed: The worker confirmed it in this term of the overlord, not only in a former one.
        waits: Dependencies that it waits for, as reported by its worker.
    """

    task: TaskSpec
    created_ms: int
    state: RunnerState = RunnerState.WAITING
    worker: str | None = None
    location: TaskLocation | None = None
    taken: bool = False
    confirmed: bool = False
    waits: tuple[DependencyWait, ...] = ()

    @property
    def supervisor_id(self) -> str | None:
        """The task's supervisor, or None."""
        return self.task.supervisor_id if isinstance(self.task, StreamTaskSpec) else None


class TaskIndex:
    """Thread-safe index of the active tasks."""

    def __init__(self) -> None:
        self._all: dict[str, ActiveTask] = {}
        self._of_supervisor: Final[dict[str, dict[str, ActiveTask]]] = {}
        self._of_datasource: Final[dict[str, dict[str, ActiveTask]]] = {}
        self._in_state: Final[dict[RunnerState, dict[str, ActiveTask]]] = {
            state: {} for state in RunnerState
        }

    # Any thread

    def __len__(self) -> int:
        return len(self._all)

    def get(self, task_id: str) -> ActiveTask | None:
        """Return a task, None if it is not active."""
        return self._all.get(task_id)

    def require_worker(self, task_id: str, worker: str) -> None:
        """Return if a worker may act for a task, or if the task is not active.

        A worker may receive a task after the overlord has handed it to another worker; then both
        run it for a moment. Only actions of one of them are accepted. The worker that a former
        overlord stored for a task may have another name now, for example after an upgrade, so no
        other worker is rejected before the stored one has confirmed the task.

        Raises:
            LockRevoked: Another worker has the task.
            Unavailable: No worker has confirmed the task yet, or a worker other than the stored
                one asks before either reported in this term.
        """
        active = self._all.get(task_id)
        if active is None or (active.taken and active.worker == worker):
            return
        if active.confirmed:
            raise LockRevoked(
                f"task {task_id} runs at worker {active.worker}: worker {worker} received it too"
                " late, abandon the work there"
            )
        raise Unavailable(
            f"the overlord does not know yet whether worker {worker} has task {task_id}: try again"
        )

    def all(self) -> dict[str, ActiveTask]:
        """Return a copy of all tasks by id."""
        return self._all.copy()

    def of_supervisor(self, supervisor_id: str) -> dict[str, ActiveTask]:
        """Return the tasks of a supervisor by id."""
        return self._of_supervisor.get(supervisor_id, {}).copy()

    def streams(self, supervisor_id: str) -> dict[str, ActiveStream]:
        """Return the tasks of a supervisor by id, in the form that supervisors use."""
        return {
            task_id: ActiveStream(one.task, one.worker, one.location, one.created_ms, one.waits)
            for task_id, one in self.of_supervisor(supervisor_id).items()
            if isinstance(one.task, StreamTaskSpec)
        }

    def supervisors(self) -> list[str]:
        """Return the sorted ids of supervisors that have tasks; on the mailbox thread."""
        return sorted(self._of_supervisor)

    def of_datasource(self, datasource: str) -> dict[str, ActiveTask]:
        """Return the tasks of a datasource by id."""
        return self._of_datasource.get(datasource, {}).copy()

    def in_state(self, state: RunnerState) -> dict[str, ActiveTask]:
        """Return the tasks in a state by id."""
        return self._in_state[state].copy()

    def counts(self) -> dict[RunnerState, int]:
        """Return the number of tasks in each state."""
        return {state: len(tasks) for state, tasks in self._in_state.items()}

    # The mailbox thread

    def put(self, active: ActiveTask) -> None:
        """Add a task, or replace its entry."""
        task_id = active.task.id
        before = self._all.get(task_id)
        if before is not None and before.state is not active.state:
            self._in_state[before.state].pop(task_id, None)
        self._all[task_id] = active
        self._in_state[active.state][task_id] = active
        self._of_datasource.setdefault(active.task.datasource, {})[task_id] = active
        if active.supervisor_id is not None:
            self._of_supervisor.setdefault(active.supervisor_id, {})[task_id] = active

    def remove(self, task_id: str) -> None:
        """Remove a task; unknown ids are ignored."""
        active = self._all.pop(task_id, None)
        if active is None:
            return
        self._in_state[active.state].pop(task_id, None)
        _drop(self._of_datasource, active.task.datasource, task_id)
        if active.supervisor_id is not None:
            _drop(self._of_supervisor, active.supervisor_id, task_id)


def _drop(groups: dict[str, dict[str, ActiveTask]], key: str, task_id: str) -> None:
    group = groups[key]
    del group[task_id]
    if not group:
        del groups[key]


class QueuedTasks:
    """The entries of the active tasks, and the index that publishes them to other threads.

    On the overlord's mailbox, except for `index`. Invariant: a task is in the table exactly as long
    as it is in the index.

    Attributes:
        index: Thread-safe view of the entries.
        entries: The entries by id, oldest first; read only.
    """

    def __init__(self) -> None:
        self.index: Final = TaskIndex()
        self.entries: Final[dict[str, QueuedTask]] = {}
        self._numbers = itertools.count()

    def next_number(self) -> int:
        """Return the next number: entries created from now on have larger ones."""
        return next(self._numbers)

    def make(self, task: TaskSpec, created_ms: int) -> QueuedTask:
        """Return an entry for a task; `publish` adds it to the table."""
        return QueuedTask(task, created_ms, self.next_number())

    def publish(self, entry: QueuedTask) -> None:
        """Add an entry, or publish its state and its worker."""
        self.entries[entry.task.id] = entry
        place = (entry.worker, entry.location, entry.taken, entry.confirmed, entry.waits)
        self.index.put(ActiveTask(entry.task, entry.created_ms, _shown(entry.state), *place))

    def remove(self, task_id: str) -> None:
        """Remove an entry; unknown ids are ignored."""
        self.entries.pop(task_id, None)
        self.index.remove(task_id)


def _shown(state: ActiveTaskState) -> RunnerState:
    if state is ActiveTaskState.WAITING:
        return RunnerState.WAITING
    running = state is ActiveTaskState.RUNNING
    return RunnerState.RUNNING if running else RunnerState.PENDING
