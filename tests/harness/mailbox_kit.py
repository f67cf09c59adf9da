"""Deterministic execution of mailboxes, lanes and trigger pools in tests.

`Interleaver` runs several mailbox processors on one thread, in an order drawn from a seed. The
same seed and program give the same steps, so a failure can be repeated. Time is virtual: it
advances to the next timer when nothing else can run and, optionally, now and then before that.
All processors are built on the calling thread.

`StepLanes` runs the work of lanes when a test calls for it, in order within a lane;
`InlineLanes` runs it at once on the submitting thread. `StepPool` is a `TriggerPool` that
collects work for the test to run. `settle` runs mail, lane work and timers until nothing is
left that is due within a given time, which has then passed.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, PenstockError
from penstock.core.threads import promise
from penstock.mailbox.task_mailbox import MailboxState

if TYPE_CHECKING:
    from penstock.mailbox import MailboxProcessor
    from penstock.testing.clock import VirtualClock


class InterleavingFailure(PenstockError):
    """The end was not reached; the message has the seed and the last steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """The processor that ran, and when."""

    number: int
    name: str
    time_s: float

    def __str__(self) -> str:
        return f"{self.number}:{self.name}@{self.time_s:.3f}"


class Interleaver:
    """Runs mailbox processors, all built on the calling thread, in a seeded random order.

    Args:
        clock: The clock of all processors.
        seed: Seed of the order.
        jump_chance: Probability that time jumps to the next timer although a processor could run,
            which simulates a slow thread.
    """

    def __init__(self, clock: VirtualClock, seed: int, *, jump_chance: float = 0.0) -> None:
        self.clock: Final = clock
        self.seed: Final = seed
        self.steps: Final[list[Step]] = []
        self._random = random.Random(seed)
        self._jump_chance = jump_chance
        self._processors: dict[str, MailboxProcessor] = {}

    def add(self, name: str, processor: MailboxProcessor) -> None:
        """Add a processor, from the next step on."""
        self._processors[name] = processor

    def remove(self, name: str) -> None:
        """Remove a processor, as if its thread had stopped forever."""
        del self._processors[name]

    def step(self) -> bool:
        """Run one mail or default action of a processor; return False if none can ever run."""
        if self._jump_chance and self._random.random() < self._jump_chance:
            self._jump()
        while True:
            names = list(self._processors)
            self._random.shuffle(names)
            for name in names:
                if self._run(name):
                    return True
            if not self._jump():
                return False

    def run(self, until: Callable[[], bool] = lambda: False, *, max_steps: int = 100_000) -> None:
        """Step until the condition holds, or until no processor can run.

        Raises:
            InterleavingFailure: Neither happened within the steps. An exception of a step is passed
                to the caller with the steps as a note.
        """
        for _ in range(max_steps):
            if until() or not self.step():
                return
        raise InterleavingFailure(f"no end after {max_steps} steps; {self.story()}")

    def story(self, last: int = 30) -> str:
        """Return the seed and the last steps, to print with a failure."""
        return f"seed {self.seed}, last steps {' '.join(map(str, self.steps[-last:]))}"

    def _run(self, name: str) -> bool:
        if not _is_running(self._processors[name]):
            return False
        step = Step(len(self.steps), name, self.clock.monotonic_s())
        try:
            ran = self._processors[name].run_mailbox_step()
        except Exception as error:  # narrow: a note only
            self.steps.append(step)
            error.add_note(self.story())
            raise
        if ran:
            self.steps.append(step)
        return ran

    def _jump(self) -> bool:
        """Advance time to the next timer of any processor; return False if there is none."""
        running = filter(_is_running, self._processors.values())
        next_s = min((processor.mailbox.alarm_s for processor in running), default=math.inf)
        if next_s == math.inf or next_s <= self.clock.monotonic_s():
            return False
        self.clock.advance_to(next_s)
        return True


def _is_running(processor: MailboxProcessor) -> bool:
    return processor.is_mailbox_loop_running and processor.mailbox.state is MailboxState.OPEN


T = TypeVar("T")


class StepLanes:
    """Work waits in its lane until `run_one` or `run_waiting`; a lane keeps its order."""

    def __init__(self) -> None:
        self._lanes: dict[str, deque[Callable[[], None]]] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Add work to a lane. Raises Closed after `close`."""
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work)

        self._lanes.setdefault(lane, deque()).append(run)
        return future

    def waiting(self) -> list[str]:
        """Return the lanes that have work, in a fixed order."""
        return sorted(lane for lane, queue in self._lanes.items() if queue)

    def run_one(self, lane: str) -> None:
        """Run the oldest work of a lane."""
        self._lanes[lane].popleft()()

    def run_waiting(self) -> bool:
        """Run the oldest work of each lane that has some; return whether there was any."""
        waiting = self.waiting()
        for lane in waiting:
            self.run_one(lane)
        return bool(waiting)

    def close(self) -> None:
        """Discard all work, as the end of a process does."""
        self._closed = True
        self._lanes.clear()


class InlineLanes:
    """Work runs at once, on the submitting thread; work that it submits runs after it.

    For calls that must be answered at once, such as locks and commits in a single-threaded
    simulation.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._busy = False
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work. Raises Closed after `close`."""
        del lane
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work)

        self._waiting.append(run)
        if not self._busy:
            self._busy = True
            try:
                while self._waiting:
                    self._waiting.popleft()()
            finally:
                self._busy = False
        return future

    def close(self) -> None:
        """Accept no further work."""
        self._closed = True
        self._waiting.clear()


def settle(
    processor: MailboxProcessor,
    clock: VirtualClock,
    seconds: float = 0.0,
    lanes: StepLanes | None = None,
) -> None:
    """Run everything that is due within a period, which has passed afterwards.

    Args:
        processor: Processor of the mail and timers.
        clock: The processor's clock, which stops at each timer on the way.
        seconds: Length of the period; 0: only what is due now.
        lanes: Lanes whose work must run, too, if any.
    """
    end_s = clock.monotonic_s() + seconds
    while True:
        while processor.run_mailbox_step() or (lanes is not None and lanes.run_waiting()):
            pass
        due_s = processor.mailbox.alarm_s
        if due_s > end_s:
            clock.advance_to(end_s)
            return
        clock.advance_to(due_s)


class StepWork:
    """A piece of work that waits to be run."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Final = work
        self.abandoned = False
        self.done = False

    def run(self) -> None:
        """Run it, once."""
        assert not self.done
        self.done = True
        self._work()

    def abandon(self) -> None:
        """Note that the scheduler terminated it; `run` may still be called later."""
        self.abandoned = True


class StepPool:
    """A `TriggerPool` that collects work.

    Attributes:
        begun: Submitted work that has not run, in order.
        closed: It was closed.
    """

    def __init__(self) -> None:
        self.begun: list[StepWork] = []
        self.closed = False

    def run(self, work: Callable[[], None]) -> StepWork:
        """Take work."""
        step = StepWork(work)
        self.begun.append(step)
        return step

    def run_one(self) -> bool:
        """Run the oldest work; return False if there is none."""
        if not self.begun:
            return False
        self.begun.pop(0).run()
        return True

    def close(self) -> None:
        """Note that the pool was closed."""
        self.closed = True
