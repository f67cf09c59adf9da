"""Policy of retries of a batch task: how many times a piece of work may fail, and the pauses.

Does not own the repeated calls (`retrying_caller`). While the engine is down, the task waits
without a limit, because the failure is not caused by the task. If the engine crashes several times
during the task's work, that work may be the cause, and each crash interrupts other tasks; so after
a number of crashes the task fails. The same limit applies to an input that does not answer, because
its name may be wrong and the task occupies a slot.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.instants import format_time
from penstock.indexing.engine import EngineFailure, EngineLost, InputUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from penstock.core.waits import DependencyWait
    from penstock.indexing.task.task_folder import TaskFolder

LOSSES_MAX: Final = 20
"""Maximum number of attempts of one piece of work in which the engine or its input is lost."""

_LOSSES: Final = RetryPolicy(1_000, 600_000, jitter=1.0)

_ENGINE: Final = "engine"
_INPUT: Final = "input"

_log = logging.getLogger(__name__)


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

    If some work crashes the engine, all tasks that use the engine at that time lose an attempt. So
    pauses are random and grow up to ten minutes: other tasks complete during a pause of that work,
    long before they reach their own limit.

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
            return RetryDecision(
                0, count, LOSSES_MAX, EngineFailure(_too_many_losses(kind, count, error))
            )
        _log.warning("lost the %s, time %d: %s", kind, count, error)
        pause_s = _LOSSES.random_delay_s(count, self._chance)
        return RetryDecision(int(pause_s * 1_000), count, LOSSES_MAX)


def _kind_of(error: Unavailable) -> str | None:
    if isinstance(error, InputUnavailable):
        return _INPUT
    return _ENGINE if isinstance(error, EngineLost) else None


def _too_many_losses(kind: str, count: int, error: Unavailable) -> str:
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
