"""Pace of a supervisor: its number of task groups, and whether it needs any.

On the overlord's mailbox. Evaluates the lag after each poll of the stream: an idle stream needs no
tasks, and a large lag more of them, if the spec enables it.
"""

from __future__ import annotations

import logging
from statistics import fmean
from typing import TYPE_CHECKING

from penstock.core.errors import counted
from penstock.indexing.ports import Effort
from penstock.indexing.specs.stream_config import AutoScalerConfig, CostAutoScalerConfig
from penstock.indexing.supervisor.groups import GroupPhase
from penstock.indexing.supervisor.pacing.costing import CostScaler, Load
from penstock.indexing.supervisor.pacing.idleness import Idleness
from penstock.indexing.supervisor.pacing.scaling import LagScaler
from penstock.indexing.supervisor.spec_updates import with_task_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.standing import Standing
    from penstock.indexing.supervisor.state import SupervisorState

_log = logging.getLogger(__name__)


class Pace:
    """The pace of one supervisor.

    Args:
        state: The supervisor.
        standing: Determines its lag.
    """

    def __init__(self, state: SupervisorState, standing: Standing) -> None:
        self._state = state
        self._standing = standing
        self._idleness = Idleness()
        self._scaler: LagScaler | CostScaler | None = None

    def weigh(self) -> None:
        """Evaluate the lag and apply the result.

        Raises:
            Unavailable: The metadata store does not answer; the number of groups is unchanged.
        """
        state = self._state
        now_s = state.ports.clock.monotonic_s()
        lag = self._standing.lag()
        latest, _ = self._standing.latest()
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
                *(counted(sum(lag.values()), "message"), self._told()),
            )

    def _reading(self) -> list[TaskGroup]:
        return [g for g in self._state.groups.values() if g.phase is GroupPhase.READING]

    def _efforts(self) -> list[Effort]:
        return [told for group in self._reading() if (told := _effort(group)) is not None]

    def _told(self) -> str:
        """Describe the reported speed and idle ratio of the tasks."""
        mean = _mean(self._efforts())
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
        load = load_of(self._efforts(), lag=behind, partitions=partitions, groups=count)
        rolls = any(self._standing.remaining_s(group) <= 0 for group in self._reading())
        return scaler.decide(load, now_s, rolls=rolls)


def _scaler_for(
    config: AutoScalerConfig | CostAutoScalerConfig, now_s: float
) -> LagScaler | CostScaler:
    if isinstance(config, CostAutoScalerConfig):
        return CostScaler(config, now_s)
    return LagScaler(config, now_s)


def load_of(efforts: Sequence[Effort], *, lag: int, partitions: int, groups: int) -> Load:
    """Return the work to do and the average performance of the tasks.

    The idle ratio is known only if it is known for each of them.
    """
    mean = _mean(efforts)
    return Load(lag, partitions, groups, mean.per_second, mean.idle)


def _mean(efforts: Sequence[Effort]) -> Effort:
    rates = [effort.per_second for effort in efforts if effort.per_second > 0]
    idle = [effort.idle for effort in efforts if effort.idle is not None]
    return Effort(
        per_second=fmean(rates) if rates else 0.0,
        idle=fmean(idle) if idle and len(idle) == len(efforts) else None,
    )


def _effort(group: TaskGroup) -> Effort | None:
    """Return the performance of a group: its replicas do the same, so one report suffices."""
    reports = (replica.report for replica in group.replicas.values())
    return next((report.effort for report in reports if report is not None), None)
