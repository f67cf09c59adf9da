"""The overlord: leads, or not; while it leads, there is a term that does everything.

Owns which term there is; questions and commands about tasks and supervisors are its desks'. Its
public methods are for any thread: those that change something post mail and return a future, those
that read the metadata store do so on the caller's thread. They raise `NotLeading` when this
overlord does not lead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Conflict
from penstock.core.waits import WaitTable, merged
from penstock.indexing.overlord.compactiondesk import CompactionDesk
from penstock.indexing.overlord.errors import NotLeading
from penstock.indexing.overlord.supervisordesk import SupervisorDesk
from penstock.indexing.overlord.taskdesk import TaskDesk, TaskView
from penstock.indexing.overlord.term import LeaderTerm, OverlordOptions, OverlordPorts
from penstock.indexing.overlord.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from penstock.core.waits import DependencyWait
    from penstock.indexing.overlord.taskindex import ActiveTask
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import Term

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Overlord:
    """The overlord.

    Args:
        processor: Its mailbox, on a thread that runs it after `start`.
        ports: What it works with.
        options: How it behaves.

    Attributes:
        desk: Questions and commands about tasks.
        supervisor_desk: Those about supervisors.
        compaction_desk: Those about automatic compaction.
        upkeep: What operators look at and change beside both.
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
        # Set by the mailbox, read by any thread.
        self._term: LeaderTerm | None = None
        self._waits = WaitTable(ports.clock)
        self.desk = TaskDesk(self._lead, ports, processor)
        self.supervisor_desk = SupervisorDesk(self._full, ports, processor)
        self.compaction_desk = CompactionDesk(self._full, ports, processor)
        self.upkeep = Upkeep(self._lead)

    def start(self, term: Term | None = None) -> Future[None]:
        """Lead: read what there is and begin. Until the future is done, calls raise NotLeading.

        Args:
            term: Which term this is: its writes are refused when a newer one has begun, and the
                overlord stops then. None if nobody else can lead.

        Raises (in the future):
            Conflict: It leads already.
            Unavailable: The metadata store does not answer; nothing was begun.
        """
        return self._call(lambda: self._start(term), "start")

    def stop(self) -> Future[None]:
        """Lead no more; tasks go on, for the next leader to find. It may `start` again."""
        return self._call(self._stop, "stop")

    # Tasks; `desk` has more

    def tasks(
        self, *, active: bool | None = None, datasource: str | None = None, limit: int | None = None
    ) -> list[TaskView]:
        """Return tasks, the newest first."""
        return self.desk.tasks(active=active, datasource=datasource, limit=limit)

    def task(self, task_id: str) -> TaskView:
        """Return a task. Raises NotFound if there is none."""
        return self.desk.task(task_id)

    def shutdown_task(self, task_id: str, reason: str = "shut down by a user") -> Future[bool]:
        """End a task without publishing; false if it is not active."""
        return self.desk.shutdown(task_id, reason)

    def perform_action(self, task_id: str, action: object, worker: str | None = None) -> object:
        """Do a task's action; JSON in and out. Blocks.

        Args:
            task_id: Whose action it is.
            action: What is to be done.
            worker: Where the task runs that asks; None: by whoever may speak for all of them.

        Raises:
            InvalidRequest: It is no action.
            LockRevoked: The task is not active or another worker has it, or a lock that it needs
                was taken from it.
            Conflict: No lock of the task covers what it wants to do.
            Unavailable: This overlord does not lead or does not know yet that the worker has the
                task, the metadata store does not answer, or others hold a lock in the way.
        """
        term = self._lead()
        if worker is not None:
            term.queue.index.require_worker(task_id, worker)
        return term.handler.perform(task_id, action)

    def active_tasks(self) -> Mapping[str, ActiveTask]:
        """Return the active tasks; costs a copy."""
        return self._lead().queue.index.all()

    def require_full(self) -> None:
        """Return if this overlord leads and has read all that a term needs; any thread.

        Raises:
            NotLeading: It does not lead, or has only begun to.
        """
        self._full()

    def waits(self) -> list[DependencyWait]:
        """Return what duties, supervisors and active tasks wait for, one for each dependency."""
        term = self._term
        groups: list[Sequence[DependencyWait]] = [self._waits.all()]
        if term is not None:
            groups += [one.waits for one in term.queue.index.all().values() if one.waits]
            groups += [term.queue.waits(), *term.supervisors.streams.waits()]
        return merged(groups)

    # The mailbox thread

    def _call(self, command: Callable[[], T], description: str) -> Future[T]:
        return self._processor.main_executor.submit_change(command, description)

    def _lead(self) -> LeaderTerm:
        """Return the term, if this overlord leads, half at least."""
        term = self._term
        if term is None:
            raise NotLeading("this overlord does not lead: ask the one that does, or try again")
        return term

    def _full(self) -> LeaderTerm:
        term = self._lead()
        if not term.is_full:
            raise NotLeading("this overlord has just begun to lead: try again")
        return term

    def _start(self, term: Term | None) -> None:
        if self._term is not None:
            raise Conflict("this overlord leads already: stop it first")
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
        self._term = made
        try:
            made.start()
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        term, self._term = self._term, None
        if term is not None:
            term.stop()

    def _fenced(self, term: Term) -> None:
        """A write was refused, on whatever thread it was made."""
        self._processor.post(lambda: self._depose(term), "term %d is over", term.number)

    def _depose(self, term: Term) -> None:
        if self._term is not None and self._term.number == term.number:
            _log.warning("term %d is over, another overlord leads: this one stops", term.number)
            self._stop()
            self._ports.deposed()


__all__ = ["Overlord", "OverlordOptions", "OverlordPorts", "TaskView"]
