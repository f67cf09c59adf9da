"""Lanes that run work when a test requests it, on the test's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from penstock.core.errors import Closed
from penstock.indexing.lanes import promise

T = TypeVar("T")


class StepLanes:
    """Work waits in its lane until `run_one` or `run_waiting`; a lane keeps its order."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Callable[[], None]]] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Add work to a lane. Raises Closed after `close`."""
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work)

        self._lanes.setdefault(lane, deque()).append(run)
        return future

    def waiting(self) -> list[str]:
        """Return the lanes that have work, in a fixed order."""
        return sorted(lane for lane, queue in self._lanes.items() if queue)

    def run_one(self, lane: str) -> None:
        """Run the oldest work of a lane."""
        self._lanes[lane].popleft()()

    def run_waiting(self) -> bool:
        """Run the oldest work of each lane that has some; return whether there was any."""
        waiting = self.waiting()
        for lane in waiting:
            self.run_one(lane)
        return bool(waiting)

    def close(self) -> None:
        """Discard all work, as the end of a process does."""
        self._closed = True
        self._lanes.clear()


class InlineLanes:
    """Work runs at once, on the submitting thread; work that it submits runs after it.

    For calls that must be answered at once, such as locks and commits in a single-threaded
    simulation.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work. Raises Closed after `close`."""
        del lane
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work)

        self._waiting.append(run)
        if not self._busy:
            self._busy = True
            try:
                while self._waiting:
                    self._waiting.popleft()()
            finally:
                self._busy = False
        return future

    def close(self) -> None:
        """Accept no further work."""
        self._closed = True
        self._waiting.clear()
