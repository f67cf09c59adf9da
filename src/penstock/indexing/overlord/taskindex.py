"""The active tasks, found by id, supervisor, datasource or state without looking at all of them.

Changed by the overlord's mailbox alone, one entry at a time; read by any thread. Invariants: what
is in here is immutable and replaced, never changed; a reader copies one dictionary in one step of
the interpreter, so it sees each entry as it was at some moment just now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.core.errors import LockRevoked, Unavailable
from penstock.indexing.supervisor.ports import ActiveStream
from penstock.indexing.taskspec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.taskspec import TaskSpec


class RunnerState(StrEnum):
    """How far an active task is, in Druid's words.

    WAITING: for locks. PENDING: for a worker, or on its way to it. RUNNING: at a worker. NONE: not
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
        task: What it is.
        created_ms: When it was submitted.
        state: How far it is.
        worker: Which worker it was handed to, None if none.
        location: Where its peon answers.
        taken: The worker is sure to have it, so that no other ever gets it.
        confirmed: The worker said so in this term of the overlord, not only in a former one.
        waits: Dependencies that it waits for, as it told its worker.
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
        """Whose task it is, None if it is nobody's."""
        return self.task.supervisor_id if isinstance(self.task, StreamTaskSpec) else None


class TaskIndex:
    """The index."""

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
        """Return an active task, None if it is not active."""
        return self._all.get(task_id)

    def require_worker(self, task_id: str, worker: str) -> None:
        """Return if a worker may act for a task, or if the task is not active.

        A request to take a task may arrive when the overlord has given up on it and handed the task
        to another worker: then two run it for a moment. Only one of them is ever heard. A worker
        that a former overlord stored for a task may have another name now, for example after an
        upgrade: no other worker is refused before the stored one has confirmed the task.

        Raises:
            LockRevoked: Another worker has the task.
            Unavailable: No worker is sure to have it yet, or a worker other than the stored one
                asks before either was heard in this term.
        """
        active = self._all.get(task_id)
        if active is None or (active.taken and active.worker == worker):
            return
        if active.confirmed:
            raise LockRevoked(
                f"task {task_id} runs at the worker {active.worker}: {worker} took it too late,"
                " abandon its work there"
            )
        raise Unavailable(
            f"the overlord does not know yet whether the worker {worker} has task {task_id}: ask"
            " again"
        )

    def all(self) -> dict[str, ActiveTask]:
        """Return all, by id; costs a copy."""
        return self._all.copy()

    def of_supervisor(self, supervisor_id: str) -> dict[str, ActiveTask]:
        """Return those of a supervisor, by id."""
        return self._of_supervisor.get(supervisor_id, {}).copy()

    def streams(self, supervisor_id: str) -> dict[str, ActiveStream]:
        """Return those of a supervisor as supervisors see them, by id."""
        return {
            task_id: ActiveStream(one.task, one.worker, one.location, one.created_ms, one.waits)
            for task_id, one in self.of_supervisor(supervisor_id).items()
            if isinstance(one.task, StreamTaskSpec)
        }

    def supervisors(self) -> list[str]:
        """Return which supervisors have any, by id; on the mailbox thread."""
        return sorted(self._of_supervisor)

    def of_datasource(self, datasource: str) -> dict[str, ActiveTask]:
        """Return those of a datasource, by id."""
        return self._of_datasource.get(datasource, {}).copy()

    def in_state(self, state: RunnerState) -> dict[str, ActiveTask]:
        """Return those that are so far, by id."""
        return self._in_state[state].copy()

    def counts(self) -> dict[RunnerState, int]:
        """Return how many are how far."""
        return {state: len(tasks) for state, tasks in self._in_state.items()}

    # The mailbox thread

    def put(self, active: ActiveTask) -> None:
        """Put a task in, in place of what was known of it."""
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
        """Take a task out; an unknown one is fine."""
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
