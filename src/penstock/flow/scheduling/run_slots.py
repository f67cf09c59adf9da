"""Run slots of components: when each is free for a run.

Owns periods and firing times, and reports when they are over. Does not own whether a run begins in
a free slot (`component_readiness`, `dispatcher`).

Invariant: a run slot is free, waits for a timer, or is used by a run. The slot of a CRON driven
component is free from a firing time until a run begins or there is nothing to do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.flow.log_context import of_component
from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent
from penstock.flow.scheduling.strategy import MissedRunPolicy, SchedulingStrategy, next_firing_ms

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.scheduler_inbox import SchedulerInbox

_log = logging.getLogger(__name__)

# A firing time is handled at most this long before it.
_EARLY_MAX_MS: Final = 400


@dataclass(frozen=True, slots=True, eq=False)
class PeriodEnded(SchedulerEvent):
    """The period of a timer driven component is over, for one of its run slots."""

    description: ClassVar[str] = "end of a period"
    component: ScheduledComponent


@dataclass(frozen=True, slots=True, eq=False)
class CronTimeDue(SchedulerEvent):
    """A firing time of a CRON driven component is due."""

    description: ClassVar[str] = "firing time"
    component: ScheduledComponent
    due_ms: int


class RunSlots:
    """Frees run slots when they are due.

    Args:
        inbox: Inbox of the scheduler.
        clock: Clock of its mailbox.
    """

    def __init__(self, inbox: SchedulerInbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock

    def open(self, component: ScheduledComponent) -> None:
        """Free the run slots of a started component, or set the timer for its first firing time."""
        if component.schedule.strategy is SchedulingStrategy.CRON and not component.state.is_once:
            component.served_ms = self._served_ms(component)
            self._set_fire(component)
        else:
            component.free = component.unused_slots

    def free_one(self, component: ScheduledComponent) -> None:
        """Free the slot of a run that ended, now or when its period is over."""
        if not component.unused_slots:
            return
        schedule = component.schedule
        if schedule.strategy is SchedulingStrategy.CRON:
            component.free += component.missed
            component.missed = False
        elif schedule.strategy is SchedulingStrategy.TIMER and schedule.period_ns:
            timer = self._inbox.post_after(schedule.period_ms, PeriodEnded(component))
            component.resting.append(timer)
        else:
            component.free += 1

    def period_ended(self, component: ScheduledComponent) -> None:
        """Free the slot whose period is over."""
        # All periods have the same length, so slots become free in the order in which they began to
        # wait.
        component.resting.popleft()
        component.free += 1

    def cron_time_due(self, component: ScheduledComponent, due_ms: int) -> None:
        """Free the slots of a CRON driven component, and set the timer for its next firing time."""
        # Firing times up to now are handled, too: those before a late timer count as one.
        component.served_ms = max(due_ms, self._clock.now_ms())
        component.fired_ms = due_ms
        if component.unused_slots:
            component.free += component.unused_slots
        elif not component.free:
            component.missed = component.schedule.missed is MissedRunPolicy.ONCE
        self._set_fire(component)

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
        component.fire = self._inbox.post_at(due_ms, CronTimeDue(component, due_ms))
