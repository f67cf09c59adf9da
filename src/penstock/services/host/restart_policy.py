"""When a child is restarted: a pure state machine, without processes and clocks.

Owns the rule: a child that ended is restarted after a back-off, which doubles with each consecutive
end and is reset once the child ran for a while; every restart is counted. A child that ends
immediately several times before everything was ever ready is not restarted, because its failure is
permanent.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.backoff import RetryPolicy

BACK_OFF = RetryPolicy(200, 10_000)
# A child that ran this long has recovered: its next end counts as the first.
STEADY_S = 30.0
# Consecutive ends before the first readiness that count as a permanent failure.
ENDS_BEFORE_READY_MAX = 3
# Unexpected ends of a flow in a row, each within `STEADY_S` of the start, after which a start
# leaves the components stopped. Before the first readiness, the launcher gives up only after that
# start.
FLOW_ENDS_MAX = 5
# Exit code of a child with an invalid option: a restart would not help.
INVALID_OPTIONS = 2
# Exit code of a process that must be restarted: one of its threads ended unexpectedly, its overlord
# could not stop its work at the end of a term, or its FlowFile repository refuses further commits.
RESTART_REQUESTED = 70


@dataclass(slots=True)
class ChildLife:
    """State of one child.

    Attributes:
        name: The child.
        ends_before_ready_max: Consecutive ends before the first readiness that count as a
            permanent failure.
        restarts: Number of restarts since the launcher started.
        started_at_s: Monotonic time of its last start; None before the first.
        restart_at_s: When it is due to start; None while it runs.
    """

    name: str
    ends_before_ready_max: int = ENDS_BEFORE_READY_MAX
    restarts: int = 0
    ends_in_a_row: int = 0
    started_at_s: float | None = None
    restart_at_s: float | None = 0.0

    def due(self, now_s: float) -> bool:
        """Return whether the child must be started now."""
        return self.restart_at_s is not None and now_s >= self.restart_at_s

    def on_started(self, now_s: float) -> None:
        """Record that the child was started."""
        if self.started_at_s is not None:
            self.restarts += 1
        self.started_at_s = now_s
        self.restart_at_s = None

    def on_ended(self, now_s: float, *, was_ready: bool = True) -> float:
        """Record that it ended, or could not be started; return the seconds until the next start.

        Args:
            now_s: Monotonic time.
            was_ready: Whether it had become ready. A process that never did has not
                recovered, however long it ran: a JVM on a busy machine may need a minute to
                fail.
        """
        ran_s = 0.0
        if self.started_at_s is not None and self.restart_at_s is None and was_ready:
            ran_s = now_s - self.started_at_s
        self.ends_in_a_row = 1 if ran_s >= STEADY_S else self.ends_in_a_row + 1
        wait_s = BACK_OFF.delay_ms(self.ends_in_a_row) / 1_000
        self.restart_at_s = now_s + wait_s
        return wait_s

    def is_unrecoverable(self, exit_code: int, *, was_ready: bool) -> bool:
        """Return whether it failed before the first readiness in a way that restarts cannot fix."""
        too_often = self.ends_in_a_row >= self.ends_before_ready_max
        return not was_ready and (exit_code == INVALID_OPTIONS or too_often)


def next_wait_s(lives: list[ChildLife], now_s: float, otherwise_s: float) -> float:
    """Return the time until something is due."""
    due = [life.restart_at_s for life in lives if life.restart_at_s is not None]
    return max(0.0, min([otherwise_s, *(at - now_s for at in due)]))
