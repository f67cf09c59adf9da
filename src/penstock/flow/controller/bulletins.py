"""Bulletins: recent warnings and errors of components, for operators.

Owns a bounded number of messages, the count of discarded ones, and how messages name components.
Does not own the log. The log receives every message after this handler, with the name and the id of
the component, because code that logs often knows only the id.

The mutex protects a deque and a number: messages come from every thread of every processor, and are
read rarely.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.flow.errors import error_text
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.flow_model import BulletinLevel
from penstock.flow.log_context import COMPONENT

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
    """One bulletin.

    Attributes:
        number: Increases from bulletin to bulletin.
        time_ms: Time, epoch milliseconds.
        level: `WARNING`, `ERROR` …
        component: Id of the component; empty if there is none.
        message: The text, cut at 2,000 characters.
    """

    number: int
    time_ms: int
    level: str
    component: str
    message: str


class BulletinBoard(logging.Handler):
    """Keeps the newest messages of the loggers of flows, and adds component names to all of them.

    Attributes:
        levels: Minimum level of the messages to keep, by id of a component; `WARNING` for others.
        names: Name by id of a component or connection.

    Args:
        limit: Number of messages to keep.
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
        """Return the number of all bulletins, including discarded ones."""
        return self._count

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message; one that cannot be formatted is reported as by other log handlers."""
        component = str(getattr(record, COMPONENT, ""))
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - documented boundary: may call code of a component
            self.handleError(record)
            return
        # The log's handlers, which belong to the root logger, run after this one.
        record.msg, record.args = self._with_names(text, component), ()
        if record.levelno < self.levels.get(component, logging.WARNING):
            return
        if record.exc_info is not None and record.exc_info[1] is not None:
            why = error_text(record.exc_info[1])
            text = text if why in text else f"{text}: {why}"
        # The message may contain only the id. Replace it by the name; at the start of the text it
        # only repeats the component of the bulletin.
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
        """Return a message with name and id of its component, and with names of queues."""
        name = self.names.get(component)
        if name is not None and component not in text:
            label = f"{name} ({component})"
            return text.replace(name, label, 1) if name in text else f"{label}: {text}"

        def label_of(found: re.Match[str]) -> str:
            known = self.names.get(found[0])
            return found[0] if known is None else f"{known} ({found[0]})"

        return _ID.sub(label_of, text)

    def read(self, *, after: int = 0, component: str | None = None) -> Sequence[Bulletin]:
        """Return the kept bulletins, oldest first.

        Args:
            after: Omit bulletins up to this number.
            component: Return only those of one component.
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
    """Return the minimum level of messages to keep, by the ids of a flow's processors."""
    return {
        one.id: _LEVELS[one.processor.bulletin_level]
        for one in index.components
        if one.processor is not None
    }
