"""Scheduler that triggers the components of flows when they have work.

Owns the components, on one mailbox thread, and the handling of each event of its inbox:
`lifecycle_driver` starts and stops components, `dispatcher` starts runs, `pool` has the threads.
`ClockJumpWatch` compares the wall clock with the monotonic clock to detect that the clock was set
or the machine slept. Does not own queues or sessions.

Invariants: scheduling state changes only on the mailbox thread. Every wait for a time is a
timer of the mailbox, so an idle scheduler uses no CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from penstock.core.errors import Closed, Conflict, InvalidRequest, NotFound, PenstockError
from penstock.flow.scheduling.component import (
    MethodEnded,
    RunEnded,
    ScheduledComponent,
    SchedulerStatistics,
)
from penstock.flow.scheduling.component_lifecycle import ComponentEvent
from penstock.flow.scheduling.dispatcher import CheckDue, Dispatcher, NoSingleRun, SchedulerOptions
from penstock.flow.scheduling.lifecycle_driver import LifecycleDriver, RetryDue, StartOverdue
from penstock.flow.scheduling.run_slots import CronTimeDue, PeriodEnded
from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent, SchedulerInbox

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component_protocol import ComponentProtocol
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.strategy import ComponentSchedule
    from penstock.mailbox import MailboxProcessor


T = TypeVar("T")

# Interval of the check, and tolerated difference of the wall clock.
_EVERY_MS: Final = 10_000
_SLACK_MS: Final = 500


@dataclass(frozen=True, slots=True, eq=False)
class ComponentWoken(SchedulerEvent):
    """A component has new work, or new room in its outputs."""

    description: ClassVar[str] = "wake"
    component: ScheduledComponent


@dataclass(frozen=True, slots=True, eq=False)
class ComponentYielded(SchedulerEvent):
    """A component yields."""

    description: ClassVar[str] = "yield"
    component: ScheduledComponent
    wait_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class ClockCheckDue(SchedulerEvent):
    """Time to check whether the wall clock was set."""

    description: ClassVar[str] = "check whether the wall clock was set"


class ClockJumpWatch:
    """Compares the wall clock with the monotonic clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._ahead_now_ms()

    def has_jumped(self) -> bool:
        """Return whether their difference changed since the last call."""
        ahead_ms = self._ahead_now_ms()
        if abs(ahead_ms - self._ahead_ms) < _SLACK_MS:
            return False
        self._ahead_ms = ahead_ms
        return True

    def _ahead_now_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic_s() * 1000


