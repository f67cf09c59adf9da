"""Readable output of tasks: parts of their logs, and their reports.

The protocol between the owner of logs, a worker or a log store, and the code that shows them, here
or by HTTP. It imports neither, because the router shows logs and has no worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

READ_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes of a log in one answer."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log.

    Attributes:
        content: Its bytes.
        offset: Their position in the log.
        size: The size of the whole log in bytes, which may still grow.
    """

    content: bytes
    offset: int
    size: int


class TaskLogReader(Protocol):
    """Reads logs and reports of tasks, including running ones if they run here."""

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return a part of a task's log.

        Args:
            task_id: The task.
            offset: The first byte; a negative one counts from the end.
            bytes_max: Maximum number of bytes to return.

        Raises:
            NotFound: The task has no log, or it was deleted.
            Unavailable: The store does not answer.
        """
        ...

    def read_report(self, task_id: str) -> bytes:
        """Return a task's report, JSON. Raises as `read_log`."""
        ...
