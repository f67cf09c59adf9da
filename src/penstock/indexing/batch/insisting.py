"""Blocking calls of a batch task: tried again while nobody answers, given up when it is stopped."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.errand import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.ports import ActionClient, TaskAction

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class Stopped(PenstockError):
    """The task was told to stop; what it has done so far is kept in its folder."""


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

    def call(self, what: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, however long nobody answers.

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
