"""The streaming supervisors by id, and events of their tasks.

On the overlord's mailbox. `Supervisors` owns the versions of their specs. Invariant: a streaming
task in the queue has its supervisor here, or is ended.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable
from penstock.indexing.supervisor import Supervisor, SupervisorOptions, SupervisorPorts
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import TaskState
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.task_spec import TaskSpec

_log = logging.getLogger(__name__)


class StreamSupervisors:
    """The running streaming supervisors.

    Args:
        ports: The dependencies of each supervisor.
        options: Options of all supervisors.
        gone: Called with the id of a supervisor that has ended.
    """

    def __init__(
        self, ports: SupervisorPorts, options: SupervisorOptions, gone: Callable[[str], None]
    ) -> None:
        self._ports = ports
        self._options = options
        self._gone = gone
        self._running: dict[str, Supervisor] = {}

    def __contains__(self, supervisor_id: str) -> bool:
        return supervisor_id in self._running

    def get(self, supervisor_id: str) -> Supervisor | None:
        """Return a supervisor, None if it does not run."""
        return self._running.get(supervisor_id)

    def all(self) -> list[Supervisor]:
        """Return all, sorted by id."""
        return [self._running[supervisor_id] for supervisor_id in sorted(self._running)]

    def waits(self) -> list[tuple[DependencyWait, ...]]:
        """Return the waits of the supervisors themselves, without their tasks'. Any thread."""
        return [one.standing.own_waits() for one in self._running.copy().values()]

    def run(self, spec: SupervisorSpec) -> Supervisor:
        """Start a supervisor whose id is not running."""
        supervisor_id = spec.supervisor_id
        made = Supervisor(
            spec, self._ports, self._options, stopped=lambda: self._ended(supervisor_id)
        )
        self._running[supervisor_id] = made
        made.start()
        return made

    def stop(self) -> None:
        """Stop; tasks continue."""
        for supervisor in self._running.values():
            supervisor.abandon()
        self._running.clear()

    # Events of tasks

    def checkpoint_wanted(self, task: TaskSpec, start: Offsets) -> None:
        """A task's open sequence is full."""
        if isinstance(task, StreamTaskSpec) and task.supervisor_id in self._running:
            self._running[task.supervisor_id].checkpoint_wanted(task.id, start)

    def task_ended(self, task: TaskSpec, state: TaskState, error: str) -> None:
        """A task has ended."""
        if isinstance(task, StreamTaskSpec) and task.supervisor_id in self._running:
            self._running[task.supervisor_id].task_ended(task, state, error)

    def tasks_compared(self) -> None:
        """Stored tasks may have been added that were unknown here.

        Their supervisor may have found no tasks left meanwhile and have ended.
        """
        try:
            self.end_tasks_of_nobody()
        except Unavailable as error:
            _log.info("tasks without a supervisor are ended later: %s", error)

    def end_tasks_of_nobody(self) -> None:
        """End tasks without a supervisor, which would never be ended otherwise.

        Their unpublished offsets are not committed, so the next reader of the topic reads them
        again.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        queue = self._ports.queue
        for supervisor_id in queue.index.supervisors():
            if supervisor_id not in self._running:
                reason = f"there is no supervisor {supervisor_id!r} that can run it"
                for task_id in queue.index.streams(supervisor_id):
                    queue.shutdown(task_id, reason)

    def _ended(self, supervisor_id: str) -> None:
        self._running.pop(supervisor_id, None)
        self._gone(supervisor_id)
