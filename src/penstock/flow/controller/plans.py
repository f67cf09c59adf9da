"""Plans of a flow: its graph, converted to schedules, queue options and processors.

Owns the conversion of texts to values. Does not own the parts. The flow was validated before, so
that an error concerns a parameter's value or a class that is not installed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.durations import parse_nifi_period
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.read_guard import READ_GUARD
from penstock.flow.controller.processor_node import ProcessorPlan
from penstock.flow.graph.declarations import ClassDeclaration
from penstock.flow.graph.flow_index import FlowIndex, PlacedComponent, PlacedConnection, PlacedGroup
from penstock.flow.graph.flow_model import BackoffMechanism, Processor, Strategy
from penstock.flow.graph.parameters import ParameterValues
from penstock.flow.graph.source_locations import FlowProblem, InvalidFlow, Path, SourceLocations
from penstock.flow.prioritizers import Prioritizer, prioritizer_of
from penstock.flow.processor.process_context import ProcessorIdentity
from penstock.flow.processor.processor import Processor as FlowProcessor
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.queue.queue_size import QueueOptions, parse_size
from penstock.flow.relationships import RelationshipRetry, RetryBackoff
from penstock.flow.scheduling import strategy as scheduling
from penstock.flow.scheduling.cron.expression import CronExpression
from penstock.storage.filesystem import FileSystem, read_guarded
from penstock.storage.secrets.secret_sources import SECRETS

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """Plan of the queue of a connection.

    Attributes:
        options: Its thresholds and limits.
        prioritizers: Order of its FlowFiles.
    """

    options: QueueOptions
    prioritizers: Sequence[Prioritizer]


class FlowPlans:
    """Plans of one flow, made together, so that errors are known before any plan is used.

    A component without a valid plan gets one that never starts and reports the error.

    Attributes:
        schedules: Schedule by id of a component.
        units: Plan by id of a processor.
        queues: Plan of the queue by id of a connection.
        problems: Errors of the plans, with their positions.

    Args:
        index: The flow.
        values: Fetches the values of its parameters for each start of a processor.
        registry: Finds the processors' classes.
        places: Positions for error messages.
    """

    def __init__(
        self,
        index: FlowIndex,
        values: Callable[[], ParameterValues],
        registry: ProcessorRegistry,
        places: SourceLocations | None = None,
    ) -> None:
        self.index = index
        self._fetch = values
        self._registry = registry
        self._values = values()
        self._places = places or SourceLocations()
        self.schedules: dict[str, scheduling.ComponentSchedule] = {}
        self.units: dict[str, ProcessorPlan] = {}
        self.queues: dict[str, QueuePlan] = {}
        self.problems: list[FlowProblem] = []
        for component in index.components:
            self._plan_component(component)
        for connection in index.connections:
            self._plan_queue(connection)

    def _plan_component(self, placed: PlacedComponent) -> None:
        processor = placed.processor
        try:
            self.schedules[placed.id] = self._schedule(placed)
            if processor is not None:
                self.units[placed.id] = self._unit(placed, processor)
        except PenstockError as error:
            why = self._note(placed.path, error)
            self.schedules[placed.id] = scheduling.ComponentSchedule(groups=placed.group.ids)
            self.units[placed.id] = _never(placed, why)

    def _plan_queue(self, placed: PlacedConnection) -> None:
        connection = placed.connection
        expiration_ms, prioritizers = 0, []
        try:
            expiration_ms = self._period_ms(placed.group, connection.expiration)
            modules = self._registry.modules
            prioritizers = [prioritizer_of(name, modules) for name in connection.prioritizers]
        except PenstockError as error:
            self._note(placed.path, error)
        options = QueueOptions(
            swap_threshold=connection.swap_threshold,
            swap_batch=min(connection.swap_threshold, QueueOptions().swap_batch),
            expiration_ms=expiration_ms,
            backpressure_count=connection.back_pressure_count,
            backpressure_bytes=parse_size(connection.back_pressure_size),
        )
        self.queues[placed.id] = QueuePlan(options, prioritizers)

    def _note(self, path: Path, error: PenstockError) -> str:
        why = str(error)
        if isinstance(error, InvalidFlow):
            why = "; ".join(problem.message for problem in error.problems)
        self.problems.append(FlowProblem(self._places.at(path), why))
        return why

    def _schedule(self, placed: PlacedComponent) -> scheduling.ComponentSchedule:
        groups = placed.group.ids
        processor = placed.processor
        if processor is None:
            return scheduling.ComponentSchedule(groups=groups)
        schedule = processor.schedule
        period = self._values.text(placed.group, schedule.period)
        cron = None
        if schedule.strategy is Strategy.CRON:
            cron = CronExpression.parse(period, schedule.zone)
        is_timer = schedule.strategy is Strategy.TIMER
        return scheduling.ComponentSchedule(
            scheduling.SchedulingStrategy(schedule.strategy.value),
            period_ns=parse_nifi_period(period) if is_timer else 0,
            cron=cron,
            missed=scheduling.MissedRunPolicy.ONCE
            if schedule.catch_up
            else scheduling.MissedRunPolicy.SKIP,
            concurrent_tasks=processor.concurrent_tasks,
            run_duration_ms=self._period_ms(placed.group, processor.run_duration),
            groups=groups,
        )

    def _unit(self, placed: PlacedComponent, processor: Processor) -> ProcessorPlan:
        group = placed.group
        identity = ProcessorIdentity(
            placed.id,
            str(placed),
            group.names,
            self._period_ms(group, processor.penalty_duration),
            self._period_ms(group, processor.yield_duration),
        )
        retries = {
            name: RelationshipRetry(
                retry.count,
                RetryBackoff.PENALIZE
                if retry.backoff is BackoffMechanism.PENALIZE_FLOWFILE
                else RetryBackoff.YIELD,
                self._period_ms(group, retry.max_backoff),
            )
            for name, retry in processor.retry.items()
        }
        return ProcessorPlan(
            identity,
            lambda: self._registry.find(processor.type),
            lambda: self._fetch().properties(placed, self._sensitive(processor)),
            frozenset(processor.auto_terminated),
            retries,
        )

    def _sensitive(self, processor: Processor) -> frozenset[str]:
        """Return the names of the properties of a processor that may name secrets."""
        return ClassDeclaration(self._registry.find(processor.type)).sensitive

    def check_secrets(self) -> None:
        """Note each secret that a property names and that has no value."""
        for placed, processor in self.index.processors:
            for name in self._sensitive(processor) & processor.properties.keys():
                try:
                    self._values.check_secret(processor.properties[name])
                except PenstockError as error:
                    self._note((*placed.path, "properties", name), error)

    def _period_ms(self, group: PlacedGroup, text: str) -> int:
        period_ns = parse_nifi_period(self._values.text(group, text))
        if 0 < period_ns < _NS_PER_MS:
            return 1
        return period_ns // _NS_PER_MS


class FlowPlanner:
    """Makes plans of flows, with the registry, environment and secrets of this process.

    Args:
        registry: Finds the processors' classes.
        environment: Environment variables that parameters may name.
        fs: The file system, for files that parameters may name.
    """

    def __init__(
        self,
        registry: ProcessorRegistry,
        environment: Mapping[str, str],
        fs: FileSystem,
    ) -> None:
        self._registry = registry
        self._environment = environment
        self._fs = fs

    def checked(self, index: FlowIndex, places: SourceLocations | None) -> FlowPlans:
        """Return the plans of a flow; every plan is valid.

        Raises:
            InvalidFlow: Lists every error.
        """
        ParameterValues.load(index, self._environment, self._read_file, places, SECRETS.get())
        plans = self.plans(index, places)
        plans.check_secrets()
        if plans.problems:
            raise InvalidFlow(plans.problems)
        return plans

    def plans(self, index: FlowIndex, places: SourceLocations | None = None) -> FlowPlans:
        """Return the plans of a flow; invalid plans never start."""

        def values() -> ParameterValues:
            return ParameterValues.load_known(
                index, self._environment, self._read_file, SECRETS.get()
            )

        return FlowPlans(index, values, self._registry, places)

    def _read_file(self, path: str) -> bytes:
        return read_guarded(self._fs, path, READ_GUARD.now())


def _never(placed: PlacedComponent, why: str) -> ProcessorPlan:
    """Return the plan of a processor that cannot start."""

    def refuse() -> type[FlowProcessor]:
        raise InvalidRequest(
            f"{why}; correct this and restart the flow service, or apply the flow again"
        )

    identity = ProcessorIdentity(placed.id, str(placed), placed.group.names)
    return ProcessorPlan(identity, refuse, dict, frozenset(), {})
