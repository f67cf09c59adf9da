"""Synchronisation with the workers: polls their tasks and updates the table.

On the overlord's mailbox; workers are called on lanes. `reactions` defines the reaction to a
worker's report. Does not assign tasks to workers. Invariants:

- each announced worker is polled continuously, with one poll at a time;
- after a request to stop a task fails, the worker's full report is requested and the request sent
  again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.indexing.overlord.runner.reactions import (
    Miss,
    Phase,
    Reaction,
    TaskLocationSeen,
    missing,
    react,
)
from penstock.indexing.ports import HistoryPlace, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.errand import Calls
    from penstock.indexing.overlord.runner.ports import RunnerListener, RunnerOptions
    from penstock.indexing.overlord.runner.table import Table
    from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
    from penstock.indexing.overlord.runner.worker_table import KnownWorker, RunnerTask
    from penstock.indexing.ports import (
        WorkerChanges,
        WorkerClient,
        WorkerDirectory,
        WorkerReport,
        WorkerTask,
    )

_log = logging.getLogger(__name__)


class Hearing:
    """Polls the workers.

    Args:
        table: The known tasks, updated by workers' reports.
        standing: Tracks announced workers and how tasks ended on each.
        listener: Looks up tasks that are only in the queue.
        calls: Calls workers on lanes.
        clock: Time of the last answer of a worker.
        options: Intervals and timeouts of the polls.
        heard: Called when a task may be handed to a worker now.
    """

    def __init__(
        self,
        table: Table,
        standing: WorkerEligibility,
        listener: RunnerListener,
        calls: Calls,
        clock: Clock,
        options: RunnerOptions,
        heard: Callable[[], None],
    ) -> None:
        self._table = table
        self._standing = standing
        self._listener = listener
        self._calls = calls
        self._clock = clock
        self._options = options
        self._changed = heard
        self._listing = False
        self._stopped = False

    def stop(self) -> None:
        """Stop polling."""
        self._stopped = True

    def look(self, directory: WorkerDirectory) -> None:
        """List the workers, poll those that are not being polled, and fail tasks of lost ones."""
        if self._stopped:
            return
        if not self._listing:
            self._listing = True
            self._calls.call("workers", directory.workers, self._listed, self._not_listed)
        for worker in self._table.workers.values():
            if worker.items and (reason := self._standing.lost(worker)):
                if not worker.given_up:
                    worker.given_up = True
                    self._listener.lost(worker.name, reason, len(worker.items))
                self._table.end([(i, TaskState.FAILED, reason) for i in worker.items.values()])

    def ask_for_all(self, worker: KnownWorker) -> None:
        """Request a full report at once: whether a task arrived must not wait for a long poll."""
        client, asked = worker.client, self._table.next_event()
        if client is None:
            return

        def done(report: WorkerReport) -> None:
            # The worker may have been removed and added again under its name: another object.
            if self._stopped or self._table.workers.get(worker.name) is not worker:
                return
            worker.heard(report, self._clock.monotonic_s())
            self._merge(worker, report, asked)
            self._changed()

        def failed(error: PenstockError) -> None:
            _log.info("worker %s does not answer: %s", worker.name, error)
            worker.resync = True  # The next poll requests a full report.

        self._calls.call(f"worker-{worker.name}", client.report, done, failed)

    def dismiss(self, worker: KnownWorker, task_id: str) -> None:
        """Have a worker stop a task, or delete one that ended."""
        client = worker.client
        if client is None:
            return

        def failed(error: PenstockError) -> None:
            _log.info("worker %s cannot end %s yet: %s", worker.name, task_id, error)
            worker.resync = True  # The task is in the next answer, which repeats the request.

        self._calls.call(
            f"worker-{worker.name}", lambda: client.shutdown(task_id), lambda _none: None, failed
        )

    def _not_listed(self, error: PenstockError) -> None:
        self._listing = False
        _log.warning("cannot list the workers: %s", error)

    def _listed(self, clients: Sequence[WorkerClient]) -> None:
        self._listing = False
        if self._stopped:
            return
        self._standing.announced = {client.name for client in clients}
        for client in clients:
            worker = self._table.worker(client.name)
            worker.client = client
            if not worker.asking:
                self._ask(worker)
        self._forget_workers_that_are_gone()
        self._changed()

    def _forget_workers_that_are_gone(self) -> None:
        """Remove absent workers: a host of a cluster may have another name each time it starts."""
        announced, workers = self._standing.announced, self._table.workers
        for name, worker in list(workers.items()):
            if name not in announced and not worker.items and not worker.asking:
                del workers[name]
                self._standing.forget(name)

    def _ask(self, worker: KnownWorker) -> None:
        client = worker.client
        assert client is not None
        after = HistoryPlace() if worker.resync else worker.place
        worker.asking, worker.resync = True, False
        asked, asked_s = self._table.next_event(), self._clock.monotonic_s()

        def done(changes: WorkerChanges) -> None:
            worker.asking = False
            self._heard(worker, changes, asked, asked_s)

        def failed(error: PenstockError) -> None:
            worker.asking = False  # It is polled again when the workers are listed next.
            # A failed full report is requested again: the worker may have a task to dismiss.
            worker.resync = worker.resync or after == HistoryPlace()
            _log.info("worker %s does not answer: %s", worker.name, error)

        wait_ms = self._options.question_ms
        self._calls.call(
            f"watch-{worker.name}", lambda: client.changes(after, wait_ms), done, failed
        )

    def _heard(
        self, worker: KnownWorker, changes: WorkerChanges, asked: int, asked_s: float
    ) -> None:
        if self._stopped:
            return
        now_s = self._clock.monotonic_s()
        worker.heard_changes(changes, now_s)
        if changes.report is not None:
            self._merge(worker, changes.report, asked)
        else:
            self._merge_tasks(worker, changes.tasks)
            self._missing(worker, set(changes.removed), asked)
        self._changed()
        news = changes.report is None and (changes.tasks or changes.removed)
        waited = (now_s - asked_s) * 1000 >= self._options.question_ms / 2
        if (news or waited) and worker.name in self._standing.announced:
            self._ask(worker)

    def _merge(self, worker: KnownWorker, report: WorkerReport, asked: int) -> None:
        self._merge_tasks(worker, report.tasks)
        listed = {told.id for told in report.tasks}
        self._missing(worker, worker.items.keys() - listed, asked)

    def _merge_tasks(self, worker: KnownWorker, tasks: Sequence[WorkerTask]) -> None:
        ends = []
        for told in tasks:
            item = self._table.items.get(told.id)
            wanted = None if item is not None else self._listener.wanted(told.id)
            place = TaskLocationSeen.QUEUED if wanted else TaskLocationSeen.UNKNOWN
            if item is not None:
                place = self._place(item, worker)
            reaction = react(told.state, place)
            if reaction is Reaction.DISMISS:
                self.dismiss(worker, told.id)
                continue
            if item is None:
                assert wanted is not None
                item = self._table.add(wanted)
            if place is TaskLocationSeen.ABSENT:
                self._take_over(item, worker)
            self._belongs(item, worker, told)
            if reaction is Reaction.END:
                ends.append((item, told.state, told.error))
        self._standing.ended(worker, [state for item, state, _ in ends if not item.ended])
        self._table.end(ends)

    def _place(self, item: RunnerTask, worker: KnownWorker) -> TaskLocationSeen:
        """Return the place of a task relative to a worker that announces it."""
        place = item.place(worker.name)
        if place is not TaskLocationSeen.ELSEWHERE or item.worker in self._standing.announced:
            return place
        other = self._table.workers.get(item.worker or "")
        return place if other is not None and other.client is not None else TaskLocationSeen.ABSENT

    def _take_over(self, item: RunnerTask, worker: KnownWorker) -> None:
        """Move a task to a worker if it is stored at one that is not known under its name."""
        task_id, former = item.task.id, item.worker or ""
        _log.info("task %s of worker %s is at worker %s", task_id, former, worker.name)
        if (other := self._table.workers.get(former)) is not None:
            other.items.pop(task_id, None)
        try:
            self._listener.placed({task_id: worker.name})
        except PenstockError as error:
            _log.warning("cannot store that task %s is at %s: %s", task_id, worker.name, error)

    def _belongs(self, item: RunnerTask, worker: KnownWorker, told: WorkerTask) -> None:
        """Update a task that its worker reports as running."""
        location = told.location or item.location
        if item.phase is Phase.RUNNING and (item.location, item.waits) == (location, told.waits):
            return
        item.location, item.waits = location, told.waits
        self._table.put(item, worker, Phase.RUNNING)

    def _missing(self, worker: KnownWorker, task_ids: set[str], asked: int) -> None:
        lost, back = [], []
        for task_id in task_ids:
            item = worker.items.get(task_id)
            if item is None or item.ended:
                continue
            miss = missing(item.phase, since=item.since, asked=asked)
            if miss is Miss.LOST:
                lost.append(item)
            elif miss is Miss.TAKE_BACK:
                back.append(item)
        reason = f"it disappeared from the worker {worker.name}"
        self._table.end([(item, TaskState.FAILED, reason) for item in lost])
        self._table.take_back(back)
