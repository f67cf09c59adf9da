"""What tasks left to be read: parts of their logs, and their reports.

The seam between who keeps logs, a worker or a log store, and who shows them, here or by HTTP. It
imports nothing of either, as the router shows logs and has no worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

READ_BYTES_MAX: Final = 1 << 20
"""Most bytes of a log that one answer holds."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log.

    Attributes:
        content: Its bytes.
        offset: Where they begin in the log.
        size: Of the whole log, in bytes; one that still grows has more next time.
    """

    content: bytes
    offset: int
    size: int


class TaskLogReader(Protocol):
    """Reads what tasks left, wherever it is: of running ones too, if they run here."""

    def read_log(self, task_id: str, offset: int = 0, bytes_max: int = READ_BYTES_MAX) -> LogPart:
        """Return a part of a task's log.

        Args:
            task_id: The task.
            offset: Its first byte; a negative one counts from the end.
            bytes_max: The most that is returned.

        Raises:
            NotFound: There is no log of it (any more).
            Unavailable: The store does not answer.
        """
        ...

    def read_report(self, task_id: str) -> bytes:
        """Return a task's report, JSON. Raises as `read_log`."""
        ...
