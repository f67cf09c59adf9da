"""Protocols between the scheduler and a component, and a run as the component sees it.

Owns the protocols between the scheduler and a component of a flow (a processor, a funnel or a
port), and the rules for the duration of a run. Does not own queues or sessions: the implementation
of `ComponentProtocol` has them, and ends a run when it has no work or no room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from penstock.core.clock import Clock

# A processor that feeds itself must commit early: its input may be in its own loop.
_LOOP_SHARE: Final = 25
# Bound for clocks that do not advance, as in tests.
_REPEATED_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcome of a run that did not raise.

    Attributes:
        worked: Whether it took, created or changed something. If not, the component is not
            triggered for a moment although it has work, so that it does not spin.
        yield_ms: How long the component yields; 0: it does not.
    """

    worked: bool = True
    yield_ms: int = 0


WORKED: Final = RunOutcome()
NOTHING_DONE: Final = RunOutcome(worked=False)


class ComponentRun(Protocol):
    """One run, as the component uses it: one trigger, or several within a short time."""

    @property
    def duration_ms(self) -> int:
        """How long it may continue without a commit; 0: one trigger."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Return whether the run was abandoned, so that its results are discarded."""
        ...

    def may_continue(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Return, after a trigger, whether there is time for another one before the commit.

        Args:
            yielded: The component yielded.
            loop_is_full: A connection from the component to itself is full.
        """
        ...

    def repeats(self, *, yielded: bool = False) -> bool:
        """Return, after a commit, whether another session may begin at once on the same thread.

        This is only so if the schedule has no pause between two runs. It avoids the scheduler's
        overhead, which equals that of a small session. The time is limited, for other components
        that wait for the thread.

        Args:
            yielded: The component yielded.
        """
        ...


class TimedRun:
    """`ComponentRun` with a duration; `may_continue` follows NiFi's rules.

    Only the thread of the run calls its methods.

    Args:
        clock: Measures the duration.
        duration_ms: Maximum duration.
        repeat_ms: How long further commits may begin; 0: only one commit.

    Attributes:
        is_wanted: Whether the component should still run; the scheduler's thread resets it.
        is_terminated: The run was abandoned; the scheduler's thread sets it, once.
    """

    __slots__ = (
        "_clock",
        "_repeat_ms",
        "_repeated",
        "_started_s",
        "duration_ms",
        "is_terminated",
        "is_wanted",
    )

    def __init__(self, clock: Clock, duration_ms: int, repeat_ms: int = 0) -> None:
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._repeat_ms = repeat_ms
        self._repeated = 0
        self.duration_ms: int = duration_ms
        self.is_wanted = True
        self.is_terminated = False

    def begin(self) -> None:
        """Start measuring the duration."""
        self._started_s = self._clock.monotonic_s()

    def may_continue(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Return whether there is time for another trigger before the commit."""
        if yielded or not self.duration_ms or self.is_terminated or not self.is_wanted:
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms > self.duration_ms:
            return False
        return not loop_is_full or elapsed_ms <= self.duration_ms / _LOOP_SHARE

    def repeats(self, *, yielded: bool = False) -> bool:
        """Return whether another trigger may follow after a commit, in a new session."""
        if yielded or self._repeated >= _REPEATED_MAX or self.is_terminated or not self.is_wanted:
            return False
        elapsed_ms = (self._clock.monotonic_s() - self._started_s) * 1000
        if elapsed_ms >= self._repeat_ms:
            return False
        self._repeated += 1
        return True


class SchedulerSignals(Protocol):
    """The scheduler, as components and queues use it, from any thread.

    Both methods are cheap, and ignore an unknown id.
    """

    def wake(self, component_id: str) -> None:
        """Notify it that a component has new work, or new room in its outputs."""
        ...

    def yield_for(self, component_id: str, wait_ms: float) -> None:
        """Do not trigger a component for this time, on any thread."""
        ...


class ComponentProtocol(Protocol):
    """Component of a flow.

    The scheduler's thread often calls `has_work`, `next_due_ms` and `is_open`: they must not block,
    and should take about a microsecond. All other methods run on threads of the pool. Only one of
    the methods `on_*` runs at a time, and none during `trigger`, except `on_unscheduled`.
    """

    def has_work(self, now_ms: int) -> bool:
        """Return whether a trigger would find something to do."""
        ...

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, in epoch ms; None if there is none."""
        ...

    def is_open(self) -> bool:
        """Return whether its outputs have room."""
        ...

    def problems(self) -> Sequence[str]:
        """Return its configuration errors, one sentence each; empty if it is valid."""
        ...

    def on_scheduled(self) -> None:
        """Prepare for the first trigger after a start. An exception fails the start."""
        ...

    def trigger(self, run: ComponentRun) -> RunOutcome:
        """Do one unit of work, and commit it.

        Exceptions are logged. After any exception except `ProcessError`, the component is not
        triggered for the administrative yield.
        """
        ...

    def on_unscheduled(self) -> None:
        """Handle the start of a stop: no new trigger begins. May end running triggers."""
        ...

    def on_stopped(self) -> None:
        """Release what `on_scheduled` acquired; no trigger runs."""
        ...

    def on_terminated(self) -> None:
        """Handle the abandoning of its threads; called on the scheduler's thread, must not block.

        Open sessions are rolled back, and their later calls raise. A new instance replaces the one
        that the old threads may still use.
        """
        ...
