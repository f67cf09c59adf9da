"""Protocol between the scheduler and a component, and the outcome of a run.

Owns the protocol between the scheduler and a component of a flow: a processor or a funnel. Does not
own queues or sessions: the implementation of `Schedulable` has them. The functions of `work` help
to implement its checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run that did not raise.

    Attributes:
        worked: Whether it took, created or changed something. If not, the component is not
            triggered for a moment although it has work, so that it does not spin.
        yield_ms: How long the component yields; 0: it does not.
    """

    worked: bool = True
    yield_ms: int = 0


WORKED: Final = Outcome()
NOTHING_DONE: Final = Outcome(worked=False)


class Run(Protocol):
    """One run, as the component uses it: one trigger, or several within a short time."""

    @property
    def duration_ms(self) -> int:
        """How long it may continue without a commit; 0: one trigger."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Return whether the run was abandoned, so that its results are discarded."""
        ...

    def goes_on(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Return, after a trigger, whether another one follows in this run before the commit.

        Args:
            yielded: The component yielded.
            loop_is_full: A connection from the component to itself is full.
        """
        ...

    def repeats(self, *, yielded: bool = False) -> bool:
        """Return, after a commit, whether another session begins at once on the same thread.

        This is only so if the schedule has no pause between two runs. It avoids the scheduler's
        overhead, which equals that of a small session. The time is limited, for other components
        that wait for the thread.

        Args:
            yielded: The component yielded.
        """
        ...


class Schedulable(Protocol):
    """Component of a flow.

    The scheduler's thread often calls `has_work`, `next_due_ms` and `is_open`: they must not block,
    and should take about a microsecond. All other methods run on threads of the pool. Of the
    methods `on_*`, only one runs at a time, and none during `trigger`, except `on_unscheduled`.
    """

    def has_work(self, now_ms: int) -> bool:
        """Return whether a trigger would find something to do: see `work.has_work`."""
        ...

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, in epoch ms; None if there is none."""
        ...

    def is_open(self) -> bool:
        """Return whether its outputs have room: see `work.is_open`."""
        ...

    def problems(self) -> Sequence[str]:
        """Return its configuration errors, one sentence each; empty if it is valid."""
        ...

    def on_scheduled(self) -> None:
        """Prepare for the first trigger after a start. An exception fails the start."""
        ...

    def trigger(self, run: Run) -> Outcome:
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
