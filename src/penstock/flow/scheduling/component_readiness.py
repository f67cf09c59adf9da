"""Readiness check of a component: whether it may be triggered now, and when to check it again.

Owns the conditions and their order. Does not own threads (`dispatcher`), periods or firing times
(`run_slots`), nor timers. A check uses no thread of the pool.

Conditions, in order: the state lets runs begin, and a run slot is free; the component does not
yield; it has work; its outputs have room; it does not rest after a run that did nothing. The
component waits for the first one that is not met.

Invariant: a component that is not ready has a listener on its connections, a time of the next
check, or a run slot in use, so it is checked again when that may change. Used on the scheduler's
thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.flow.errors import error_text
from penstock.flow.log_context import of_component

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent

_log = logging.getLogger(__name__)

# Tolerance for rounding of deadlines as floats.
_HAIR_S: Final = 1e-6

WORK: Final = "work"
ROOM: Final = "room"
TIME: Final = "time"


@dataclass(frozen=True, slots=True, eq=False)
class ReadinessVerdict:
    """Result of a readiness check.

    Attributes:
        waits_for: Work, room or time, if the component waits for it; empty if it is ready or busy.
        check_at_s: When to check it again, monotonic; None: after the next event.
    """

    waits_for: str = ""
    check_at_s: float | None = None


READY: Final = ReadinessVerdict()
"""A run may begin now."""
BUSY: Final = ReadinessVerdict()
"""No run may begin in its state, or all of its run slots are in use."""


def check_readiness(
    component: ScheduledComponent, most: int, clock: Clock, error_yield_ms: int
) -> ReadinessVerdict:
    """Return whether a run may begin now; an event is reported from now on if it may not.

    Args:
        component: The component.
        most: Maximum number of concurrent runs of it.
        clock: Clock of the scheduler's mailbox.
        error_yield_ms: How long the component yields after its check for work raised.
    """
    if not component.state.runs or not component.free or len(component.runs) >= most:
        return BUSY
    now_s = clock.monotonic_s()
    if component.yields_until_s > now_s + _HAIR_S:
        return ReadinessVerdict(TIME, component.yields_until_s)
    # Set before the check: see `component`.
    component.listening = True
    now_ms = clock.now_ms()
    try:
        lacks = _lacks(component, now_ms)
        due_ms = component.schedulable.next_due_ms() if lacks is WORK else None
    except Exception as error:  # noqa: BLE001 - code of a component must not end the scheduler
        _log.warning(
            "%s: the check for work raised %s",
            component.id,
            error_text(error),
            extra=of_component(component.id),
        )
        component.yields_until_s = now_s + error_yield_ms / 1000
        return ReadinessVerdict(TIME, component.yields_until_s)
    if lacks is not None:
        component.idle_streak = 0
        return ReadinessVerdict(
            lacks, None if due_ms is None else now_s + max(0, due_ms - now_ms) / 1000
        )
    if component.rest_until_s > now_s + _HAIR_S and not component.signalled:
        return ReadinessVerdict(TIME, component.rest_until_s)
    component.listening = False
    return READY


def _lacks(component: ScheduledComponent, now_ms: int) -> str | None:
    """Return the reason why a component cannot run; None if it can."""
    if not component.schedulable.has_work(now_ms):
        return WORK
    return None if component.schedulable.is_open() else ROOM
