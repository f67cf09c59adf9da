"""What goes on in threads of the pool: runs, and methods of the life cycle.

Owns the boundary between the scheduler and code of components: whatever that raises ends here and
becomes a value that goes to the scheduler's thread by mail. Does not own what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.schedulable import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.pool import PoolThread
    from penstock.flow.scheduling.run import TimedRun
    from penstock.flow.scheduling.schedulable import Outcome, Schedulable
    from penstock.mailbox import Timer


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended.

    Attributes:
        outcome: What it answered; nothing done if it raised.
        error: What it raised.
        took_ns: How long it took, in nanoseconds.
    """

    outcome: Outcome
    error: BaseException | None
    took_ns: int


@dataclass(frozen=True, slots=True)
class ChoreEnd:
    """How a method of the life cycle ended.

    Attributes:
        problems: What is wrong, a sentence each.
        is_valid: The component could be validated, and is valid.
    """

    problems: tuple[str, ...] = ()
    is_valid: bool = True


class TriggerRun:
    """One run of a component, from the moment it was given a thread.

    Args:
        schedulable: What runs.
        run: What it asks whether it goes on.
        groups: The process groups that the run counts for.
        clock: Measures it.
        ended: Told of the end, on the run's thread.
    """

    __slots__ = ("_clock", "_ended", "_schedulable", "groups", "run", "since_s", "thread")

    def __init__(
        self,
        schedulable: Schedulable,
        run: TimedRun,
        groups: tuple[str, ...],
        clock: Clock,
        ended: Callable[[TriggerRun, RunEnd], None],
    ) -> None:
        self.groups: Final = groups
        self.since_s: Final = clock.monotonic_s()
        self.run: Final = run
        self.thread: PoolThread | None = None
        self._schedulable = schedulable
        self._clock = clock
        self._ended = ended

    def __call__(self) -> None:
        """Run, on a thread of the pool."""
        started_s = self._clock.monotonic_s()
        outcome, error = NOTHING_DONE, None
        self.run.begin()
        try:
            outcome = self._schedulable.trigger(self.run)
        except BaseException as caught:  # noqa: BLE001 - documented boundary: the scheduler hears it
            error = caught
        took_ns = round((self._clock.monotonic_s() - started_s) * 1e9)
        self._ended(self, RunEnd(outcome, error, took_ns))


class Chore:
    """A method of a component's life cycle, that waits for a thread or goes on in one.

    Args:
        call: What it does; raises nothing.
        ended: Told of the end, on the chore's thread.
        done: What follows from it, on the scheduler's thread.
        now_s: When it was asked for, monotonic.
    """

    __slots__ = ("_call", "_ended", "done", "limit", "limit_ms", "since_s", "thread")

    def __init__(
        self,
        call: Callable[[], ChoreEnd],
        ended: Callable[[Chore, ChoreEnd], None],
        done: Callable[[ChoreEnd], None],
        now_s: float,
    ) -> None:
        self._call = call
        self._ended = ended
        self.done: Final = done
        self.since_s = now_s
        self.thread: PoolThread | None = None
        self.limit: Timer | None = None
        self.limit_ms: int | None = None

    def __call__(self) -> None:
        """Do it, on a thread of the pool."""
        self._ended(self, self._call())


def make_ready(schedulable: Schedulable) -> ChoreEnd:
    """Validate a component and have it make ready; one that fails lets go of what it made."""
    try:
        problems = schedulable.problems()
    except BaseException as error:  # noqa: BLE001 - documented boundary; sys.exit() comes here, too
        return ChoreEnd((f"its validation raised {told(error)}",), is_valid=False)
    if problems:
        return ChoreEnd(tuple(problems), is_valid=False)
    end = call("on_scheduled", schedulable.on_scheduled)
    if end.problems:
        undone = [
            call("on_unscheduled", schedulable.on_unscheduled),
            call("on_stopped", schedulable.on_stopped),
        ]
        end = ChoreEnd(tuple(problem for part in (end, *undone) for problem in part.problems))
    return end


def call(name: str, method: Callable[[], object]) -> ChoreEnd:
    """Call a method of the life cycle."""
    try:
        method()
    except BaseException as error:  # noqa: BLE001 - documented boundary; sys.exit() comes here, too
        return ChoreEnd((f"{name} raised {told(error)}",))
    return ChoreEnd()


def told(error: BaseException) -> str:
    """Return an exception in a line; one that raises when it is to say so has its name only."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - documented boundary: code of a component, too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
