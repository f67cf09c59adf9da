"""Readiness check of components: whether one may be triggered now.

Owns the conditions, their order, and the timer for the next check. The functions over inputs
and outputs have the rules for sources, self-loops and funnels: does a component have work, and
is there room for its output? They are pure and take the state of the connections from the
caller. Does not own threads (`dispatcher`), periods or firing times (`run_slots`). A check uses
no thread of the pool.

Invariant: a component that is not ready has a listener on its connections, a timer, or a run
slot in use, so it is checked again when that may change. Used on the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.flow.log_context import of_component
from penstock.flow.scheduling.activity import told
from penstock.flow.scheduling.strategy import SchedulingStrategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.options import SchedulerOptions
    from penstock.mailbox.timers import MailboxTimers


_log = logging.getLogger(__name__)

# A timer that is late by at most this much is not replaced.
_SLACK_S: Final = 0.0005
# Tolerance for rounding of deadlines as floats.
_HAIR_S: Final = 1e-6

WORK: Final = "work"
ROOM: Final = "room"
TIME: Final = "time"


class Looking:
    """Checks whether components are ready.

    Args:
        timers: Timers of the scheduler's mailbox.
        clock: Clock of the mailbox.
        options: How long a component is not triggered after a check raised.
        look_at: Checks a component again, when its timer fires.
        ran: Called when the single run of a component found nothing to do.
    """

    def __init__(
        self,
        timers: MailboxTimers,
        clock: Clock,
        options: SchedulerOptions,
        look_at: Callable[[ScheduledComponent], None],
        ran: Callable[[ScheduledComponent], None],
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._options = options
        self._look_at = look_at
        self._ran = ran

    def may_run(self, component: ScheduledComponent, most: int) -> bool:
        """Return whether a run may begin now; if not, schedule another check.

        Args:
            component: The component.
            most: Maximum number of concurrent runs of it.
        """
        if not component.life.runs or not component.free or len(component.runs) >= most:
            return False
        now_s = self._clock.monotonic_s()
        if component.left_alone_until_s > now_s + _HAIR_S:
            return self._not_now(component, TIME, component.left_alone_until_s)
        # Set before the check: see `component`.
        component.listening = True
        now_ms = self._clock.now_ms()
        try:
            lacks = _lacks(component, now_ms)
            due_ms = component.schedulable.next_due_ms() if lacks is WORK else None
        except Exception as error:  # noqa: BLE001 - code of a component must not end the scheduler
            _log.warning(
                "%s: the check for work raised %s",
                component.id,
                told(error),
                extra=of_component(component.id),
            )
            until_s = now_s + self._options.administrative_yield_ms / 1000
            component.left_alone_until_s = until_s
            return self._not_now(component, TIME, until_s)
        if lacks is not None:
            component.rest_ms = 0.0
            wait_s = None if due_ms is None else now_s + max(0, due_ms - now_ms) / 1000
            return self._not_now(component, lacks, wait_s)
        if component.rest_until_s > now_s + _HAIR_S and not component.signalled:
            return self._not_now(component, TIME, component.rest_until_s)
        component.listening = False
        return True

    def _not_now(
        self, component: ScheduledComponent, waits_for: str, until_s: float | None
    ) -> bool:
        """Record why a run cannot begin, and return False.

        A timer driven or event driven run slot stays free and waits. A firing time, or the single
        run, is over.
        """
        component.waits_for = waits_for
        if component.is_once:
            component.free = 0
            component.listening = False
            self._ran(component)
        elif component.schedule.strategy is SchedulingStrategy.CRON:
            component.free = 0
            component.listening = False
            component.waits_for = TIME
        elif until_s is not None:
            self._ring_at(component, until_s)
        return False

    def _ring_at(self, component: ScheduledComponent, at_s: float) -> None:
        alarm = component.alarm
        if alarm is not None:
            if alarm.due_s <= at_s + _SLACK_S:
                return  # the check at that time computes the remaining wait
            alarm.cancel()
        wait_ms = (at_s - self._clock.monotonic_s()) * 1000
        component.alarm = self._timers.schedule_after(
            wait_ms, lambda: self._rung(component), "end of a wait"
        )

    def _rung(self, component: ScheduledComponent) -> None:
        component.alarm = None
        self._look_at(component)


def _lacks(component: ScheduledComponent, now_ms: int) -> str | None:
    """Return what a component lacks to run; None: nothing."""
    if not component.schedulable.has_work(now_ms):
        return WORK
    return None if component.schedulable.is_open() else ROOM


@dataclass(frozen=True, slots=True)
class Input:
    """Incoming connection.

    Attributes:
        available: Whether a FlowFile can be taken now; penalized and expired ones do not count.
        is_loop: Whether it comes from the component itself.
    """

    available: bool
    is_loop: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Outgoing connection; one that leads back to the component itself is a loop."""

    is_full: bool
    is_loop: bool = False


def is_source(inputs: Iterable[Input]) -> bool:
    """Return whether no other component feeds this one, so that it runs without input."""
    return all(connection.is_loop for connection in inputs)


def has_work(inputs: Sequence[Input], *, when_empty: bool = False) -> bool:
    """Return whether a trigger of a processor would find something to do.

    Args:
        inputs: Incoming connections.
        when_empty: Whether it wants to be triggered with empty inputs, too.
    """
    return when_empty or is_source(inputs) or any(connection.available for connection in inputs)


def funnel_has_work(inputs: Sequence[Input], outputs: Sequence[Output]) -> bool:
    """Return whether a trigger of a funnel would move FlowFiles; a funnel is never a source."""
    return (
        bool(outputs)
        and not is_source(inputs)
        and any(connection.available for connection in inputs)
    )


def is_open(relationships: Iterable[Sequence[Output]], *, any_is_enough: bool = False) -> bool:
    """Return whether the outputs of a component have room.

    A relationship has room if none of its connections is full. Loops do not count: otherwise a full
    loop would block forever the component that empties it.

    Args:
        relationships: Connections of each relationship, including relationships without
            connections.
        any_is_enough: Whether one relationship with room is enough; else all need room.
    """
    rooms = [
        not any(connection.is_full and not connection.is_loop for connection in connections)
        for connections in relationships
    ]
    return not rooms or (any(rooms) if any_is_enough else all(rooms))
