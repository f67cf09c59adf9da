"""How a component is scheduled: by event, by timer, or by CRON.

Owns the schedule's value and, as plain functions of the time, when a place to run is free again
after a run. Does not own timers nor the question whether there is work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest
from penstock.flow.scheduling.periods import parse_period

if TYPE_CHECKING:
    from penstock.flow.scheduling.cron.expression import CronExpression

_NS_PER_MS: Final = 1_000_000


class Strategy(Enum):
    """What starts a run."""

    EVENT = "event"
    """Work arrived, or room for what it makes."""

    TIMER = "timer"
    """So much time passed since the end of the run before, and there is work; or work arrives."""

    CRON = "cron"
    """The wall clock shows a time of the expression, and there is work just then."""


class Missed(Enum):
    """What becomes of firing times of a CRON schedule that passed without a run."""

    SKIP = "skip"
    """Nothing, as in NiFi."""

    ONCE = "once"
    """One run for all of them together, as soon as may be."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a component runs, and how much at once.

    Attributes:
        strategy: What starts a run.
        period_ns: Timer driven: from the end of a run to the next, in nanoseconds.
        cron: CRON driven: the expression, with its zone.
        missed: CRON driven: what becomes of times that passed.
        last_fired_ms: CRON driven: up to when firing times were served before this start, epoch ms,
            so that `Missed.ONCE` sees what was missed while nothing ran; None: look at the future
            only.
        concurrent_tasks: Threads that may be in the component at once.
        run_duration_ms: How long a run may go on over several triggers with one commit.
        groups: The process groups it is in, the outermost first; each may have a limit of threads.
    """

    strategy: Strategy = Strategy.EVENT
    period_ns: int = 0
    cron: CronExpression | None = None
    missed: Missed = Missed.SKIP
    last_fired_ms: int | None = None
    concurrent_tasks: int = 1
    run_duration_ms: int = 0
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrent_tasks < 1:
            raise InvalidRequest(
                f"{self.concurrent_tasks} concurrent tasks: give 1 or more",
                place="concurrent_tasks",
            )
        if self.run_duration_ms < 0:
            raise InvalidRequest(
                f"run duration of {self.run_duration_ms} ms: give 0 or more",
                place="run_duration_ms",
            )
        if self.period_ns < 0:
            raise InvalidRequest(
                f"period of {self.period_ns} ns: give 0 or more", place="period_ns"
            )
        if (self.strategy is Strategy.CRON) != (self.cron is not None):
            raise InvalidRequest(
                "a CRON expression is given if, and only if, the strategy is cron", place="cron"
            )

    @property
    def is_gapless(self) -> bool:
        """Say whether a run may begin as soon as the one before ended."""
        return self.strategy is not Strategy.CRON and not self.period_ns

    @property
    def period_ms(self) -> float:
        """The period in milliseconds."""
        return self.period_ns / _NS_PER_MS


def every(period: str) -> Schedule:
    """Return a timer driven schedule of a period such as ``10 sec``.

    Raises:
        InvalidRequest: The text is no period.
    """
    return Schedule(Strategy.TIMER, period_ns=parse_period(period))


def next_firing_ms(schedule: Schedule, now_ms: int, served_ms: int | None) -> int | None:
    """Return when a CRON schedule fires next, epoch ms; a time not after `now_ms`: at once.

    What was served counts beside the clock: a timer that rang a little early does not ring for the
    same time again.

    Args:
        schedule: A CRON driven one.
        now_ms: The wall time.
        served_ms: Up to when firing times are done with; None: none was served yet.

    Returns:
        None if the expression has no time any more.
    """
    assert schedule.cron is not None
    if served_ms is None:
        return schedule.cron.next(now_ms)
    if schedule.missed is Missed.ONCE:
        return schedule.cron.next(served_ms)
    return schedule.cron.next(max(now_ms, served_ms))
