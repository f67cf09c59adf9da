"""Lifecycle driver: carries out the effects of a component's lifecycle.

Owns running lifecycle methods, their order, time limits and retries. Does not own the transitions
(`lifecycle`), nor runs (`running`). All code here runs on the scheduler's thread; the methods
themselves have a separate number of threads in the pool.

Invariants: at most one lifecycle method of a component runs at a time. `on_stopped` is called when
no run is active. If a start takes too long, its thread is abandoned, and the component has to use
a new instance, so that the abandoned thread cannot affect later work.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict, Unavailable
from penstock.flow.log_context import of_component
from penstock.flow.scheduling.activity import Chore, ChoreEnd, call, make_ready, told
from penstock.flow.scheduling.component_lifecycle import ComponentState, Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.dispatcher import Running
    from penstock.flow.scheduling.options import SchedulerOptions
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.mailbox import MailboxProcessor

_log = logging.getLogger(__name__)

# If more threads of one component hang at once, it is not retried until one returns.
_ABANDONED_MAX: Final = 3


class Living:
    """Carries out effects.

    Args:
        mailbox: Mailbox for results of methods, and its timers.
        pool: Threads for the methods.
        clock: Clock of the mailbox.
        options: Limits.
        on_state: Called with each new state of a component.

    Attributes:
        running: Dispatcher of runs; set once, because the two need each other.
    """

    running: Running

    def __init__(
        self,
        mailbox: MailboxProcessor,
        pool: TriggerPool,
        clock: Clock,
        options: SchedulerOptions,
        on_state: Callable[[str, ComponentState], None],
    ) -> None:
        self._executor = mailbox.main_executor
        self._timers = mailbox.timers
        self._pool = pool
        self._clock = clock
        self._options = options
        self._on_state = on_state
        self._line: deque[tuple[ScheduledComponent, Chore]] = deque()
        self._busy = 0

    def apply(self, component: ScheduledComponent, happens: Callable[[], Sequence[Effect]]) -> None:
        """Apply an event to a component, and carry out the effects.

        Raises:
            Conflict: The state forbids the event; nothing was changed.
        """
        before = component.life.state
        effects = happens()
        if component.life.state is not before:
            self._on_state(component.id, component.life.state)
        for effect in effects:
            self._carry_out(component, effect)

    def ran(self, component: ScheduledComponent) -> None:
        """Handle the end of a run, in case the component waited for it."""
        self.apply(component, component.life.ran)
        self._drain(component)

    def recheck(self, component: ScheduledComponent) -> None:
        """Retry a start now, if the component waits for a retry."""
        if component.retry is not None:
            component.retry.cancel()
            self._try_again(component)

    def _carry_out(self, component: ScheduledComponent, effect: Effect) -> None:
        match effect:
            case Effect.BEGIN:
                self._begin(component)
            case Effect.WAIT:
                self._wait(component)
            case Effect.CANCEL_WAIT:
                self._cancel_wait(component)
            case Effect.SCHEDULE:
                component.problems = ()
                component.retry_ms = 0.0
                self.running.schedule(component)
            case Effect.UNSCHEDULE:
                self.running.unschedule(component)
                method = component.schedulable.on_unscheduled
                self._do(component, partial(call, "on_unscheduled", method), self._unscheduled)
            case Effect.FINISH:
                method = component.schedulable.on_stopped
                self._do(component, partial(call, "on_stopped", method), self._finished)
            case Effect.GIVE_UP:
                self._cancel_wait(component)
                self._give_up_chore(component)
                self.running.give_up(component)
                self._tell_terminated(component)
            case Effect.SETTLED:
                _settle(component)

    # Starting

    def _begin(self, component: ScheduledComponent) -> None:
        make = partial(make_ready, component.schedulable)
        self._do(component, make, self._begun, limit_ms=self._options.start_limit_ms)

    def _begun(self, component: ScheduledComponent, end: ChoreEnd) -> None:
        if not end.problems:
            self.apply(component, component.life.ready)
            return
        if end.problems != component.problems:
            _log.warning(
                "%s could not be started: %s",
                component.id,
                "; ".join(end.problems),
                extra=of_component(component.id),
            )
        component.problems = end.problems
        longest_ms = self._options.start_retry_ms
        if end.is_valid:
            component.retry_ms = longest_ms
        else:
            wait_ms = max(2 * component.retry_ms, self._options.invalid_retry_ms)
            component.retry_ms = min(wait_ms, longest_ms)
        self.apply(component, component.life.failed)

    def _overdue(self, component: ScheduledComponent, chore: Chore) -> None:
        """Abandon a start that takes too long."""
        if component.chore is not chore:
            return
        self._give_up_chore(component)
        self._tell_terminated(component)
        limit_ms = self._options.start_limit_ms
        problem = f"its start took longer than {limit_ms:,} ms, so its thread was abandoned"
        self._begun(component, ChoreEnd((problem,)))

    def _wait(self, component: ScheduledComponent) -> None:
        component.retry = self._timers.schedule_after(
            component.retry_ms, lambda: self._try_again(component), "retry the start"
        )

    def _cancel_wait(self, component: ScheduledComponent) -> None:
        if component.retry is not None:
            component.retry.cancel()
            component.retry = None

    def _try_again(self, component: ScheduledComponent) -> None:
        component.retry = None
        if component.abandoned >= _ABANDONED_MAX:
            self._wait(component)
        else:
            self.apply(component, component.life.waited)

    # Stopping

    def _unscheduled(self, component: ScheduledComponent, end: ChoreEnd) -> None:
        _report(component, end)
        self._drain(component)

    def _drain(self, component: ScheduledComponent) -> None:
        if (
            component.life.state is ComponentState.STOPPING
            and component.chore is None
            and not component.runs
        ):
            self.apply(component, component.life.drained)

    def _finished(self, component: ScheduledComponent, end: ChoreEnd) -> None:
        _report(component, end)
        self.apply(component, component.life.finished)

    def _tell_terminated(self, component: ScheduledComponent) -> None:
        try:
            component.schedulable.on_terminated()
        except Exception as error:  # noqa: BLE001 - code of a component must not end the scheduler
            _log.warning(
                "%s: on_terminated raised %s",
                component.id,
                told(error),
                extra=of_component(component.id),
            )

    # Methods on threads

    def _do(
        self,
        component: ScheduledComponent,
        method: Callable[[], ChoreEnd],
        done: Callable[[ScheduledComponent, ChoreEnd], None],
        *,
        limit_ms: int | None = None,
    ) -> None:
        assert component.chore is None
        chore = Chore(
            method,
            lambda chore, end: self._mail(component, chore, end),
            lambda end: done(component, end),
            self._clock.monotonic_s(),
        )
        chore.limit_ms = limit_ms
        component.chore = chore
        self._line.append((component, chore))
        self._serve_line()

    def _serve_line(self) -> None:
        while self._line and self._busy < self._options.lifecycle_threads:
            component, chore = self._line.popleft()
            if component.chore is not chore:
                continue  # abandoned before it began
            chore.since_s = self._clock.monotonic_s()
            self._busy += 1
            try:
                chore.thread = self._pool.run(chore)
            except Unavailable as error:
                self._ended(component, chore, ChoreEnd((str(error),)))
                continue
            if chore.limit_ms is not None:
                chore.limit = self._timers.schedule_after(
                    chore.limit_ms, partial(self._overdue, component, chore), "limit of a start"
                )

    def _mail(self, component: ScheduledComponent, chore: Chore, end: ChoreEnd) -> None:
        with suppress(Closed):
            self._executor.execute(lambda: self._ended(component, chore, end), "a method ended")

    def _ended(self, component: ScheduledComponent, chore: Chore, end: ChoreEnd) -> None:
        if component.chore is not chore:  # its thread was abandoned
            component.abandoned -= 1
            return
        component.chore = None
        if chore.limit is not None:
            chore.limit.cancel()
        self._busy -= 1
        chore.done(end)
        self._serve_line()

    def _give_up_chore(self, component: ScheduledComponent) -> None:
        chore, component.chore = component.chore, None
        if chore is None or chore.thread is None:
            return
        if chore.limit is not None:
            chore.limit.cancel()
        chore.thread.abandon()
        component.abandoned += 1
        self._busy -= 1
        self._serve_line()


def _report(component: ScheduledComponent, end: ChoreEnd) -> None:
    for problem in end.problems:
        _log.warning("%s: %s", component.id, problem, extra=of_component(component.id))


def _settle(component: ScheduledComponent) -> None:
    """Complete the futures: the component is stopped, or its single run did not begin."""
    waiters, component.waiters = component.waiters, []
    for waiter in waiters:
        waiter.set_result(None)
    once, component.once = component.once, None
    problems, component.problems = component.problems, ()
    if once is None:
        return
    if problems:
        once.set_exception(Conflict(f"{component.id} did not run: {'; '.join(problems)}"))
    else:
        once.set_result(None)
