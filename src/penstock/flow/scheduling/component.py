"""A component at the scheduler: its scheduling state, and its work on threads of the pool.

`ScheduledComponent` owns the state of a component between two readiness checks. `TriggerRun` and
`LifecycleMethod` are the boundary to the code of components: every exception of that code becomes a
value here, and is reported as an event. `ComponentStatistics` are immutable snapshots. Does not own
decisions (`dispatcher`, `lifecycle_driver`).

A component has one *run slot* for each concurrent task. A slot is used by a run, waits for a timer,
or is free. In a free slot a run may begin as soon as there is work, room and a thread.

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
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from penstock.flow.errors import error_text
from penstock.flow.scheduling.component_lifecycle import (
    ComponentState,
    DesiredState,
    LifecycleState,
)
from penstock.flow.scheduling.component_protocol import NOTHING_DONE, TimedRun
from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.core.rate_limited_log import RateLimit
    from penstock.flow.scheduling.component_protocol import ComponentProtocol, RunOutcome
    from penstock.flow.scheduling.pool import PoolThread
    from penstock.flow.scheduling.scheduler_inbox import SchedulerInbox
    from penstock.flow.scheduling.strategy import ComponentSchedule
    from penstock.mailbox import Timer


class ComponentStatistics(msgspec.Struct, frozen=True, gc=False):
    """Statistics of one component.

    A struct, because the scheduler's thread may create ten thousand at once: a frozen dataclass
    with this many fields takes several times as long.

    Attributes:
        id: Id of the component.
        state: State in the lifecycle.
        desired: Desired state.
        active_tasks: Threads that are in it now, in a run or in a lifecycle method. Checks for work
            do not count.
        terminated_tasks: Abandoned threads that have not returned.
        runs: Runs that ended, since it was added.
        idle_runs: Runs among those that did nothing.
        failures: Runs among those that raised.
        run_ns: Total duration of the runs, in nanoseconds.
        longest_active_ms: Duration of the oldest current run; 0 if there is none.
        last_fired_ms: CRON driven: the firing time handled last, epoch ms.
        served_ms: CRON driven and running: time up to which firing times are handled, epoch ms;
            several missed ones are handled together.
        next_firing_ms: When it runs next, if it has work then, epoch ms; None: when work arrives,
            or never.
        yielded_until_ms: End of its yield, epoch ms; None if it does not yield.
        waits_for: Reason why it does not run: work, room, a thread, or nothing.
        problems: Reasons why it could not be started.
    """

    id: str
    state: ComponentState
    desired: DesiredState
    active_tasks: int
    terminated_tasks: int
    runs: int
    idle_runs: int
    failures: int
    run_ns: int
    longest_active_ms: int
    last_fired_ms: int | None
    served_ms: int | None
    next_firing_ms: int | None
    yielded_until_ms: int | None
    waits_for: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """Statistics of the scheduler.

    Attributes:
        threads: Maximum number of concurrent runs.
        busy_threads: Threads that are in use.
        terminated_threads: Abandoned threads, of any component, that have not returned.
        ready: Components that are ready and wait for a thread.
        components: All components, or the requested ones.
    """

    threads: int
    busy_threads: int
    terminated_threads: int
    ready: int
    components: tuple[ComponentStatistics, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RunEnded(SchedulerEvent):
    """A run ended.

    Attributes:
        component: Its component.
        run: The run.
        outcome: Outcome that the run returned; an idle one if it raised.
        error: Exception that it raised; None if it did not raise.
        took_ns: Duration in nanoseconds.
    """

    description: ClassVar[str] = "a run ended"
    component: ScheduledComponent
    run: TriggerRun
    outcome: RunOutcome
    error: BaseException | None
    took_ns: int


class TriggerRun:
    """One run of a component, from the moment it is assigned to a thread.

    Args:
        component: The component.
        run: Limits how long the component continues.
        clock: Measures the duration.
        inbox: Receives the end of the run.

    Attributes:
        groups: Process groups for which the run counts.
    """

    __slots__ = ("_clock", "_inbox", "component", "groups", "run", "since_s", "thread")

    def __init__(
        self, component: ScheduledComponent, run: TimedRun, clock: Clock, inbox: SchedulerInbox
    ) -> None:
        self.component: Final = component
        self.groups: Final = component.schedule.groups
        self.since_s: Final = clock.monotonic_s()
        self.run: Final = run
        self.thread: PoolThread | None = None
        self._clock = clock
        self._inbox = inbox

    def __call__(self) -> None:
        """Run the component, on a thread of the pool."""
        started_s = self._clock.monotonic_s()
        outcome, error = NOTHING_DONE, None
        self.run.begin()
        try:
            outcome = self.component.schedulable.trigger(self.run)
        except BaseException as caught:  # noqa: BLE001 - documented boundary
            error = caught
        took_ns = round((self._clock.monotonic_s() - started_s) * 1e9)
        # As mail: earlier mail of the run, such as a yield, is handled before its end.
        self._inbox.post(RunEnded(self.component, self, outcome, error, took_ns))


class MethodKind(Enum):
    """Lifecycle method of a component, as the scheduler calls it."""

    PREPARE = "validate it, and call on_scheduled"
    UNSCHEDULE = "call on_unscheduled"
    STOP = "call on_stopped"


@dataclass(frozen=True, slots=True)
class MethodResult:
    """Result of a lifecycle method.

    Attributes:
        problems: Errors, one sentence each.
        is_valid: Whether the component could be validated, and is valid.
    """

    problems: tuple[str, ...] = ()
    is_valid: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class MethodEnded(SchedulerEvent):
    """A lifecycle method ended."""

    description: ClassVar[str] = "a method ended"
    component: ScheduledComponent
    method: LifecycleMethod
    result: MethodResult


class LifecycleMethod:
    """Lifecycle method of a component that waits for a thread or is running on one.

    Args:
        component: The component.
        kind: The method.
        now_s: Time of the request, monotonic.
        inbox: Receives the result.
    """

    __slots__ = ("_inbox", "component", "kind", "limit", "since_s", "thread")

    def __init__(
        self, component: ScheduledComponent, kind: MethodKind, now_s: float, inbox: SchedulerInbox
    ) -> None:
        self.component: Final = component
        self.kind: Final = kind
        self.since_s = now_s
        self.thread: PoolThread | None = None
        self.limit: Timer | None = None
        self._inbox = inbox

    def __call__(self) -> None:
        """Call the method, on a thread of the pool."""
        schedulable = self.component.schedulable
        match self.kind:
            case MethodKind.PREPARE:
                result = prepare(schedulable)
            case MethodKind.UNSCHEDULE:
                result = _call("on_unscheduled", schedulable.on_unscheduled)
            case MethodKind.STOP:
                result = _call("on_stopped", schedulable.on_stopped)
        self._inbox.post(MethodEnded(self.component, self, result))


def prepare(schedulable: ComponentProtocol) -> MethodResult:
    """Validate a component and prepare it; after a failure, release its resources."""
    try:
        problems = schedulable.problems()
    except BaseException as error:  # noqa: BLE001 - documented boundary; also catches sys.exit()
        return MethodResult((f"its validation raised {error_text(error)}",), is_valid=False)
    if problems:
        return MethodResult(tuple(problems), is_valid=False)
    result = _call("on_scheduled", schedulable.on_scheduled)
    if result.problems:
        undone = [
            _call("on_unscheduled", schedulable.on_unscheduled),
            _call("on_stopped", schedulable.on_stopped),
        ]
        results = (result, *undone)
        result = MethodResult(tuple(problem for part in results for problem in part.problems))
    return result


def _call(name: str, method: Callable[[], object]) -> MethodResult:
    try:
        method()
    except BaseException as error:  # noqa: BLE001 - documented boundary; also catches sys.exit()
        return MethodResult((f"{name} raised {error_text(error)}",))
    return MethodResult()


class ScheduledComponent:
    """State of one component; changed on the scheduler's thread, except for two flags.

    Attributes:
        listening: The component waits for an event; the next event sends mail.
        signalled: An event occurred since the last run began.
        free: Free run slots.
        resting: Timers of run slots that become free later.
        runs: Running runs.
        failure_limits: Limits of the log, by the type of exceptions that its runs raised.
        state: State of the lifecycle; changed by the lifecycle driver only.
        method: Lifecycle method that is running or waits for a thread.
        queued: It waits for a thread, or for the thread limit of a group.
        yields_until_s: No run begins before this time, monotonic.
        rest_until_s: The same, but an event ends the wait.
        idle_streak: Runs in a row that did nothing although there was work.
        check: Timer for the next readiness check without an event: at the end of a yield, a wait or
            a penalty.
        fire: CRON driven: timer for the next firing time, `next_firing_ms`.
        missed: CRON driven: a firing time passed during a run.
        served_ms: CRON driven: time up to which firing times are handled, epoch ms; None: only
            those after the start count.
        fired_ms: CRON driven: the firing time handled last.
        checked_turn: Turn of the scheduler in which the last readiness check found work.
        retry: Timer for the next attempt to start, `retry_ms` after the last one.
        start_failures: Failed attempts to start in a row.
        abandoned: Abandoned threads that have not returned.
        waiters: Futures that are done when it is stopped; `once`: when its single run ended.
    """

    __slots__ = (
        "abandoned",
        "check",
        "checked_turn",
        "failure_limits",
        "failures",
        "fire",
        "fired_ms",
        "free",
        "id",
        "idle_runs",
        "idle_streak",
        "listening",
        "method",
        "missed",
        "next_firing_ms",
        "once",
        "problems",
        "queued",
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
        "start_failures",
        "state",
        "waiters",
        "waits_for",
        "yields_until_s",
    )

    def __init__(
        self, component_id: str, schedulable: ComponentProtocol, schedule: ComponentSchedule
    ) -> None:
        self.id: Final = component_id
        self.schedulable: Final = schedulable
        self.schedule = schedule
        self.state = LifecycleState.STOPPED
        self.listening = False
        self.signalled = False
        self.free = 0
        self.resting: deque[Timer] = deque()
        self.runs: set[TriggerRun] = set()
        self.method: LifecycleMethod | None = None
        self.queued = False
        self.yields_until_s = 0.0
        self.rest_until_s = 0.0
        self.idle_streak = 0
        self.check: Timer | None = None
        self.fire: Timer | None = None
        self.retry: Timer | None = None
        self.next_firing_ms: int | None = None
        self.served_ms = schedule.last_fired_ms
        self.missed = False
        self.abandoned = 0
        self.retry_ms = 0
        self.start_failures = 0
        self.checked_turn = 0
        self.fired_ms = schedule.last_fired_ms
        self.problems: tuple[str, ...] = ()
        self.waiters: list[Future[None]] = []
        self.once: Future[None] | None = None
        self.waits_for = ""
        self.runs_ended = 0
        self.idle_runs = 0
        self.failures = 0
        self.failure_limits: dict[type[BaseException], RateLimit] = {}
        self.run_ns = 0

    @property
    def unused_slots(self) -> int:
        """Number of run slots that are neither free, waiting nor used."""
        slots = 1 if self.state.is_once else self.schedule.concurrent_tasks
        return max(0, slots - self.free - len(self.resting) - len(self.runs))

    def clear_timers(self) -> None:
        """Cancel the timers that would trigger it."""
        for timer in (*self.resting, self.check, self.fire):
            if timer is not None:
                timer.cancel()
        self.resting.clear()
        self.check = self.fire = None
        self.next_firing_ms = None
        self.free = 0
        self.missed = False
        self.idle_streak, self.rest_until_s = 0, 0.0

    def statistics(self, now_ms: int, now_s: float) -> ComponentStatistics:
        """Return a snapshot."""
        oldest_s = min([run.since_s for run in self.runs]) if self.runs else now_s
        if self.method is not None:
            oldest_s = min(oldest_s, self.method.since_s)
        left_ms = round((self.yields_until_s - now_s) * 1000)
        next_ms = self.next_firing_ms
        if next_ms is None and self.resting:
            due_s = min(timer.due_s for timer in self.resting)
            next_ms = now_ms + round((due_s - now_s) * 1000)
        return ComponentStatistics(
            id=self.id,
            state=self.state.component_state,
            desired=self.state.desired,
            active_tasks=len(self.runs)
            + (self.method is not None and self.method.thread is not None),
            terminated_tasks=self.abandoned,
            runs=self.runs_ended,
            idle_runs=self.idle_runs,
            failures=self.failures,
            run_ns=self.run_ns,
            longest_active_ms=round((now_s - oldest_s) * 1000),
            last_fired_ms=self.fired_ms,
            served_ms=self.served_ms if self.state.runs else None,
            next_firing_ms=next_ms,
            yielded_until_ms=now_ms + left_ms if left_ms > 0 else None,
            waits_for=self.waits_for if self.state.runs else "",
            problems=self.problems,
        )
