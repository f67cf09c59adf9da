"""Lifecycle of a component: stopped, starting, running, stopping, disabled.

Owns the states of a component, and the table of transitions with their effects. Does not carry out
the effects (`lifecycle_driver`).

Invariants: the desired state is part of the state, so that a start request during a stop is not
lost. Each `Effect.BEGIN` that succeeds is followed by one `UNSCHEDULE` and one `FINISH`, unless
the threads are abandoned.
"""

from __future__ import annotations

from typing import Final

from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Row, StateMachine, Symbol, go


class ComponentState(Symbol):
    """State in the lifecycle of a component, as users see it."""

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


class DesiredState(Symbol):
    """Desired state of a component."""

    STOPPED = "stopped"
    RUNNING = "running"
    RUN_ONCE = "run once"
    DISABLED = "disabled"


class LifecycleState(Symbol):
    """State of the machine: the state that users see, and the desired state.

    Attributes:
        component_state: State that users see.
        desired: Desired state.
        runs: Whether runs may begin.
        is_once: Whether only one run may begin.
        is_stopping: Whether current runs finish and no new one begins.
        is_at_rest: Whether the component does nothing, and will do nothing before the next request.
    """

    STOPPED = "stopped", ComponentState.STOPPED, DesiredState.STOPPED
    DISABLED = "disabled", ComponentState.DISABLED, DesiredState.DISABLED
    STARTING = "starting", ComponentState.STARTING, DesiredState.RUNNING
    STARTING_ONCE = "starting for one run", ComponentState.STARTING, DesiredState.RUN_ONCE
    START_CANCELLED = "starting, then stops", ComponentState.STARTING, DesiredState.STOPPED
    RETRYING = "waiting to retry its start", ComponentState.STARTING, DesiredState.RUNNING
    RUNNING = "running", ComponentState.RUNNING, DesiredState.RUNNING
    RUN_ONCE = "run once", ComponentState.RUN_ONCE, DesiredState.RUN_ONCE
    RUN_ONCE_THEN_START = "run once, then starts", ComponentState.RUN_ONCE, DesiredState.RUNNING
    STOPPING = "stopping", ComponentState.STOPPING, DesiredState.STOPPED
    RESTARTING = "stopping, then starts", ComponentState.STOPPING, DesiredState.RUNNING

    def __init__(self, text: str, component_state: ComponentState, desired: DesiredState) -> None:
        del text  # makes the value unique
        self.component_state = component_state
        self.desired = desired
        self.is_once = component_state is ComponentState.RUN_ONCE
        self.runs = self.is_once or component_state is ComponentState.RUNNING
        self.is_stopping = component_state is ComponentState.STOPPING
        self.is_at_rest = component_state in (ComponentState.STOPPED, ComponentState.DISABLED)


class ComponentEvent(Symbol):
    """Event in the lifecycle of a component: first the requests, then reports of its owner."""

    START = "start requested"
    RUN_ONCE = "single run requested"
    STOP = "stop requested"
    TERMINATE = "termination requested"
    ENABLE = "enable requested"
    DISABLE = "disable requested"
    READY = "valid and prepared"
    FAILED = "invalid, or its preparation failed and its resources are released"
    RETRY_DUE = "retry delay over, or the cause of the failure fixed"
    SINGLE_RUN_ENDED = "single run ended, or found nothing to do"
    DRAINED = "notified of the stop, and no run is active"
    FINISHED = "resources released"


class Effect(Symbol):
    """Effect of a transition; effects are carried out in order."""

    BEGIN = "validate it and prepare it"
    WAIT = "retry later"
    CANCEL_WAIT = "do not retry"
    SCHEDULE = "let runs begin"
    UNSCHEDULE = "let no run begin, and notify it"
    FINISH = "have it release its resources"
    ABANDON = "abandon its threads"
    NOTIFY_WAITING = "notify callers that wait for its end"


_S, _E = LifecycleState, ComponentEvent

