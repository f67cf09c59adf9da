"""Context of a processor: its identity, state, clock, file system and log.

Owns the view that a processor has of its place in the flow. Does not own the flow, nor the values
of the properties, which the processor holds itself.

Invariant: no method here changes a FlowFile. Every thread of the processor may call every method.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.flow.log_context import COMPONENT, of_component
from penstock.flow.processor_state import StateManager
from penstock.flow.relationships import Relationship
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem

DEFAULT_PENALTY_MS = 30_000
DEFAULT_YIELD_MS = 1_000

_YIELD_MS_MAX: Final = 366 * 86_400_000


class ProcessorHost(Protocol):
    """Runner of a processor, as its context calls it.

    May be called from any thread of the processor.
    """

    def yield_for(self, wait_ms: int) -> None:
        """Do not trigger the processor for this time.

        If several such times overlap, the longest applies.
        """
        ...

    def wake(self) -> None:
        """Trigger the processor soon, although its last trigger found nothing to do."""
        ...

    def report_unavailable(self, error: Unavailable, tries: int | None) -> None:
        """Record that a dependency of the processor fails; as `ProcessContext`."""
        ...

    def is_scheduled(self) -> bool:
        """Return whether the processor should continue to run."""
        ...

    def is_connected(self, relationship: str) -> bool:
        """Return whether this relationship has an outgoing connection."""
        ...

    def is_available(self, relationship: str) -> bool:
        """Return whether every connection of this relationship has room."""
        ...

    def has_input(self) -> bool:
        """Return whether the processor has an incoming connection from another component."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessorIdentity:
    """Identity of a processor, and the settings that a user made in addition to its properties.

    Attributes:
        id: Permanent id.
        name: Name that users see.
        group: Process groups that contain the processor, outermost first.
        penalty_ms: How long a penalized FlowFile cannot be taken.
        yield_ms: How long the processor is not triggered after it yields.
    """

    id: str
    name: str
    group: tuple[str, ...] = ()
    penalty_ms: int = DEFAULT_PENALTY_MS
    yield_ms: int = DEFAULT_YIELD_MS


class ProcessContext:
    """Environment of a processor: passed to each trigger and hook.

    Attributes:
        identity: Id, name and settings of the processor.
        state: Its persistent state, changed at once. To change it with FlowFiles, use
            `session.state`.
        clock: The current time.
        fs: The files of this machine.
        log: Log for users; each record names the processor.

    Args:
        identity: Id, name and settings of the processor.
        host: Runner of the processor.
        state: Its persistent state.
        clock: The current time.
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
        """Return the processor's name."""
        return self.identity.name

    @property
    def is_scheduled(self) -> bool:
        """Return whether the processor should continue; long triggers must check this."""
        return self._host.is_scheduled()

    @property
    def has_input(self) -> bool:
        """Return whether another component is connected to the processor's input.

        It is False for a source.
        """
        return self._host.has_input()

    def is_connected(self, relationship: Relationship | str) -> bool:
        """Return whether a relationship has an outgoing connection."""
        return self._host.is_connected(_name(relationship))

    def is_available(self, relationship: Relationship | str) -> bool:
        """Return whether all connections of a relationship have room."""
        return self._host.is_available(_name(relationship))

    def yield_(self, wait_ms: int | None = None) -> None:
        """Yield: no thread triggers the processor for a while.

        Args:
            wait_ms: Duration, a year at most; None: the configured yield duration.

        Raises:
            InvalidRequest: It is not a number from 0 to a year.
        """
        given: object = wait_ms  # users' code is not checked for types
        if given is not None and not (
            isinstance(given, int | float) and 0 <= given <= _YIELD_MS_MAX
        ):
            raise InvalidRequest(
                f"yield_({wait_ms!r:.60}): give milliseconds, a number from 0 to {_YIELD_MS_MAX}"
            )
        self._host.yield_for(self.identity.yield_ms if wait_ms is None else wait_ms)

    def report_unavailable(self, error: Unavailable, *, tries: int | None = None) -> None:
        """Report that a dependency fails, so that the processor's work waits for it.

        The service's status and metrics show the wait until a later trigger succeeds, or until the
        processor stops. They show no wait for an error whose dependency is `OTHER`. An
        `Unavailable` that a trigger raises is reported without this call.

        Args:
            error: Why the try failed; names the dependency.
            tries: Number of failed tries; None: one more than before.
        """
        self._host.report_unavailable(error, tries)

    def wake(self) -> None:
        """Request a trigger soon, because new input has arrived. May be called from any thread.

        A source that has nothing to do returns. The scheduler then waits for a growing time before
        the next trigger. Call this when input arrives. It does not end a yield.
        """
        self._host.wake()


class _ProcessorLog(logging.LoggerAdapter[logging.Logger]):
    """Log adapter that adds the processor to each record."""

    def process(
        self, msg: object, kwargs: Mapping[str, object]
    ) -> tuple[object, dict[str, object]]:
        named = self.extra or {}
        extra = {COMPONENT: named.get(COMPONENT, "")}
        return f"{named.get('processor', '')}: {msg}", {**kwargs, "extra": extra}


def _name(relationship: Relationship | str) -> str:
    return relationship if isinstance(relationship, str) else relationship.name
