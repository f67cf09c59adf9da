"""A scheduler on a virtual clock: what a run takes is time of that clock, and nothing waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.flow.scheduling.component import ComponentStatistics, TriggerRun
from penstock.flow.scheduling.component_lifecycle import ComponentState
from penstock.flow.scheduling.component_protocol import ComponentRun, RunOutcome
from penstock.flow.scheduling.dispatcher import SchedulerOptions
from penstock.flow.scheduling.scheduler import Scheduler
from penstock.flow.scheduling.strategy import ComponentSchedule
from penstock.mailbox import MailboxProcessor
from penstock.testing.clock import VirtualClock

T = TypeVar("T")


@dataclass(eq=False)
class Part:
    """A component with a queue of numbers: a penalized one is not handed out before its time.

    Attributes:
        queue: When each FlowFile in its input can be handed out, epoch ms.
        is_source: It is triggered without input.
        takes_s: How long a trigger takes.
        starts_s: When triggers began, virtual monotonic seconds.
        calls: Methods of the life cycle that were called, in order.
    """

    world: SchedulerWorld
    queue: list[int] = field(default_factory=list)
    is_source: bool = False
    is_full: bool = False
    takes_s: float = 0.0
    takes_flowfiles: int = 1_000_000
    outcomes: list[RunOutcome | BaseException] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    fails: dict[str, BaseException] = field(default_factory=dict)
    method_takes_s: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    looks: int = 0
    taken: int = 0

    def has_work(self, now_ms: int) -> bool:
        self.looks += 1
        return self.is_source or any(due <= now_ms for due in self.queue)

    def next_due_ms(self) -> int | None:
        now_ms = self.world.clock.now_ms()
        return min((due for due in self.queue if due > now_ms), default=None)

    def is_open(self) -> bool:
        return not self.is_full

    def problems(self) -> Sequence[str]:
        self.calls.append("problems")
        return self.wrong

    def trigger(self, run: ComponentRun) -> RunOutcome:
        now_ms = self.world.clock.now_ms()
        outcome = self.outcomes.pop(0) if self.outcomes else RunOutcome()
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome.worked:
            ready = [due for due in self.queue if due <= now_ms][: self.takes_flowfiles]
            for due in ready:
                self.queue.remove(due)
            self.taken += len(ready)
        return outcome

    def on_scheduled(self) -> None:
        self._call("on_scheduled")

    def on_unscheduled(self) -> None:
        self._call("on_unscheduled")

    def on_stopped(self) -> None:
        self._call("on_stopped")

    def on_terminated(self) -> None:
        self._call("on_terminated")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]


class SettableClock(VirtualClock):
    """Its wall time can be set, as an administrator would."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@dataclass(eq=False)
class Flight:
    """Work in the pool, and when it is to end."""

    work: Callable[[], None]
    ends_s: float
    is_run: bool
    abandoned: bool = False

    def abandon(self) -> None:
        self.abandoned = True


class SchedulerWorld:
    """The scheduler, its clock, and a pool whose work takes virtual time."""

    def __init__(self, **options: int) -> None:
        self.clock = SettableClock()
        self.mailbox = MailboxProcessor(clock=self.clock)
        self.flights: list[Flight] = []
        self.states: list[tuple[str, ComponentState]] = []
        self._last: dict[str, ComponentState] = {}
        self.parts: dict[str, Part] = {}
        self.most = 0
        self.scheduler = Scheduler(
            self.mailbox,
            self,
            clock=self.clock,
            options=SchedulerOptions(**options),
        )

    # The pool

    def run(self, work: Callable[[], None]) -> Flight:
        part = self._part_of(work)
        if part is None:  # a method of the life cycle
            takes_s = max((each.method_takes_s for each in self.parts.values()), default=0.0)
        else:
            part.starts_s.append(self.clock.monotonic_s())
            takes_s = part.takes_s
        flight = Flight(work, self.clock.monotonic_s() + takes_s, part is not None)
        self.flights.append(flight)
        runs = [each for each in self.flights if each.is_run and not each.abandoned]
        self.most = max(self.most, len(runs))
        return flight

    def close(self) -> None:
        self.flights.clear()

    def _part_of(self, work: object) -> Part | None:
        if not isinstance(work, TriggerRun):
            return None
        part = work.component.schedulable
        assert isinstance(part, Part)
        return part

    # The test

    def add(
        self, name: str, schedule: ComponentSchedule | None = None, **attributes: object
    ) -> Part:
        part = Part(self, **attributes)  # type: ignore[arg-type]
        self.parts[name] = part
        self.done(self.scheduler.add(name, part, schedule or ComponentSchedule()))
        return part

    def started(
        self, name: str, schedule: ComponentSchedule | None = None, **attributes: object
    ) -> Part:
        part = self.add(name, schedule, **attributes)
        self.done(self.scheduler.start(name))
        self.settle()
        return part

    def put(self, name: str, count: int = 1, penalty_ms: int = 0) -> None:
        """Put FlowFiles into a part's input, as a queue would."""
        due_ms = self.clock.now_ms() + penalty_ms
        self.parts[name].queue += [due_ms] * count
        self.scheduler.wake(name)

    def done(self, future: Future[T]) -> T:
        """Run what waits, without time, and return what the future has."""
        self.settle()
        return future.result(timeout=0)

    def settle(self) -> None:
        """Run all that can run now."""
        while True:
            ran = self._step()
            due = [each for each in self.flights if each.ends_s <= self.clock.monotonic_s() + 1e-9]
            for flight in due:
                self.flights.remove(flight)
                flight.work()
            if not ran and not due:
                return

    def _step(self) -> bool:
        if not self.mailbox.mailbox.has_mail():
            return False
        while self.mailbox.mailbox.has_mail():
            self.mailbox.run_mailbox_step()
            self._note_states()
        return True

    def _note_states(self) -> None:
        for name, component in self.scheduler._components.items():
            state = component.state.component_state
            if state is not self._last.get(name, ComponentState.STOPPED):
                self.states.append((name, state))
            self._last[name] = state

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping wherever something is due."""
        end_s = self.clock.monotonic_s() + seconds
        self.settle()
        while True:
            next_s = min(
                [self.mailbox.mailbox.alarm_s, *(each.ends_s for each in self.flights)],
                default=math.inf,
            )
            if next_s > end_s:
                break
            self.clock.advance_to(next_s)
            self.settle()
        self.clock.advance_to(end_s)
        self.settle()

    def statistics(self, name: str) -> ComponentStatistics:
        (found,) = self.done(self.scheduler.statistics([name])).components
        return found

    def state(self, name: str) -> ComponentState:
        return self.statistics(name).state
