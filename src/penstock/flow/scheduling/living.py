"""Starting and stopping: carries out what the life cycle of a component asks for.

Owns the methods of the life cycle under way, their order, time limits and repetition. Does not own
which state follows on what (`lifecycle`), nor runs (`running`). Everything here happens on the
scheduler's thread; the methods themselves have threads of their own number in the pool.

Invariants: at most one method of a component's life cycle goes on at a time; `on_stopped` is called
when no run is under way. A start that takes too long is given up with its thread, and the component
is told to take a new instance: what still goes on in the old one cannot meet what comes after.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, Conflict, Unavailable
from penstock.flow.logrecords import of_component
from penstock.flow.scheduling.activity import Chore, ChoreEnd, call, make_ready, told
from penstock.flow.scheduling.lifecycle import ComponentState, Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.component import Component
    from penstock.flow.scheduling.options import SchedulerOptions
    from penstock.flow.scheduling.pool import TriggerPool
    from penstock.flow.scheduling.running.running import Running
    from penstock.mailbox import MailboxProcessor

_log = logging.getLogger(__name__)

# Threads of one component that may hang at once before it is tried no more until one comes back.
_ABANDONED_MAX: Final = 3


class Living:
    """Carries out effects.

    Args:
        mailbox: Where ends of methods go, and whose timers ring.
        pool: Where methods go.
        clock: The one of the mailbox.
        options: The bounds.
        on_state: Told of each new state of a component.

    Attributes:
        running: Where runs begin; set once, as each of the two needs the other.
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
        self._line: deque[tuple[Component, Chore]] = deque()
        self._busy = 0

    def apply(self, component: Component, happens: Callable[[], Sequence[Effect]]) -> None:
        """Let something happen to a component, and do what follows.

        Raises:
            Conflict: Its state forbids it; nothing was changed.
        """
        before = component.life.state
        effects = happens()
        if component.life.state is not before:
            self._on_state(component.id, component.life.state)
        for effect in effects:
            self._carry_out(component, effect)

    def ran(self, component: Component) -> None:
        """See whether the end of a run was what the component waited for."""
        self.apply(component, component.life.ran)
        self._drain(component)

    def recheck(self, component: Component) -> None:
        """Try a start again now, if it waits to be tried."""
        if component.retry is not None:
            component.retry.cancel()
            self._try_again(component)

    def _carry_out(self, component: Component, effect: Effect) -> None:
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

    def _begin(self, component: Component) -> None:
        make = partial(make_ready, component.schedulable)
        self._do(component, make, self._begun, limit_ms=self._options.start_limit_ms)

    def _begun(self, component: Component, end: ChoreEnd) -> None:
        if not end.problems:
            self.apply(component, component.life.ready)
            return
        if end.problems != component.problems:
            _log.warning(
                "%s does not start: %s",
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

    def _overdue(self, component: Component, chore: Chore) -> None:
        """Give a start up that takes too long."""
        if component.chore is not chore:
            return
        self._give_up_chore(component)
        self._tell_terminated(component)
        limit_ms = self._options.start_limit_ms
        problem = f"its start took longer than {limit_ms:,} ms; the thread was given up"
        self._begun(component, ChoreEnd((problem,)))

    def _wait(self, component: Component) -> None:
        component.retry = self._timers.schedule_after(
            component.retry_ms, lambda: self._try_again(component), "try to start again"
        )

    def _cancel_wait(self, component: Component) -> None:
        if component.retry is not None:
            component.retry.cancel()
            component.retry = None

    def _try_again(self, component: Component) -> None:
        component.retry = None
        if component.abandoned >= _ABANDONED_MAX:
            self._wait(component)
        else:
            self.apply(component, component.life.waited)

    # Stopping

    def _unscheduled(self, component: Component, end: ChoreEnd) -> None:
        _report(component, end)
        self._drain(component)

    def _drain(self, component: Component) -> None:
        if (
            component.life.state is ComponentState.STOPPING
            and component.chore is None
            and not component.runs
        ):
            self.apply(component, component.life.drained)

    def _finished(self, component: Component, end: ChoreEnd) -> None:
        _report(component, end)
        self.apply(component, component.life.finished)

    def _tell_terminated(self, component: Component) -> None:
        try:
            component.schedulable.on_terminated()
        except Exception as error:  # noqa: BLE001 - code of a component must not end the scheduler
            _log.warning(
                "%s: on_terminated raised %s",
                component.id,
                told(error),
                extra=of_component(component.id),
            )

    # Methods in threads

    def _do(
        self,
        component: Component,
        method: Callable[[], ChoreEnd],
        done: Callable[[Component, ChoreEnd], None],
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
                continue  # given up before it began
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

    def _mail(self, component: Component, chore: Chore, end: ChoreEnd) -> None:
        with suppress(Closed):
            self._executor.execute(lambda: self._ended(component, chore, end), "a method ended")

    def _ended(self, component: Component, chore: Chore, end: ChoreEnd) -> None:
        if component.chore is not chore:  # its thread was given up
            component.abandoned -= 1
            return
        component.chore = None
        if chore.limit is not None:
            chore.limit.cancel()
        self._busy -= 1
        chore.done(end)
        self._serve_line()

    def _give_up_chore(self, component: Component) -> None:
        chore, component.chore = component.chore, None
        if chore is None or chore.thread is None:
            return
        if chore.limit is not None:
            chore.limit.cancel()
        chore.thread.abandon()
        component.abandoned += 1
        self._busy -= 1
        self._serve_line()


def _report(component: Component, end: ChoreEnd) -> None:
    for problem in end.problems:
        _log.warning("%s: %s", component.id, problem, extra=of_component(component.id))


def _settle(component: Component) -> None:
    """Tell who waits that the component is stopped, or that its one run did not begin."""
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
