"""Automatic compaction: submits tasks for the intervals that need one, up to the number of slots.

The configurations are one JSON value in the metadata store, in Druid's form, changed by
compare-and-set. For a datasource with a compaction supervisor, only the supervisor's spec applies.
After a task fails, its interval is skipped for some rounds, twice as many after each failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.backoff import delay_after
from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.indexing.lockbox.task_locks import LockPolicy
from penstock.indexing.overlord.compaction.planner import (
    CompactionPlan,
    CompactionUnits,
    plan_compaction,
)
from penstock.indexing.overlord.duties.duty import answered
from penstock.indexing.specs.compaction import (
    AUTOCOMPACT,
    SUPERVISOR_PREFIX,
    ClusterCompaction,
    CompactionConfig,
    CompactionSupervisorSpec,
    parse_cluster_compaction,
    parse_compaction,
)
from penstock.indexing.specs.spec_text import read_model
from penstock.indexing.specs.task_context import uses_concurrent_locks, with_defaults

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.overlord.compaction.planner import Table
    from penstock.indexing.overlord.duties.duty import DutyTools
    from penstock.storage.metadata import AuditRow, MetadataStore, SupervisorRow

_log = logging.getLogger(__name__)

CONFIG_NAME: Final = "coordinator.compaction.config"
TASK_PREFIX: Final = "auto_compact_"

_TRIES: Final = 10
_ROUNDS_LEFT_ALONE: Final = 2
_ROUNDS_LEFT_ALONE_MAX: Final = 64
# Rounds for which a failure is kept after its interval may be retried.
_ROUNDS_REMEMBERED: Final = 64

AuditOf = Callable[["CompactionConfigs"], "AuditRow"]
"""Returns the entry for the audit log, given the changed configurations."""


@dataclass(frozen=True, slots=True)
class CompactionConfigs:
    """All compaction configurations: of each datasource and of the cluster.

    Attributes:
        datasources: The effective configurations by datasource, suspended or not.
        cluster: The configuration of the cluster.
        suspended: Datasources whose supervisors are suspended; these are not compacted.
    """

    datasources: Mapping[str, CompactionConfig]
    cluster: ClusterCompaction
    suspended: frozenset[str] = frozenset()

    @property
    def active(self) -> Mapping[str, CompactionConfig]:
        """The configurations of datasources that are compacted now."""
        return {k: v for k, v in self.datasources.items() if k not in self.suspended}

    def plus(self, config: CompactionConfig) -> CompactionConfigs:
        """Return a copy with the configuration of a datasource set."""
        return replace(self, datasources={**self.datasources, config.datasource: config})

    def without(self, datasources: Collection[str]) -> CompactionConfigs:
        """Return a copy without the configurations of some datasources."""
        left = {k: v for k, v in self.datasources.items() if k not in datasources}
        return replace(self, datasources=left)

    @classmethod
    def read(cls, metadata: MetadataStore) -> CompactionConfigs:
        """Return the effective configurations.

        Raises:
            InvalidRequest: A newer release stored them; the message names the unknown part.
        """
        # In this order, so that a config that moves to a supervisor in between is never missed.
        stored = cls._of(metadata.config.get(CONFIG_NAME))
        return _with_supervisors(stored, metadata.supervisors.list())

    @classmethod
    def drop(
        cls,
        metadata: MetadataStore,
        datasources: Collection[str],
        audit_of: AuditOf | None = None,
    ) -> None:
        """Delete stored configurations of datasources with supervisors. Raises as `change`."""
        if not datasources or not cls._of(metadata.config.get(CONFIG_NAME)).datasources:
            return
        cls.change(metadata, lambda known: known.without(datasources), audit_of)

    @classmethod
    def change(
        cls,
        metadata: MetadataStore,
        make: Callable[[CompactionConfigs], CompactionConfigs],
        audit_of: AuditOf | None = None,
    ) -> CompactionConfigs:
        """Change the configurations that are not supervisors' and return them.

        Args:
            metadata: The metadata store.
            make: Returns the new configurations from the old; called again after a conflict.
            audit_of: Its entry is written to the audit log in the same transaction, even if
                nothing changes.

        Raises:
            Conflict: Each try conflicted with another change.
        """
        for _ in range(_TRIES):
            old = metadata.config.get(CONFIG_NAME)
            known = cls._of(old)
            changed = make(known)
            if changed == known and audit_of is None:
                return changed
            new = orjson.dumps(changed.to_json())
            entry = None if audit_of is None else audit_of(changed)
            if metadata.config.compare_and_set(CONFIG_NAME, old, new, entry=entry):
                return changed
        raise Conflict("concurrent changes of the compaction configuration conflict: try again")

    def to_json(self) -> dict[str, object]:
        """Return the configurations in Druid's form."""
        configs = [config.to_json() for config in self.datasources.values()]
        return {"compactionConfigs": configs, **self.cluster.to_json()}

    @classmethod
    def _of(cls, raw: bytes | None) -> CompactionConfigs:
        value = {} if raw is None else orjson.loads(raw)
        configs = [parse_compaction(one) for one in value.pop("compactionConfigs", [])]
        cluster = parse_cluster_compaction(value)
        return cls({config.datasource: config for config in configs}, cluster)


@dataclass(slots=True)
class _Failing:
    """An interval whose tasks fail: skipped for `rounds` more rounds, then twice as many."""

    failures: int
    rounds: int


