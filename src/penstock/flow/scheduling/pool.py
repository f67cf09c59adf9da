"""Thread pool for runs: a bounded number of threads, replaced when one does not return.

Owns threads and their queue of work. Does not own the work, nor its order: the scheduler submits
only as much work as there are threads, so nothing waits here.

Invariants: an abandoned thread never takes new work. The number of other threads never exceeds the
size, except for a moment after the size was reduced. Work that raises ends the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol

from penstock.core.errors import Unavailable
from penstock.core.threads import DEATHS, Death, OnDeath, OwnedThread

_log = logging.getLogger(__name__)

Work = Callable[[], None]


class PoolThread(Protocol):
    """Thread that executes one unit of work."""

    def abandon(self) -> None:
        """Abandon the thread: it ends with its work, and another thread replaces it."""
        ...


class TriggerPool(Protocol):
    """Executes work outside the scheduler's thread.

    `penstock.testing` has one that a test drives.
    """

    def run(self, work: Work) -> PoolThread:
        """Start a unit of work, which must not raise; never blocks.

        Raises:
            Unavailable: The system cannot start a thread for it; the work will not run.
        """
        ...

    def close(self) -> None:
        """End the threads once they are idle; never blocks."""
        ...


class _Task:
    """Unit of work that waits for a thread or runs on one."""

    __slots__ = ("_pool", "abandoned", "begun", "done", "refused", "thread", "work")

    def __init__(self, pool: ThreadPool, work: Work) -> None:
        self._pool = pool
        self.work: Final = work
        self.thread: threading.Thread | None = None
        self.abandoned = False
        self.begun = False
        self.done = False
        self.refused = False

    def abandon(self) -> None:
        self._pool.abandon(self)


class ThreadPool:
    """Pool of daemon threads, created on demand and kept.

    They are daemons, because a stuck thread must not keep the process from exiting. The mutex
    protects three numbers: an abandon and the end of a task may happen at once.

    Args:
        name: Name prefix of the threads.
    """

    def __init__(self, name: str = "flow") -> None:
        self._name = name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._made = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """Number of live threads that were not abandoned."""
        return self._threads

    def run(self, work: Work) -> PoolThread:
        """Assign work to an idle thread, or to a new one.

        Raises:
            Unavailable: The system cannot start a thread for it; the work will not run.
        """
        task = _Task(self, work)
        with self._mutex:
            make = not self._idle
            if make:
                self._threads += 1
                self._made += 1
            else:
                self._idle -= 1
            number = self._made
        try:
            if make:
                name = f"{self._name} {number}"
                body = partial(self._serve, task)
                thread = OwnedThread(name, body, may_return=True, part=self._name)
                thread.start()
            else:
                self._tasks.put(task)
        except BaseException as error:
            if not self._refuse(task, is_first=make):
                _log.warning("the thread of a run began, but starting it raised %r", error)
                return task
            # Python reports a lack of threads and of memory for one by these exceptions.
            if isinstance(error, RuntimeError | MemoryError):
                raise Unavailable(f"cannot start a thread for a run: {error}") from None
            raise
        return task

    def abandon(self, task: _Task) -> None:
        """Let a task's thread end together with the task."""
        with self._mutex:
            if task.abandoned or task.done:
                return
            task.abandoned = True
            self._threads -= 1
            thread = task.thread
        if thread is not None:
            thread.name += " (terminated)"

    def close(self) -> None:
        """End idle threads now, and the others when they become idle."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._tasks.put(None)

    def _refuse(self, task: _Task, *, is_first: bool) -> bool:
        """Release the slot of a task that no thread has taken; return False if one has."""
        with self._mutex:
            if task.begun:
                return False
            task.refused = True
            if is_first:
                self._threads -= 1
            else:
                self._idle += 1
        return True

    def _begin(self, task: _Task) -> bool:
        """Start a task; return False if it was refused."""
        with self._mutex:
            task.begun = not task.refused
        return task.begun

    def _serve(self, first: _Task) -> None:
        if not self._begin(first):
            return
        task: _Task | None = first
        del first  # not kept while the thread waits
        while task is not None:
            task.thread = threading.current_thread()
            try:
                task.work()
            except BaseException as error:  # noqa: BLE001 - reported
                # The end of the run, which the work should have reported, is lost.
                DEATHS.report(Death(self._name, error, OnDeath.END_PROCESS))
            with self._mutex:
                task.done = True
                if task.abandoned:
                    return
                if self._closed:
                    break
                self._idle += 1
            # Not kept while the thread waits: a run refers to its component's objects.
            task = None
            task = self._tasks.get()
            while task is not None and not self._begin(task):
                task = self._tasks.get()
        with self._mutex:
            self._threads -= 1
