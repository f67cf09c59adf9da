"""What components last had to say: warnings and errors, for whoever looks after a flow.

Owns a bounded number of messages, the count of those that had to go, and how messages name
components. Does not own the log, which gets every message after this handler: with the name and the
id of the component, as those who log often know the id alone.

Its mutex guards a deque and a number: messages come from every thread of every processor, and are
read now and then.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.flow.graph.index import FlowIndex
from penstock.flow.graph.model import BulletinLevel
from penstock.flow.logrecords import COMPONENT
from penstock.flow.scheduling.activity import told

LOGGER_NAME: Final = "penstock.flow"

_TEXT_MAX: Final = 2_000
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LEVELS: Final = {
    BulletinLevel.DEBUG: logging.DEBUG,
    BulletinLevel.INFO: logging.INFO,
    BulletinLevel.WARN: logging.WARNING,
    BulletinLevel.ERROR: logging.ERROR,
    BulletinLevel.NONE: logging.CRITICAL + 1,
}


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
    """Keeps the newest messages of the loggers of flows, and names components in all of them.

    Attributes:
        levels: By id of a component, from which level on its messages are kept; those of others
            are from `WARNING` on.
        names: By id of a component or connection, its name.

    Args:
        limit: Messages that are kept.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.levels: Mapping[str, int] = {}
        self.names: Mapping[str, str] = {}
        self._mutex = threading.Lock()
        self._kept: deque[Bulletin] = deque(maxlen=limit)
        self._count = 0

    @property
    def count(self) -> int:
        """Return how many messages there were, those that are not kept any more, too."""
        return self._count

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; one that cannot be put together is reported as loggers do it."""
        component = str(getattr(record, COMPONENT, ""))
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - documented boundary: code of a component may be in it
            self.handleError(record)
            return
        # The log's handlers, which are the root logger's, come after this one.
        record.msg, record.args = self._with_names(text, component), ()
        if record.levelno < self.levels.get(component, logging.WARNING):
            return
        if record.exc_info is not None and record.exc_info[1] is not None:
            why = told(record.exc_info[1])
            text = text if why in text else f"{text}: {why}"
        # Who writes the message may know nothing but the id, which tells people nothing; at the
        # beginning it says again whose bulletin it is.
        if (name := self.names.get(component)) is not None:
            text = text.removeprefix(component).lstrip(": ").replace(component, name)
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

    def _with_names(self, text: str, component: str) -> str:
        """Return a message with name and id of the component that it is about, and of queues."""
        name = self.names.get(component)
        if name is not None and component not in text:
            label = f"{name} ({component})"
            return text.replace(name, label, 1) if name in text else f"{label}: {text}"

        def label_of(found: re.Match[str]) -> str:
            known = self.names.get(found[0])
            return found[0] if known is None else f"{known} ({found[0]})"

        return _ID.sub(label_of, text)

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


def names_of(index: FlowIndex) -> Mapping[str, str]:
    """Return the names of a flow's components and connections by their ids."""
    names = {one.id: str(one) for one in index.components}
    return names | {one.id: str(one) for one in index.connections}


def levels_of(index: FlowIndex) -> Mapping[str, int]:
    """Return from which level on messages are kept, by the ids of a flow's processors."""
    return {
        one.id: _LEVELS[one.processor.bulletin_level]
        for one in index.components
        if one.processor is not None
    }
