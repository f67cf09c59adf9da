"""Health of a supervisor: recent errors, consecutive failures, and the resulting state.

Pure: callers report events and query the state. Failed reads of the topic's state, failed rounds
and failed tasks are counted separately, because each has another remedy.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from penstock.core.backoff import RetryPolicy
from penstock.core.intervals import format_time

_log = logging.getLogger(__name__)

_UNHEALTHY_AFTER: Final = 3
_HEALTHY_AFTER: Final = 3
_ERRORS_KEPT: Final = 20
# A task only shows success when it ends, which may take long. Repeated failures of a task that
# cannot work are reported by its worker sooner than this.
_FORGIVEN_AFTER_S: Final = 900


class _Streak:
    """Outcomes of one kind; unhealthy from three consecutive failures to three successes."""

    def __init__(self) -> None:
        self.failures = 0
        self.is_unhealthy = False
        self._good = 0

    def reset(self) -> None:
        self.failures = self._good = 0
        self.is_unhealthy = False

    def failed(self) -> None:
        self.failures += 1
        self._good = 0
        self.is_unhealthy = self.is_unhealthy or self.failures >= _UNHEALTHY_AFTER

    def succeeded(self) -> None:
        self.failures = 0
        self._good += 1
        self.is_unhealthy = self.is_unhealthy and self._good < _HEALTHY_AFTER


class Health:
    """The health of one supervisor.

    Args:
        name: The supervisor, for the log.
        retry_delay_ms: Delay between a task failure and the next start.
        retry_delay_max_ms: Maximum delay; it doubles with each consecutive failure.
    """

    def __init__(self, name: str, retry_delay_ms: int, retry_delay_max_ms: int) -> None:
        self._name = name
        self._retry = RetryPolicy(retry_delay_ms, retry_delay_max_ms)
        self._errors: deque[dict[str, str]] = deque(maxlen=_ERRORS_KEPT)
        self._polls = _Streak()
        self._rounds = _Streak()
        self._tasks = _Streak()
        self._failed_task_s = 0.0
        self._not_before_s = 0.0

    def reset(self) -> None:
        """Reset the counts after a user has fixed something; recent errors stay listed."""
        for streak in (self._polls, self._rounds, self._tasks):
            streak.reset()
        self._not_before_s = 0.0

    def poll_succeeded(self) -> None:
        """The state of the topic was read."""
        self._polls.succeeded()

    def poll_failed(self) -> None:
        """The state of the topic could not be read."""
        self._polls.failed()

    def round_done(self) -> None:
        """A round succeeded."""
        self._rounds.succeeded()

    def round_failed(self) -> None:
        """A round failed."""
        self._rounds.failed()

    def task_succeeded(self) -> None:
        """A task has published all of its rows."""
        self._tasks.succeeded()

    def task_failed(self, now_s: float) -> None:
        """A task has failed: delay the next start."""
        if self._is_forgiven(now_s):
            self._tasks.reset()
        self._failed_task_s = now_s
        self._tasks.failed()
        self._not_before_s = now_s + self._retry.delay_ms(self._tasks.failures) / 1000

    def may_start_tasks(self, now_s: float) -> bool:
        """Return whether the last read of the topic succeeded and the delay is over."""
        return self._polls.failures == 0 and now_s >= self._not_before_s

    def unhealthy_state(self, now_s: float, *, was_there: bool) -> str | None:
        """Return the state that results from failures, in Druid's terms, None if there is none.

        Args:
            now_s: The time; old task failures are ignored.
            was_there: Whether the topic was ever seen.
        """
        if self._polls.is_unhealthy:
            return "LOST_CONTACT_WITH_STREAM" if was_there else "UNABLE_TO_CONNECT_TO_STREAM"
        if self._rounds.is_unhealthy:
            return "UNHEALTHY_SUPERVISOR"
        if self._tasks.is_unhealthy and not self._is_forgiven(now_s):
            return "UNHEALTHY_TASKS"
        return None

    def _is_forgiven(self, now_s: float) -> bool:
        return now_s - self._failed_task_s > _FORGIVEN_AFTER_S

    def note(self, error: Exception, now_ms: int) -> None:
        """Record an error for the status; a repeated one is kept once, with its last time."""
        entry = {
            "timestamp": format_time(now_ms),
            "exceptionClass": type(error).__name__,
            "exceptionMessage": str(error),
        }
        if self._errors and self._errors[-1]["exceptionMessage"] == str(error):
            self._errors.pop()
        else:
            _log.warning("supervisor %s: %s", self._name, error)
        self._errors.append(entry)

    def errors(self) -> list[dict[str, str]]:
        """Return the recent errors, newest last."""
        return list(self._errors)
