"""Blocking calls of a batch task: repeated while there is no answer, until the task is stopped.

While the engine is down, the task waits without a limit, because the failure is not caused by the
task. If the engine crashes several times during the task's work, that work may be the cause, and
each crash interrupts other tasks; so after a number of crashes the task fails. The same limit
applies to an input that does not answer: its name may be wrong, and the task occupies a slot.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.instants import format_time
from penstock.core.waits import DependencyWait
from penstock.indexing.engine import EngineFailure, EngineLost, InputUnavailable
from penstock.indexing.secrets import masked_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from penstock.core.clock import Clock
    from penstock.indexing.ports import ActionClient, TaskAction
    from penstock.indexing.task.task_folder import TaskFolder

R = TypeVar("R")

LOSSES_MAX: Final = 20
"""Maximum number of attempts of one piece of work in which the engine or its input is lost."""

_CALLS: Final = RetryPolicy(100, 10_000)
_LOSSES: Final = RetryPolicy(1_000, 600_000, jitter=1.0)

_REASON_CHARACTERS_MAX: Final = 2_000

_ENGINE: Final = "engine"
_INPUT: Final = "input"

_log = logging.getLogger(__name__)


class Stopped(PenstockError):
    """The task was stopped; its folder keeps the completed work."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """Decision after a failed attempt.

    Attributes:
        pause_ms: Minimum time until the next attempt.
        failures: Number of failures of this kind; 0 if they are not counted.
        failures_max: Maximum number of failures; 0 means unlimited.
        end: Error that ends the work, after too many failures.
    """

    pause_ms: int = 0
    failures: int = 0
    failures_max: int = 0
    end: PenstockError | None = None


class RetryBudget:
    """Counts the failed attempts of one piece of work, and decides when to retry. One thread.

    It counts attempts in which the engine was lost, and those in which an input did not answer. The
    counts are stored in the task's folder, so that a restarted peon continues them.

    Tasks that share an engine with the work that crashes it fail with it, each time that both start
    together. So pauses grow up to ten minutes, and each is a random part of that: other tasks
    complete in one of the pauses long before they reach their maximum.

    Args:
        chance: Returns random numbers from 0 up to 1.
        folder: The folder of the task.
        number: The number of the work within the task.
    """

    def __init__(self, chance: Callable[[], float], folder: TaskFolder, number: int = 0) -> None:
        self._chance = chance
        self._folder = folder
        self._file = f"losses-{number}.json"
        kept = folder.read_json(self._file) or {}
        self._counts = {name: _count(kept.get(name)) for name in (_ENGINE, _INPUT)}

    def note(self, error: Unavailable) -> RetryDecision:
        """Record the error of a failed attempt and return the decision.

        The `end` is an `EngineFailure`, if the engine was lost or the input did not answer too
        many times.
        """
        kind = _kind_of(error)
        if kind is None:
            return RetryDecision()
        self._counts[kind] += 1
        try:
            self._folder.write_json(self._file, dict(self._counts))
        except Unavailable as full:
            _log.warning("a restarted peon will not know of this loss: %s", full)
        count = self._counts[kind]
        if count >= LOSSES_MAX:
            return RetryDecision(0, count, LOSSES_MAX, EngineFailure(_given_up(kind, count, error)))
        _log.warning("lost the %s, time %d: %s", kind, count, error)
        pause_s = _LOSSES.random_delay_s(count, self._chance)
        return RetryDecision(int(pause_s * 1_000), count, LOSSES_MAX)


def _kind_of(error: Unavailable) -> str | None:
    if isinstance(error, InputUnavailable):
        return _INPUT
    return _ENGINE if isinstance(error, EngineLost) else None


def _given_up(kind: str, count: int, error: Unavailable) -> str:
    if kind == _INPUT:
        return (
            f"the input did not answer {counted(count, 'time')}; last error: {error}. Check its"
            " host, or correct the input; then submit the task again"
        )
    return (
        f"the engine was lost {counted(count, 'time')} during this work; last error: {error}."
        " Give Spark more memory (--spark-memory), or the task less work: a shorter interval, "
        "fewer files at once, fewer rows per segment; then submit it again"
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


class RetryingCaller:
    """Repeats the calls of one task until they succeed; `stop` may be called from any thread.

    The condition's mutex guards the flag that the task's thread waits on.

    Args:
        actions: The overlord.
        clock: Measures the waits.
        waits_changed: Called with the waits for dependencies each time that they change.
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


def wait_fields(wait: DependencyWait) -> dict[str, JsonValue]:
    """Return the fields of a task's report about work that is retried."""
    next_ms = wait.next_ms
    return {
        "failedWork": wait.work,
        "failedDependency": wait.dependency.value,
        "failedSince": format_time(wait.since_ms),
        "failedTries": wait.tries,
        "failedTriesMax": wait.tries_max or None,
        "lastFailure": wait.error,
        "nextTry": None if next_ms is None else format_time(next_ms),
    }
