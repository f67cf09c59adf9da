"""Run several mailbox loops on one thread, step by step, in an order drawn from a seed.

Owns only the schedule. The same seed over the same program results in the same steps, so a rare
failure can be repeated as often as needed. Time is virtual: it advances to the next timer when
nothing else can run, and, if requested, sometimes before that.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from penstock.mailbox.task_mailbox import MailboxState

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.mailbox.processor import MailboxProcessor
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
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
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
