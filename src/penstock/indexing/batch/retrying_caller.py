"""Blocking calls of a batch task: repeated while there is no answer, until the task is stopped.

Independent of the calls and of the callers. Does not own how many times a piece of work may fail
(`retries`).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.waits import DependencyWait
from penstock.indexing.batch.retries import RetryDecision
from penstock.indexing.secrets import masked_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.batch.retries import RetryBudget
    from penstock.indexing.ports import ActionClient, TaskAction

R = TypeVar("R")

_CALLS: Final = RetryPolicy(100, 10_000)

_REASON_CHARACTERS_MAX: Final = 2_000

_log = logging.getLogger(__name__)


class Stopped(PenstockError):
    """The task was stopped; its folder keeps the completed work."""


class RetryingCaller:
    """Repeats the calls of one task until they succeed; `stop` may be called from any thread.

    The condition's mutex guards the flag that the task's thread waits on.

    Args:
        actions: The overlord.
        clock: Measures the waits.
        waits_changed: Called with the waits for dependencies whenever they change.
        retry: Delays between attempts when there is no answer.

    Attributes:
        wait: The wait after the last failed attempt; None after a success. From any thread.
    """

    def __init__(
        self,
        actions: ActionClient,
        clock: Clock,
        waits_changed: Callable[[tuple[DependencyWait, ...]], None] = lambda _waits: None,
        retry: RetryPolicy = _CALLS,
    ) -> None:
        self._actions = actions
        self._clock = clock
        self._waits_changed = waits_changed
        self._retry = retry
        self._changed = threading.Condition()
        self._stopped = False
        self.wait: DependencyWait | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether the task was stopped."""
        return self._stopped

    def stop(self) -> None:
        """Start no further calls."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def perform(self, what: str, action: TaskAction[R]) -> R:
        """Return the overlord's answer to an action; repeat it while there is no answer.

        Raises:
            Stopped: The task was stopped.
            PenstockError: Any other error of the action.
        """
        return self.call(what, lambda: self._actions.perform(action))

    def call(self, what: str, work: Callable[[], R], budget: RetryBudget | None = None) -> R:
        """Return the result of a piece of work; repeat it while it raises `Unavailable`.

        Args:
            what: Name of the work, for logs and for the task's status.
            work: The call; each attempt calls it again.
            budget: Limits the failures of some kinds; None: retry without a limit.

        Raises:
            Stopped: The task was stopped.
            PenstockError: The `end` of a decision of the budget, or any other error of the work.
        """
        failures, since_ms = 0, 0
        while True:
            self._check()
            try:
                result = work()
            except Unavailable as error:
                self._check()
                failures += 1
                since_ms = since_ms or self._clock.now_ms()
                wait = DependencyWait(error.dependency, what, since_ms, failures, str(error))
                decision = RetryDecision() if budget is None else budget.note(error)
                self.pause(self._failed(wait, decision, error))
            except BaseException:
                self._end_wait(failures)
                raise
            else:
                self._end_wait(failures)
                return result

    def pause(self, delay_ms: int) -> None:
        """Wait.

        Raises:
            Stopped: The task was stopped meanwhile.
        """
        until_s = self._clock.monotonic_s() + delay_ms / 1000
        with self._changed:
            while not self._stopped and (left_s := until_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, left_s)
        self._check()

    def _check(self) -> None:
        """Raise `Stopped` if the task was stopped."""
        if self._stopped:
            raise Stopped("the task was stopped")

    def _failed(self, wait: DependencyWait, decision: RetryDecision, error: Unavailable) -> int:
        """Report a failed attempt and return the delay before the next, or raise `end`."""
        delay_ms = max(self._retry.delay_ms(wait.tries), decision.pause_ms)
        next_ms = None if decision.end is not None else self._clock.now_ms() + delay_ms
        tries = decision.failures or wait.tries
        self._show(replace(wait, tries=tries, tries_max=decision.failures_max, next_ms=next_ms))
        if decision.end is not None:
            raise decision.end from error
        _log.info("%s: retrying in %d ms: %s", wait.work, delay_ms, error)
        return delay_ms

    def _end_wait(self, failures: int) -> None:
        """Publish that the work continues, if attempts have failed."""
        if failures:
            self._show(None)

    def _show(self, wait: DependencyWait | None) -> None:
        """Publish the current wait, without secrets; None: the work continues."""
        self.wait = None if wait is None else _shown_wait(wait)
        self._waits_changed(() if self.wait is None else (self.wait,))


def _shown_wait(wait: DependencyWait) -> DependencyWait:
    """Return a wait for display: without secrets of URLs, and shortened."""
    return replace(wait, error=masked_url(wait.error)[:_REASON_CHARACTERS_MAX])
