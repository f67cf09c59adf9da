"""Synchronisation with the workers: polls them and derives the events of their tasks.

On the overlord's mailbox; `RunnerTasks` receives the events and the calls of workers. Does not
assign tasks to workers. Invariants:

- each announced worker is polled continuously, with one poll at a time;
- after a request to stop a task fails, the worker's full report is requested and the request sent
  again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import counted
from penstock.indexing.overlord.task_state import (
    ActiveTaskState,
    ReportedEvent,
    TaskEnd,
    TaskEvent,
)
from penstock.indexing.ports import HistoryPlace, TaskState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.indexing.operator_events import Events
    from penstock.indexing.overlord.runner.runner_options import RunnerOptions
    from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
    from penstock.indexing.overlord.runner.worker_table import KnownWorker, RunnerTasks
    from penstock.indexing.overlord.task_state import QueuedTask
    from penstock.indexing.ports import (
        WorkerChanges,
        WorkerClient,
        WorkerDirectory,
        WorkerReport,
        WorkerTask,
    )

_log = logging.getLogger(__name__)


class WorkerSync:
    """Polls the workers.

    Args:
        tasks: The tasks and workers.
        eligibility: Tracks announced workers and how tasks ended on each.
        clock: Time of the last answer of a worker.
        events: Receives an alert for each lost worker.
        options: Intervals and timeouts of the polls.
    """

    def __init__(
        self,
        tasks: RunnerTasks,
        eligibility: WorkerEligibility,
        clock: Clock,
        events: Events,
        options: RunnerOptions,
    ) -> None:
        self._tasks = tasks
        self._eligibility = eligibility
        self._clock = clock
        self._events = events
        self._options = options
        self._listing = False
        self._due: list[KnownWorker] = []
        self._stopped = False

    def stop(self) -> None:
        """Stop polling."""
        self._stopped = True

    def poll(self, directory: WorkerDirectory) -> None:
        """List the workers, poll those that are not being polled, and fail tasks of lost ones."""
        if self._stopped:
            return
        if not self._listing:
            self._listing = True
            self._tasks.call("workers", directory.workers, self._listed, self._not_listed)
        for worker in self._tasks.workers.values():
            if worker.items and (reason := self._eligibility.lost(worker)):
                self._lose(worker, reason)

    def _lose(self, worker: KnownWorker, reason: str) -> None:
        if not worker.loss_reported:
            worker.loss_reported = True
            tasks = counted(len(worker.items), "task")
            text = f"worker {worker.name} is lost, and {tasks} failed with it: {reason}"
            self._events.alert(text, worker=worker.name)
        for entry in worker.items.values():
            if not entry.is_ending:
                end = TaskEnd(entry.task.id, TaskState.FAILED, reason, worker.name)
                self._report(entry, TaskEvent.WORKER_LOST, worker, end)

    def request_report(self, worker: KnownWorker) -> None:
        """Request a full report at once: whether a task arrived must not wait for a long poll."""
        client, requested = worker.client, self._tasks.next_event()
        if client is None:
            return

        def done(report: WorkerReport) -> None:
            # The worker may have been removed and added again under its name: another object.
            if self._stopped or self._tasks.workers.get(worker.name) is not worker:
                return
            worker.apply_report(report, self._clock.monotonic_s())
            self._merge(worker, report, requested)
            self._tasks.may_place = True

        def failed(error: PenstockError) -> None:
            _log.info("worker %s does not answer: %s", worker.name, error)
            worker.resync = True  # The next poll requests a full report.

        self._tasks.call(f"worker-{worker.name}", client.report, done, failed)

    def dismiss(self, worker: KnownWorker, task_id: str) -> None:
        """Have a worker stop a task, or delete one that ended."""
        client = worker.client
        if client is None:
            return

        def failed(error: PenstockError) -> None:
            _log.info("worker %s cannot end %s yet: %s", worker.name, task_id, error)
            worker.resync = True  # The task is in the next answer, which repeats the request.

        self._tasks.call(
            f"worker-{worker.name}", lambda: client.shutdown(task_id), lambda _none: None, failed
        )

    def _not_listed(self, error: PenstockError) -> None:
        self._listing = False
        _log.warning("cannot list the workers: %s", error)

    def _listed(self, clients: Sequence[WorkerClient]) -> None:
        self._listing = False
        if self._stopped:
            return
        self._eligibility.announced = {client.name for client in clients}
        for client in clients:
            worker = self._tasks.worker(client.name)
            worker.client = client
            if not worker.is_polled:
                self._due.append(worker)
        self._forget_workers_that_are_gone()
        self._tasks.may_place = True

    def _forget_workers_that_are_gone(self) -> None:
        """Remove absent workers: a host of a cluster may have another name each time it starts."""
        announced, workers = self._eligibility.announced, self._tasks.workers
        for name, worker in list(workers.items()):
            if name not in announced and not worker.items and not worker.is_polled:
                del workers[name]
                self._eligibility.forget(name)

    def poll_due(self) -> None:
        """Poll the workers that are due, after the events of their last answers were handled.

        A task that is missing from an answer is judged by the events before its request, so the
        request is made last.
        """
        if self._due:
            due, self._due = self._due, []
            for worker in due:
                self._poll(worker)

    def _poll(self, worker: KnownWorker) -> None:
        client = worker.client
        assert client is not None
        after = HistoryPlace() if worker.resync else worker.place
        worker.is_polled, worker.resync = True, False
        requested, requested_s = self._tasks.next_event(), self._clock.monotonic_s()

        def done(changes: WorkerChanges) -> None:
            worker.is_polled = False
            self._apply_answer(worker, changes, requested, requested_s)

        def failed(error: PenstockError) -> None:
            worker.is_polled = False  # It is polled again when the workers are listed next.
            # A failed full report is requested again: the worker may have a task to dismiss.
            worker.resync = worker.resync or after == HistoryPlace()
            _log.info("worker %s does not answer: %s", worker.name, error)

        wait_ms = self._options.question_ms
        self._tasks.call(
            f"watch-{worker.name}", lambda: client.changes(after, wait_ms), done, failed
        )

    def _apply_answer(
        self, worker: KnownWorker, changes: WorkerChanges, requested: int, requested_s: float
    ) -> None:
        if self._stopped:
            return
        now_s = self._clock.monotonic_s()
        worker.apply_changes(changes, now_s)
        if changes.report is not None:
            self._merge(worker, changes.report, requested)
        else:
            self._merge_tasks(worker, changes.tasks)
            self._missing(
                worker, set(changes.removed) - {status.id for status in changes.tasks}, requested
            )
        self._tasks.may_place = True
        has_changes = changes.report is None and (changes.tasks or changes.removed)
        waited = (now_s - requested_s) * 1000 >= self._options.question_ms / 2
        if (has_changes or waited) and worker.name in self._eligibility.announced:
            self._due.append(worker)

    def _merge(self, worker: KnownWorker, report: WorkerReport, requested: int) -> None:
        self._merge_tasks(worker, report.tasks)
        listed = {status.id for status in report.tasks}
        self._missing(worker, worker.items.keys() - listed, requested)

    def _merge_tasks(self, worker: KnownWorker, tasks: Sequence[WorkerTask]) -> None:
        ends = []
        for status in tasks:
            entry = self._tasks.entries.get(status.id)
            if entry is None:
                # The task is not active, or this overlord never had it.
                self.dismiss(worker, status.id)
                continue
            if entry.worker is None and entry.is_ending:
                self._report(entry, TaskEvent.RUNS_ELSEWHERE, worker)
                continue
            if entry.worker is not None and entry.worker != worker.name:
                if not self._is_unknown(entry.worker):
                    self._report(entry, TaskEvent.RUNS_ELSEWHERE, worker)
                    continue
                _log.info("task %s of worker %s is at %s", status.id, entry.worker, worker.name)
                self._report(entry, TaskEvent.WORKER_RENAMED, worker)
            self._runs(entry, worker, status)
            if status.state.complete and not entry.is_ending:
                end = TaskEnd(status.id, status.state, status.error, worker.name)
                ends.append(ReportedEvent(entry, TaskEvent.ENDED_AT_WORKER, worker.name, end))
        if ends:
            self._eligibility.ended(worker, [one.end.state for one in ends if one.end is not None])
            self._tasks.reports += ends

    def _is_unknown(self, name: str) -> bool:
        """Return whether a worker is not announced and never was in this term.

        A former overlord stored it for a task. The worker with the task's folder may have a new
        name, as after an upgrade or a restore.
        """
        if name in self._eligibility.announced:
            return False
        worker = self._tasks.workers.get(name)
        return worker is None or worker.client is None

    def _runs(self, entry: QueuedTask, worker: KnownWorker, status: WorkerTask) -> None:
        """Report that a task runs, unless this is known; each poll lists all tasks of a worker."""
        location = status.location or entry.location
        is_known = entry.state is ActiveTaskState.RUNNING
        if is_known and (entry.location, entry.waits) == (location, status.waits):
            return
        if not entry.is_ending:
            entry.location, entry.waits = location, status.waits
            self._report(entry, TaskEvent.RUNS, worker)

    def _missing(self, worker: KnownWorker, task_ids: set[str], requested: int) -> None:
        """Report the tasks that a worker does not have.

        Args:
            worker: The worker.
            task_ids: Tasks that its report does not list.
            requested: When the report was requested; it cannot show anything that happened later.
        """
        for task_id in task_ids:
            entry = worker.items.get(task_id)
            if entry is not None and not entry.is_ending and entry.since < requested:
                reason = f"it disappeared from the worker {worker.name}"
                end = TaskEnd(task_id, TaskState.FAILED, reason, worker.name)
                self._report(entry, TaskEvent.ABSENT, worker, end)

    def _report(
        self,
        entry: QueuedTask,
        event: TaskEvent,
        worker: KnownWorker,
        end: TaskEnd | None = None,
    ) -> None:
        self._tasks.reports.append(ReportedEvent(entry, event, worker.name, end))
