"""Scheduler that triggers the components of flows when they have work.

Owns the components and their requested states, on one mailbox thread, and the watch for changes
of the wall clock. `lifecycle_driver` starts and stops components, `dispatcher` starts runs,
`pool` has the threads. `ClockJumpWatch` compares the wall clock with the monotonic clock to
detect that the clock was set or the machine slept. Does not own queues or sessions.

Invariants: scheduling state changes only on the mailbox thread. Every wait for a time is a
timer of the mailbox, so an idle scheduler uses no CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from penstock.core.errors import Closed, Conflict, InvalidRequest, NotFound, PenstockError
from penstock.flow.scheduling.component import ScheduledComponent
from penstock.flow.scheduling.component_lifecycle import ComponentState
from penstock.flow.scheduling.dispatcher import Running
from penstock.flow.scheduling.lifecycle_driver import Living
from penstock.flow.scheduling.options import SchedulerOptions
from penstock.flow.scheduling.statistics import SchedulerStatistics
from penstock.mailbox import Mail

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component_lifecycle import Effect
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.schedulable import Schedulable
    from penstock.flow.scheduling.strategy import ComponentSchedule
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import MailboxTimers


# Interval of the check, and tolerated difference of the wall clock.
_EVERY_MS: Final = 10_000
_SLACK_MS: Final = 500


class ClockJumpWatch:
    """Compares the wall clock with the monotonic clock at an interval.

    Args:
        timers: Timers of a mailbox, on whose thread the check runs.
        clock: Clock of the mailbox.
        was_set: Called when their difference changed.
    """

    def __init__(self, timers: MailboxTimers, clock: Clock, was_set: Callable[[], None]) -> None:
        self._clock = clock
        self._was_set = was_set
        self._ahead_ms = self._ahead_now_ms()
        self._timer = timers.schedule_every(
            _EVERY_MS, self._look, "check whether the wall clock was set"
        )

    def cancel(self) -> None:
        """Stop checking."""
        self._timer.cancel()

    def _ahead_now_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic_s() * 1000

    def _look(self) -> None:
        ahead_ms = self._ahead_now_ms()
        if abs(ahead_ms - self._ahead_ms) >= _SLACK_MS:
            self._ahead_ms = ahead_ms
            self._was_set()


T = TypeVar("T")


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
        on_state: Called, on the mailbox thread, with each new state of a component; must not raise.
    """

    def __init__(
        self,
        mailbox: MailboxProcessor,
        pool: TriggerPool,
        *,
        clock: Clock,
        options: SchedulerOptions | None = None,
        on_state: Callable[[str, ComponentState], None] = lambda _id, _state: None,
    ) -> None:
        options = options or SchedulerOptions()
        self._mailbox = mailbox
        self._executor = mailbox.main_executor
        self._pool = pool
        self._clock = clock
        self._components: dict[str, ScheduledComponent] = {}
        self._living = Living(mailbox, pool, clock, options, on_state)
        self._running = Running(mailbox, pool, clock, options, self._living.ran)
        self._living.running = self._running
        self._watch = ClockJumpWatch(mailbox.timers, clock, self._clock_was_set)

    # Components

    def add(
        self, component_id: str, component: Schedulable, schedule: ComponentSchedule
    ) -> Future[None]:
        """Add a stopped component. `Conflict`: the id is already in use."""

        def add() -> None:
            if component_id in self._components:
                raise Conflict(f"component {component_id} is already scheduled: remove it first")
            self._components[component_id] = ScheduledComponent(component_id, component, schedule)

        return self._executor.submit_change(add, "add %s", component_id)

    def remove(self, component_id: str) -> Future[None]:
        """Remove a component. `Conflict`: it is neither stopped nor disabled."""

        def remove() -> None:
            component = self._find(component_id)
            if not component.life.is_at_rest:
                state = component.life.state.value
                raise Conflict(f"component {component_id} is {state}: stop it before it is removed")
            del self._components[component_id]

        return self._executor.submit_change(remove, "remove %s", component_id)

    def reschedule(self, component_id: str, schedule: ComponentSchedule) -> Future[None]:
        """Change the schedule of a component; current runs continue."""
        return self._executor.submit_change(
            lambda: self._running.reschedule(self._find(component_id), schedule),
            "reschedule %s",
            component_id,
        )

    # Lifecycle

    def start(self, component_id: str) -> Future[None]:
        """Start a component. The future is done once the request is recorded.

        A failed start is retried until it succeeds. A component that is stopping is started again
        afterwards. `Conflict`: it is disabled.
        """
        return self._happen(component_id, "start %s", lambda component: component.life.start)

    def stop(self, component_id: str) -> Future[None]:
        """Stop a component; the future is done when it is stopped and no thread is in it."""

        def stop(component: ScheduledComponent, done: Future[None]) -> None:
            self._living.apply(component, component.life.stop)
            if component.life.is_at_rest:
                done.set_result(None)
            else:
                component.waiters.append(done)

        return self._ask(component_id, "stop %s", stop)

    def run_once(self, component_id: str) -> Future[None]:
        """Start a stopped component for one run, if it has work and room; done when it is stopped.

        `Conflict`: it is not stopped, is invalid, or could not be prepared.
        """

        def run_once(component: ScheduledComponent, done: Future[None]) -> None:
            if component.life.state is ComponentState.STOPPED:
                component.once = done
                self._living.apply(component, component.life.run_once)
            else:
                component.life.run_once()  # raises with the reason

        return self._ask(component_id, "run %s once", run_once)

    def terminate(self, component_id: str) -> Future[None]:
        """Abandon the threads of a component that does not stop, and replace them.

        `Conflict`: no stop was requested.
        """
        return self._happen(component_id, "terminate %s", lambda one: one.life.terminate)

    def enable(self, component_id: str) -> Future[None]:
        """Allow a disabled component to be started."""
        return self._happen(component_id, "enable %s", lambda component: component.life.enable)

    def disable(self, component_id: str) -> Future[None]:
        """Refuse starts of a stopped component. `Conflict`: it is not stopped."""
        return self._happen(component_id, "disable %s", lambda component: component.life.disable)

    def recheck(self, component_id: str) -> Future[None]:
        """Retry the start of a component now, because the cause of its failure was fixed."""
        return self._executor.submit_change(
            lambda: self._living.recheck(self._find(component_id)), "recheck %s", component_id
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
            with suppress(Closed):
                self._executor.execute(
                    lambda: self._running.leave_alone(component, wait_ms), "yield %s", component_id
                )

    # Limits and statistics

    def limit_group(self, group: str, threads: int | None) -> Future[None]:
        """Limit the concurrent runs of all components of a process group; None: no limit."""
        return self._executor.submit_change(
            lambda: self._running.limit_group(group, threads), "limit group %s", group
        )

    def resize(self, threads: int) -> Future[None]:
        """Change the maximum number of concurrent runs; current runs continue."""

        def resize() -> None:
            if threads < 1:
                raise InvalidRequest(f"{threads} threads: use 1 or more", place="threads")
            self._running.resize(threads)
            for component in self._components.values():
                self._running.look_at(component)

        return self._executor.submit_change(resize, "resize to %s", threads)

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
                threads=self._running.threads,
                busy_threads=self._running.busy,
                terminated_threads=sum([one.abandoned for one in known.values()]),
                ready=self._running.waiting,
                components=components,
            )

        return self._executor.submit(take, "statistics")

    def close(self) -> Future[None]:
        """Stop beginning runs, and fail waiting futures; work on threads continues to its end.

        To end components in an orderly way, stop them first.
        """

        def close() -> None:
            self._watch.cancel()
            for component in self._components.values():
                self._running.unschedule(component)
                _fail_waiters(component, "the scheduler was closed")
            self._components.clear()
            self._pool.close()

        return self._executor.submit_change(close, "close the scheduler")

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
            with suppress(Closed):
                self._executor.execute(lambda: self._running.woken(component), "wake")

    def _find(self, component_id: str) -> ScheduledComponent:
        component = self._components.get(component_id)
        if component is None:
            raise NotFound(f"component {component_id} is not scheduled: add it first")
        return component

    def _happen(
        self,
        component_id: str,
        description: str,
        what: Callable[[ScheduledComponent], Callable[[], Sequence[Effect]]],
    ) -> Future[None]:
        def happen() -> None:
            component = self._find(component_id)
            self._living.apply(component, what(component))

        return self._executor.submit_change(happen, description, component_id)

    def _ask(
        self,
        component_id: str,
        description: str,
        command: Callable[[ScheduledComponent, Future[None]], None],
    ) -> Future[None]:
        asked: _Asked[None] = _Asked(lambda done: command(self._find(component_id), done))
        self._mailbox.mailbox.put(Mail(asked, description=description, arguments=(component_id,)))
        return asked.future

    def _clock_was_set(self) -> None:
        """Recompute the firing times by the wall clock."""
        for component in list(self._components.values()):
            self._running.clock_was_set(component)


def _fail_waiters(component: ScheduledComponent, why: str) -> None:
    waiting = [*component.waiters, *filter(None, [component.once])]
    component.waiters, component.once = [], None
    for waiter in waiting:
        if not waiter.done():  # its command may have failed half way
            waiter.set_exception(Closed(why))


class _Asked(Generic[T]):
    """Command that changes state, and whose future is done later than the command."""

    __slots__ = ("_command", "future")

    def __init__(self, command: Callable[[Future[T]], None]) -> None:
        self._command = command
        self.future: Future[T] = Future()

    def __call__(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self._command(self.future)
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