class Scheduler:
    """Runs components when they have work, by event, timer or CRON.

    All methods except `loop_failed` may be called from any thread. A future is done when its
    request is. It fails with `NotFound` for an unknown id and with `Conflict` for a state that
    forbids the request, and is cancelled if the mailbox closes first. If the mailbox is already
    closed, requests raise `Closed`, and events are ignored. Do not wait for a future on the
    scheduler's thread.

    Every request except `statistics` changes state: an exception that is not a `PenstockError`
    fails its future and ends the mailbox's loop (`MailboxExecutor.submit_change`).

    Args:
        mailbox: Mailbox whose thread owns the state; its owner starts and stops it.
        pool: Threads for runs; `close` closes it.
        clock: Clock of the mailbox.
        options: Limits.
    """

    def __init__(
        self,
        mailbox: MailboxProcessor,
        pool: TriggerPool,
        *,
        clock: Clock,
        options: SchedulerOptions | None = None,
    ) -> None:
        options = options or SchedulerOptions()
        self._pool = pool
        self._clock = clock
        self._components: dict[str, ScheduledComponent] = {}
        self._inbox = SchedulerInbox(mailbox, self._receive)
        self._dispatcher = Dispatcher(self._inbox, pool, clock, options)
        self._driver = LifecycleDriver(self._inbox, pool, clock, options, self._dispatcher)
        self._clock_jumps = ClockJumpWatch(clock)
        self._clock_checks = self._inbox.post_every(_EVERY_MS, ClockCheckDue())

    # Components

    def add(
        self, component_id: str, component: ComponentProtocol, schedule: ComponentSchedule
    ) -> Future[None]:
        """Add a stopped component. `Conflict`: the id is already in use."""

        def add() -> None:
            if component_id in self._components:
                raise Conflict(f"component {component_id} is already scheduled: remove it first")
            self._components[component_id] = ScheduledComponent(component_id, component, schedule)

        return self._change(add, "add %s", component_id)

    def remove(self, component_id: str) -> Future[None]:
        """Remove a component. `Conflict`: it is neither stopped nor disabled."""

        def remove() -> None:
            component = self._find(component_id)
            if not component.state.is_at_rest:
                state = component.state.component_state.value
                raise Conflict(f"component {component_id} is {state}: stop it before it is removed")
            del self._components[component_id]

        return self._change(remove, "remove %s", component_id)

    def reschedule(self, component_id: str, schedule: ComponentSchedule) -> Future[None]:
        """Change the schedule of a component; current runs continue."""
        return self._change(
            lambda: self._dispatcher.reschedule(self._find(component_id), schedule),
            "reschedule %s",
            component_id,
        )

    # Lifecycle

    def start(self, component_id: str) -> Future[None]:
        """Start a component. The future is done once the request is recorded.

        A failed start is retried until it succeeds. A component that is stopping is started again
        afterwards. `Conflict`: it is disabled.
        """
        return self._report(component_id, "start %s", ComponentEvent.START)

    def stop(self, component_id: str) -> Future[None]:
        """Stop a component; the future is done when it is stopped and no thread is in it."""

        def stop(component: ScheduledComponent, done: Future[None]) -> None:
            self._driver.report(component, ComponentEvent.STOP)
            if component.state.is_at_rest:
                done.set_result(None)
            else:
                component.waiters.append(done)

        return self._request_of(component_id, "stop %s", stop)

    def run_once(self, component_id: str) -> Future[None]:
        """Start a stopped component for one run, if it has work and room; done when it is stopped.

        `Conflict`: it is not stopped, is invalid, or could not be prepared.
        """

        def run_once(component: ScheduledComponent, done: Future[None]) -> None:
            self._driver.report(component, ComponentEvent.RUN_ONCE)
            component.once = done

        return self._request_of(component_id, "run %s once", run_once)

    def terminate(self, component_id: str) -> Future[None]:
        """Abandon the threads of a component that does not stop, and replace them.

        `Conflict`: no stop was requested.
        """
        return self._report(component_id, "terminate %s", ComponentEvent.TERMINATE)

    def enable(self, component_id: str) -> Future[None]:
        """Allow a disabled component to be started."""
        return self._report(component_id, "enable %s", ComponentEvent.ENABLE)

    def disable(self, component_id: str) -> Future[None]:
        """Refuse starts of a stopped component. `Conflict`: it is not stopped."""
        return self._report(component_id, "disable %s", ComponentEvent.DISABLE)

    def recheck(self, component_id: str) -> Future[None]:
        """Retry the start of a component now, because the cause of its failure was fixed."""
        return self._change(
            lambda: self._driver.recheck(self._find(component_id)), "recheck %s", component_id
        )

    # Events

    def wake(self, component_id: str) -> None:
        """Notify the scheduler that a component has new work, or new room in its outputs.

        Cheap. Ignored if the id is unknown or the component is not running.
        """
        component = self._components.get(component_id)
        if component is not None:
            self._wake(component)

    def waker(self, component_id: str) -> Callable[[], None]:
        """Return a function that calls `wake` for one component without a lookup.

        Raises:
            NotFound: The component does not exist; wait for the future of `add` first.
        """
        component = self._find(component_id)
        return lambda: self._wake(component)

    def yield_for(self, component_id: str, wait_ms: float) -> None:
        """Do not trigger a component for this time, on any thread; ignored if the id is unknown."""
        component = self._components.get(component_id)
        if component is not None:
            self._inbox.post(ComponentYielded(component, wait_ms))

    # Limits and statistics

    def limit_group(self, group: str, threads: int | None) -> Future[None]:
        """Limit the concurrent runs of all components of a process group; None: no limit."""
        return self._change(
            lambda: self._dispatcher.limit_group(group, threads), "limit group %s", group
        )

    def resize(self, threads: int) -> Future[None]:
        """Change the maximum number of concurrent runs; current runs continue."""

        def resize() -> None:
            if threads < 1:
                raise InvalidRequest(f"{threads} threads: use 1 or more", place="threads")
            self._dispatcher.resize(threads)
            for component in self._components.values():
                self._dispatcher.check(component)

        return self._change(resize, "resize to %s", threads)

    def statistics(self, only: Collection[str] | None = None) -> Future[SchedulerStatistics]:
        """Return a snapshot of the statistics.

        Args:
            only: Ids of the components to include, if they exist; None: all.
        """

        def take() -> SchedulerStatistics:
            now_ms, now_s = self._clock.now_ms(), self._clock.monotonic_s()
            known = self._components
            wanted = known if only is None else [one for one in only if one in known]
            components = tuple([known[one].statistics(now_ms, now_s) for one in wanted])
            return SchedulerStatistics(
                threads=self._dispatcher.threads,
                busy_threads=self._dispatcher.busy,
                terminated_threads=sum([one.abandoned for one in known.values()]),
                ready=self._dispatcher.waiting,
                components=components,
            )

        return self._inbox.submit_query(take, "statistics")

    def close(self) -> Future[None]:
        """Stop beginning runs, and fail waiting futures; work on threads continues to its end.

        To end components in an orderly way, stop them first.
        """

        def close() -> None:
            self._clock_checks.cancel()
            for component in self._components.values():
                self._dispatcher.forget(component)
                _fail_waiters(component, "the scheduler was closed")
            self._components.clear()
            self._pool.close()

        return self._change(close, "close the scheduler")

    def loop_failed(self) -> None:
        """Fail the futures of components that were stopping, and end the pool's idle threads.

        Called on the mailbox's thread, after an exception ended its loop.
        """
        for component in self._components.values():
            _fail_waiters(component, "the scheduler failed: restart the flow service")
        self._pool.close()

    # Inside

    def _wake(self, component: ScheduledComponent) -> None:
        # In this order: see `component`.
        component.signalled = True
        if component.listening:
            component.listening = False
            try:
                self._inbox.post(ComponentWoken(component))
            except BaseException as error:
                self._inbox.fail(error)  # otherwise nothing would wake the component again
                raise

    def _receive(self, event: SchedulerEvent) -> None:
        """Handle an event, and the events that follow from it."""
        self._handle(event)
        self._handle_added()

    def _handle_added(self) -> None:
        while (event := self._inbox.take_added()) is not None:
            self._handle(event)

    def _handle(self, event: SchedulerEvent) -> None:
        """Handle an event, on the mailbox thread; the most frequent kinds come first."""
        match event:
            case RunEnded():
                if self._dispatcher.run_ended(event):
                    self._driver.run_ended(event.component)
                    self._dispatcher.check(event.component)
            case ComponentWoken():
                self._dispatcher.woken(event.component)
            case CheckDue():
                self._dispatcher.check_due(event.component)
            case PeriodEnded():
                self._dispatcher.period_ended(event.component)
            case CronTimeDue():
                self._dispatcher.cron_time_due(event.component, event.due_ms)
            case ComponentYielded():
                self._dispatcher.yield_for(event.component, event.wait_ms)
            case NoSingleRun():
                self._driver.run_ended(event.component)
            case MethodEnded():
                self._driver.method_ended(event)
            case StartOverdue():
                self._driver.start_overdue(event.component, event.method)
            case RetryDue():
                self._driver.retry_due(event.component)
            case ClockCheckDue():
                if self._clock_jumps.has_jumped():
                    for component in list(self._components.values()):
                        self._dispatcher.clock_was_set(component)
            case _:
                raise AssertionError(f"unknown event {event!r}")

    def _find(self, component_id: str) -> ScheduledComponent:
        component = self._components.get(component_id)
        if component is None:
            raise NotFound(f"component {component_id} is not scheduled: add it first")
        return component

    def _report(self, component_id: str, description: str, event: ComponentEvent) -> Future[None]:
        return self._change(
            lambda: self._driver.report(self._find(component_id), event), description, component_id
        )

    def _change(self, request: Callable[[], T], description: str, *arguments: object) -> Future[T]:
        def change() -> T:
            result = request()
            self._handle_added()
            return result

        return self._inbox.submit_change(change, description, *arguments)

    def _request_of(
        self,
        component_id: str,
        description: str,
        command: Callable[[ScheduledComponent, Future[None]], None],
    ) -> Future[None]:
        def handle(done: Future[None]) -> None:
            command(self._find(component_id), done)
            self._handle_added()

        posted = _WaitingRequest(handle)
        self._inbox.put(posted, description, component_id)
        return posted.future


def _fail_waiters(component: ScheduledComponent, why: str) -> None:
    waiting = [*component.waiters, *filter(None, [component.once])]
    component.waiters, component.once = [], None
    for waiter in waiting:
        if not waiter.done():  # its command may have failed partway
            waiter.set_exception(Closed(why))


class _WaitingRequest:
    """Request that changes state, and whose future may be done later than the request."""

    __slots__ = ("_request", "future")

    def __init__(self, request: Callable[[Future[None]], None]) -> None:
        self._request = request
        self.future: Future[None] = Future()

    def __call__(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self._request(self.future)
        except BaseException as error:  # passed to the future's owner, as with any executor
            if not self.future.done():
                self.future.set_exception(error)
            if not isinstance(error, PenstockError):
                raise

    def cancel(self) -> bool:
        """Cancel the future, because the mailbox closed."""
        cancelled = self.future.cancel()
        if cancelled:
            self.future.set_running_or_notify_cancel()
        return cancelled
