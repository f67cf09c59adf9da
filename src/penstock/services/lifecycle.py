"""Start the parts of a process in order, and stop them in reverse order.

Owns the order and the states; it does not know the parts.

    stage            parts
    INIT             logging
    NORMAL           stores, mailboxes, engines (the default)
    SERVER           HTTP servers: they answer only when what they need has started
    ANNOUNCEMENTS    leases: others find this process only once it answers

    NOT_STARTED --start--> RUNNING --stop--> STOPPED         (final)

Handlers start by stage, and within a stage in the order in which they were added. They stop in
exactly the reverse order of the list. A handler may be added while others start
(`add_maybe_start`): if its stage has begun, it is started at once, otherwise when its stage begins.
Only the list determines the order of stopping, not when each handler was started.

A failed start leaves everything as it is: started handlers run, the rest is not started, and the
state is RUNNING, so that the caller may `stop`, or end the process. A stop also stops handlers that
were never started, because they may have opened something before; every handler's stop must
therefore work without a start.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.errors import Conflict

logger = logging.getLogger(__name__)


class StartStage(enum.IntEnum):
    """Stage at which a handler starts; stops run in reverse."""

    INIT = 0
    NORMAL = 1
    SERVER = 2
    ANNOUNCEMENTS = 3


class ProcessState(enum.Enum):
    """State of a lifecycle."""

    NOT_STARTED = "NOT_STARTED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


def _nothing() -> None:
    """Do nothing: the default of a handler that only starts or only stops."""


@dataclass(frozen=True, slots=True, eq=False)
class LifecycleHandler:
    """A part to start and stop; `name` is for messages."""

    name: str
    start: Callable[[], None] = _nothing
    stop: Callable[[], None] = _nothing


class Lifecycle:
    """The handlers of one process; thread-safe.

    Two mutexes, because handlers run while things start and stop. The re-entrant one serializes
    starts, stops and additions, and is held while handlers run, so that a handler may add others.
    The small one guards only the state.
    """

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._state_mutex = threading.Lock()
        self._state = ProcessState.NOT_STARTED
        self._stage: StartStage | None = None
        self._has_ended = False
        # Replaced, not changed: a loop over a list does not see later additions.
        self._handlers: dict[StartStage, tuple[LifecycleHandler, ...]] = dict.fromkeys(
            StartStage, ()
        )

    @property
    def state(self) -> ProcessState:
        """Return the state."""
        return self._state

    def add_handler(self, handler: LifecycleHandler, stage: StartStage = StartStage.NORMAL) -> None:
        """Add a handler before the start.

        Raises:
            Conflict: The lifecycle was started, or another thread is starting or stopping it.
        """
        if not self._turn.acquire(blocking=False):
            raise Conflict(
                f"{handler.name} cannot be added: the lifecycle is in the process of starting or"
                " stopping; add it before, or with add_maybe_start"
            )
        try:
            if self._state is not ProcessState.NOT_STARTED:
                raise Conflict(
                    f"{handler.name} cannot be added: the lifecycle was started; use"
                    " add_maybe_start"
                )
            self._append(handler, stage)
        finally:
            self._turn.release()

    def add_maybe_start(
        self, handler: LifecycleHandler, stage: StartStage = StartStage.NORMAL
    ) -> None:
        """Add a handler at any time before the stop, and start it if its stage has begun.

        Raises:
            Conflict: The lifecycle was stopped, or is stopping.
            Exception: Raised by the handler's start; the handler is not added then.
        """
        if not self._turn.acquire(blocking=False):
            # A handler that is stopping may wait for this thread.
            self._refuse_stopped(handler)
            self._turn.acquire()
        try:
            self._refuse_stopped(handler)
            if (
                self._state is ProcessState.RUNNING
                and self._stage is not None
                and stage <= self._stage
            ):
                _start(handler)
            self._append(handler, stage)
        finally:
            self._turn.release()

    def start(self) -> None:
        """Start every handler.

        Raises:
            Conflict: It was started before.
            Exception: Raised by a handler's start; started handlers run until `stop`.
        """
        with self._turn:
            with self._state_mutex:
                if self._state is not ProcessState.NOT_STARTED:
                    raise Conflict("a lifecycle starts only once")
                self._state = ProcessState.RUNNING
            for stage in StartStage:
                self._stage = stage
                # Handlers added to this stage meanwhile were started when they were added.
                for handler in self._handlers[stage]:
                    if self._has_ended:  # the previous handler has stopped everything
                        return
                    _start(handler)

    def stop(self) -> None:
        """Stop everything, in reverse order; do nothing if it does not run.

        Raises:
            ExceptionGroup: Handlers failed to stop, in the order of the failures; all others were
                stopped nevertheless.
        """
        # Before this thread has the mutex, so that waiting additions are refused.
        with self._state_mutex:
            if self._state is not ProcessState.RUNNING:
                logger.info("nothing to stop: the lifecycle is %s", self._state.value)
                return
            self._state = ProcessState.STOPPED
        with self._turn:
            self._has_ended = True
            errors = [
                error
                for stage in reversed(StartStage)
                for handler in reversed(self._handlers[stage])
                if (error := _stop(handler)) is not None
            ]
        if errors:
            raise ExceptionGroup("failures while stopping", errors)

    def join(self, wait: Callable[[], None]) -> None:
        """Call `wait`, which returns when it is time to stop, then stop. Raises as `stop`."""
        wait()
        self.stop()

    def _append(self, handler: LifecycleHandler, stage: StartStage) -> None:
        self._handlers[stage] = (*self._handlers[stage], handler)

    def _refuse_stopped(self, handler: LifecycleHandler) -> None:
        if self._state is ProcessState.STOPPED:
            raise Conflict(f"{handler.name} cannot be added: the lifecycle was stopped")


def _start(handler: LifecycleHandler) -> None:
    try:
        handler.start()
    except Exception as error:  # narrow: a note only
        error.add_note(f"while starting {handler.name}")
        raise


def _stop(handler: LifecycleHandler) -> Exception | None:
    try:
        handler.stop()
    except Exception as error:  # one failure must not prevent the others  # noqa: BLE001
        error.add_note(f"while stopping {handler.name}")
        logger.warning("%s could not be stopped: %r", handler.name, error)
        return error
    return None
