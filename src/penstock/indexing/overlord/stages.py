"""How active tasks get to a worker: from the locks that they wait for to the runner, and back.

State of the overlord's mailbox. Owns the stage of each entry, and tells the seekers of locks and
the runner what follows from it. Does not own which tasks are active, nor when their ends are
stored: that is the queue's. Invariants:

- an entry is with those that seek locks or with the runner, never with both;
- which worker a task goes to is stored before it is handed over.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, counted
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.entries.ending import Leavings
from penstock.indexing.overlord.entries.entry import Stage
from penstock.indexing.overlord.locking import lock_task
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.runner import Runner, TaskEnd
from penstock.indexing.overlord.waiting.seeking import LockSeekers
from penstock.indexing.ports import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.overlord.entries.ending import TaskEnds
    from penstock.indexing.overlord.entries.entry import Entry
    from penstock.indexing.overlord.entries.ports import QueuePorts, TaskQueueOptions
    from penstock.indexing.overlord.entries.table import EntryTable
    from penstock.indexing.overlord.entries.telling import TaskTimes
    from penstock.indexing.taskspec import TaskSpec


class Stages:
    """The stages of all entries, and the runner's listener. On the overlord's mailbox.

    Args:
        ports: What the task queue works with.
        options: How it behaves.
        table: The entries.
        ends: Stores ends that are heard of here.
        times: Told when an entry goes on.

    Attributes:
        locks: Those that wait for locks.
        runner: Those that wait for a worker or are with one.
    """

    def __init__(
        self,
        ports: QueuePorts,
        options: TaskQueueOptions,
        *,
        table: EntryTable,
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

    def restore(self, entry: Entry, worker: str | None) -> None:
        """Take an entry over from a former overlord, which may have handed it to a worker."""
        if worker is not None:
            entry.stage = Stage.HANDED
            self.runner.restore(entry.task, worker)
        self._show(entry)

    def start(self) -> None:
        """Seek the locks of all entries that no worker has, and begin to ask the workers."""
        waiting = [entry for entry in self._table.all() if entry.stage is Stage.WAITING]
        for entry in waiting:  # Some have locks since the last term, and no worker.
            self.locks.placed(entry.task, waits=True)
        for entry in waiting:
            if entry.end is None:
                self.locks.seek(entry.task, entry.number)
        self.runner.start()

    def stop(self) -> None:
        """Look after nothing any more; what workers run goes on."""
        self._stopped = True
        self.runner.stop()
        self.locks.stop()
        self._leavings.stop()

    # Entries come and go

    def enter(self, entry: Entry) -> None:
        """Put a new entry into the table and on its way."""
        with suppress(Closed):  # The term ends.
            self._lockboxes.add(lock_task(entry.task))
        self._show(entry)
        self.locks.seek(entry.task, entry.number)

    def leave(self, task: TaskSpec) -> None:
        """Have an ended task's locks released, and its worker forget it."""
        self._leavings.clear(task)
        self.locks.leave(task)
        self.runner.drop(task.id)

    # What the locks tell

    def _hand(self, task_id: str) -> None:
        entry = self._table.unended(task_id)
        if entry is not None:
            entry.stage = Stage.HANDED
            self._times.handed(entry)
            self.runner.run(entry.task)

    def yielded(self, task_ids: Sequence[str]) -> None:
        """Tasks that no worker had lost their locks to others: they ask again."""
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
            # One that was handed to a worker at that moment asks there before it begins.

    # What the runner tells

    def wanted(self, task_id: str) -> TaskSpec | None:
        """Return a task that is active."""
        entry = self._table.unended(task_id)
        return None if entry is None else entry.task

    def placed(self, workers: Mapping[str, str | None]) -> None:
        """Store which workers tasks are about to be handed to."""
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
        """Show what the runner has of a task."""
        entry = self._table.get(task_id)
        if entry is None:
            return
        if entry.stage is Stage.WAITING:  # A worker has it, whatever was known here.
            entry.stage = Stage.HANDED
            self.locks.leave(entry.task)
            self.locks.placed(entry.task)
        self._show(entry)

    def ended(self, ends: Sequence[TaskEnd]) -> None:
        """Tasks have ended: that is stored soon, with all other ends that are heard of until then.

        If the store does not answer, they are stored later.
        """
        known = ((self._table.get(end.task_id), end) for end in ends)
        self._ends.soon([(entry, end) for entry, end in known if entry is not None])

    def lost(self, worker: str, reason: str, tasks: int) -> None:
        """The tasks of a worker are given up."""
        text = f"worker {worker} is lost, and {counted(tasks, 'task')} failed with it: {reason}"
        self._events.alert(text, worker=worker)

    def _show(self, entry: Entry) -> None:
        item = self.runner.item(entry.task.id)
        if item is not None and item.phase is Phase.RUNNING:
            self._times.runs(entry)
        self._table.put(entry, item)
