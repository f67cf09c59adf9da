"""The runner's table of tasks and their workers.

State of the overlord's mailbox; calls no worker. Every change of an `RunnerTask` is made here and
reported to the listener. Invariants:

- a task is either pending or among the items of the worker that it names, never both;
- a worker that has confirmed a task keeps it, until the worker reports that it does not have it;
- nothing is reported about a task after its end, until it is dropped.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError, counted
from penstock.indexing.overlord.runner.ports import TaskEnd
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.selection import PendingTasks
from penstock.indexing.overlord.runner.worker_table import KnownWorker, RunnerTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.ports import RunnerListener
    from penstock.indexing.ports import TaskLocation, TaskState
    from penstock.indexing.task_spec import TaskSpec

_log = logging.getLogger(__name__)


class Table:
    """The tasks and workers. Others read its attributes and change them by its methods only.

    Attributes:
        items: The tasks, by id.
        pending: The tasks that wait for a worker.
        workers: The workers, by name; unannounced ones too, as long as they have tasks.

    Args:
        clock: Time at which a worker became known.
        listener: Notified of changes.
    """

    def __init__(self, clock: Clock, listener: RunnerListener) -> None:
        self.items: dict[str, RunnerTask] = {}
        self.pending = PendingTasks()
        self.workers: dict[str, KnownWorker] = {}
        self._clock = clock
        self._listener = listener
        self._numbers = itertools.count()
        self._event = 0

    def next_event(self) -> int:
        """Count an event, such as a request to a worker, whose answer cannot show later events."""
        self._event += 1
        return self._event

    def worker(self, name: str) -> KnownWorker:
        """Return a worker; a new one counts as silent from now on."""
        return self.workers.setdefault(name, KnownWorker(name, self._clock.monotonic_s()))

    def add(self, task: TaskSpec) -> RunnerTask:
        """Add a task; the caller must set its place."""
        item = self.items[task.id] = RunnerTask(task, next(self._numbers))
        return item

    def restore(self, task: TaskSpec, worker: str) -> None:
        """Add a task that a former overlord may have handed to a worker, without reporting it."""
        item = self.add(task)
        item.phase, item.since, item.worker = Phase.RESTORED, self._event, worker
        self.worker(worker).items[task.id] = item

    def wait(self, item: RunnerTask) -> None:
        """Make a task pending."""
        self.pending.add(item.pending())
        self.enter(item, Phase.PENDING)

    def put(self, item: RunnerTask, worker: KnownWorker, phase: Phase) -> None:
        """Assign a task to a worker."""
        self.pending.remove(item.task.id)
        item.worker = worker.name
        worker.items[item.task.id] = item
        self.enter(item, phase)

    def enter(self, item: RunnerTask, phase: Phase) -> None:
        """Set the phase of a task."""
        item.phase, item.since = phase, self.next_event()
        self._listener.changed(item.task.id)

    def locate(self, item: RunnerTask, location: TaskLocation) -> None:
        """Set the address of a task's peon."""
        if item.location != location:
            item.location = location
            self._listener.changed(item.task.id)

    def take_back(self, items: Sequence[RunnerTask]) -> None:
        """Make tasks pending again whose workers certainly do not have them.

        This is stored, or the next overlord would conclude that the tasks disappeared there.
        """
        if not items:
            return
        for item in items:
            self.workers[item.worker or ""].items.pop(item.task.id, None)
            item.worker = None
            self.wait(item)
        try:
            self._listener.placed({item.task.id: None for item in items})
        except PenstockError as error:
            tasks = counted(len(items), "task")
            _log.warning("cannot store the return of %s to the queue: %s", tasks, error)

    def end(self, ends: Sequence[tuple[RunnerTask, TaskState, str]]) -> None:
        """Report how tasks ended, once for each task."""
        fresh = [end for end in ends if not end[0].ended]
        for item, _state, _error in fresh:
            item.ended = True
            self.pending.remove(item.task.id)
        if fresh:
            self._listener.ended(
                [TaskEnd(item.task.id, state, error, item.worker) for item, state, error in fresh]
            )

    def drop(self, task_id: str) -> KnownWorker | None:
        """Delete a task; return its worker, if any."""
        item = self.items.pop(task_id, None)
        if item is None:
            return None
        self.pending.remove(task_id)
        if item.worker is None:
            return None
        worker = self.workers[item.worker]
        del worker.items[task_id]
        return worker
