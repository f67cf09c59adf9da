"""The places of components: when each is free for a run.

Owns periods and firing times. Does not own whether a run begins in a place that is free (`looking`,
`running`).

Invariant: a place is free, rests until a timer rings, or has a run in it; that of a CRON driven
component is free from a firing time until a run was begun or there was nothing to do.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.flow.logrecords import of_component
from penstock.flow.scheduling.strategy import Missed, Strategy, next_firing_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import Component
    from penstock.mailbox.timers import MailboxTimers

_log = logging.getLogger(__name__)

# A firing time is served so much before it at most.
_EARLY_MAX_MS: Final = 400


class Places:
    """Frees places when their time has come.

    Args:
        timers: Of the scheduler's mailbox.
        clock: The one of the mailbox.
        look_at: Looks at a component whose place came free.
    """

    def __init__(
        self, timers: MailboxTimers, clock: Clock, look_at: Callable[[Component], None]
    ) -> None:
        self._timers = timers
        self._clock = clock
        self._look_at = look_at

    def open(self, component: Component) -> None:
        """Free the places of a component that begins, or make its first firing time ring."""
        if component.schedule.strategy is Strategy.CRON and not component.is_once:
            component.served_ms = self._served_ms(component)
            self._set_fire(component)
        else:
            component.free = component.unused_places

    def free_one(self, component: Component) -> None:
        """Free the place of a run that ended, now or when its period is over."""
        if not component.unused_places:
            return
        schedule = component.schedule
        if schedule.strategy is Strategy.CRON:
            component.free += component.missed
            component.missed = False
        elif schedule.strategy is Strategy.TIMER and schedule.period_ns:
            timer = self._timers.schedule_after(
                schedule.period_ms, lambda: self._rested(component), "end of a period"
            )
            component.resting.append(timer)
        else:
            component.free += 1

    def clock_was_set(self, component: Component) -> None:
        """Have a firing time ring by the clock as it is now."""
        if component.fire is not None:
            component.fire.cancel()
            component.served_ms = self._served_ms(component)
            self._set_fire(component)

    def _served_ms(self, component: Component) -> int:
        """Return up to when firing times are done with, as the clock is now."""
        now_ms, served_ms = self._clock.now_ms(), component.served_ms
        # After a clock was set back, what lies ahead comes again; left out, it would be silent for
        # as long. A timer that rang early is ahead by less.
        if served_ms is None or served_ms > now_ms + _EARLY_MAX_MS:
            return now_ms
        return served_ms

    def _rested(self, component: Component) -> None:
        # Periods are all of one length, so places come free in the order in which they rest.
        component.resting.popleft()
        component.free += 1
        self._look_at(component)

    def _set_fire(self, component: Component) -> None:
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

    def _fired(self, component: Component, due_ms: int) -> None:
        # Served up to now, too: those that passed before a late timer are one firing.
        component.served_ms = max(due_ms, self._clock.now_ms())
        component.fired_ms = due_ms
        if component.unused_places:
            component.free += component.unused_places
        elif not component.free:
            component.missed = component.schedule.missed is Missed.ONCE
        self._set_fire(component)
        self._look_at(component)
