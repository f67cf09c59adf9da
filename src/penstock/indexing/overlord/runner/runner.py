"""The runner: hands tasks to workers as these have slots.

State of the overlord's mailbox; workers are called on lanes. It knows nothing of locks and stores
nothing but which worker has a task, so that the next overlord does not hand it to another. Which
worker gets what is decided by `selection`, what workers say is heard by `hearing`, and where each
task is stands in the `table` that both work on. Invariants:

- a task is handed to one worker; to another only if the first says that it does not have it;
- of a task that was handed over no event is told twice, and none after its end;
- no call waits for a worker, and an event costs what it changes, not what there is.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, counted
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.runner.explaining import Seen, SlotReason, explain
from penstock.indexing.overlord.runner.hearing import Hearing
from penstock.indexing.overlord.runner.ports import RunnerListener, RunnerOptions, TaskEnd
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.selection import Rules, place
from penstock.indexing.overlord.runner.standing import Standing
from penstock.indexing.overlord.runner.table import Table
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.workerconfig import WorkerConfig
    from penstock.indexing.overlord.runner.workers import Item, Worker, WorkerView
    from penstock.indexing.ports import Lanes, TaskLocation, WorkerDirectory
    from penstock.indexing.taskspec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import Timer

_log = logging.getLogger(__name__)


class Runner:
    """The runner. On the overlord's mailbox.

    Args:
        directory: Which workers there are.
        lanes: Where workers are called.
        processor: The overlord's mailbox.
        clock: Tells when a worker is lost.
        listener: Told what happens.
        options: How the runner behaves.
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
        self._rules = Rules(parallel_slot_ratio=options.parallel_slot_ratio)
        self._table = Table(clock, listener)
        self._standing = Standing(clock, options)
        self._hearing = Hearing(
            *(self._table, self._standing, listener, self._calls, clock, options),
            heard=self.hand_over,
        )
        self._due = False
        self._stopped = False
        self._ticks: Timer | None = None

    def start(self) -> None:
        """Begin to list and ask the workers."""
        self._ticks = self._timers.schedule_every(
            self._options.sync_interval_ms,
            lambda: self._hearing.look(self._directory),
            "list the workers",
            first_after_ms=0,
        )

    def stop(self) -> None:
        """Hand over and hear nothing any more; what runs goes on."""
        self._stopped = True
        self._hearing.stop()
        if self._ticks is not None:
            self._ticks.cancel()

    def configure(self, config: WorkerConfig) -> None:
        """Select workers in another way from now on."""
        self._rules = Rules(config.select_strategy, self._options.parallel_slot_ratio)
        self.hand_over()

    # Tasks

    def restore(self, task: TaskSpec, worker: str) -> None:
        """Take a task that a former overlord may have handed to a worker.

        Whether it did is not known. A task that was handed over, and is not there any more, must
        not begin again under its name: its successor may be reading already.
        """
        self._table.restore(task, worker)

    def run(self, task: TaskSpec) -> None:
        """Hand a task to a worker as one has a slot; one that it has already is left alone."""
        if task.id not in self._table.items:
            self._table.wait(self._table.add(task))
        self.hand_over()

    def drop(self, task_id: str) -> None:
        """Forget a task that ended; its worker is asked to stop or forget it too."""
        worker = self._table.drop(task_id)
        if worker is not None:
            self._hearing.dismiss(worker, task_id)

    def locate(self, task_id: str, location: TaskLocation) -> None:
        """A peon says where it answers."""
        item = self._table.items.get(task_id)
        if item is not None:
            self._table.locate(item, location)

    def item(self, task_id: str) -> Item | None:
        """Return what the runner has of a task, None if it does not have it."""
        return self._table.items.get(task_id)

    def why(self, task_id: str) -> list[SlotReason]:
        """Return what stands between a pending task and each worker."""
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
        """Return what is known of the workers; lost ones are not among them."""
        views = map(self._standing.view, self._table.workers.values())
        return [view for view in views if view is not None]

    @property
    def capacity(self) -> int:
        """Slots of all workers that are not lost."""
        return sum(one.capacity for one in self._table.workers.values() if self._standing.has(one))

    # Handing over

    def hand_over(self) -> None:
        """Place what waits where there is room: soon, for all that has changed until then."""
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
            # First what costs least: most workers are full when tasks wait.
            if len(worker.items) < worker.capacity and not self._standing.barred(worker)
        ]
        placed = place(self._table.pending, candidates, self._rules)
        if not placed:
            return
        try:
            # First, so that the next overlord does not hand them to others.
            self._listener.placed({task.id: worker for task, worker in placed})
        except PenstockError as error:
            _log.warning("cannot store the workers of %s: %s", counted(len(placed), "task"), error)
            return
        for task, name in placed:
            self._send(self._table.items[task.id], self._table.workers[name])

    def _send(self, item: Item, worker: Worker) -> None:
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
            _log.info("worker %s did not take %s: %s", name, task.id, error)
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
