"""The threads that runs take: a bounded number, replaced when one does not come back.

Owns threads and the queue of what they are to do. Does not own what is run, nor whose turn it is:
the scheduler gives it no more work than there are threads, so nothing waits here.

Invariants: an abandoned thread never takes work again; no more threads that are not abandoned live
than the size says, but for a moment after it was made smaller.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Final, Protocol

from penstock.core.errors import Unavailable
from penstock.core.threads import OwnedThread

_log = logging.getLogger(__name__)

Work = Callable[[], None]


class PoolThread(Protocol):
    """What does a piece of work."""

    def abandon(self) -> None:
        """Give the thread up: it ends when the work does, and another takes its place."""
        ...


class TriggerPool(Protocol):
    """Runs work beside the scheduler. `penstock.testing` has one that a test drives."""

    def run(self, work: Work) -> PoolThread:
        """Begin a piece of work, which raises nothing; never waits.

        Raises:
            Unavailable: The system has no thread for it; it will not run.
        """
        ...

    def close(self) -> None:
        """End the threads once they have nothing to do; never waits."""
        ...


class _Task:
    """A piece of work on its way to a thread, and then in it."""

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
    """Daemon threads, made when they are first needed and kept.

    Daemons, because one that is stuck must not keep the process from ending. Its mutex guards three
    numbers: abandoning and a task's end may come at once.

    Args:
        name: Of the threads.
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
        """How many threads live that were not abandoned."""
        return self._threads

    def run(self, work: Work) -> PoolThread:
        """Give work to a thread that has none, or to a new one.

        Raises:
            Unavailable: The system has no thread for it; it will not run.
        """
        task = _Task(self, work)
        with self._mutex:
            make = not self._idle
            if make:
                self._threads += 1
                self._made += 1
            else:
                self._idle -= 1
            name = f"{self._name} {self._made}"
        try:
            if make:
                body = partial(self._serve, task)
                thread = OwnedThread(name, body, may_return=True, part=self._name)
                thread.start()
            else:
                self._tasks.put(task)
        except BaseException as error:
            if not self._refuse(task, is_first=make):
                _log.warning("a run began, and then its start raised %r", error)
                return task
            # How Python reports that there is no thread, and no memory for one.
            if isinstance(error, RuntimeError | MemoryError):
                raise Unavailable(f"no thread can be started for a run: {error}") from None
            raise
        return task

    def abandon(self, task: _Task) -> None:
        """Let a task's thread end with it."""
        with self._mutex:
            if task.abandoned or task.done:
                return
            task.abandoned = True
            self._threads -= 1
            thread = task.thread
        if thread is not None:
            thread.name += " (terminated)"

    def close(self) -> None:
        """End the threads that have nothing to do now, and the others when they are done."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._tasks.put(None)

    def _refuse(self, task: _Task, *, is_first: bool) -> bool:
        """Give back the slot of a task that no thread has taken; False if one has."""
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
        """Take a task; False if it was refused."""
        with self._mutex:
            task.begun = not task.refused
        return task.begun

    def _serve(self, first: _Task) -> None:
        if not self._begin(first):
            return
        task: _Task | None = first
        del first  # it is not kept while the thread waits
        while task is not None:
            task.thread = threading.current_thread()
            try:
                task.work()
            except BaseException:  # noqa: BLE001 - the top of a thread; the work says it raises nothing
                _log.exception("a run's thread: the work raised, which it must not")
            with self._mutex:
                task.done = True
                if task.abandoned:
                    return
                if self._closed:
                    break
                self._idle += 1
            # Not kept while it waits: a run holds what the component holds.
            task = None
            task = self._tasks.get()
            while task is not None and not self._begin(task):
                task = self._tasks.get()
        with self._mutex:
            self._threads -= 1
