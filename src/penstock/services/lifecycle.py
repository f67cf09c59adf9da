"""Start what a process consists of in order, and stop it in reverse.

Owns the order and the states; it does not know what is started.

    stage            what belongs there
    INIT             logging
    NORMAL           stores, mailboxes, engines (the default)
    SERVER           HTTP servers: they answer only when what they need has started
    ANNOUNCEMENTS    leases: others find us only when we answer

    NOT_STARTED --start--> RUNNING --stop--> STOPPED         (there is no way back)

Handlers start by stage, within a stage in the order they were added, and stop in exactly the
reverse order of the list. A handler may be added while others start (`add_maybe_start`): one of
the stage that starts now, or of an earlier one, is started at once; one of a later stage waits for
its turn. At the stop only the list counts, not when each was started.

A start that fails leaves everything as it is: what runs still runs, the rest was not started, and
the state is RUNNING, so that whoever started may `stop`, or end the process. A stop also stops
handlers that were never started, because what they hold may have been opened before; so each
handler's stop bears that.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """What is started and stopped; `name` is for messages."""

    name: str
    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing


class Lifecycle:
    """The handlers of one process; any thread.

    Two mutexes, because handlers run while things start and stop: the re-entrant one makes starts,
    stops and additions take turns, and is held while handlers run, so that a handler may add
    others; the small one guards the state alone.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._state_mutex = threading.Lock()
        self._state = State.NOT_STARTED
        self._stage: Stage | None = None
        self._has_ended = False
        # Replaced, not changed: who goes through a list does not see what is added meanwhile.
        self._handlers: dict[Stage, tuple[Handler, ...]] = dict.fromkeys(Stage, ())

    @property
    def state(self) -> State:
        """Where it is."""
        return self._state

    def add_handler(self, handler: Handler, stage: Stage = Stage.NORMAL) -> None:
        """Add a handler before the start.

        Raises:
            Conflict: The lifecycle was started, or another thread starts or stops it just now.
        """
        if not self._turn.acquire(blocking=False):
            raise Conflict(
                f"{handler.name} cannot be added: the lifecycle is in the process of starting or"
                " stopping; add it before, or with add_maybe_start"
            )
        try:
            if self._state is not State.NOT_STARTED:
                raise Conflict(
                    f"{handler.name} cannot be added: the lifecycle was started; use"
                    " add_maybe_start"
                )
            self._append(handler, stage)
        finally:
            self._turn.release()

    def add_maybe_start(self, handler: Handler, stage: Stage = Stage.NORMAL) -> None:
        """Add a handler at any time before the stop, and start it if its stage has begun.

        Raises:
            Conflict: The lifecycle was stopped, or is being stopped.
            Exception: What the handler's start raised; it is not added then.
        """
        if not self._turn.acquire(blocking=False):
            # A handler that is being stopped may wait for this very thread.
            self._refuse_stopped(handler)
            self._turn.acquire()
        try:
            self._refuse_stopped(handler)
            if self._state is State.RUNNING and self._stage is not None and stage <= self._stage:
                _start(handler)
            self._append(handler, stage)
        finally:
            self._turn.release()

    def start(self) -> None:
        """Start every handler.

        Raises:
            Conflict: It was started before.
            Exception: What a handler's start raised; what had started runs on, until `stop`.
        """
        with self._turn:
            with self._state_mutex:
                if self._state is not State.NOT_STARTED:
                    raise Conflict("a lifecycle starts only once")
                self._state = State.RUNNING
            for stage in Stage:
                self._stage = stage
                # What is added to this stage meanwhile was started when it was added.
                for handler in self._handlers[stage]:
                    if self._has_ended:  # the handler before this one has stopped everything
                        return
                    _start(handler)

    def stop(self) -> None:
        """Stop everything, in reverse; does nothing if it does not run.

        Raises:
            ExceptionGroup: Handlers failed to stop, the first one first; all others were stopped
                all the same.
        """
        # Before it is this thread's turn: additions that wait for theirs are refused then.
        with self._state_mutex:
            if self._state is not State.RUNNING:
                logger.info("nothing to stop: the lifecycle is %s", self._state.value)
                return
            self._state = State.STOPPED
        with self._turn:
            self._has_ended = True
            errors = [
                error
                for stage in reversed(Stage)
                for handler in reversed(self._handlers[stage])
                if (error := _stop(handler)) is not None
            ]
        if errors:
            raise ExceptionGroup("failures while stopping", errors)

    def join(self, wait: Callable[[], None]) -> None:
        """Wait by `wait`, which returns when it is time to stop, then stop. Raises as `stop`."""
        wait()
        self.stop()

    def _append(self, handler: Handler, stage: Stage) -> None:
        self._handlers[stage] = (*self._handlers[stage], handler)

    def _refuse_stopped(self, handler: Handler) -> None:
        if self._state is State.STOPPED:
            raise Conflict(f"{handler.name} cannot be added: the lifecycle was stopped")


def _start(handler: Handler) -> None:
    try:
        handler.start()
    except Exception as error:  # narrow: a note only
        error.add_note(f"while starting {handler.name}")
        raise


def _stop(handler: Handler) -> Exception | None:
    try:
        handler.stop()
    except Exception as error:  # one failure must not keep the others  # noqa: BLE001
        error.add_note(f"while stopping {handler.name}")
        logger.warning("%s could not be stopped: %r", handler.name, error)
        return error
    return None
