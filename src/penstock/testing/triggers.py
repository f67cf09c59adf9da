"""A pool that runs work when a test requests it, on the test's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final


class StepWork:
    """A piece of work that waits to be run."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Final = work
        self.abandoned = False
        self.done = False

    def run(self) -> None:
        """Run it, once."""
        assert not self.done
        self.done = True
        self._work()

    def abandon(self) -> None:
        """Note that the scheduler terminated it; `run` may still be called later."""
        self.abandoned = True


class StepPool:
    """A `TriggerPool` that collects work.

    Attributes:
        begun: Submitted work that has not run, in order.
        closed: It was closed.
    """

    def __init__(self) -> None:
        self.begun: list[StepWork] = []
        self.closed = False

    def run(self, work: Callable[[], None]) -> StepWork:
        """Take work."""
        step = StepWork(work)
        self.begun.append(step)
        return step

    def run_one(self) -> bool:
        """Run the oldest work; return False if there is none."""
        if not self.begun:
            return False
        self.begun.pop(0).run()
        return True

    def close(self) -> None:
        """Note that the pool was closed."""
        self.closed = True
