"""Number of task groups with the lowest cost, where both lag and idle tasks have a cost.

Druid's `costBased` scaler; `docs/decisions/0031` lists the formulas taken from Druid and the
differences. Pure. The cost of n groups is

    lagWeight * seconds to work off the lag  +  idleWeight * cost of the idle time of n groups

The total work does not depend on the number of groups, so the idle time of n groups follows from
the current one. A number with which the groups could not keep up is never chosen, so a chosen
number stays the choice as long as nothing else changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.indexing.specs.stream_config import CostAutoScalerConfig

# Druid's constants: cost of tasks without idle time; cost of tasks without work, beyond the optimal
# idle ratio; minimum assumed speed of a task; maximum size of one change if it is bounded, in
# stream partitions per task; shares of the critical lag above which scaling is urgent.
_OVERWORKED: Final = 2.0
_UNUSED: Final = 1.0
_LEAST_PER_SECOND: Final = 1_000.0
_STEP_IN_PARTITIONS: Final = 2
_HIGH_LAG: Final = 0.75
_CRITICAL_LAG: Final = 0.95
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """Work and performance of the task groups of a supervisor.

    Attributes:
        lag: Messages of all stream partitions that are not persisted yet.
        partitions: Number of stream partitions.
        groups: Number of task groups that read them.
        per_second: Messages that one task can persist in a second of work; 0: unknown.
        idle: Share of the time in which tasks are idle; None: unknown.
    """

    lag: int
    partitions: int
    groups: int
    per_second: float
    idle: float | None


@dataclass(frozen=True, slots=True)
class Costs:
    """Weighted costs of a number of groups: for the lag, and for idle tasks."""

    lag: float
    idle: float

    @property
    def total(self) -> float:
        """Sum of both."""
        return self.lag + self.idle


def costs_of(config: CostAutoScalerConfig, load: Load, groups: int) -> Costs:
    """Return the cost of doing the work with `groups` groups."""
    seconds = 0.0
    if load.lag and load.per_second > 0:
        seconds = load.lag / (groups * max(load.per_second, _LEAST_PER_SECOND))
        if _share_of_critical(config, load) >= _HIGH_LAG:
            a_partition = load.lag / load.partitions
            seconds *= 1 + config.high_lag_cost_factor * math.log(max(a_partition, 1.0))
    wished = config.optimal_task_idle_ratio
    idle = wished if load.idle is None else 1 - _least_work(load, load.idle) / groups
    if idle < wished:
        penalty = _OVERWORKED * ((wished - idle) / wished) ** 2
    else:
        penalty = _UNUSED * ((idle - wished) / (1 - wished)) ** 2
    return Costs(config.lag_weight * seconds, config.idle_weight * groups * (wished + penalty))


def cheapest(config: CostAutoScalerConfig, load: Load) -> int:
    """Return the number of groups with the lowest cost; the current one if none is cheaper.

    It is within the bounds of the config, and at most the number of stream partitions unless
    `taskCountMin` is larger. A larger lag never reduces it. If the idle ratio or the speed of the
    tasks is unknown, the number is not reduced.
    """
    most = max(config.task_count_min, min(config.task_count_max, load.partitions))
    here = min(max(load.groups, config.task_count_min), most)
    if here != load.groups or load.partitions < 1:
        return here
    if _share_of_critical(config, load) >= _CRITICAL_LAG:
        return most
    costs = {n: costs_of(config, load, n).total for n in _candidates(config, load, most)}
    best = min(costs, key=lambda n: (costs[n], n))
    drop = max(config.min_cost_drop_percent_for_scaling / 100, _ROUNDING)
    return best if costs[best] <= costs[here] * (1 - drop) else here


def _candidates(config: CostAutoScalerConfig, load: Load, most: int) -> list[int]:
    """Return the candidate numbers, including the current one.

    A candidate is the smallest number for which each group has at most k stream partitions, for
    some k: any number between two candidates leaves the largest group unchanged.
    """
    here = load.groups
    parts = _partitions_each(load, here)
    narrowest, widest = 1, load.partitions
    if config.use_task_count_boundaries_on_scale_up and not _is_urgent(config, load):
        narrowest = max(1, parts - _STEP_IN_PARTITIONS)
    if config.use_task_count_boundaries_on_scale_down:
        widest = min(widest, parts + _STEP_IN_PARTITIONS)
    counts = {_partitions_each(load, k) for k in range(narrowest, widest + 1)}
    if _partitions_each(load, config.task_count_min) <= widest:
        counts.add(config.task_count_min)
    fitting = (n for n in counts if config.task_count_min <= n <= most)
    return sorted({n for n in fitting if n > here or _keep_up(load, n)} | {here})


def _partitions_each(load: Load, groups: int) -> int:
    """Return the number of stream partitions of the largest group."""
    return -(-load.partitions // groups)


def _keep_up(load: Load, groups: int) -> bool:
    """Return whether `groups` groups could do the work, as far as that is known."""
    if load.idle is None or (load.lag and load.per_second <= 0):
        return False
    share = _partitions_each(load, groups) / load.partitions
    return _work(load, load.idle) * share <= 1 + _ROUNDING


def _work(load: Load, idle: float) -> float:
    """Return how many tasks the work would keep busy all the time."""
    return (1 - idle) * load.groups


def _least_work(load: Load, idle: float) -> float:
    """Return the same, assuming that tasks have at least the minimum speed.

    A slow worker slows its batches down for a while, which looks like slow messages. So slow tasks
    do not count as overworked; whether fewer could keep up is judged by the measured speed.
    """
    return _work(load, idle) * min(1.0, load.per_second / _LEAST_PER_SECOND)


def _share_of_critical(config: CostAutoScalerConfig, load: Load) -> float:
    threshold = config.critical_lag_threshold
    return 0.0 if threshold is None else load.lag / threshold


def _is_urgent(config: CostAutoScalerConfig, load: Load) -> bool:
    return _share_of_critical(config, load) >= _HIGH_LAG


class CostScaler:
    """The scaler of one supervisor: decides when to change the number of groups.

    Args:
        config: Its weights and times.
        now_s: The time; the first decision comes after `scaleActionPeriodMillis`.
    """

    def __init__(self, config: CostAutoScalerConfig, now_s: float) -> None:
        self.config = config
        self._next_s = now_s + config.scale_action_period_millis / 1000
        self._changed_s = -math.inf
        self._fewer: int | None = None

    def decide(self, load: Load, now_s: float, *, rolls: bool) -> int | None:
        """Return a new number of groups, None to keep the current one.

        Args:
            load: Work and performance of the tasks.
            now_s: The time.
            rolls: Whether a group has read for its `taskDuration` and is about to end anyway.
        """
        if now_s >= self._next_s:
            self._next_s = now_s + self.config.scale_action_period_millis / 1000
            wanted = cheapest(self.config, load)
            self._fewer = wanted if wanted < load.groups else None
            if self._may_change(wanted, load, now_s):
                return wanted
        if rolls and self._fewer is not None and self._fewer < load.groups:
            # The group ends anyway, and mostly all groups do; younger ones end with it.
            return self._fewer
        return None

    def changed(self, now_s: float) -> None:
        """The decided number is in effect; until this call, the decision is repeated."""
        self._changed_s, self._fewer = now_s, None

    def _may_change(self, wanted: int, load: Load, now_s: float) -> bool:
        config, since_ms = self.config, (now_s - self._changed_s) * 1000
        if wanted < load.groups:
            if config.scale_down_during_task_rollover_only and load.groups <= config.task_count_max:
                return False
            return since_ms >= config.min_scale_down_delay
        return wanted > load.groups and since_ms >= config.min_scale_up_delay
