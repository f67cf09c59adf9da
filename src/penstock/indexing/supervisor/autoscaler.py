"""Autoscaler of a supervisor: the number of task groups, from lag, cost and idleness.

`Autoscaler` runs on the overlord's mailbox and evaluates the load after each poll of the
stream. A stream that was idle for long enough needs no tasks, and one with a large lag needs
more, if the spec allows it. The scalers are pure.

`LagScaler` decides by the lag of the last minutes. After a change it makes no other before
`minTriggerScaleActionFrequencyMillis` has passed and a whole window of new lags was collected,
because older lags do not describe the new number of groups. A constant lag therefore only moves
the number in one direction.

`CostScaler` is Druid's `costBased` scaler (`docs/decisions/0031` lists the formulas and
differences). It selects the number of groups n with the least cost:

    lagWeight * seconds to work off the lag  +  idleWeight * cost of the idle time of n groups

The total work does not depend on n, so the idle time of n groups follows from the present one.
A number at which the groups could not keep up is never selected, so a selected number stays the
best one while the load is unchanged. `Idleness` measures for how long a stream has been idle.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

from penstock.core.errors import counted
from penstock.indexing.ports import Throughput
from penstock.indexing.specs.stream_config import AutoScalerConfig, CostAutoScalerConfig
from penstock.indexing.supervisor.spec_updates import with_task_count
from penstock.indexing.supervisor.task_groups import GroupState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.supervisor_status import SupervisorSnapshot
    from penstock.indexing.supervisor.task_groups import TaskGroup


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
class GroupLoad:
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


def costs_of(config: CostAutoScalerConfig, load: GroupLoad, groups: int) -> Costs:
    """Return the cost of doing the work with `groups` groups."""
    seconds = 0.0
    if load.lag and load.per_second > 0:
        seconds = load.lag / (groups * max(load.per_second, _LEAST_PER_SECOND))
        if _share_of_critical(config, load) >= _HIGH_LAG:
            a_partition = load.lag / load.partitions
            seconds *= 1 + config.high_lag_cost_factor * math.log(max(a_partition, 1.0))
    target = config.optimal_task_idle_ratio
    idle = target if load.idle is None else 1 - _least_work(load, load.idle) / groups
    if idle < target:
        penalty = _OVERWORKED * ((target - idle) / target) ** 2
    else:
        penalty = _UNUSED * ((idle - target) / (1 - target)) ** 2
    return Costs(config.lag_weight * seconds, config.idle_weight * groups * (target + penalty))


def cheapest(config: CostAutoScalerConfig, load: GroupLoad) -> int:
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


def _candidates(config: CostAutoScalerConfig, load: GroupLoad, most: int) -> list[int]:
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


def _partitions_each(load: GroupLoad, groups: int) -> int:
    """Return the number of stream partitions of the largest group."""
    return -(-load.partitions // groups)


def _keep_up(load: GroupLoad, groups: int) -> bool:
    """Return whether `groups` groups could do the work, as far as that is known."""
    if load.idle is None or (load.lag and load.per_second <= 0):
        return False
    share = _partitions_each(load, groups) / load.partitions
    return _work(load, load.idle) * share <= 1 + _ROUNDING


def _work(load: GroupLoad, idle: float) -> float:
    """Return how many tasks the work would keep busy all the time."""
    return (1 - idle) * load.groups


def _least_work(load: GroupLoad, idle: float) -> float:
    """Return the same, assuming that tasks have at least the minimum speed.

    A slow worker slows its batches down for a while, which looks like slow messages. So slow tasks
    do not count as overworked; whether fewer could keep up is judged by the measured speed.
    """
    return _work(load, idle) * min(1.0, load.per_second / _LEAST_PER_SECOND)


def _share_of_critical(config: CostAutoScalerConfig, load: GroupLoad) -> float:
    threshold = config.critical_lag_threshold
    return 0.0 if threshold is None else load.lag / threshold


def _is_urgent(config: CostAutoScalerConfig, load: GroupLoad) -> bool:
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

    def decide(self, load: GroupLoad, now_s: float, *, rolls: bool) -> int | None:
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

    def _may_change(self, wanted: int, load: GroupLoad, now_s: float) -> bool:
        config, since_ms = self.config, (now_s - self._changed_s) * 1000
        if wanted < load.groups:
            if config.scale_down_during_task_rollover_only and load.groups <= config.task_count_max:
                return False
            return since_ms >= config.min_scale_down_delay
        return wanted > load.groups and since_ms >= config.min_scale_up_delay


class LagScaler:
    """The scaler of one supervisor.

    Args:
        config: Its thresholds and times.
        now_s: The time; the first decision comes after the start delay.
    """

    def __init__(self, config: AutoScalerConfig, now_s: float) -> None:
        self.config = config
        self._samples: deque[tuple[float, float]] = deque()
        self._not_before_s = now_s + config.scale_action_start_delay_millis / 1000

    def observe(self, lag: Mapping[int, int], now_s: float) -> None:
        """Record the lag of each stream partition, if the next sample is due."""
        interval_s = self.config.lag_collection_interval_millis / 1000
        if self._samples and now_s < self._samples[-1][0] + interval_s:
            return
        self._samples.append((now_s, aggregate(lag, self.config.lag_aggregate)))
        while self._samples[0][0] < now_s - self.config.lag_collection_range_millis / 1000:
            self._samples.popleft()

    def decide(self, task_count: int, partition_count: int, now_s: float) -> int | None:
        """Return a new number of groups, None to keep the current one.

        Args:
            task_count: The current number.
            partition_count: Number of stream partitions; further groups would be empty.
            now_s: The time.
        """
        if now_s < self._not_before_s:
            return None
        self._not_before_s = now_s + self.config.scale_action_period_millis / 1000
        wanted = self._wanted(task_count, partition_count, now_s)
        return None if wanted == task_count else wanted

    def changed(self, now_s: float) -> None:
        """The decided number is in effect; until this call, the decision is repeated."""
        quiet_ms = self.config.min_trigger_scale_action_frequency_millis
        self._not_before_s = max(self._not_before_s, now_s + quiet_ms / 1000)
        self._samples.clear()

    def _wanted(self, task_count: int, partition_count: int, now_s: float) -> int:
        config = self.config
        most = max(config.task_count_min, min(config.task_count_max, partition_count))
        bounded = min(max(task_count, config.task_count_min), most)
        if bounded != task_count or not self._is_full(now_s):
            return bounded
        lags = [lag for _, lag in self._samples]
        high = sum(lag >= config.scale_out_threshold for lag in lags) / len(lags)
        low = sum(lag <= config.scale_in_threshold for lag in lags) / len(lags)
        if high >= config.trigger_scale_out_fraction_threshold and high > 0:
            return min(most, task_count + config.scale_out_step)
        if low >= config.trigger_scale_in_fraction_threshold:
            return max(config.task_count_min, task_count - config.scale_in_step)
        return task_count

    def _is_full(self, now_s: float) -> bool:
        """Return whether the samples span the whole window."""
        if not self._samples:
            return False
        config = self.config
        span_ms = config.lag_collection_range_millis - config.lag_collection_interval_millis
        return now_s - self._samples[0][0] >= span_ms / 1000


def aggregate(lag: Mapping[int, int], how: str) -> float:
    """Return the SUM, MAX or AVERAGE of the lags of all stream partitions."""
    if not lag:
        return 0.0
    if how == "MAX":
        return float(max(lag.values()))
    total = sum(lag.values())
    return total / len(lag) if how == "AVERAGE" else float(total)


class Idleness:
    """Measures how long one stream has had no new message."""

    def __init__(self) -> None:
        self._latest: dict[int, int] | None = None
        self._since_s = 0.0

    def is_idle(self, latest: Offsets, lag: int, limit_ms: int | None, now_s: float) -> bool:
        """Record the ends of a stream; return whether they have not changed for `limit_ms`.

        Args:
            latest: The end of each stream partition.
            lag: Total number of unread messages; the stream is not idle if there are any.
            limit_ms: Minimum time without messages; None: the stream is never idle.
            now_s: The time.
        """
        if self._latest != dict(latest) or lag:
            self._latest, self._since_s = dict(latest), now_s
        return limit_ms is not None and (now_s - self._since_s) * 1000 >= limit_ms


_log = logging.getLogger(__name__)


class Autoscaler:
    """Scales and pauses the task groups of one supervisor.

    Args:
        state: The supervisor.
        snapshot: Determines its lag.
    """

    def __init__(self, state: SupervisorState, snapshot: SupervisorSnapshot) -> None:
        self._state = state
        self._snapshot = snapshot
        self._idleness = Idleness()
        self._scaler: LagScaler | CostScaler | None = None

    def evaluate(self) -> None:
        """Evaluate the lag and apply the result.

        Raises:
            Unavailable: The metadata store does not answer; the number of groups is unchanged.
        """
        state = self._state
        now_s = state.ports.clock.monotonic_s()
        lag = self._snapshot.lag()
        latest, _ = self._snapshot.latest()
        limit_ms = state.spec.io.inactive_after_ms
        state.idle = self._idleness.is_idle(latest, sum(lag.values()), limit_ms, now_s)
        config = state.spec.io.scaler
        if config is None or not state.reads:
            self._scaler = None
            return
        if self._scaler is None or self._scaler.config != config:
            self._scaler = _scaler_for(config, now_s)
        wanted = self._decide(self._scaler, lag, len(latest), now_s)
        if wanted is not None:
            count = state.spec.io.task_count
            spec = with_task_count(state.spec, wanted)
            state.ports.metadata.supervisors.put(state.id, spec.to_json())
            state.spec = spec
            # Only after it is stored, or a change that failed would be logged and delay others.
            self._scaler.changed(now_s)
            _log.info(
                "supervisor %s: %s instead of %d; the lag of %s is %s; %s",
                *(state.id, counted(wanted, "group"), count, counted(len(latest), "partition")),
                *(counted(sum(lag.values()), "message"), self._throughput_text()),
            )

    def _reading_groups(self) -> list[TaskGroup]:
        return [g for g in self._state.groups.values() if g.state is GroupState.READING]

    def _throughputs(self) -> list[Throughput]:
        return [
            throughput
            for group in self._reading_groups()
            if (throughput := _throughput(group)) is not None
        ]

    def _throughput_text(self) -> str:
        """Describe the reported speed and idle ratio of the tasks."""
        mean = _mean(self._throughputs())
        idle = "their idle ratio is unknown" if mean.idle is None else f"{mean.idle:.0%} idle"
        return f"tasks do {mean.per_second:,.0f} a second, {idle}"

    def _decide(
        self, scaler: LagScaler | CostScaler, lag: Mapping[int, int], partitions: int, now_s: float
    ) -> int | None:
        count = self._state.spec.io.task_count
        if isinstance(scaler, LagScaler):
            scaler.observe(lag, now_s)
            return scaler.decide(count, partitions, now_s)
        behind = sum(lag.values())
        load = load_of(self._throughputs(), lag=behind, partitions=partitions, groups=count)
        rolls = any(self._snapshot.remaining_s(group) <= 0 for group in self._reading_groups())
        return scaler.decide(load, now_s, rolls=rolls)


def _scaler_for(
    config: AutoScalerConfig | CostAutoScalerConfig, now_s: float
) -> LagScaler | CostScaler:
    if isinstance(config, CostAutoScalerConfig):
        return CostScaler(config, now_s)
    return LagScaler(config, now_s)


def load_of(
    throughputs: Sequence[Throughput], *, lag: int, partitions: int, groups: int
) -> GroupLoad:
    """Return the work to do and the average performance of the tasks.

    The idle ratio is known only if it is known for each of them.
    """
    mean = _mean(throughputs)
    return GroupLoad(lag, partitions, groups, mean.per_second, mean.idle)


def _mean(throughputs: Sequence[Throughput]) -> Throughput:
    rates = [throughput.per_second for throughput in throughputs if throughput.per_second > 0]
    idle = [throughput.idle for throughput in throughputs if throughput.idle is not None]
    return Throughput(
        per_second=fmean(rates) if rates else 0.0,
        idle=fmean(idle) if idle and len(idle) == len(throughputs) else None,
    )


def _throughput(group: TaskGroup) -> Throughput | None:
    """Return the performance of a group: its replicas do the same, so one report suffices."""
    reports = (replica.report for replica in group.replicas.values())
    return next((report.throughput for report in reports if report is not None), None)
