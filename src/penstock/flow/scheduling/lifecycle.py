"""The life of a component: stopped, starting, running, stopping, disabled.

Owns which state follows on what, and what must be done then; does none of it.

Invariants: what is wanted is remembered beside the state, so a start that comes while it stops is
not lost; each `Effect.BEGIN` that succeeds is followed by one `UNSCHEDULE` and one `FINISH`, unless
the threads are given up.

    state      start      stop        ready        failed       run ended  drained, finished
    STOPPED    STARTING   -
    STARTING   wanted     not wanted  RUNNING (1)  waits (2)
    RUNNING    -          STOPPING                              -
    RUN_ONCE   wanted     STOPPING                              STOPPING
    STOPPING   wanted     not wanted                                       STOPPED (3)
    DISABLED   refused    -

    1 RUN_ONCE if that was asked for; STOPPING if it is not wanted any more
    2 and is tried again; STOPPED if it is not wanted, or was to run once
    3 and STARTING again if it is wanted
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence


class ComponentState(Enum):
    """Where a component is in its life."""

    STOPPED = "stopped"
    STARTING = "starting"
    """Is validated and made ready; tried again for as long as that fails."""
    RUNNING = "running"
    RUN_ONCE = "run once"
    """As running, for one run."""
    STOPPING = "stopping"
    """No run begins; those under way end."""
    DISABLED = "disabled"
    """Stopped, and cannot be started."""


class Desired(Enum):
    """Where a component is to go."""

    STOPPED = "stopped"
    RUNNING = "running"
    RUN_ONCE = "run once"
    DISABLED = "disabled"


class Effect(Enum):
    """What is to be done after a transition, in order."""

    BEGIN = "validate it and make it ready"
    WAIT = "try again later"
    CANCEL_WAIT = "do not try again"
    SCHEDULE = "let runs begin"
    UNSCHEDULE = "let no run begin, and tell it so"
    FINISH = "have it let go of everything"
    GIVE_UP = "give its threads up"
    SETTLED = "tell who waits for its end"


_NOTHING: Sequence[Effect] = ()


class Lifecycle:
    """The state of one component; each method is a thing that happens, and returns what to do."""

    __slots__ = ("_name", "_waits", "desired", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self._waits = False
        self.state = ComponentState.STOPPED
        self.desired = Desired.STOPPED

    @property
    def runs(self) -> bool:
        """Whether runs may begin."""
        return self.state is ComponentState.RUNNING or self.state is ComponentState.RUN_ONCE

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing of it is under way, nor will be before somebody asks."""
        return self.state in (ComponentState.STOPPED, ComponentState.DISABLED)

    # What people ask for

    def start(self) -> Sequence[Effect]:
        """Begin, or remember that it is wanted.

        Raises:
            Conflict: It is disabled.
        """
        self._refuse_disabled("start")
        self.desired = Desired.RUNNING
        return self._begin() if self.state is ComponentState.STOPPED else _NOTHING

    def run_once(self) -> Sequence[Effect]:
        """Begin, for one run.

        Raises:
            Conflict: It is not stopped.
        """
        self._refuse_disabled("run once")
        if self.state is not ComponentState.STOPPED:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it runs once")
        self.desired = Desired.RUN_ONCE
        return self._begin()

    def stop(self) -> Sequence[Effect]:
        """End, or remember that it is not wanted."""
        if self.is_at_rest:
            return _NOTHING
        self.desired = Desired.STOPPED
        if self._waits:
            self._waits = False
            self.state = ComponentState.STOPPED
            return Effect.CANCEL_WAIT, Effect.SETTLED
        return self._stop() if self.runs else _NOTHING

    def terminate(self) -> Sequence[Effect]:
        """Give up what does not end.

        Raises:
            Conflict: It was not told to stop.
        """
        if self.is_at_rest:
            return _NOTHING
        if self.state is not ComponentState.STOPPING and self.desired is not Desired.STOPPED:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it is terminated")
        return Effect.GIVE_UP, *self._stopped()

    def enable(self) -> Sequence[Effect]:
        """Let it be started."""
        if self.state is ComponentState.DISABLED:
            self.state, self.desired = ComponentState.STOPPED, Desired.STOPPED
        return _NOTHING

    def disable(self) -> Sequence[Effect]:
        """Keep it from being started.

        Raises:
            Conflict: It is not stopped.
        """
        if not self.is_at_rest:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it is disabled")
        self.state, self.desired = ComponentState.DISABLED, Desired.DISABLED
        return _NOTHING

    # What happens to it

    def ready(self) -> Sequence[Effect]:
        """It is valid and ready."""
        if self.desired is Desired.STOPPED:
            return self._stop()
        once = self.desired is Desired.RUN_ONCE
        self.state = ComponentState.RUN_ONCE if once else ComponentState.RUNNING
        return (Effect.SCHEDULE,)

    def failed(self) -> Sequence[Effect]:
        """It is not valid, or could not be made ready and has let go of everything."""
        if self.desired is Desired.RUNNING:
            self._waits = True
            return (Effect.WAIT,)
        self.desired = Desired.STOPPED
        return self._stopped()

    def waited(self) -> Sequence[Effect]:
        """It is time to try again, or somebody mended it."""
        if not self._waits:
            return _NOTHING
        self._waits = False
        return (Effect.BEGIN,)

    def ran(self) -> Sequence[Effect]:
        """A run ended, or the one run found nothing to do."""
        if self.state is not ComponentState.RUN_ONCE:
            return _NOTHING
        if self.desired is Desired.RUN_ONCE:
            self.desired = Desired.STOPPED
        return self._stop()

    def drained(self) -> Sequence[Effect]:
        """It was told that no run begins, and none is under way."""
        return (Effect.FINISH,)

    def finished(self) -> Sequence[Effect]:
        """It has let go of everything."""
        return self._stopped()

    def _begin(self) -> Sequence[Effect]:
        self.state = ComponentState.STARTING
        return (Effect.BEGIN,)

    def _stop(self) -> Sequence[Effect]:
        self.state = ComponentState.STOPPING
        return (Effect.UNSCHEDULE,)

    def _stopped(self) -> Sequence[Effect]:
        self._waits = False
        self.state = ComponentState.STOPPED
        if self.desired is Desired.RUNNING:
            return Effect.SETTLED, *self._begin()
        return (Effect.SETTLED,)

    def _refuse_disabled(self, what: str) -> None:
        if self.state is ComponentState.DISABLED:
            raise Conflict(f"{self._name} is disabled: enable it, then {what}")