class CompactionDuty:
    """Submits compaction tasks. On its lane.

    Args:
        tools: Its dependencies.
        interval_ms: Period of the duty.
    """

    name = "compaction"

    def __init__(self, tools: DutyTools, interval_ms: int = 60_000) -> None:
        self._tools = tools
        self.interval_ms = interval_ms
        self._units: dict[str, CompactionUnits] = {}
        self._submitted: dict[str, tuple[str, Interval]] = {}
        self._failing: dict[tuple[str, Interval], _Failing] = {}

    def run(self) -> None:
        """Submit tasks for which there are slots now.

        Raises:
            PenstockError: The metadata store does not answer, or a configuration is invalid.
        """
        configs = CompactionConfigs.read(self._tools.metadata)
        self._handle_ended()
        self._forget(configs.active)
        if not configs.active:
            return
        slots = configs.cluster.slots(answered(self._tools.slots()))
        free = slots - sum(task_id.startswith(TASK_PREFIX) for task_id in self._tools.index.all())
        if free <= 0:
            return
        plans = self.plans(configs)
        for interval, config in _in_turns(plans, configs):
            if free <= 0:
                break
            if not self._is_left_alone(config.datasource, interval):
                free -= self._submit(config, interval)

    def plans(
        self, configs: CompactionConfigs, of: Collection[str] | None = None
    ) -> dict[str, CompactionPlan]:
        """Return the compaction plans of datasources by name.

        Args:
            configs: The configurations.
            of: The datasources, suspended or not; None: all that are compacted.
        """
        self._forget(configs.datasources)
        wanted = configs.active if of is None else {name: configs.datasources[name] for name in of}
        policies = [
            LockPolicy(
                config.datasource,
                config.task_priority,
                concurrent=uses_concurrent_locks(
                    with_defaults(config.task_context, self._tools.task_context)
                ),
            )
            for config in wanted.values()
        ]
        locked = answered(self._tools.lockboxes.locked_intervals(policies))
        # Segments that did not change since the last round are not read again.
        return {
            name: plan_compaction(config, self._units_of(config), locked.get(name, ()))
            for name, config in wanted.items()
        }

    def _units_of(self, config: CompactionConfig) -> Table:
        units = self._units.get(config.datasource)
        if units is None or units.config != config:
            units = CompactionUnits(config, self._tools.metadata.segment_overviews)
            self._units[config.datasource] = units
        units.refresh()
        return units.table

    def _submit(self, config: CompactionConfig, interval: Interval) -> int:
        """Submit a task; return the number of submitted tasks."""
        task_id = f"{TASK_PREFIX}{config.datasource}_{self._tools.new_token()}"
        try:
            task = config.task(interval).with_id(task_id)
            answered(self._tools.submit(task))
        except PenstockError as error:
            _log.warning("cannot compact %s %s: %s", config.datasource, interval, error)
            return 0
        self._submitted[task_id] = (config.datasource, interval)
        return 1

    def _handle_ended(self) -> None:
        """Record the results of earlier tasks, and count one round for each skipped interval."""
        for failing in self._failing.values():
            failing.rounds -= 1
        active = self._tools.index.all()
        for task_id in self._submitted.keys() - active.keys():
            # Read first, so that an error does not lose the failure.
            row = self._tools.metadata.tasks.get(task_id)
            place = self._submitted.pop(task_id)
            if row is not None and row.state == "FAILED":
                before = self._failing.get(place)
                failures = 1 if before is None else before.failures + 1
                rounds = delay_after(failures, _ROUNDS_LEFT_ALONE, _ROUNDS_LEFT_ALONE_MAX)
                self._failing[place] = _Failing(failures, rounds)
            else:
                self._failing.pop(place, None)

    def _forget(self, known: Collection[str]) -> None:
        """Delete the state of datasources that are no longer compacted, and old failures."""
        self._units = {name: units for name, units in self._units.items() if name in known}
        self._failing = {
            (name, interval): failing
            for (name, interval), failing in self._failing.items()
            if name in known and failing.rounds > -_ROUNDS_REMEMBERED
        }

    def _is_left_alone(self, datasource: str, interval: Interval) -> bool:
        failing = self._failing.get((datasource, interval))
        return failing is not None and failing.rounds > 0


def _with_supervisors(
    configs: CompactionConfigs, rows: Sequence[SupervisorRow]
) -> CompactionConfigs:
    """Return the configurations, overridden by those of the compaction supervisors."""
    datasources, suspended = dict(configs.datasources), set()
    for row in rows:
        if row.payload.get("type") != AUTOCOMPACT:
            continue
        name = row.id.removeprefix(SUPERVISOR_PREFIX)
        datasources.pop(name, None)
        try:
            spec = read_model(CompactionSupervisorSpec, dict(row.payload))
        except InvalidRequest as error:  # Another release stored it; the others still apply.
            _log.error(
                "the spec of supervisor %s is invalid, so it compacts nothing: %s", row.id, error
            )
            continue
        datasources[name] = spec.spec
        if spec.suspended:
            suspended.add(name)
    return replace(configs, datasources=datasources, suspended=frozenset(suspended))


def _in_turns(
    plans: Mapping[str, CompactionPlan], configs: CompactionConfigs
) -> list[tuple[Interval, CompactionConfig]]:
    """Return the due intervals: the newest of each datasource, then the second of each, etc."""
    ranked = [
        (rank, name, interval)
        for name, plan in plans.items()
        for rank, interval in enumerate(plan.due)
    ]
    return [(interval, configs.datasources[name]) for _, name, interval in sorted(ranked)]
