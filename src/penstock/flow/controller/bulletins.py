"""What components last had to say: warnings and errors, for whoever looks after a flow.

Owns a bounded number of messages and the count of those that had to go. Does not own the log,
which has them too.

Its mutex guards a deque and a number: messages come from every thread of every processor, and are
read now and then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.flow.logrecords import COMPONENT
from penstock.flow.scheduling.activity import told

LOGGER_NAME: Final = "penstock.flow"

_TEXT_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class Bulletin:
    """One message.

    Attributes:
        number: Grows by one from message to message.
        time_ms: When, epoch milliseconds.
        level: `WARNING`, `ERROR` …
        component: Id of the component; empty if it is of none.
        message: The text, cut at 2,000 characters.
    """

    number: int
    time_ms: int
    level: str
    component: str
    message: str


class BulletinBoard(logging.Handler):
    """Keeps the newest messages of the loggers of flows.

    Args:
        limit: Messages that are kept.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(logging.WARNING)
        self._mutex = threading.Lock()
        self._kept: deque[Bulletin] = deque(maxlen=limit)
        self._count = 0

    @property
    def count(self) -> int:
        """Return how many messages there were, those that are not kept any more, too."""
        return self._count

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; one that cannot be put together is reported as loggers do it."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - documented boundary: code of a component may be in it
            self.handleError(record)
            return
        if record.exc_info is not None and record.exc_info[1] is not None:
            text = f"{text}: {told(record.exc_info[1])}"
        component = str(getattr(record, COMPONENT, ""))
        with self._mutex:
            self._count += 1
            self._kept.append(
                Bulletin(
                    self._count,
                    int(record.created * 1000),
                    record.levelname,
                    component,
                    text[:_TEXT_MAX],
                )
            )

    def read(self, *, after: int = 0, component: str | None = None) -> Sequence[Bulletin]:
        """Return what is kept, the oldest first.

        Args:
            after: Leave out messages up to this number.
            component: Only those of one component.
        """
        with self._mutex:
            kept = tuple(self._kept)
        return [
            one
            for one in kept
            if one.number > after and (component is None or one.component == component)
        ]
