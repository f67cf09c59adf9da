"""Lifecycle driver: carries out the effects of the components' lifecycles.

Owns running lifecycle methods, their order, time limits and retries. Does not own the transitions
(`component_lifecycle`), nor runs (`dispatcher`). All code here runs on the scheduler's thread; the
methods themselves have a separate number of threads in the pool.

Invariants: at most one lifecycle method of a component runs at a time. `on_stopped` is called when
no run is active. If a start takes too long, its thread is abandoned, and the component must use a
new instance, so that the abandoned thread cannot affect later work.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Conflict, Unavailable
from penstock.core.state_machine import Refusal
from penstock.flow.errors import error_text
from penstock.flow.log_context import of_component
from penstock.flow.scheduling.component import (
    LifecycleMethod,
    MethodEnded,
    MethodKind,
    MethodResult,
)
from penstock.flow.scheduling.component_lifecycle import COMPONENT_MACHINE, ComponentEvent, Effect
from penstock.flow.scheduling.scheduler_inbox import SchedulerEvent

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import ScheduledComponent
    from penstock.flow.scheduling.dispatcher import Dispatcher, SchedulerOptions
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.scheduler_inbox import SchedulerInbox

_log = logging.getLogger(__name__)

# If more threads of one component hang at once, it is not retried until one returns.
_ABANDONED_MAX: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class RetryDue(SchedulerEvent):
    """The delay before the next attempt to start a component is over."""

    description: ClassVar[str] = "retry the start"
    component: ScheduledComponent


@dataclass(frozen=True, slots=True, eq=False)
class StartOverdue(SchedulerEvent):
    """The start of a component takes too long."""

    description: ClassVar[str] = "limit of a start"
    component: ScheduledComponent
    method: LifecycleMethod


class LifecycleDriver:
    """Carries out effects.

    Args:
        inbox: Inbox of the scheduler.
        pool: Threads for the methods.
        clock: Clock of the scheduler's mailbox.
        options: Limits.
        dispatcher: Begins and abandons runs.
    """

    def __init__(
        self,
        inbox: SchedulerInbox,
        pool: TriggerPool,
        clock: Clock,
        options: SchedulerOptions,
        dispatcher: Dispatcher,
    ) -> None:
        self._inbox = inbox
        self._pool = pool
        self._clock = clock
        self._options = options
        self._dispatcher = dispatcher
        self._invalid_retry = RetryPolicy(options.invalid_retry_ms, options.start_retry_ms)
        self._line: deque[LifecycleMethod] = deque()
        self._busy = 0

    def report(self, component: ScheduledComponent, event: ComponentEvent) -> None:
        """Apply an event to a component, and carry out the effects.

        Raises:
            Conflict: The state forbids the event; nothing was changed.
        """
        outcome = COMPONENT_MACHINE.transition(component.state, event)
        if isinstance(outcome, Refusal):
            state = component.state.component_state.value
            raise Conflict(f"{component.id} is {state}: {outcome.reason}")
        component.state = outcome.state
        for effect in outcome.effects:
            self._carry_out(component, effect)

    def run_ended(self, component: ScheduledComponent) -> None:
        """Handle the end of a run, or that the single run did not begin."""
        if component.state.is_once:
            self.report(component, ComponentEvent.SINGLE_RUN_ENDED)
        elif component.state.is_stopping:
            self._drain(component)

    def recheck(self, component: ScheduledComponent) -> None:
        """Retry a start now, if the component waits for a retry."""
        if component.retry is not None:
            component.retry.cancel()
            self.retry_due(component)

    def retry_due(self, component: ScheduledComponent) -> None:
        """Retry a start, unless too many threads of the component hang."""
        component.retry = None
        if component.abandoned >= _ABANDONED_MAX:
            self._wait(component)
        else:
            self.report(component, ComponentEvent.RETRY_DUE)

    def start_overdue(self, component: ScheduledComponent, method: LifecycleMethod) -> None:
        """Abandon a start that takes too long."""
        if component.method is not method:
            return
        self._abandon_method(component)
        _notify_terminated(component)
        limit_ms = self._options.start_limit_ms
        problem = f"its start took longer than {limit_ms:,} ms, so its thread was abandoned"
        self._prepared(component, MethodResult((problem,)))

    def method_ended(self, event: MethodEnded) -> None:
        """Handle the end of a lifecycle method."""
        component, method = event.component, event.method
        if component.method is not method:  # its thread was abandoned
            component.abandoned -= 1
            return
        component.method = None
        if method.limit is not None:
            method.limit.cancel()
        self._busy -= 1
        match method.kind:
            case MethodKind.PREPARE:
                self._prepared(component, event.result)
            case MethodKind.UNSCHEDULE:
                _log_problems(component, event.result)
                self._drain(component)
            case MethodKind.STOP:
                _log_problems(component, event.result)
                self.report(component, ComponentEvent.FINISHED)
        self._serve_line()

    def _carry_out(self, component: ScheduledComponent, effect: Effect) -> None:
        match effect:
            case Effect.BEGIN:
                self._call(component, MethodKind.PREPARE)
            case Effect.WAIT:
                self._wait(component)
            case Effect.CANCEL_WAIT:
                self._cancel_wait(component)
            case Effect.SCHEDULE:
                component.problems = ()
                component.start_failures = 0
                self._dispatcher.schedule(component)
            case Effect.UNSCHEDULE:
                self._dispatcher.unschedule(component)
                self._call(component, MethodKind.UNSCHEDULE)
            case Effect.FINISH:
                self._call(component, MethodKind.STOP)
            case Effect.ABANDON:
                self._cancel_wait(component)
                self._abandon_method(component)
                self._dispatcher.abandon(component)
                _notify_terminated(component)
            case Effect.NOTIFY_WAITING:
                _notify_waiting(component)

    # Starting

    def _prepared(self, component: ScheduledComponent, result: MethodResult) -> None:
        """Handle the end of the validation and preparation."""
        if not result.problems:
            self.report(component, ComponentEvent.READY)
            return
        if result.problems != component.problems:
            _log.warning(
                "%s could not be started: %s",
                component.id,
                "; ".join(result.problems),
                extra=of_component(component.id),
            )
        component.problems = result.problems
        component.start_failures += 1
        if result.is_valid:
            component.retry_ms = self._options.start_retry_ms
        else:
            component.retry_ms = self._invalid_retry.delay_ms(component.start_failures)
        self.report(component, ComponentEvent.FAILED)

    def _wait(self, component: ScheduledComponent) -> None:
        component.retry = self._inbox.post_after(component.retry_ms, RetryDue(component))

    def _cancel_wait(self, component: ScheduledComponent) -> None:
        if component.retry is not None:
            component.retry.cancel()
            component.retry = None

    # Stopping

    def _drain(self, component: ScheduledComponent) -> None:
        """Report, once it is true, that a stopping component is notified and has no run."""
        if component.state.is_stopping and component.method is None and not component.runs:
            self.report(component, ComponentEvent.DRAINED)

    # Methods on threads

    def _call(self, component: ScheduledComponent, kind: MethodKind) -> None:
        assert component.method is None
        now_s = self._clock.monotonic_s()
        component.method = LifecycleMethod(component, kind, now_s, self._inbox)
        self._line.append(component.method)
        self._serve_line()

    def _serve_line(self) -> None:
        while self._line and self._busy < self._options.lifecycle_threads:
            method = self._line.popleft()
            if method.component.method is not method:
                continue  # abandoned before it began
            method.since_s = self._clock.monotonic_s()
            self._busy += 1
            try:
                method.thread = self._pool.run(method)
            except Unavailable as error:
                self._inbox.add(MethodEnded(method.component, method, MethodResult((str(error),))))
                continue
            if method.kind is MethodKind.PREPARE:
                method.limit = self._inbox.post_after(
                    self._options.start_limit_ms, StartOverdue(method.component, method)
                )

    def _abandon_method(self, component: ScheduledComponent) -> None:
        method, component.method = component.method, None
        if method is None or method.thread is None:
            return
        if method.limit is not None:
            method.limit.cancel()
        method.thread.abandon()
        component.abandoned += 1
        self._busy -= 1
        self._serve_line()


def _notify_terminated(component: ScheduledComponent) -> None:
    try:
        component.schedulable.on_terminated()
    except Exception as error:  # noqa: BLE001 - code of a component must not end the scheduler
        _log.warning(
            "%s: on_terminated raised %s",
            component.id,
            error_text(error),
            extra=of_component(component.id),
        )


def _log_problems(component: ScheduledComponent, result: MethodResult) -> None:
    for problem in result.problems:
        _log.warning("%s: %s", component.id, problem, extra=of_component(component.id))


def _notify_waiting(component: ScheduledComponent) -> None:
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
