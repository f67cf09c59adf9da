"""The overlord: creates a term when it becomes the leader; the term does all the work.

Owns the change of terms. Queries and commands about tasks and supervisors are in the services that
are its attributes. Public methods may be called from any thread: those that change something post
mail and return a future, those that read the metadata store do so on the caller's thread. They
raise `NotLeading` if this overlord does not lead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Conflict
from penstock.core.waits import WaitTable, merged, owned
from penstock.indexing.overlord.admin_service import AdminService, CompactionService
from penstock.indexing.overlord.supervisor_service import SupervisorService
from penstock.indexing.overlord.task_service import TaskService, TaskView
from penstock.indexing.overlord.term import (
    CurrentTerm,
    LeaderTerm,
    OverlordOptions,
    OverlordPorts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.waits import DependencyWait
    from penstock.indexing.overlord.task_index import ActiveTask
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import Term

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Overlord:
    """The overlord of one process, which leads or is on standby.

    Args:
        processor: Its mailbox, on a thread that runs it after `start`.
        ports: Its dependencies.
        options: Its options.

    Attributes:
        task_service: Queries and commands about tasks.
        supervisor_service: Queries and commands about supervisors.
        compaction_service: Queries and commands about automatic compaction.
        admin_service: Administration: locks, compaction plans, segments.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        ports: OverlordPorts,
        options: OverlordOptions | None = None,
    ) -> None:
        self._processor = processor
        self._ports = ports
        self._options = options or OverlordOptions()
        self._current = CurrentTerm()
        self._waits = WaitTable(ports.clock)
        self.task_service = TaskService(self._current, ports, processor)
        self.supervisor_service = SupervisorService(self._current, ports, processor)
        self.compaction_service = CompactionService(self._current, ports, processor)
        self.admin_service = AdminService(self._current)

    def start(self, term: Term | None = None) -> Future[None]:
        """Start to lead: read the stored state. Until the future is done, calls raise NotLeading.

        Args:
            term: The term to lead. Once a newer term starts, the store refuses this term's writes
                and the overlord stops. None if no other process can lead.

        Raises (in the future):
            Conflict: It leads already.
            Unavailable: The metadata store does not answer; nothing was started.
        """
        return self._call(lambda: self._start(term), "start")

    def stop(self) -> Future[None]:
        """Stop leading; tasks continue for the next leader. It may `start` again."""
        return self._call(self._stop, "stop")

    # Tasks; `task_service` has more

    def tasks(
        self, *, active: bool | None = None, datasource: str | None = None, limit: int | None = None
    ) -> list[TaskView]:
        """Return tasks, newest first."""
        return self.task_service.tasks(active=active, datasource=datasource, limit=limit)

    def task(self, task_id: str) -> TaskView:
        """Return a task. Raises NotFound if there is none."""
        return self.task_service.task(task_id)

    def shutdown_task(self, task_id: str, reason: str = "shut down by a user") -> Future[bool]:
        """End a task without publishing; return false if it is not active."""
        return self.task_service.shutdown(task_id, reason)

    def perform_action(self, task_id: str, action: object, worker: str | None = None) -> object:
        """Perform a task's action, in JSON, and return its answer, in JSON. Blocks.

        Args:
            task_id: The task that sends the action.
            action: The action.
            worker: The worker that runs the task; None if the caller may act for all workers.

        Raises:
            InvalidRequest: The JSON is not a valid action.
            LockRevoked: The task is not active, another worker has it, or a lock that it needs was
                revoked.
            Conflict: None of the task's locks covers the action.
            Unavailable: This overlord does not lead or has not confirmed yet that the worker has
                the task, the metadata store does not answer, or another task holds a conflicting
                lock.
        """
        term = self._current.lead()
        if worker is not None:
            term.queue.index.require_worker(task_id, worker)
        return term.handler.perform(task_id, action)

    def active_tasks(self) -> Mapping[str, ActiveTask]:
        """Return a copy of the active tasks by id."""
        return self._current.lead().queue.index.all()

    def require_full(self) -> None:
        """Return if this overlord leads and its term has started completely. Any thread.

        Raises:
            NotLeading: It does not lead, or is still starting to lead.
        """
        self._current.full()

    def waits(self) -> list[DependencyWait]:
        """Return the waits of duties, and of supervisors and active tasks, which they name."""
        term = self._current.term
        groups: list[Sequence[DependencyWait]] = [self._waits.all()]
        if term is not None:
            tasks = term.queue.index.all().items()
            groups += [owned(one.waits, f"task {task_id}") for task_id, one in tasks if one.waits]
            groups += [term.queue.waits(), *term.supervisors.streams.waits()]
        return merged(groups)

    # The mailbox thread

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit_change(command, description)

    def _start(self, term: Term | None) -> None:
        if self._current.term is not None:
            raise Conflict("this overlord already leads: stop it first")
        metadata = self._ports.metadata
        if term is not None:
            metadata = metadata.under(term, on_fenced=lambda: self._fenced(term))
        made = LeaderTerm(
            self._processor,
            self._ports,
            self._options,
            metadata,
            0 if term is None else term.number,
            self._waits,
        )
        self._current.term = made
        try:
            made.start()
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        term, self._current.term = self._current.term, None
        if term is not None:
            term.stop()

    def _fenced(self, term: Term) -> None:
        """The store refused a write of the term; called on the thread of the write."""
        self._processor.post(lambda: self._depose(term), "term %d is over", term.number)

    def _depose(self, term: Term) -> None:
        current = self._current.term
        if current is not None and current.number == term.number:
            _log.warning("term %d is over, another overlord leads: this one stops", term.number)
            self._stop()
            self._ports.deposed()


__all__ = ["Overlord", "OverlordOptions", "OverlordPorts", "TaskView"]
