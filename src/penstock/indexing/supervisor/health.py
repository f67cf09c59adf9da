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
_ERRORS_KEPT: Final = 20
_DOUBLINGS_MAX: Final = 16
# A task that works shows it by its end only, which may be far away; a worker gives up one that does
# not, again and again, sooner than this.
_FORGIVEN_AFTER_S: Final = 900


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
        self._failed_looks = 0
        self._failed_rounds = 0
        self._failed_tasks = 0
        self._failed_task_s = 0.0
        self._not_before_s = 0.0

    def begin_anew(self) -> None:
        """Count from nothing, after a user has mended something; what went wrong stays listed."""
        self._failed_looks = self._failed_rounds = self._failed_tasks = 0
        self._not_before_s = 0.0

    def looked(self) -> None:
        """The topic was looked at."""
        self._failed_looks = 0

    def look_failed(self) -> None:
        """The topic could not be looked at."""
        self._failed_looks += 1

    def round_done(self) -> None:
        """All that was due was done."""
        self._failed_rounds = 0

    def round_failed(self) -> None:
        """Something that was due could not be done."""
        self._failed_rounds += 1

    def task_succeeded(self) -> None:
        """A task has published all."""
        self._failed_tasks = 0

    def task_failed(self, now_s: float) -> None:
        """A task has failed: wait before the next is started."""
        first_ms, most_ms = self._delays_ms
        if self._is_forgiven(now_s):
            self._failed_tasks = 0
        self._failed_task_s = now_s
        delay_ms = min(most_ms, first_ms << min(self._failed_tasks, _DOUBLINGS_MAX))
        self._failed_tasks += 1
        self._not_before_s = now_s + delay_ms / 1000

    def may_start_tasks(self, now_s: float) -> bool:
        """Whether the topic was there when last looked at, and no failure is too recent."""
        return self._failed_looks == 0 and now_s >= self._not_before_s

    def trouble(self, now_s: float, *, was_there: bool) -> str | None:
        """Return the state that the failures amount to, in Druid's words, None if all is well.

        Args:
            now_s: The time; task failures of long ago count no more.
            was_there: Whether the topic was ever seen.
        """
        if self._failed_looks >= _UNHEALTHY_AFTER:
            return "LOST_CONTACT_WITH_STREAM" if was_there else "UNABLE_TO_CONNECT_TO_STREAM"
        if self._failed_rounds >= _UNHEALTHY_AFTER:
            return "UNHEALTHY_SUPERVISOR"
        if self._failed_tasks >= _UNHEALTHY_AFTER and not self._is_forgiven(now_s):
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
