"""From a flow's graph to what its parts are told: schedules, queue options, processors.

Owns the translation of texts into values. Does not own the parts. Everything here was validated
before, so that an error is one of a parameter's value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.flow.controller.unit import UnitPlan
from penstock.flow.graph.index import FlowIndex, PlacedComponent, PlacedConnection, PlacedGroup
from penstock.flow.graph.model import BackoffMechanism, Processor, Strategy
from penstock.flow.graph.parameters import ParameterValues
from penstock.flow.prioritizers import Prioritizer, prioritizer_named
from penstock.flow.processor.context import ProcessorIdentity
from penstock.flow.processor.registry import ProcessorRegistry
from penstock.flow.queue.size import QueueOptions, parse_size
from penstock.flow.relationships import Backoff, Retry
from penstock.flow.scheduling import strategy as scheduling
from penstock.flow.scheduling.cron.expression import CronExpression
from penstock.flow.scheduling.periods import parse_period

_NS_PER_MS: Final = 1_000_000


class Plans:
    """Makes the plans of one flow.

    Args:
        index: The flow.
        values: Fetches the values of its parameters, anew for each start of a processor.
        registry: Finds the processors' classes.
    """

    def __init__(
        self,
        index: FlowIndex,
        values: Callable[[], ParameterValues],
        registry: ProcessorRegistry,
    ) -> None:
        self._index = index
        self._fetch = values
        self._registry = registry
        self._values = values()

    def queue_options(self, placed: PlacedConnection) -> QueueOptions:
        """Return what a connection's queue is told.

        Raises:
            InvalidRequest: The value of a parameter will not do.
        """
        connection = placed.connection
        return QueueOptions(
            swap_threshold=connection.swap_threshold,
            swap_batch=min(connection.swap_threshold, QueueOptions().swap_batch),
            expiration_ms=self._period_ms(placed.group, connection.expiration),
            backpressure_count=connection.back_pressure_count,
            backpressure_bytes=parse_size(connection.back_pressure_size),
        )

    def prioritizers(self, placed: PlacedConnection) -> list[Prioritizer]:
        """Return the order of a connection's queue."""
        return [prioritizer_named(name) for name in placed.connection.prioritizers]

    def schedule(self, placed: PlacedComponent) -> scheduling.Schedule:
        """Return when a component runs.

        Raises:
            InvalidRequest: The value of a parameter will not do.
        """
        groups = placed.group.ids
        processor = placed.processor
        if processor is None:
            return scheduling.Schedule(groups=groups)
        schedule = processor.schedule
        period = self._values.text(placed.group, schedule.period)
        cron = None
        if schedule.strategy is Strategy.CRON:
            cron = CronExpression.parse(period, schedule.zone)
        is_timer = schedule.strategy is Strategy.TIMER
        return scheduling.Schedule(
            scheduling.Strategy(schedule.strategy.value),
            period_ns=parse_period(period) if is_timer else 0,
            cron=cron,
            missed=scheduling.Missed.ONCE if schedule.catch_up else scheduling.Missed.SKIP,
            concurrent_tasks=processor.concurrent_tasks,
            run_duration_ms=self._period_ms(placed.group, processor.run_duration),
            groups=groups,
        )

    def unit(self, placed: PlacedComponent, processor: Processor) -> UnitPlan:
        """Return what a processor is to be.

        Raises:
            InvalidRequest: The value of a parameter will not do.
        """
        group = placed.group
        identity = ProcessorIdentity(
            placed.id,
            str(placed),
            group.names,
            self._period_ms(group, processor.penalty_duration),
            self._period_ms(group, processor.yield_duration),
        )
        retries = {
            name: Retry(
                retry.count,
                Backoff.PENALIZE
                if retry.backoff is BackoffMechanism.PENALIZE_FLOWFILE
                else Backoff.YIELD,
                self._period_ms(group, retry.max_backoff),
            )
            for name, retry in processor.retry.items()
        }
        return UnitPlan(
            identity,
            lambda: self._registry.find(processor.type),
            lambda: self._fetch().properties(placed),
            frozenset(processor.auto_terminated),
            retries,
        )

    def _period_ms(self, group: PlacedGroup, text: str) -> int:
        period_ns = parse_period(self._values.text(group, text))
        if 0 < period_ns < _NS_PER_MS:
            return 1
        return period_ns // _NS_PER_MS


def check_prioritizer(name: str) -> None:
    """Raise `InvalidRequest` for a text that names no prioritizer."""
    prioritizer_named(name)
