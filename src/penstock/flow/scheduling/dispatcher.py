"""Dispatcher that starts the runs of components that have work, room and a free run slot.

Owns when a run begins, the consequences of its end, and the order of components that wait for a
thread. `ReadyQueue` is pure: it serves components round robin, one run at a time, so that a
component with many tasks does not overtake the others, and applies the limits of process groups.
Does not own whether a component is enabled (`lifecycle_driver`), the readiness check
(`component_readiness`) or the run slots (`run_slots`).

Nothing is polled. A component is checked when an event wakes it, when one of its runs ends, and
when a timer fires: its period, its CRON expression, or the end of a yield, a rest or the first
penalty in its inputs.

Threading: everything happens on the scheduler's thread, except for the runs, whose ends arrive
as events. Invariants: a component waits in one place at most. `ReadyQueue.ended` is called once
for each component that `take` returned. A component that is stopped while it waits is still taken,
and then skipped.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.rate_limited_log import RateLimit, with_left_out
from penstock.flow.errors import ProcessError, Terminated, error_text
from penstock.flow.log_context import of_component
from penstock.flow.scheduling.component import RunEnded, TriggerRun
from penstock.flow.scheduling.component_lifecycle import LifecycleState
from penstock.flow.scheduling.component_protocol import NOTHING_DONE, RunOutcome, TimedRun
from penstock.flow.scheduling.component_readiness import (
    BUSY,
    READY,
    TIME,
    ReadinessVerdict,
    check_readiness,
)
from penstock.flow.scheduling.run_slots import RunSlots
from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent
from penstock.flow.scheduling.strategy import SchedulingStrategy

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.scheduler_inbox import SchedulerInbox
    from penstock.flow.scheduling.strategy import ComponentSchedule


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """Limits and delays of the scheduler.

    Attributes:
        threads: Maximum number of concurrent runs.
        component_threads: Maximum number of concurrent runs of one component; 0: one less than
            `threads`, so that no component can use all of them.
        lifecycle_threads: Maximum number of concurrent lifecycle methods. They have their own
            threads, so that stuck runs do not prevent stops, and starts do not delay runs.
        administrative_yield_ms: How long a component is not triggered after an unexpected
            exception.
        start_limit_ms: Maximum duration of a start; then its thread is abandoned.
        start_retry_ms: Delay before a failed start is retried.
        invalid_retry_ms: The same for an invalid component; doubles up to `start_retry_ms`.
        rest_ms: How long a component is not triggered after a run that did nothing although there
            was work; doubles up to `rest_max_ms`. An event ends the wait.
        rest_max_ms: Maximum of that delay.
        repeat_ms: How long a run may begin further sessions, if the schedule has no pause between
            two runs; 0: each session is a run. Other components wait this much longer for a thread.
    """

    threads: int = 10
    component_threads: int = 0
    lifecycle_threads: int = 4
    administrative_yield_ms: int = 1_000
    start_limit_ms: int = 60_000
    start_retry_ms: int = 30_000
    invalid_retry_ms: int = 500
    rest_ms: int = 10
    rest_max_ms: int = 1_000
    repeat_ms: int = 5

    def __post_init__(self) -> None:
        for name in ("threads", "lifecycle_threads"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{getattr(self, name)} threads: use 1 or more", place=name)


class _Group:
    """Process group with a limit."""

    __slots__ = ("limit", "running", "waiting")

    def __init__(self) -> None:
        self.limit: int | None = None
        self.running = 0
        self.waiting: deque[ScheduledComponent] = deque()


class ReadyQueue:
    """Components that are ready to run and wait for a thread."""

    def __init__(self) -> None:
        self._ready: deque[ScheduledComponent] = deque()
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._ready) + sum(len(group.waiting) for group in self._groups.values())

    def add(self, component: ScheduledComponent) -> None:
        """Add a component at the end, unless it already waits."""
        if not component.queued:
            component.queued = True
            self._ready.append(component)

    def take(self) -> ScheduledComponent | None:
        """Take the first component that no group limit blocks, and count a run of it."""
        while self._ready:
            component = self._ready.popleft()
            full = self._full_group(component)
            if full is not None:
                full.waiting.append(component)
                # The slot of an outer group for which it was released was used by another
                # component.
                for name in component.schedule.groups:
                    self._release(self._group(name))
                continue
            component.queued = False
            for name in component.schedule.groups:
                self._group(name).running += 1
            return component
        return None

    def ended(self, groups: tuple[str, ...]) -> None:
        """Give back a run that `take` counted, for the groups of its component at that time."""
        for name in groups:
            group = self._group(name)
            group.running -= 1
            self._release(group)

    def limit(self, name: str, threads: int | None) -> None:
        """Limit the runs of a group; None: no limit.

        Raises:
            InvalidRequest: The limit is below 1.
        """
        if threads is not None and threads < 1:
            raise InvalidRequest(
                f"limit of {threads} threads for group {name}: use 1 or more", place="threads"
            )
        group = self._group(name)
        group.limit = threads
        self._release(group)

    def _full_group(self, component: ScheduledComponent) -> _Group | None:
        for name in component.schedule.groups:
            group = self._group(name)
            if group.limit is not None and group.running >= group.limit:
                return group
        return None

    def _release(self, group: _Group) -> None:
        """Release components for which the group has room; another group may then block them."""
        room = len(group.waiting) if group.limit is None else group.limit - group.running
        for _ in range(min(room, len(group.waiting))):
            self._ready.append(group.waiting.popleft())

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group


_log = logging.getLogger(__name__)

THREAD: Final = "a thread"

# A timer that is late by at most this much is not replaced.
_SLACK_S: Final = 0.0005
_FAILURE_TYPES_MAX: Final = 20
"""Types of exceptions whose log lines are limited one by one, for each component."""


@dataclass(frozen=True, slots=True, eq=False)
class CheckDue(SchedulerEvent):
    """The wait of a component is over: the end of a yield, a rest or a penalty."""

    description: ClassVar[str] = "end of a wait"
    component: ScheduledComponent


@dataclass(frozen=True, slots=True, eq=False)
class NoSingleRun(SchedulerEvent):
    """The single run of a component did not begin, because there is nothing to do or no room."""

    description: ClassVar[str] = "no single run"
    component: ScheduledComponent


class Dispatcher:
    """Dispatches runs.

    Args:
        inbox: Inbox of the scheduler.
        pool: Threads for the runs.
        clock: Clock of the scheduler's mailbox.
        options: Limits.
    """

    def __init__(
        self, inbox: SchedulerInbox, pool: TriggerPool, clock: Clock, options: SchedulerOptions
    ) -> None:
        self._inbox = inbox
        self._pool = pool
        self._clock = clock
        self._options = options
        self._rest = RetryPolicy(options.rest_ms, options.rest_max_ms)
        self._ready = ReadyQueue()
        self._slots = RunSlots(inbox, clock)
        self._turn = 1
        self.threads = options.threads
        self.busy = 0

    @property
    def waiting(self) -> int:
        """Number of components that are ready and wait for a thread."""
        return len(self._ready)

    # Changes

    def schedule(self, component: ScheduledComponent) -> None:
        """Allow runs of a component to begin."""
        self._slots.open(component)
        self.check(component)

    def unschedule(self, component: ScheduledComponent) -> None:
        """Allow no new run to begin; current runs end after their trigger."""
        for run in component.runs:
            run.run.is_wanted = False
        self.forget(component)

    def forget(self, component: ScheduledComponent) -> None:
        """Allow no new run to begin; current runs continue."""
        component.clear_timers()
        component.listening = False
        component.yields_until_s = 0.0
        component.served_ms = None

    def reschedule(self, component: ScheduledComponent, schedule: ComponentSchedule) -> None:
        """Use another schedule from now on; current runs continue."""
        component.schedule = schedule
        if component.state is LifecycleState.RUNNING:
            component.clear_timers()
            self._slots.open(component)
            self.check(component)

    def abandon(self, component: ScheduledComponent) -> None:
        """Abandon the threads of a component."""
        for run in component.runs:
            run.run.is_terminated = True
            if run.thread is not None:
                run.thread.abandon()
            component.abandoned += 1
            self.busy -= 1
            self._ready.ended(run.groups)
        component.runs.clear()
        self.forget(component)
        self._dispatch()

    def yield_for(self, component: ScheduledComponent, wait_ms: float) -> None:
        """Begin no run for this time; of several such times the longest applies."""
        self._yield_until(component, self._clock.monotonic_s() + wait_ms / 1000)
        self.check(component)

    def limit_group(self, group: str, threads: int | None) -> None:
        """Limit the runs of a process group."""
        self._ready.limit(group, threads)
        self._dispatch()

    def resize(self, threads: int) -> None:
        """Change the maximum number of concurrent runs."""
        self.threads = threads
        self._dispatch()

    # Events

    def clock_was_set(self, component: ScheduledComponent) -> None:
        """Recompute the firing times by the wall clock."""
        self._slots.clock_was_set(component)
        self.check(component)

    def woken(self, component: ScheduledComponent) -> None:
        """Handle new work of a component, or new room in its outputs."""
        component.signalled = False
        component.rest_until_s = 0.0
        self.check(component)

    def check_due(self, component: ScheduledComponent) -> None:
        """Handle the end of a wait."""
        component.check = None
        self.check(component)

    def period_ended(self, component: ScheduledComponent) -> None:
        """Handle the end of the period of a run slot."""
        self._slots.period_ended(component)
        self.check(component)

    def cron_time_due(self, component: ScheduledComponent, due_ms: int) -> None:
        """Handle a firing time."""
        self._slots.cron_time_due(component, due_ms)
        self.check(component)

    def run_ended(self, event: RunEnded) -> bool:
        """Count a run, and free its thread and its slot; return False if it was abandoned."""
        component, run = event.component, event.run
        if run.run.is_terminated:
            component.abandoned -= 1
            return False
        component.runs.discard(run)
        self.busy -= 1
        self._ready.ended(run.groups)
        component.runs_ended += 1
        component.run_ns += event.took_ns
        if event.error is None:
            self._succeeded(component, event.outcome)
        else:
            self._failed(component, event.error)
        if component.state is LifecycleState.RUNNING:
            self._slots.free_one(component)
        return True

    # Readiness checks

    def check(self, component: ScheduledComponent) -> None:
        """Begin the runs that may begin."""
        self._consider(component)
        self._dispatch()

    def _consider(self, component: ScheduledComponent) -> None:
        """Queue a component for a thread if it is ready: work, room, a free slot, no yield."""
        if not component.queued and self._may_run(component):
            component.waits_for = THREAD
            self._ready.add(component)

    def _may_run(self, component: ScheduledComponent) -> bool:
        most = self._options.component_threads or max(1, self.threads - 1)
        verdict = check_readiness(
            component, most, self._clock, self._options.administrative_yield_ms
        )
        if verdict is READY:
            component.checked_turn = self._turn
            return True
        if verdict is not BUSY:
            self._wait(component, verdict)
        return False

    def _wait(self, component: ScheduledComponent, verdict: ReadinessVerdict) -> None:
        """Record why a run cannot begin, and set the timer of the next check.

        A timer driven or event driven run slot stays free and waits. A firing time, or the single
        run, is over.
        """
        component.waits_for = verdict.waits_for
        if component.state.is_once:
            component.free = 0
            component.listening = False
            self._inbox.add(NoSingleRun(component))
        elif component.schedule.strategy is SchedulingStrategy.CRON:
            component.free = 0
            component.listening = False
            component.waits_for = TIME
        elif verdict.check_at_s is not None:
            self._check_at(component, verdict.check_at_s)

    def _check_at(self, component: ScheduledComponent, at_s: float) -> None:
        if component.check is not None:
            if component.check.due_s <= at_s + _SLACK_S:
                return  # the check at that time computes the remaining wait
            component.check.cancel()
        wait_ms = (at_s - self._clock.monotonic_s()) * 1000
        component.check = self._inbox.post_after(wait_ms, CheckDue(component))

    # Begin and end of runs

    def _dispatch(self) -> None:
        """Assign threads to queued components."""
        while self.busy < self.threads:
            component = self._ready.take()
            if component is None:
                break
            # Since it was queued, its work may have been taken, or it may have been stopped.
            if component.checked_turn == self._turn or self._may_run(component):
                self._begin(component)
            else:
                self._ready.ended(component.schedule.groups)
        self._turn += 1

    def _begin(self, component: ScheduledComponent) -> None:
        schedule = component.schedule
        component.free -= 1
        component.signalled = False
        component.waits_for = ""
        repeats = schedule.is_gapless and not component.state.is_once
        timed = TimedRun(
            self._clock, schedule.run_duration_ms, self._options.repeat_ms if repeats else 0
        )
        run = TriggerRun(component, timed, self._clock, self._inbox)
        component.runs.add(run)
        self.busy += 1
        try:
            run.thread = self._pool.run(run)
        except Unavailable as error:
            self._inbox.add(RunEnded(component, run, NOTHING_DONE, error, 0))
            return
        # Queue it again at the end if it has another free slot.
        self._consider(component)

    def _succeeded(self, component: ScheduledComponent, outcome: RunOutcome) -> None:
        now_s = self._clock.monotonic_s()
        if outcome.yield_ms > 0:
            self._yield_until(component, now_s + outcome.yield_ms / 1000)
        if outcome.worked:
            component.idle_streak, component.rest_until_s = 0, 0.0
            return
        component.idle_runs += 1
        component.idle_streak += 1
        component.rest_until_s = now_s + self._rest.delay_ms(component.idle_streak) / 1000

    def _failed(self, component: ScheduledComponent, error: BaseException) -> None:
        component.failures += 1
        component.idle_streak, component.rest_until_s = 0, 0.0
        if isinstance(error, ProcessError | Terminated):
            _log.warning(
                "%s: %s", component.id, error_text(error), extra=of_component(component.id)
            )
            return
        wait_ms = self._options.administrative_yield_ms
        self._log_failure(component, error, wait_ms)
        self._yield_until(component, self._clock.monotonic_s() + wait_ms / 1000)

    def _log_failure(
        self, component: ScheduledComponent, error: BaseException, wait_ms: int
    ) -> None:
        """Log an exception of a run: its trace at most once a minute.

        Errors of Penstock and of the operating system, such as that of a full disk, are not caused
        by single FlowFiles. They come with each run until an operator ends them, so a line a minute
        is enough.
        """
        limits = component.failure_limits
        if len(limits) >= _FAILURE_TYPES_MAX:  # code of users may make types
            limits.clear()
        left_out = limits.setdefault(type(error), RateLimit(self._clock)).admit()
        is_lasting = isinstance(error, PenstockError | OSError)
        if left_out is None and is_lasting:
            return
        text, values = with_left_out(
            "%s raised %s; it yields for %d ms",
            (component.id, error_text(error), wait_ms),
            left_out if left_out and is_lasting else 0,
        )
        has_trace = left_out is not None and not isinstance(error, PenstockError)
        _log.error(
            text,
            *values,
            exc_info=error if has_trace else None,
            extra=of_component(component.id),
        )

    def _yield_until(self, component: ScheduledComponent, until_s: float) -> None:
        component.yields_until_s = max(component.yields_until_s, until_s)
