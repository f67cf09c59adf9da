"""What a processor is told of where it runs.

Owns the view that a processor has of itself in the flow. Does not own the flow, nor what its
properties are, which it knows itself.

Invariant: nothing here changes a FlowFile; it is used from every thread of the processor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest
from penstock.flow.logrecords import COMPONENT, of_component
from penstock.flow.relationships import Relationship
from penstock.flow.state import StateManager
from penstock.storage.filesystem import FileSystem, OsFileSystem

DEFAULT_PENALTY_MS = 30_000
DEFAULT_YIELD_MS = 1_000

_YIELD_MS_MAX: Final = 366 * 86_400_000


class ProcessorHost(Protocol):
    """What stands behind a context: whoever runs the processor. From any of its threads."""

    def yield_for(self, wait_ms: int) -> None:
        """Leave the processor alone for so long; the longest of several holds."""
        ...

    def wake(self) -> None:
        """Have it triggered soon, though it found nothing to do the last time."""
        ...

    def is_scheduled(self) -> bool:
        """Say whether it is to go on running."""
        ...

    def is_connected(self, relationship: str) -> bool:
        """Say whether a connection leads away by this relationship."""
        ...

    def is_available(self, relationship: str) -> bool:
        """Say whether no connection of this relationship is full."""
        ...

    def has_input(self) -> bool:
        """Say whether a connection from elsewhere leads to it."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessorIdentity:
    """Which processor this is, and what a user set for it beside its properties.

    Attributes:
        id: Never changes.
        name: What users call it.
        group: The process groups it is in, from the outermost.
        penalty_ms: For how long a FlowFile that is penalized is not handed out.
        yield_ms: For how long it is left alone when it yields.
    """

    id: str
    name: str
    group: tuple[str, ...] = ()
    penalty_ms: int = DEFAULT_PENALTY_MS
    yield_ms: int = DEFAULT_YIELD_MS


class ProcessContext:
    """Where a processor runs: given to each trigger and hook.

    Attributes:
        identity: Which processor this is.
        state: What it remembers; changed at once. With FlowFiles: `session.state`.
        clock: What time it is.
        fs: The files of this machine.
        log: For what users should read; it says which processor wrote.

    Args:
        identity: Which processor this is.
        host: Whoever runs it.
        state: What it remembers.
        clock: What time it is.
        fs: The files of this machine; None: those of the operating system.
    """

    def __init__(
        self,
        identity: ProcessorIdentity,
        host: ProcessorHost,
        state: StateManager,
        clock: Clock,
        fs: FileSystem | None = None,
    ) -> None:
        self.identity = identity
        self.state = state
        self.clock = clock
        self.fs: FileSystem = fs or OsFileSystem()
        self.log = _ProcessorLog(
            logging.getLogger("penstock.flow.processors"),
            {"processor": identity.name, **of_component(identity.id)},
        )
        self._host = host

    @property
    def id(self) -> str:
        """Return the processor's id."""
        return self.identity.id

    @property
    def name(self) -> str:
        """Return what users call it."""
        return self.identity.name

    @property
    def is_scheduled(self) -> bool:
        """Say whether it is to go on; a trigger that takes long asks now and then."""
        return self._host.is_scheduled()

    @property
    def has_input(self) -> bool:
        """Say whether a connection from elsewhere leads to it; a source has none."""
        return self._host.has_input()

    def is_connected(self, relationship: Relationship | str) -> bool:
        """Say whether a connection leads away by a relationship."""
        return self._host.is_connected(_name(relationship))

    def is_available(self, relationship: Relationship | str) -> bool:
        """Say whether there is room in all connections of a relationship."""
        return self._host.is_available(_name(relationship))

    def yield_(self, wait_ms: int | None = None) -> None:
        """Ask to be left alone, on all threads.

        Args:
            wait_ms: For how long, a year at most; None: what the user set.

        Raises:
            InvalidRequest: It is no such number. The scheduler's thread could not go on with it.
        """
        given: object = wait_ms  # users' code is not checked for types
        if given is not None and not (
            isinstance(given, int | float) and 0 <= given <= _YIELD_MS_MAX
        ):
            raise InvalidRequest(
                f"yield_({wait_ms!r:.60}): give milliseconds, a number from 0 to {_YIELD_MS_MAX}"
            )
        self._host.yield_for(self.identity.yield_ms if wait_ms is None else wait_ms)

    def wake(self) -> None:
        """Ask to be triggered soon, from any thread: something came from outside.

        A source that had nothing to do simply returns, is left alone for a moment that grows, and
        calls this when there is something. It does not end a yield.
        """
        self._host.wake()


class _ProcessorLog(logging.LoggerAdapter[logging.Logger]):
    """Says which processor wrote."""

    def process(
        self, msg: object, kwargs: Mapping[str, object]
    ) -> tuple[object, dict[str, object]]:
        named = self.extra or {}
        extra = {COMPONENT: named.get(COMPONENT, "")}
        return f"{named.get('processor', '')}: {msg}", {**kwargs, "extra": extra}


def _name(relationship: Relationship | str) -> str:
    return relationship if isinstance(relationship, str) else relationship.name
