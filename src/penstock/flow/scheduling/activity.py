"""Work on threads of the pool: runs, and lifecycle methods.

Owns the boundary between the scheduler and code of components: every exception of that code is
caught here and sent to the scheduler's thread as a value by mail. Does not own its consequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.flow.scheduling.schedulable import NOTHING_DONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.scheduling.pool import PoolThread
    from penstock.flow.scheduling.schedulable import Outcome, Schedulable
    from penstock.flow.scheduling.trigger_run import TimedRun
    from penstock.mailbox import Timer


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Result of a run.

    Attributes:
        outcome: Outcome that the run returned; an idle one if it raised.
        error: Exception that it raised; None if it did not raise.
        took_ns: Duration in nanoseconds.
    """

    outcome: Outcome
    error: BaseException | None
    took_ns: int


@dataclass(frozen=True, slots=True)
class ChoreEnd:
    """Result of a lifecycle method.

    Attributes:
        problems: Errors, one sentence each.
        is_valid: Whether the component could be validated, and is valid.
    """

    problems: tuple[str, ...] = ()
    is_valid: bool = True


class TriggerRun:
    """One run of a component, from the moment it is assigned to a thread.

    Args:
        schedulable: The component.
        run: Tells the component how long to continue.
        groups: Process groups for which the run counts.
        clock: Measures the duration.
        ended: Called with the result, on the run's thread.
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
        """Run the component, on a thread of the pool."""
        started_s = self._clock.monotonic_s()
        outcome, error = NOTHING_DONE, None
        self.run.begin()
        try:
            outcome = self._schedulable.trigger(self.run)
        except BaseException as caught:  # noqa: BLE001 - documented boundary
            error = caught
        took_ns = round((self._clock.monotonic_s() - started_s) * 1e9)
        self._ended(self, RunEnd(outcome, error, took_ns))


class Chore:
    """Lifecycle method of a component that waits for a thread or is running on one.

    Args:
        call: The method; it must not raise.
        ended: Called with the result, on the method's thread.
        done: Handles the result, on the scheduler's thread.
        now_s: Time of the request, monotonic.
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
        """Call the method, on a thread of the pool."""
        self._ended(self, self._call())


def make_ready(schedulable: Schedulable) -> ChoreEnd:
    """Validate a component and prepare it; after a failure, release its resources."""
    try:
        problems = schedulable.problems()
    except BaseException as error:  # noqa: BLE001 - documented boundary; also catches sys.exit()
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
    """Call a lifecycle method."""
    try:
        method()
    except BaseException as error:  # noqa: BLE001 - documented boundary; also catches sys.exit()
        return ChoreEnd((f"{name} raised {told(error)}",))
    return ChoreEnd()


def told(error: BaseException) -> str:
    """Return an exception as one line of text; only its type name if `str()` raises."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - documented boundary: this is also code of a component
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
