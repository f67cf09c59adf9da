"""Lifecycle of a component: stopped, starting, running, stopping, disabled.

Owns the transitions between states, and their effects. Does not carry out the effects.

Invariants: the desired state is stored beside the state, so that a start request during a stop is
not lost. Each `Effect.BEGIN` that succeeds is followed by one `UNSCHEDULE` and one `FINISH`, unless
the threads are abandoned.

    state      start      stop        ready        failed       run ended  drained, finished
    STOPPED    STARTING   -
    STARTING   wanted     not wanted  RUNNING (1)  waits (2)
    RUNNING    -          STOPPING                              -
    RUN_ONCE   wanted     STOPPING                              STOPPING
    STOPPING   wanted     not wanted                                       STOPPED (3)
    DISABLED   refused    -

    1 RUN_ONCE if that was requested; STOPPING if a run is no longer wanted
    2 and is retried; STOPPED if a run is not wanted, or only one was
    3 and STARTING again if a run is wanted
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Sequence


class ComponentState(Enum):
    """State in the lifecycle of a component."""

    STOPPED = "stopped"
    STARTING = "starting"
    """Being validated and prepared; retried until that succeeds."""
    RUNNING = "running"
    RUN_ONCE = "run once"
    """Like running, but for one run."""
    STOPPING = "stopping"
    """No new run begins; current runs finish."""
    DISABLED = "disabled"
    """Stopped, and cannot be started."""


class Desired(Enum):
    """Desired state of a component."""

    STOPPED = "stopped"
    RUNNING = "running"
    RUN_ONCE = "run once"
    DISABLED = "disabled"


class Effect(Enum):
    """Effect of a transition; effects are carried out in order."""

    BEGIN = "validate it and prepare it"
    WAIT = "retry later"
    CANCEL_WAIT = "do not retry"
    SCHEDULE = "let runs begin"
    UNSCHEDULE = "let no run begin, and notify it"
    FINISH = "have it release its resources"
    GIVE_UP = "abandon its threads"
    SETTLED = "notify callers that wait for its end"


_NOTHING: Sequence[Effect] = ()


class ComponentLifecycle:
    """State of one component; each method is an event and returns the effects."""

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
        """Whether it does nothing, and will do nothing before the next request."""
        return self.state in (ComponentState.STOPPED, ComponentState.DISABLED)

    # Requests

    def start(self) -> Sequence[Effect]:
        """Start, or record that a start is wanted.

        Raises:
            Conflict: It is disabled.
        """
        self._refuse_disabled("start")
        self.desired = Desired.RUNNING
        return self._begin() if self.state is ComponentState.STOPPED else _NOTHING

    def run_once(self) -> Sequence[Effect]:
        """Start for one run.

        Raises:
            Conflict: It is not stopped.
        """
        self._refuse_disabled("run once")
        if self.state is not ComponentState.STOPPED:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it runs once")
        self.desired = Desired.RUN_ONCE
        return self._begin()

    def stop(self) -> Sequence[Effect]:
        """Stop, or record that a stop is wanted."""
        if self.is_at_rest:
            return _NOTHING
        self.desired = Desired.STOPPED
        if self._waits:
            self._waits = False
            self.state = ComponentState.STOPPED
            return Effect.CANCEL_WAIT, Effect.SETTLED
        return self._stop() if self.runs else _NOTHING

    def terminate(self) -> Sequence[Effect]:
        """Abandon threads that do not finish.

        Raises:
            Conflict: No stop was requested.
        """
        if self.is_at_rest:
            return _NOTHING
        if self.state is not ComponentState.STOPPING and self.desired is not Desired.STOPPED:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it is terminated")
        return Effect.GIVE_UP, *self._stopped()

    def enable(self) -> Sequence[Effect]:
        """Allow starts."""
        if self.state is ComponentState.DISABLED:
            self.state, self.desired = ComponentState.STOPPED, Desired.STOPPED
        return _NOTHING

    def disable(self) -> Sequence[Effect]:
        """Refuse starts.

        Raises:
            Conflict: It is not stopped.
        """
        if not self.is_at_rest:
            raise Conflict(f"{self._name} is {self.state.value}: stop it before it is disabled")
        self.state, self.desired = ComponentState.DISABLED, Desired.DISABLED
        return _NOTHING

    # Events

    def ready(self) -> Sequence[Effect]:
        """The component is valid and prepared."""
        if self.desired is Desired.STOPPED:
            return self._stop()
        once = self.desired is Desired.RUN_ONCE
        self.state = ComponentState.RUN_ONCE if once else ComponentState.RUNNING
        return (Effect.SCHEDULE,)

    def failed(self) -> Sequence[Effect]:
        """The component is invalid, or its preparation failed and its resources are released."""
        if self.desired is Desired.RUNNING:
            self._waits = True
            return (Effect.WAIT,)
        self.desired = Desired.STOPPED
        return self._stopped()

    def waited(self) -> Sequence[Effect]:
        """The retry delay is over, or the cause of the failure was fixed."""
        if not self._waits:
            return _NOTHING
        self._waits = False
        return (Effect.BEGIN,)

    def ran(self) -> Sequence[Effect]:
        """A run ended, or the single run found nothing to do."""
        if self.state is not ComponentState.RUN_ONCE:
            return _NOTHING
        if self.desired is Desired.RUN_ONCE:
            self.desired = Desired.STOPPED
        return self._stop()

    def drained(self) -> Sequence[Effect]:
        """No new run begins, and none is running."""
        return (Effect.FINISH,)

    def finished(self) -> Sequence[Effect]:
        """The component has released its resources."""
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
