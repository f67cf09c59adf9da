"""Blocking calls of a batch task: tried again while nobody answers, given up when it is stopped.

An engine that is not there is waited for without end: that is nothing of the task's. One that
breaks down over the task's work, time and again, may do so because of that work; it is given up
then, as it takes its neighbours' work along each time.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.engine import EngineFailure, EngineLost
from penstock.indexing.errand import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.ports import ActionClient, TaskAction

T = TypeVar("T")
R = TypeVar("R")

LOSSES_MAX: Final = 20
"""So often the engine may be lost over one piece of work."""

_LOST_PAUSES: Final = Retry(1_000, 600_000)

_log = logging.getLogger(__name__)


class Stopped(PenstockError):
    """The task was told to stop; what it has done so far is kept in its folder."""


class Losses:
    """How often the engine was lost over one piece of work, and when to try again. One thread.

    Who shares an engine with the work that breaks it is lost with it, and no less often as long as
    both begin again at once. So pauses grow up to ten minutes, each by chance between none and all
    of that: work that is innocent is done in one of its neighbour's long before it has used up its
    tries.

    Args:
        chance: Gives numbers from 0 up to 1.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._count = 0

    def pause_ms(self, error: Unavailable) -> int:
        """Note why a try failed and return the least time until the next.

        Raises:
            EngineFailure: The engine was lost too often.
        """
        if not isinstance(error, EngineLost):
            return 0
        self._count += 1
        if self._count >= LOSSES_MAX:
            raise EngineFailure(
                f"the engine was lost {self._count} times over this work, at last: {error}."
                " Give Spark more memory (--spark-memory), or the task less to do: a shorter"
                " interval, fewer files at once, fewer rows per segment; then submit it again"
            ) from error
        _log.warning("the engine was lost for the %d. time: %s", self._count, error)
        return int(self._chance() * _LOST_PAUSES.delay_ms(self._count))


class Insistence:
    """Runs calls of one task until they succeed; `stop` is for any thread.

    The condition's mutex guards the flag that the task's thread waits on.

    Args:
        actions: The overlord.
        clock: Measures the waits.
        retry: How long to wait when nobody answers.
    """

    def __init__(self, actions: ActionClient, clock: Clock, retry: Retry | None = None) -> None:
        self._actions = actions
        self._clock = clock
        self._retry = retry or Retry(100, 10_000)
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether the task was told to stop."""
        return self._stopped

    def stop(self) -> None:
        """Have the call under way be the last."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def ask(self, what: str, action: TaskAction[R]) -> R:
        """Return the overlord's answer to an action. Raises as `call`."""
        return self.call(what, lambda: self._actions.perform(action))

    def call(
        self,
        what: str,
        work: Callable[[], T],
        failed: Callable[[Unavailable], int] | None = None,
    ) -> T:
        """Return what `work` returns, however long nobody answers.

        Args:
            what: For logs.
            work: What to do.
            failed: Told of each `Unavailable`; returns the least pause in milliseconds, or raises
                what ends the call.

        Raises:
            Stopped: The task was stopped; `work` was not begun, or it failed.
            PenstockError: Whatever else than `Unavailable` the work raises.
        """
        failures = 0
        while True:
            self.check()
            try:
                return work()
            except Unavailable as error:
                self.check()
                failures += 1
                delay_ms = self._retry.delay_ms(failures)
                if failed is not None:
                    delay_ms = max(delay_ms, failed(error))
                _log.info("%s: trying again in %d ms: %s", what, delay_ms, error)
            self.pause(delay_ms)

    def check(self) -> None:
        """Raise `Stopped` if the task was stopped."""
        if self._stopped:
            raise Stopped("the task was stopped")

    def pause(self, delay_ms: int) -> None:
        """Wait.

        Raises:
            Stopped: The task was stopped meanwhile.
        """
        until_s = self._clock.monotonic_s() + delay_ms / 1000
        with self._changed:
            while not self._stopped and (left_s := until_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, left_s)
        self.check()
