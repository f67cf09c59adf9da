"""Run slots of components: when each is free for a run.

Owns periods and firing times. Does not own whether a run begins in a free slot (`looking`,
`running`).

Invariant: a run slot is free, waits for a timer, or is used by a run. The slot of a CRON driven
component is free from a firing time until a run begins or there is nothing to do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.flow.log_context import of_component
from penstock.flow.scheduling.strategy import Missed, SchedulingStrategy, next_firing_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.mailbox.timers import MailboxTimers

_log = logging.getLogger(__name__)

# A firing time is handled at most this long before it.
_EARLY_MAX_MS: Final = 400


class RunSlots:
    """Frees run slots when they are due.

    Args:
        timers: Timers of the scheduler's mailbox.
        clock: Clock of the mailbox.
        look_at: Checks a component whose slot became free.
    """

    def __init__(
        self, timers: MailboxTimers, clock: Clock, look_at: Callable[[ScheduledComponent], None]
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._look_at = look_at

    def open(self, component: ScheduledComponent) -> None:
        """Free the run slots of a started component, or set the timer for its first firing time."""
        if component.schedule.strategy is SchedulingStrategy.CRON and not component.is_once:
            component.served_ms = self._served_ms(component)
            self._set_fire(component)
        else:
            component.free = component.unused_places

    def free_one(self, component: ScheduledComponent) -> None:
        """Free the slot of a run that ended, now or when its period is over."""
        if not component.unused_places:
            return
        schedule = component.schedule
        if schedule.strategy is SchedulingStrategy.CRON:
            component.free += component.missed
            component.missed = False
        elif schedule.strategy is SchedulingStrategy.TIMER and schedule.period_ns:
            timer = self._timers.schedule_after(
                schedule.period_ms, lambda: self._rested(component), "end of a period"
            )
            component.resting.append(timer)
        else:
            component.free += 1

    def clock_was_set(self, component: ScheduledComponent) -> None:
        """Set the timer of a firing time by the current wall clock."""
        if component.fire is not None:
            component.fire.cancel()
            component.served_ms = self._served_ms(component)
            self._set_fire(component)

    def _served_ms(self, component: ScheduledComponent) -> int:
        """Return the time up to which firing times are handled, by the current wall clock."""
        now_ms, served_ms = self._clock.now_ms(), component.served_ms
        # After the clock was set back, future times repeat. Skipping them would silence the
        # schedule for that long. A timer that fired early is ahead by less.
        if served_ms is None or served_ms > now_ms + _EARLY_MAX_MS:
            return now_ms
        return served_ms

    def _rested(self, component: ScheduledComponent) -> None:
        # All periods have the same length, so slots become free in the order in which they began to
        # wait.
        component.resting.popleft()
        component.free += 1
        self._look_at(component)

    def _set_fire(self, component: ScheduledComponent) -> None:
        due_ms = next_firing_ms(component.schedule, self._clock.now_ms(), component.served_ms)
        component.next_firing_ms = due_ms
        component.fire = None
        if due_ms is None:
            _log.warning(
                "%s: %s never fires again",
                component.id,
                component.schedule.cron,
                extra=of_component(component.id),
            )
            return
        component.fire = self._timers.schedule_at(
            due_ms, lambda: self._fired(component, due_ms), "firing time"
        )

    def _fired(self, component: ScheduledComponent, due_ms: int) -> None:
        # Firing times up to now are handled, too: those before a late timer count as one.
        component.served_ms = max(due_ms, self._clock.now_ms())
        component.fired_ms = due_ms
        if component.unused_places:
            component.free += component.unused_places
        elif not component.free:
            component.missed = component.schedule.missed is Missed.ONCE
        self._set_fire(component)
        self._look_at(component)
