"""Scheduling state of one component.

Owns the state of a component between two readiness checks. Does not make decisions: `running` does.

A component has one *run slot* for each concurrent task. A slot is used by a run, waits for a timer,
or is free: then a run may begin as soon as there is work, room and a thread.

How an event reaches it without a lock
--------------------------------------
The scheduler's thread sets `listening` to True, then checks for work. A thread that puts work into
a queue does so first, then reads `listening`, and sends mail only if it is true. Under CPython's
global interpreter lock all threads see these reads and writes in one order. Therefore either the
check comes after the work arrived and finds it, or the work arrives after `listening` was set and
is followed by mail. A thread that sends mail resets `listening` first, so that a burst of events
sends one mail. If two threads read it at the same moment, two mails are sent, which does no harm.
While a component uses all its run slots, `listening` is False, so that a busy flow sends no mail:
the scheduler checks for work after each run anyway.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.component_lifecycle import ComponentLifecycle, ComponentState
from penstock.flow.scheduling.statistics import ComponentStatistics

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.flow.scheduling.activity import Chore, TriggerRun
    from penstock.flow.scheduling.schedulable import Schedulable
    from penstock.flow.scheduling.strategy import ComponentSchedule
    from penstock.mailbox import Timer


class ScheduledComponent:
    """State of one component; changed on the scheduler's thread, except for two flags.

    Attributes:
        listening: The component waits for an event; the next event sends mail.
        signalled: An event occurred since the last run began.
        free: Free run slots.
        resting: Timers of run slots that become free later.
        runs: Running runs.
        chore: Lifecycle method that is running or waits for a thread.
        queued: It waits for a thread, or for the thread limit of a group.
        left_alone_until_s: No run begins before this time, monotonic.
        rest_until_s: The same, but an event ends the wait.
        rest_ms: Length of the next wait after a run that did nothing although there was work.
        alarm: Timer for the next readiness check without an event: at the end of a yield, a wait or
            a penalty.
        fire: CRON driven: timer for the next firing time, `next_firing_ms`.
        missed: CRON driven: a firing time passed during a run.
        served_ms: CRON driven: time up to which firing times are handled, epoch ms; None: only
            those after the start count.
        fired_ms: CRON driven: the firing time handled last.
        looked_turn: Turn of the scheduler in which the last readiness check found work.
        retry: Timer for the next attempt to start; `retry_ms` is the delay after that.
        abandoned: Abandoned threads that have not returned.
        waiters: Futures that are done when it is stopped; `once`: when its single run ended.
    """

    __slots__ = (
        "abandoned",
        "alarm",
        "chore",
        "failures",
        "fire",
        "fired_ms",
        "free",
        "id",
        "idle_runs",
        "left_alone_until_s",
        "life",
        "listening",
        "looked_turn",
        "missed",
        "next_firing_ms",
        "once",
        "problems",
        "queued",
        "rest_ms",
        "rest_until_s",
        "resting",
        "retry",
        "retry_ms",
        "run_ns",
        "runs",
        "runs_ended",
        "schedulable",
        "schedule",
        "served_ms",
        "signalled",
        "waiters",
        "waits_for",
    )

    def __init__(
        self, component_id: str, schedulable: Schedulable, schedule: ComponentSchedule
    ) -> None:
        self.id: Final = component_id
        self.schedulable: Final = schedulable
        self.schedule = schedule
        self.life: Final = ComponentLifecycle(component_id)
        self.listening = False
        self.signalled = False
        self.free = 0
        self.resting: deque[Timer] = deque()
        self.runs: set[TriggerRun] = set()
        self.chore: Chore | None = None
        self.queued = False
        self.left_alone_until_s = 0.0
        self.rest_until_s = 0.0
        self.rest_ms = 0.0
        self.alarm: Timer | None = None
        self.fire: Timer | None = None
        self.retry: Timer | None = None
        self.next_firing_ms: int | None = None
        self.served_ms = schedule.last_fired_ms
        self.missed = False
        self.abandoned = 0
        self.retry_ms = 0.0
        self.looked_turn = 0
        self.fired_ms = schedule.last_fired_ms
        self.problems: tuple[str, ...] = ()
        self.waiters: list[Future[None]] = []
        self.once: Future[None] | None = None
        self.waits_for = ""
        self.runs_ended = 0
        self.idle_runs = 0
        self.failures = 0
        self.run_ns = 0

    @property
    def unused_places(self) -> int:
        """Number of run slots that are neither free, waiting nor used."""
        places = 1 if self.is_once else self.schedule.concurrent_tasks
        return max(0, places - self.free - len(self.resting) - len(self.runs))

    @property
    def is_once(self) -> bool:
        """Whether it runs only once."""
        return self.life.state is ComponentState.RUN_ONCE

    def is_wanted(self) -> bool:
        """Return whether a run may continue; called on the run's thread."""
        return self.life.runs

    def clear_timers(self) -> None:
        """Cancel the timers that would trigger it."""
        for timer in (*self.resting, self.alarm, self.fire):
            if timer is not None:
                timer.cancel()
        self.resting.clear()
        self.alarm = self.fire = None
        self.next_firing_ms = None
        self.free = 0
        self.missed = False
        self.rest_ms = self.rest_until_s = 0.0

    def statistics(self, now_ms: int, now_s: float) -> ComponentStatistics:
        """Return a snapshot."""
        oldest_s = min([run.since_s for run in self.runs]) if self.runs else now_s
        if self.chore is not None:
            oldest_s = min(oldest_s, self.chore.since_s)
        left_ms = round((self.left_alone_until_s - now_s) * 1000)
        next_ms = self.next_firing_ms
        if next_ms is None and self.resting:
            due_s = min(timer.due_s for timer in self.resting)
            next_ms = now_ms + round((due_s - now_s) * 1000)
        return ComponentStatistics(
            id=self.id,
            state=self.life.state,
            desired=self.life.desired,
            active_tasks=len(self.runs)
            + (self.chore is not None and self.chore.thread is not None),
            terminated_tasks=self.abandoned,
            runs=self.runs_ended,
            idle_runs=self.idle_runs,
            failures=self.failures,
            run_ns=self.run_ns,
            longest_active_ms=round((now_s - oldest_s) * 1000),
            last_fired_ms=self.fired_ms,
            served_ms=self.served_ms if self.life.runs else None,
            next_firing_ms=next_ms,
            yielded_until_ms=now_ms + left_ms if left_ms > 0 else None,
            waits_for=self.waits_for if self.life.runs else "",
            problems=self.problems,
        )
