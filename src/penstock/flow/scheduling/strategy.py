"""Scheduling strategy of a component: by event, by timer, or by CRON.

Owns the value of a schedule and, as plain functions of time, when a run slot becomes free after a
run. Does not own timers, nor the check for work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from penstock.core.durations import parse_nifi_period
from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.flow.scheduling.cron.expression import CronExpression

_NS_PER_MS: Final = 1_000_000


class SchedulingStrategy(Enum):
    """Cause of a run."""

    EVENT = "event"
    """Work arrived, or its outputs have room again."""

    TIMER = "timer"
    """The period since the end of the previous run has passed and there is work; or work arrives.
    """

    CRON = "cron"
    """The wall clock reaches a time of the expression, and there is work at that moment."""


class MissedRunPolicy(Enum):
    """Handling of firing times of a CRON schedule that passed without a run."""

    SKIP = "skip"
    """They are skipped, as in NiFi."""

    ONCE = "once"
    """One run for all of them together, as soon as possible."""


@dataclass(frozen=True, slots=True)
class ComponentSchedule:
    """When a component runs, and with how many threads.

    Attributes:
        strategy: Cause of a run.
        period_ns: Timer driven: from the end of a run to the next, in nanoseconds.
        cron: CRON driven: the expression, with its zone.
        missed: CRON driven: handling of missed times.
        last_fired_ms: CRON driven: time up to which firing times were handled before this start,
            epoch ms, so that `MissedRunPolicy.ONCE` includes those missed while nothing ran; None:
            only future times count.
        concurrent_tasks: Maximum number of threads in the component.
        run_duration_ms: How long a run may continue over several triggers with one commit.
        groups: Process groups that contain it, outermost first; each may have a limit of threads.
    """

    strategy: SchedulingStrategy = SchedulingStrategy.EVENT
    period_ns: int = 0
    cron: CronExpression | None = None
    missed: MissedRunPolicy = MissedRunPolicy.SKIP
    last_fired_ms: int | None = None
    concurrent_tasks: int = 1
    run_duration_ms: int = 0
    groups: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.concurrent_tasks < 1:
            raise InvalidRequest(
                f"{self.concurrent_tasks} concurrent tasks: use 1 or more",
                place="concurrent_tasks",
            )
        if self.run_duration_ms < 0:
            raise InvalidRequest(
                f"run duration of {self.run_duration_ms} ms: use 0 or more",
                place="run_duration_ms",
            )
        if self.period_ns < 0:
            raise InvalidRequest(f"period of {self.period_ns} ns: use 0 or more", place="period_ns")
        if (self.strategy is SchedulingStrategy.CRON) != (self.cron is not None):
            raise InvalidRequest(
                "a CRON expression must be given for the strategy cron, and for no other",
                place="cron",
            )

    @property
    def is_gapless(self) -> bool:
        """Return whether a run may begin as soon as the previous one ended."""
        return self.strategy is not SchedulingStrategy.CRON and not self.period_ns

    @property
    def period_ms(self) -> float:
        """The period in milliseconds."""
        return self.period_ns / _NS_PER_MS


def every(period: str) -> ComponentSchedule:
    """Return a timer driven schedule of a period such as ``10 sec``.

    Raises:
        InvalidRequest: The text is not a period.
    """
    return ComponentSchedule(SchedulingStrategy.TIMER, period_ns=parse_nifi_period(period))


def next_firing_ms(schedule: ComponentSchedule, now_ms: int, served_ms: int | None) -> int | None:
    """Return when a CRON schedule fires next, epoch ms; a time up to `now_ms` means at once.

    Handled times count in addition to the clock: a timer that fired a little early does not fire
    for the same time again.

    Args:
        schedule: A CRON driven schedule.
        now_ms: The wall time.
        served_ms: Time up to which firing times are handled; None: none was handled yet.

    Returns:
        None if the expression has no further times.
    """
    assert schedule.cron is not None
    if served_ms is None:
        return schedule.cron.next(now_ms)
    if schedule.missed is MissedRunPolicy.ONCE:
        return schedule.cron.next(served_ms)
    return schedule.cron.next(max(now_ms, served_ms))
