"""Dispatcher that starts the runs of components that have work, room and a free run slot.

Owns when a run begins, what follows from its end, and the order of components that wait for a
thread. `ReadyQueue` is pure: it serves components round robin, one run at a time, so that a
component with many tasks does not overtake the others, and applies the limits of process
groups. Does not own whether a component is enabled (`lifecycle_driver`), the readiness check
(`readiness`) or the run slots (`run_slots`).

Nothing is polled. A component is checked when an event wakes it, when one of its runs ends, and
when a timer fires: its period, its CRON expression, or the end of a yield, a rest or the first
penalty in its inputs.

Threading: everything happens on the scheduler's thread, except for the runs, whose ends arrive
as mail. Invariants: a component waits in one place at most. Each dispatched run is returned by
`ended` exactly once. A component that is stopped while it waits is still dispatched, and the
receiver skips it.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, InvalidRequest, Unavailable
from penstock.flow.errors import ProcessError, Terminated
from penstock.flow.log_context import of_component
from penstock.flow.scheduling.activity import RunEnd, TriggerRun, told
from penstock.flow.scheduling.component_lifecycle import ComponentState
from penstock.flow.scheduling.readiness import Looking
from penstock.flow.scheduling.run_slots import RunSlots
from penstock.flow.scheduling.schedulable import NOTHING_DONE
from penstock.flow.scheduling.trigger_run import TimedRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.options import SchedulerOptions
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.strategy import ComponentSchedule
    from penstock.mailbox import MailboxProcessor


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


class Running:
    """Dispatches runs.

    Args:
        mailbox: Mailbox for ends of runs, and its timers.
        pool: Threads for the runs.
        clock: Clock of the mailbox.
        options: Limits.
        ran: Called after a run of a component, or when its single run found nothing to do.
    """

    def __init__(
        self,
        mailbox: MailboxProcessor,
        pool: TriggerPool,
        clock: Clock,
        options: SchedulerOptions,
        ran: Callable[[ScheduledComponent], None],
    ) -> None:
        self._executor = mailbox.main_executor
        self._pool = pool
        self._clock = clock
        self._options = options
        self._ran = ran
        self._ready = ReadyQueue()
        self._places = RunSlots(mailbox.timers, clock, self.look_at)
        self._looking = Looking(mailbox.timers, clock, options, self.look_at, ran)
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
        self._places.open(component)
        self.look_at(component)

    def unschedule(self, component: ScheduledComponent) -> None:
        """Allow no new run to begin; current runs continue."""
        component.clear_timers()
        component.listening = False
        component.left_alone_until_s = 0.0
        component.served_ms = None

    def reschedule(self, component: ScheduledComponent, schedule: ComponentSchedule) -> None:
        """Use another schedule from now on; current runs continue."""
        component.schedule = schedule
        if component.life.state is ComponentState.RUNNING:
            component.clear_timers()
            self._places.open(component)
            self.look_at(component)

    def give_up(self, component: ScheduledComponent) -> None:
        """Abandon the threads of a component."""
        for run in component.runs:
            run.run.is_terminated = True
            if run.thread is not None:
                run.thread.abandon()
            component.abandoned += 1
            self.busy -= 1
            self._ready.ended(run.groups)
        component.runs.clear()
        self.unschedule(component)
        self._dispatch()

    def leave_alone(self, component: ScheduledComponent, wait_ms: float) -> None:
        """Begin no run for this time; of several such times the longest applies."""
        until_s = self._clock.monotonic_s() + wait_ms / 1000
        component.left_alone_until_s = max(component.left_alone_until_s, until_s)
        self.look_at(component)

    def limit_group(self, group: str, threads: int | None) -> None:
        """Limit the runs of a process group."""
        self._ready.limit(group, threads)
        self._dispatch()

    def resize(self, threads: int) -> None:
        """Change the maximum number of concurrent runs."""
        self.threads = threads
        self._dispatch()

    def clock_was_set(self, component: ScheduledComponent) -> None:
        """Recompute the firing times by the wall clock."""
        self._places.clock_was_set(component)
        self.look_at(component)

    # Readiness checks

    def woken(self, component: ScheduledComponent) -> None:
        """Handle an event for a component."""
        component.signalled = False
        component.rest_until_s = 0.0
        self.look_at(component)

    def look_at(self, component: ScheduledComponent) -> None:
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
        if not self._looking.may_run(component, most):
            return False
        component.looked_turn = self._turn
        return True

    # Begin and end of runs

    def _dispatch(self) -> None:
        """Assign threads to queued components."""
        while self.busy < self.threads:
            component = self._ready.take()
            if component is None:
                break
            # Since it was queued, its work may have been taken, or it may have been stopped.
            if component.looked_turn == self._turn or self._may_run(component):
                self._begin(component)
            else:
                self._ready.ended(component.schedule.groups)
        self._turn += 1

    def _begin(self, component: ScheduledComponent) -> None:
        schedule = component.schedule
        component.free -= 1
        component.signalled = False
        component.waits_for = ""
        run = TriggerRun(
            component.schedulable,
            TimedRun(
                component.schedulable,
                self._clock,
                schedule.run_duration_ms,
                component.is_wanted,
                self._options.repeat_ms if schedule.is_gapless and not component.is_once else 0,
            ),
            schedule.groups,
            self._clock,
            lambda run, end: self._mail(lambda: self._ended(component, run, end)),
        )
        component.runs.add(run)
        self.busy += 1
        try:
            run.thread = self._pool.run(run)
        except Unavailable as error:
            self._ended(component, run, RunEnd(NOTHING_DONE, error, 0))
            return
        # Queue it again at the end if it has another free slot.
        self._consider(component)

    def _mail(self, action: Callable[[], None]) -> None:
        with suppress(Closed):
            # Through the mailbox: earlier mail of the run, such as a yield, is processed before its
            # end.
            self._executor.execute(action, "a run ended")

    def _ended(self, component: ScheduledComponent, run: TriggerRun, end: RunEnd) -> None:
        if run.run.is_terminated:
            component.abandoned -= 1
            return
        component.runs.discard(run)
        self.busy -= 1
        self._ready.ended(run.groups)
        component.runs_ended += 1
        component.run_ns += end.took_ns
        if end.error is None:
            self._succeeded(component, end)
        else:
            self._failed(component, end.error)
        if component.life.state is ComponentState.RUNNING:
            self._places.free_one(component)
        self._ran(component)
        self.look_at(component)

    def _succeeded(self, component: ScheduledComponent, end: RunEnd) -> None:
        now_s = self._clock.monotonic_s()
        if end.outcome.yield_ms > 0:
            until_s = now_s + end.outcome.yield_ms / 1000
            component.left_alone_until_s = max(component.left_alone_until_s, until_s)
        if end.outcome.worked:
            component.rest_ms = component.rest_until_s = 0.0
            return
        component.idle_runs += 1
        rest_ms = max(2 * component.rest_ms, self._options.rest_ms)
        component.rest_ms = min(rest_ms, self._options.rest_max_ms)
        component.rest_until_s = now_s + component.rest_ms / 1000

    def _failed(self, component: ScheduledComponent, error: BaseException) -> None:
        component.failures += 1
        component.rest_ms = component.rest_until_s = 0.0
        if isinstance(error, ProcessError | Terminated):
            _log.warning("%s: %s", component.id, told(error), extra=of_component(component.id))
            return
        wait_ms = self._options.administrative_yield_ms
        _log.error(
            "%s raised %s; it yields for %d ms",
            component.id,
            told(error),
            wait_ms,
            exc_info=error,
            extra=of_component(component.id),
        )
        until_s = self._clock.monotonic_s() + wait_ms / 1000
        component.left_alone_until_s = max(component.left_alone_until_s, until_s)
