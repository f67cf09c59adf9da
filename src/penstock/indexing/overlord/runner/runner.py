"""The runner: hands tasks to workers that have free slots.

State of the overlord's mailbox; workers are called on lanes. Knows no locks, and stores only the
worker of each task, so that the next overlord does not hand it to another one. `selection` chooses
the worker of a task, `hearing` polls the workers, and both work on the `table` of tasks.
Invariants:

- a task is handed to one worker; to another only after the first reports that it does not have it;
- each event of a task that was handed over is reported once, and none after its end;
- no call waits for a worker; the cost of an event depends on what it changes, not on the number of
  tasks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, counted
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.runner.ports import RunnerListener, RunnerOptions, TaskEnd
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.selection import SelectionRules, place
from penstock.indexing.overlord.runner.slot_reasons import Seen, SlotReason, explain
from penstock.indexing.overlord.runner.table import Table
from penstock.indexing.overlord.runner.worker_eligibility import WorkerEligibility
from penstock.indexing.overlord.runner.worker_sync import Hearing
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.worker_config import WorkerConfig
    from penstock.indexing.overlord.runner.worker_table import KnownWorker, RunnerTask, WorkerView
    from penstock.indexing.ports import Lanes, TaskLocation, WorkerDirectory
    from penstock.indexing.task_spec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import Timer

_log = logging.getLogger(__name__)


class Runner:
    """Hands tasks to workers. On the overlord's mailbox.

    Args:
        directory: Lists the workers.
        lanes: Lanes for calls to workers.
        processor: The overlord's mailbox.
        clock: Measures the time since a worker's last answer.
        listener: Notified of changes.
        options: Its options.
    """

    def __init__(
        self,
        directory: WorkerDirectory,
        lanes: Lanes,
        processor: MailboxProcessor,
        clock: Clock,
        listener: RunnerListener,
        options: RunnerOptions,
    ) -> None:
        self._directory = directory
        self._calls = Calls(lanes, processor)
        self._timers = processor.timers
        self._executor = processor.main_executor
        self._listener = listener
        self._options = options
        self._rules = SelectionRules(parallel_slot_ratio=options.parallel_slot_ratio)
        self._table = Table(clock, listener)
        self._standing = WorkerEligibility(clock, options)
        self._hearing = Hearing(
            *(self._table, self._standing, listener, self._calls, clock, options),
            heard=self.hand_over,
        )
        self._due = False
        self._stopped = False
        self._ticks: Timer | None = None

    def start(self) -> None:
        """Start to list and poll the workers."""
        self._ticks = self._timers.schedule_every(
            self._options.sync_interval_ms,
            lambda: self._hearing.look(self._directory),
            "list the workers",
            first_after_ms=0,
        )

    def stop(self) -> None:
        """Stop handing over and polling; tasks continue."""
        self._stopped = True
        self._hearing.stop()
        if self._ticks is not None:
            self._ticks.cancel()

    def configure(self, config: WorkerConfig) -> None:
        """Apply a new config for selecting workers."""
        self._rules = SelectionRules(config.select_strategy, self._options.parallel_slot_ratio)
        self.hand_over()

    # Tasks

    def restore(self, task: TaskSpec, worker: str) -> None:
        """Add a task that a former overlord may have handed to a worker.

        Whether it did is unknown. A task that was handed over and no longer exists at the worker
        must not start again under its id, because its successor may already be reading.
        """
        self._table.restore(task, worker)

    def run(self, task: TaskSpec) -> None:
        """Hand a task to a worker once one has a slot; a task already in the runner is ignored."""
        if task.id not in self._table.items:
            self._table.wait(self._table.add(task))
        self.hand_over()

    def drop(self, task_id: str) -> None:
        """Delete a task that ended, also at its worker."""
        worker = self._table.drop(task_id)
        if worker is not None:
            self._hearing.dismiss(worker, task_id)

    def locate(self, task_id: str, location: TaskLocation) -> None:
        """A peon reported its address."""
        item = self._table.items.get(task_id)
        if item is not None:
            self._table.locate(item, location)

    def item(self, task_id: str) -> RunnerTask | None:
        """Return the runner's item of a task, None if there is none."""
        return self._table.items.get(task_id)

    def why(self, task_id: str) -> list[SlotReason]:
        """Return why each worker cannot run a pending task."""
        item = self._table.items.get(task_id)
        if item is None or item.worker is not None:
            return []
        most, barred = self._options.handovers_max, self._standing.barred
        seen = [
            Seen(worker.candidate(most), tuple(sorted(worker.items)), barred(worker))
            for worker in self._table.workers.values()
        ]
        return explain(item.pending(), seen, self._rules)

    def workers(self) -> list[WorkerView]:
        """Return views of the workers, without lost ones."""
        views = map(self._standing.view, self._table.workers.values())
        return [view for view in views if view is not None]

    @property
    def capacity(self) -> int:
        """Slots of all workers that are not lost."""
        return sum(one.capacity for one in self._table.workers.values() if self._standing.has(one))

    # Handing over

    def hand_over(self) -> None:
        """Hand pending tasks to workers soon, in one round for all changes until then."""
        if not self._due and not self._stopped and len(self._table.pending):
            self._due = True
            self._executor.execute(self._hand_over, "hand tasks over")

    def _hand_over(self) -> None:
        self._due = False
        if self._stopped:
            return
        candidates = [
            worker.candidate(self._options.handovers_max)
            for worker in self._table.workers.values()
            # The cheaper check first: most workers are full when tasks are pending.
            if len(worker.items) < worker.capacity and not self._standing.barred(worker)
        ]
        placed = place(self._table.pending, candidates, self._rules)
        if not placed:
            return
        try:
            # Stored first, so that the next overlord does not hand them to others.
            self._listener.placed({task.id: worker for task, worker in placed})
        except PenstockError as error:
            _log.warning("cannot store the workers of %s: %s", counted(len(placed), "task"), error)
            return
        for task, name in placed:
            self._send(self._table.items[task.id], self._table.workers[name])

    def _send(self, item: RunnerTask, worker: KnownWorker) -> None:
        client, task, name = worker.client, item.task, worker.name
        assert client is not None
        self._table.put(item, worker, Phase.SENDING)

        def waits() -> bool:
            return self._table.items.get(task.id) is item and item.phase is Phase.SENDING

        def done(_none: None) -> None:
            if waits():
                self._table.enter(item, Phase.ACCEPTED)
                self.hand_over()

        def failed(error: PenstockError) -> None:
            if not waits():
                return
            _log.info("worker %s did not accept task %s: %s", name, task.id, error)
            if isinstance(error, InvalidRequest):
                self._table.end(
                    [(item, TaskState.FAILED, f"the worker {name} refuses it: {error}")]
                )
            elif isinstance(error, Conflict):
                self._table.take_back([item])
            else:
                self._table.enter(item, Phase.UNSURE)
                self._standing.rest(worker)
                self._hearing.ask_for_all(worker)

        self._calls.call(f"worker-{name}", lambda: client.assign(task), done, failed)


__all__ = ["Runner", "RunnerListener", "RunnerOptions", "TaskEnd"]
