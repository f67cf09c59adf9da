"""The runner: hands tasks to workers that have free slots.

State of the overlord's mailbox. Knows no locks and stores nothing: the task queue stores the worker
of each task before it is sent. `selection` chooses the worker of a task, `worker_sync` polls the
workers; both work on `RunnerTasks`, which collects the events and the calls for the task queue.
Invariants:

- a task is handed to one worker; to another only after the first reports that it does not have it;
- no call waits for a worker; the cost of an event depends on what it changes, not on the number of
  tasks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.indexing.overlord.runner.runner_options import RunnerOptions
from penstock.indexing.overlord.runner.selection import SelectionRules, place
from penstock.indexing.overlord.runner.slot_reasons import SlotReason, SurveyedWorker, slot_reasons
from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
from penstock.indexing.overlord.runner.worker_sync import WorkerSync
from penstock.indexing.overlord.runner.worker_table import RunnerTasks, pending_task
from penstock.indexing.overlord.task_state import (
    ActiveTaskState,
    ReportedEvent,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.clock import Clock
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.runner.worker_config import WorkerConfig
    from penstock.indexing.overlord.runner.worker_table import WorkerCall, WorkerView
    from penstock.indexing.overlord.task_state import QueuedTask
    from penstock.indexing.ports import WorkerDirectory

_log = logging.getLogger(__name__)


class TaskRunner:
    """Hands tasks to workers. On the overlord's mailbox.

    Args:
        entries: The active tasks by id.
        directory: Lists the workers.
        clock: Measures the time since a worker's last answer.
        events: Receives an alert for each lost worker.
        options: Its options.

    Attributes:
        tasks: The tasks and workers, and the requests to the owner.
    """

    def __init__(
        self,
        entries: Mapping[str, QueuedTask],
        directory: WorkerDirectory,
        clock: Clock,
        events: Events,
        options: RunnerOptions,
    ) -> None:
        self._directory = directory
        self._options = options
        self._rules = SelectionRules(parallel_slot_ratio=options.parallel_slot_ratio)
        self.tasks: Final = RunnerTasks(entries, clock)
        self._eligibility = WorkerEligibility(clock, options)
        self._sync = WorkerSync(self.tasks, self._eligibility, clock, events, options)

    def stop(self) -> None:
        """Stop polling; tasks continue."""
        self._sync.stop()

    def configure(self, config: WorkerConfig) -> None:
        """Apply a new config for selecting workers."""
        self._rules = SelectionRules(config.select_strategy, self._options.parallel_slot_ratio)

    def poll(self) -> None:
        """List the workers, poll those that are not being polled, and fail tasks of lost ones."""
        self._sync.poll(self._directory)

    def take_calls(self) -> list[WorkerCall[object]]:
        """Return the calls to begin now; all earlier events must have been handled."""
        self._sync.poll_due()
        return self.tasks.take_calls()

    # Handing over

    def select(self) -> list[tuple[QueuedTask, str]]:
        """Return the pending tasks that workers have slots for, each with its worker."""
        candidates = [
            worker.candidate(self._options.handovers_max)
            for worker in self.tasks.workers.values()
            # The cheaper check first: most workers are full when tasks are pending.
            if len(worker.items) < worker.capacity
            and not self._eligibility.exclusion_reason(worker)
        ]
        entries = self.tasks.entries
        placed = place(self.tasks.pending, candidates, self._rules)
        return [(entries[task.id], name) for task, name in placed]

    def send(self, entry: QueuedTask) -> None:
        """Send a task to its worker."""
        worker = self.tasks.workers[entry.worker or ""]
        client, task, name = worker.client, entry.task, worker.name
        assert client is not None

        def report(event: TaskEvent, end: TaskEnd | None = None) -> None:
            self.tasks.reports.append(ReportedEvent(entry, event, name, end))

        def done(_none: None) -> None:
            report(TaskEvent.ACCEPTED)

        def failed(error: PenstockError) -> None:
            if entry.state is ActiveTaskState.SENDING:
                _log.info("worker %s did not accept task %s: %s", name, task.id, error)
            if isinstance(error, InvalidRequest):
                reason = f"the worker {name} refuses it: {error}"
                report(TaskEvent.REFUSED, TaskEnd(task.id, TaskState.FAILED, reason, name))
            elif isinstance(error, Conflict):
                report(TaskEvent.WORKER_FULL)
            else:
                report(TaskEvent.UNANSWERED)

        self.tasks.call(f"worker-{name}", lambda: client.assign(task), done, failed)

    def rest(self, name: str) -> None:
        """Give a worker no tasks for a while."""
        self._eligibility.rest(self.tasks.workers[name])

    def request_report(self, name: str) -> None:
        """Request a full report of a worker."""
        self._sync.request_report(self.tasks.workers[name])

    def dismiss(self, name: str, task_id: str) -> None:
        """Have a worker stop a task, or delete one that ended."""
        self._sync.dismiss(self.tasks.workers[name], task_id)

    def leave(self, entry: QueuedTask) -> None:
        """Remove a task that ended from its worker, which stops or deletes it."""
        worker = self.tasks.clear(entry)
        if worker is not None:
            self._sync.dismiss(worker, entry.task.id)

    # Queries

    def why(self, task_id: str) -> list[SlotReason]:
        """Return why each worker cannot run a pending task."""
        entry = self.tasks.entries.get(task_id)
        if entry is None or entry.state is not ActiveTaskState.PENDING:
            return []
        most, exclusion_reason = self._options.handovers_max, self._eligibility.exclusion_reason
        seen = [
            SurveyedWorker(
                worker.candidate(most), tuple(sorted(worker.items)), exclusion_reason(worker)
            )
            for worker in self.tasks.workers.values()
        ]
        return slot_reasons(pending_task(entry), seen, self._rules)

    def workers(self) -> list[WorkerView]:
        """Return views of the workers, without lost ones."""
        views = map(self._eligibility.view, self.tasks.workers.values())
        return [view for view in views if view is not None]

    @property
    def capacity(self) -> int:
        """Slots of all workers that are not lost."""
        has = self._eligibility.has
        return sum(one.capacity for one in self.tasks.workers.values() if has(one))


__all__ = ["RunnerOptions", "TaskRunner"]