# A refusal's reason is the remedy; the caller puts the component and its state in front of it.
COMPONENT_MACHINE: Final = StateMachine[LifecycleState, ComponentEvent, Effect](
    LifecycleState,
    {
        _E.START: Row(
            {
                _S.STOPPED: go(_S.STARTING, Effect.BEGIN),
                _S.STARTING_ONCE: go(_S.STARTING),
                _S.START_CANCELLED: go(_S.STARTING),
                _S.RUN_ONCE: go(_S.RUN_ONCE_THEN_START),
                _S.STOPPING: go(_S.RESTARTING),
                _S.DISABLED: Refusal("enable it, then start"),
            },
            otherwise=IGNORED,
        ),
        _E.RUN_ONCE: Row(
            {
                _S.STOPPED: go(_S.STARTING_ONCE, Effect.BEGIN),
                _S.DISABLED: Refusal("enable it, then run once"),
            },
            otherwise=Refusal("stop it before it runs once"),
        ),
        _E.STOP: Row(
            {
                _S.STARTING: go(_S.START_CANCELLED),
                _S.STARTING_ONCE: go(_S.START_CANCELLED),
                _S.RETRYING: go(_S.STOPPED, Effect.CANCEL_WAIT, Effect.NOTIFY_WAITING),
                _S.RUNNING: go(_S.STOPPING, Effect.UNSCHEDULE),
                _S.RUN_ONCE: go(_S.STOPPING, Effect.UNSCHEDULE),
                _S.RUN_ONCE_THEN_START: go(_S.STOPPING, Effect.UNSCHEDULE),
                _S.RESTARTING: go(_S.STOPPING),
            },
            otherwise=IGNORED,
        ),
        _E.TERMINATE: Row(
            {
                _S.STOPPED: IGNORED,
                _S.DISABLED: IGNORED,
                _S.START_CANCELLED: go(_S.STOPPED, Effect.ABANDON, Effect.NOTIFY_WAITING),
                _S.STOPPING: go(_S.STOPPED, Effect.ABANDON, Effect.NOTIFY_WAITING),
                _S.RESTARTING: go(_S.STARTING, Effect.ABANDON, Effect.NOTIFY_WAITING, Effect.BEGIN),
            },
            otherwise=Refusal("stop it before it is terminated"),
        ),
        _E.ENABLE: Row({_S.DISABLED: go(_S.STOPPED)}, otherwise=IGNORED),
        _E.DISABLE: Row(
            {_S.STOPPED: go(_S.DISABLED), _S.DISABLED: IGNORED},
            otherwise=Refusal("stop it before it is disabled"),
        ),
        _E.READY: Row(
            {
                _S.STARTING: go(_S.RUNNING, Effect.SCHEDULE),
                _S.STARTING_ONCE: go(_S.RUN_ONCE, Effect.SCHEDULE),
                _S.START_CANCELLED: go(_S.STOPPING, Effect.UNSCHEDULE),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.FAILED: Row(
            {
                _S.STARTING: go(_S.RETRYING, Effect.WAIT),
                _S.STARTING_ONCE: go(_S.STOPPED, Effect.NOTIFY_WAITING),
                _S.START_CANCELLED: go(_S.STOPPED, Effect.NOTIFY_WAITING),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.RETRY_DUE: Row({_S.RETRYING: go(_S.STARTING, Effect.BEGIN)}, otherwise=IMPOSSIBLE),
        _E.SINGLE_RUN_ENDED: Row(
            {
                _S.RUN_ONCE: go(_S.STOPPING, Effect.UNSCHEDULE),
                _S.RUN_ONCE_THEN_START: go(_S.RESTARTING, Effect.UNSCHEDULE),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.DRAINED: Row(
            {
                _S.STOPPING: go(_S.STOPPING, Effect.FINISH),
                _S.RESTARTING: go(_S.RESTARTING, Effect.FINISH),
            },
            otherwise=IMPOSSIBLE,
        ),
        _E.FINISHED: Row(
            {
                _S.STOPPING: go(_S.STOPPED, Effect.NOTIFY_WAITING),
                _S.RESTARTING: go(_S.STARTING, Effect.NOTIFY_WAITING, Effect.BEGIN),
            },
            otherwise=IMPOSSIBLE,
        ),
    },
    initial=[LifecycleState.STOPPED],
)
