"""What the scheduler runs, and what a run answers.

Owns the protocol between the scheduler and a component of a flow: a processor or a funnel. Does not
own queues or sessions: whoever implements `Schedulable` has them, and the functions of `work` help
to answer for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended that raised nothing.

    Attributes:
        worked: It took, made or changed something. One that says no is left alone for a moment
            although it has work, so that it does not spin.
        yield_ms: It asked to be left alone for so long; 0: it did not.
    """

    worked: bool = True
    yield_ms: int = 0


WORKED: Final = Outcome()
NOTHING_DONE: Final = Outcome(worked=False)


class Run(Protocol):
    """One run, as the component sees it: one trigger, or several within a short time."""

    @property
    def duration_ms(self) -> int:
        """For how long it may go on without a commit; 0: one trigger."""
        ...

    @property
    def is_terminated(self) -> bool:
        """Say whether the run was given up: what it does counts for nothing any more."""
        ...

    def goes_on(self, *, yielded: bool = False, loop_is_full: bool = False) -> bool:
        """Say, after a trigger, whether another follows in this run, before the commit.

        Args:
            yielded: The component asked to be left alone.
            loop_is_full: A connection from the component to itself is full.
        """
        ...

    def repeats(self, *, yielded: bool = False) -> bool:
        """Say, after a commit, whether another session begins at once on the same thread.

        Only where the schedule leaves no time between two runs. It spares the way through the
        scheduler, which takes as long as a small session, and comes to an end soon enough for
        others who wait for the thread.

        Args:
            yielded: The component asked to be left alone.
        """
        ...


class Schedulable(Protocol):
    """A component of a flow.

    The three questions are asked on the scheduler's thread, often: they wait for nothing, and cost
    a microsecond or so. All else runs on threads of the pool; of the methods `on_*`, one at a time
    and none beside `trigger`, but for `on_unscheduled`.
    """

    def has_work(self, now_ms: int) -> bool:
        """Say whether a trigger would find something to do: see `work.has_work`."""
        ...

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, in epoch ms; None: none is there."""
        ...

    def is_open(self) -> bool:
        """Say whether there is room for what it makes: see `work.is_open`."""
        ...

    def problems(self) -> Sequence[str]:
        """Return what keeps it from running, one sentence each; none: it is valid."""
        ...

    def on_scheduled(self) -> None:
        """Make ready, before the first trigger after a start. What it raises fails the start."""
        ...

    def trigger(self, run: Run) -> Outcome:
        """Do a piece of work, and commit it.

        What it raises is logged. All but `ProcessError` also keep the component from running for
        the administrative yield.
        """
        ...

    def on_unscheduled(self) -> None:
        """Hear that no trigger begins any more; those under way may be told to end."""
        ...

    def on_stopped(self) -> None:
        """Let go of what `on_scheduled` made; no trigger runs."""
        ...

    def on_terminated(self) -> None:
        """Hear, on the scheduler's thread, that its threads were given up: waits for nothing.

        Sessions that are open are rolled back, later calls of theirs raise, and a new instance
        takes the place of the one that the old threads may still be in.
        """
        ...
