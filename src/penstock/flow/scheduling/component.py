"""The scheduler's record of one component.

Owns what is known of a component between two looks at it. Does not decide anything: `running` does.

A component has as many *places* as it may have concurrent tasks. A place is taken by a run, rests
until a timer frees it, or is free: then a run may begin as soon as there is work, room and a
thread.

How an event reaches it without a lock
--------------------------------------
The scheduler's thread writes `listening = True`, then asks whether there is work. Who puts work
into a queue does so first, then reads `listening`, and sends mail only if it is true. Under
CPython's global interpreter lock these reads and writes have one order that all threads agree on:
either the question comes after the work was there and finds it, or the work comes after
`listening` was set and is followed by mail. A waker that sends mail takes `listening` back first,
so a burst of events is one mail; two that read it at the same moment send two, which does no harm.
While a component runs on all its places nobody listens, so a busy flow sends no mail at all: after
a run the scheduler asks anyhow.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.lifecycle import ComponentState, Lifecycle
from penstock.flow.scheduling.statistics import ComponentStatistics

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock.flow.scheduling.activity import Chore, TriggerRun
    from penstock.flow.scheduling.schedulable import Schedulable
    from penstock.flow.scheduling.strategy import Schedule
    from penstock.mailbox import Timer


class Component:
    """State of one component; changed on the scheduler's thread, but for the two flags.

    Attributes:
        listening: It waits for an event: the next one sends mail.
        signalled: There was an event since the last run began.
        free: Places on which a run may begin.
        resting: Timers of places that are free again later.
        runs: Those under way.
        chore: The method of its life cycle that goes on or waits to.
        queued: It waits for a thread, or for one of its group.
        left_alone_until_s: No run begins before, monotonic.
        rest_until_s: The same, but an event ends it.
        rest_ms: How long it rests next when it has work and does nothing.
        alarm: Rings when it may run again although nothing happened: at the end of a yield, a rest
            or a penalty.
        fire: CRON driven: rings at the next firing time, `next_firing_ms`.
        missed: CRON driven: a firing time passed while it ran.
        served_ms: CRON driven: up to when firing times are done with, epoch ms; None: it looks at
            what comes after its start.
        fired_ms: CRON driven: the firing time served last.
        looked_turn: In which turn of the scheduler it was found to have work.
        retry: Rings when it is to be tried again; `retry_ms` is how long it waits the next time.
        abandoned: Threads that were given up and have not come back.
        waiters: Who waits for it to be stopped; `once` for its one run.
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

    def __init__(self, component_id: str, schedulable: Schedulable, schedule: Schedule) -> None:
        self.id: Final = component_id
        self.schedulable: Final = schedulable
        self.schedule = schedule
        self.life: Final = Lifecycle(component_id)
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
        """How many places are neither free, nor rest, nor are taken."""
        places = 1 if self.is_once else self.schedule.concurrent_tasks
        return max(0, places - self.free - len(self.resting) - len(self.runs))

    @property
    def is_once(self) -> bool:
        """Whether it is to run once only."""
        return self.life.state is ComponentState.RUN_ONCE

    def is_wanted(self) -> bool:
        """Say, to a run on its thread, whether it may go on."""
        return self.life.runs

    def clear_timers(self) -> None:
        """Forget what would have it run."""
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
