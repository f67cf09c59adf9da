"""Stages of active tasks: from waiting for locks to the runner, and back.

State of the overlord's mailbox. Sets the stage of each entry and calls the lock acquirer and the
runner accordingly. The queue, not this module, owns which tasks are active and when their ends are
stored. Invariants:

- an entry is either with the lock acquirer or with the runner, never with both;
- the worker of a task is stored before the task is handed to it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, counted
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.entries.ending import Leavings
from penstock.indexing.overlord.entries.entry import Stage
from penstock.indexing.overlord.lock_requests import lock_task
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.runner import Runner, TaskEnd
from penstock.indexing.overlord.wait_reasons import LockSeekers
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.overlord.entries.ending import TaskEnds
    from penstock.indexing.overlord.entries.entry import QueuedTask
    from penstock.indexing.overlord.entries.ports import QueuePorts, TaskQueueOptions
    from penstock.indexing.overlord.entries.table import QueuedTasks
    from penstock.indexing.overlord.entries.telling import TaskTimes
    from penstock.indexing.task_spec import TaskSpec


class Stages:
    """Moves entries between their stages and listens to the runner. On the overlord's mailbox.

    Args:
        ports: The ports of the task queue.
        options: The options of the task queue.
        table: The entries.
        ends: Stores the ends that the runner reports.
        times: Measures the time that an entry spends in each stage.

    Attributes:
        locks: The tasks that wait for locks.
        runner: The tasks that wait for a worker or are at one.
    """

    def __init__(
        self,
        ports: QueuePorts,
        options: TaskQueueOptions,
        *,
        table: QueuedTasks,
        ends: TaskEnds,
        times: TaskTimes,
    ) -> None:
        self._metadata = ports.metadata
        self._lockboxes = ports.lockboxes
        self._events = ports.events
        self._table = table
        self._ends = ends
        self._times = times
        calls = Calls(ports.lanes, ports.processor)
        self.runner: Final = Runner(
            ports.directory, ports.lanes, ports.processor, ports.clock, self, options.runner
        )
        self.locks: Final = LockSeekers(
            ports.lockboxes,
            calls,
            ports.processor.timers,
            retry_ms=options.retry_ms,
            granted=self._hand,
            failed=lambda task_id, why: self.ended([TaskEnd(task_id, TaskState.FAILED, why, None)]),
        )
        self._leavings = Leavings(ports.metadata, ports.lockboxes, calls)
        self._stopped = False

    # A term

    def restore(self, entry: QueuedTask, worker: str | None) -> None:
        """Take over an entry from a former overlord, which may have handed it to a worker."""
        if worker is not None:
            entry.stage = Stage.HANDED
            self.runner.restore(entry.task, worker)
        self._show(entry)

    def start(self) -> None:
        """Acquire locks for all entries without a worker, and start to poll the workers."""
        waiting = [entry for entry in self._table.all() if entry.stage is Stage.WAITING]
        for entry in waiting:  # Some hold locks from the last term but have no worker.
            self.locks.placed(entry.task, waits=True)
        for entry in waiting:
            if entry.end is None:
                self.locks.seek(entry.task, entry.number)
        self.runner.start()

    def stop(self) -> None:
        """Stop; tasks continue at their workers."""
        self._stopped = True
        self.runner.stop()
        self.locks.stop()
        self._leavings.stop()

    # Entries are added and removed

    def enter(self, entry: QueuedTask) -> None:
        """Add a new entry to the table and acquire its locks."""
        with suppress(Closed):  # The term is ending.
            self._lockboxes.add(lock_task(entry.task))
        self._show(entry)
        self.locks.seek(entry.task, entry.number)

    def leave(self, task: TaskSpec) -> None:
        """Release an ended task's locks and delete it at its worker."""
        self._leavings.clear(task)
        self.locks.leave(task)
        self.runner.drop(task.id)

    # Callbacks of the lock acquirer

    def _hand(self, task_id: str) -> None:
        entry = self._table.unended(task_id)
        if entry is not None:
            entry.stage = Stage.HANDED
            self._times.handed(entry)
            self.runner.run(entry.task)

    def yielded(self, task_ids: Sequence[str]) -> None:
        """Tasks without a worker lost their locks to other tasks: acquire the locks again."""
        for task_id in task_ids:
            entry = self._table.unended(task_id)
            if self._stopped or entry is None:
                continue
            item = self.runner.item(task_id)
            if entry.stage is Stage.HANDED and item is not None and item.worker is None:
                self.runner.drop(task_id)
                entry.stage = Stage.WAITING
                self._show(entry)
                self.locks.seek(entry.task, entry.number)
            # A task that was handed to a worker at that moment acquires its locks there.

    # Callbacks of the runner

    def wanted(self, task_id: str) -> TaskSpec | None:
        """Return a task if it is active."""
        entry = self._table.unended(task_id)
        return None if entry is None else entry.task

    def placed(self, workers: Mapping[str, str | None]) -> None:
        """Store the workers that tasks are about to be handed to."""
        self._metadata.tasks.set_statuses(
            [
                (task_id, TaskState.RUNNING, {} if worker is None else {"worker": worker})
                for task_id, worker in workers.items()
            ]
        )
        for task_id, worker in workers.items():
            entry = self._table.get(task_id)
            if entry is not None:
                self.locks.placed(entry.task, waits=worker is None)

    def changed(self, task_id: str) -> None:
        """Update an entry with the runner's state of its task."""
        entry = self._table.get(task_id)
        if entry is None:
            return
        if entry.stage is Stage.WAITING:  # A worker has the task even though it was not handed out.
            entry.stage = Stage.HANDED
            self.locks.leave(entry.task)
            self.locks.placed(entry.task)
        self._show(entry)

    def ended(self, ends: Sequence[TaskEnd]) -> None:
        """Tasks have ended: store their ends soon, together with others reported until then.

        If the store does not answer, the ends are stored later.
        """
        known = ((self._table.get(end.task_id), end) for end in ends)
        self._ends.soon([(entry, end) for entry, end in known if entry is not None])

    def lost(self, worker: str, reason: str, tasks: int) -> None:
        """A worker is lost and its tasks have failed."""
        text = f"worker {worker} is lost, and {counted(tasks, 'task')} failed with it: {reason}"
        self._events.alert(text, worker=worker)

    def _show(self, entry: QueuedTask) -> None:
        item = self.runner.item(entry.task.id)
        if item is not None and item.phase is Phase.RUNNING:
            self._times.runs(entry)
        self._table.put(entry, item)
