"""Start what a process consists of in order, and stop it in reverse.

Owns the order and the states; it does not know what is started.

    stage            what belongs there
    INIT             logging
    NORMAL           stores, mailboxes, engines (the default)
    SERVER           HTTP servers: they answer only when what they need has started
    ANNOUNCEMENTS    leases: others find us only when we answer

    NOT_STARTED --start--> RUNNING --stop--> STOPPED         (there is no way back)

Invariants: handlers start by stage, within a stage in the order they were added; they stop in
exactly the reverse list order; a handler that was started is stopped once, also when a later one
fails to start; a handler that was not started is not stopped.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.core.errors import Conflict

logger = logging.getLogger(__name__)


class Stage(enum.IntEnum):
    """When a handler starts; stops run the other way."""

    INIT = 0
    NORMAL = 1
    SERVER = 2
    ANNOUNCEMENTS = 3


class State(enum.Enum):
    """Where a lifecycle is."""

    NOT_STARTED = "NOT_STARTED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


def _nothing() -> None:
    """Do nothing: the default of a handler that only starts or only stops."""


@dataclass(slots=True, eq=False)
class Handler:
    """What is started and stopped; `name` is for messages."""

    name: str
    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing
    started: bool = field(default=False, init=False)


class Lifecycle:
    """The handlers of one process. One thread, the main one, adds, starts and stops them."""

    def __init__(self) -> None:
        self._state = State.NOT_STARTED
        self._handlers: dict[Stage, list[Handler]] = {stage: [] for stage in Stage}

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    def add_handler(self, handler: Handler, stage: Stage = Stage.NORMAL) -> None:
        """Add a handler before the start.

        Raises:
            Conflict: The lifecycle was started.
        """
        if self._state is not State.NOT_STARTED:
            raise Conflict(f"{handler.name} cannot be added: the lifecycle was started")
        self._handlers[stage].append(handler)

    def start(self) -> None:
        """Start every handler.

        Raises:
            Conflict: It was started before.
            Exception: What a handler's start raised, after what had started was stopped.
        """
        if self._state is not State.NOT_STARTED:
            raise Conflict("a lifecycle starts only once")
        self._state = State.RUNNING
        try:
            for stage in Stage:
                for handler in self._handlers[stage]:
                    _start(handler)
        except BaseException:
            self._state = State.STOPPED
            for error in self._stop_started():
                logger.exception("while stopping after a failed start", exc_info=error)
            raise

    def stop(self) -> None:
        """Stop what was started, in reverse; silent when not running.

        Raises:
            ExceptionGroup: Handlers failed to stop; all others were stopped all the same.
        """
        if self._state is not State.RUNNING:
            return
        self._state = State.STOPPED
        errors = self._stop_started()
        if errors:
            raise ExceptionGroup("failures while stopping", errors)

    def join(self, wait: Callable[[], None]) -> None:
        """Wait by `wait`, which returns when it is time to stop, then stop. Raises as `stop`."""
        wait()
        self.stop()

    def _stop_started(self) -> list[Exception]:
        errors: list[Exception] = []
        for stage in reversed(Stage):
            for handler in reversed(self._handlers[stage]):
                if not handler.started:
                    continue
                handler.started = False
                try:
                    handler.stop()
                except Exception as error:  # one failure must not keep the others  # noqa: BLE001
                    error.add_note(f"while stopping {handler.name}")
                    errors.append(error)
        return errors


def _start(handler: Handler) -> None:
    try:
        handler.start()
    except Exception as error:
        error.add_note(f"while starting {handler.name}")
        raise
    handler.started = True
