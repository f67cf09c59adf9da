"""Which tasks the runner has, and with which worker each is.

State of the overlord's mailbox; calls no worker. Owns every change of an `Item`, and tells the
listener of it. Invariants:

- a task is pending, or among the items of the one worker that it names, never both;
- a worker that is sure to have a task keeps it: only one that surely does not have it gives it up;
- of a task that has ended nothing is told any more, until it is dropped.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError, counted
from penstock.indexing.overlord.runner.ports import TaskEnd
from penstock.indexing.overlord.runner.reactions import Phase
from penstock.indexing.overlord.runner.selection import PendingTasks
from penstock.indexing.overlord.runner.workers import Item, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.overlord.runner.ports import RunnerListener
    from penstock.indexing.ports import TaskLocation, TaskState
    from penstock.indexing.taskspec import TaskSpec

_log = logging.getLogger(__name__)


class Table:
    """The table. Others read its attributes and change them by its methods alone.

    Attributes:
        items: The tasks, by id.
        pending: Those that wait for a worker.
        workers: The workers, by name; of those that are gone too while they have tasks.

    Args:
        clock: Tells since when a worker is known.
        listener: Told what changes.
    """

    def __init__(self, clock: Clock, listener: RunnerListener) -> None:
        self.items: dict[str, Item] = {}
        self.pending = PendingTasks()
        self.workers: dict[str, Worker] = {}
        self._clock = clock
        self._listener = listener
        self._numbers = itertools.count()
        self._event = 0

    def next_event(self) -> int:
        """Count an event, such as a question to a worker: what came after it, it cannot show."""
        self._event += 1
        return self._event

    def worker(self, name: str) -> Worker:
        """Return a worker; one that this overlord never saw is silent from now on."""
        return self.workers.setdefault(name, Worker(name, self._clock.monotonic_s()))

    def add(self, task: TaskSpec) -> Item:
        """Take a task in; where it is has to follow."""
        item = self.items[task.id] = Item(task, next(self._numbers))
        return item

    def restore(self, task: TaskSpec, worker: str) -> None:
        """Take a task in that a former overlord may have handed to a worker; nobody is told."""
        item = self.add(task)
        item.phase, item.since, item.worker = Phase.RESTORED, self._event, worker
        self.worker(worker).items[task.id] = item

    def wait(self, item: Item) -> None:
        """Have a task wait for any worker."""
        self.pending.add(item.pending())
        self.enter(item, Phase.PENDING)

    def put(self, item: Item, worker: Worker, phase: Phase) -> None:
        """Have a task be with a worker."""
        self.pending.remove(item.task.id)
        item.worker = worker.name
        worker.items[item.task.id] = item
        self.enter(item, phase)

    def enter(self, item: Item, phase: Phase) -> None:
        """Note how far a task is."""
        item.phase, item.since = phase, self.next_event()
        self._listener.changed(item.task.id)

    def locate(self, item: Item, location: TaskLocation) -> None:
        """Note where a task's peon answers."""
        if item.location != location:
            item.location = location
            self._listener.changed(item.task.id)

    def take_back(self, items: Sequence[Item]) -> None:
        """Have tasks wait for any worker again, as one that surely does not have them gave up.

        The next overlord must know too, or it would take them for ones that disappeared there.
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

    def end(self, ends: Sequence[tuple[Item, TaskState, str]]) -> None:
        """Tell how tasks ended, each once."""
        fresh = [end for end in ends if not end[0].ended]
        for item, _state, _error in fresh:
            item.ended = True
            self.pending.remove(item.task.id)
        if fresh:
            self._listener.ended(
                [TaskEnd(item.task.id, state, error, item.worker) for item, state, error in fresh]
            )

    def drop(self, task_id: str) -> Worker | None:
        """Forget a task; return the worker that it was with, if any."""
        item = self.items.pop(task_id, None)
        if item is None:
            return None
        self.pending.remove(task_id)
        if item.worker is None:
            return None
        worker = self.workers[item.worker]
        del worker.items[task_id]
        return worker
