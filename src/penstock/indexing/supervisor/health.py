"""How well a supervisor does: what went wrong lately, how often in a row, what that amounts to.

Pure: told of events, asked for the outcome. A topic that cannot be looked at, work that cannot be
done and tasks that fail are counted apart, since each has another mend.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from penstock.core.intervals import format_time

_log = logging.getLogger(__name__)

_UNHEALTHY_AFTER: Final = 3
_HEALTHY_AFTER: Final = 3
_ERRORS_KEPT: Final = 20
_DOUBLINGS_MAX: Final = 16
# A task that works shows it by its end only, which may be far away; a worker gives up one that does
# not, again and again, sooner than this.
_FORGIVEN_AFTER_S: Final = 900


class _Streak:
    """Outcomes of one kind: three failures in a row are trouble, three good ones the end of it."""

    def __init__(self) -> None:
        self.failures = 0
        self.is_trouble = False
        self._good = 0

    def begin_anew(self) -> None:
        self.failures = self._good = 0
        self.is_trouble = False

    def failed(self) -> None:
        self.failures += 1
        self._good = 0
        self.is_trouble = self.is_trouble or self.failures >= _UNHEALTHY_AFTER

    def succeeded(self) -> None:
        self.failures = 0
        self._good += 1
        self.is_trouble = self.is_trouble and self._good < _HEALTHY_AFTER


class Health:
    """The health of one supervisor.

    Args:
        name: The supervisor, for the log.
        retry_delay_ms: How long to wait after a task failed before the next is started.
        retry_delay_max_ms: The longest such wait; it doubles with each failure in a row.
    """

    def __init__(self, name: str, retry_delay_ms: int, retry_delay_max_ms: int) -> None:
        self._name = name
        self._delays_ms = (retry_delay_ms, retry_delay_max_ms)
        self._errors: deque[dict[str, str]] = deque(maxlen=_ERRORS_KEPT)
        self._looks = _Streak()
        self._rounds = _Streak()
        self._tasks = _Streak()
        self._failed_task_s = 0.0
        self._not_before_s = 0.0

    def begin_anew(self) -> None:
        """Count from nothing, after a user has mended something; what went wrong stays listed."""
        for streak in (self._looks, self._rounds, self._tasks):
            streak.begin_anew()
        self._not_before_s = 0.0

    def looked(self) -> None:
        """The topic was looked at."""
        self._looks.succeeded()

    def look_failed(self) -> None:
        """The topic could not be looked at."""
        self._looks.failed()

    def round_done(self) -> None:
        """All that was due was done."""
        self._rounds.succeeded()

    def round_failed(self) -> None:
        """Something that was due could not be done."""
        self._rounds.failed()

    def task_succeeded(self) -> None:
        """A task has published all."""
        self._tasks.succeeded()

    def task_failed(self, now_s: float) -> None:
        """A task has failed: wait before the next is started."""
        first_ms, most_ms = self._delays_ms
        if self._is_forgiven(now_s):
            self._tasks.begin_anew()
        self._failed_task_s = now_s
        delay_ms = min(most_ms, first_ms << min(self._tasks.failures, _DOUBLINGS_MAX))
        self._tasks.failed()
        self._not_before_s = now_s + delay_ms / 1000

    def may_start_tasks(self, now_s: float) -> bool:
        """Whether the topic was there when last looked at, and no failure is too recent."""
        return self._looks.failures == 0 and now_s >= self._not_before_s

    def trouble(self, now_s: float, *, was_there: bool) -> str | None:
        """Return the state that the failures amount to, in Druid's words, None if all is well.

        Args:
            now_s: The time; task failures of long ago count no more.
            was_there: Whether the topic was ever seen.
        """
        if self._looks.is_trouble:
            return "LOST_CONTACT_WITH_STREAM" if was_there else "UNABLE_TO_CONNECT_TO_STREAM"
        if self._rounds.is_trouble:
            return "UNHEALTHY_SUPERVISOR"
        if self._tasks.is_trouble and not self._is_forgiven(now_s):
            return "UNHEALTHY_TASKS"
        return None

    def _is_forgiven(self, now_s: float) -> bool:
        return now_s - self._failed_task_s > _FORGIVEN_AFTER_S

    def note(self, error: Exception, now_ms: int) -> None:
        """Keep an error for the status; one that repeats is kept once, with its last time."""
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
        """Return what went wrong lately, the newest last."""
        return list(self._errors)
