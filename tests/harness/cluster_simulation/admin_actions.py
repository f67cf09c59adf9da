"""User actions beyond events and tasks: rules, compaction, resets, marks, task counts.

Owns which of these a run has, and records every request exactly, because the checker needs it. Each
action has dice of its own, and a run has few actions, so that every combination occurs.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.core.intervals import Interval
from penstock.indexing.overlord.compaction.compaction_duty import CompactionConfigs
from penstock.indexing.specs.compaction import (
    CompactionSupervisorSpec,
    parse_cluster_compaction,
    parse_compaction,
)
from tests.harness.cluster_simulation.world import DAY_MS, DAYS, START_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import JsonValue

    from penstock.indexing.specs.compaction import CompactionConfig
    from tests.harness.cluster_simulation.cluster import Cluster

_EVERY_S: Final = 4.0
# Part of the seeds of known runs: another name would change all of them.
_RANDOM_NAME: Final = "whims"
_LOOK_S: Final = 0.4
_NOW: Final = 0.3
"""How often a user who watches marks a day on which some task works at the moment."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of a user: segments of a day, as used or unused."""

    day: int
    used: bool


@dataclass(slots=True)
class AdminActions:
    """The user actions of one run.

    Attributes:
        cluster: The simulated cluster.
        datasource: The datasource that they change.
        concurrent: Whether compaction uses concurrent locks.
        reset: Resets the supervisor to offsets, or to the first ones.
        reshape: Sets the supervisor's numbers of tasks and replicas.
        mark: The mark that a user sets at the moment.
        dropped: The days that the rules have dropped, in each version of them.
        asked: Offsets of each stream partition from which a reset was requested.
        active: Whether user actions occur now.
    """

    cluster: Cluster
    datasource: str
    concurrent: bool
    reset: Callable[[dict[int, int] | None], object]
    reshape: Callable[[int, int], object]
    mark: Mark | None = None
    dropped: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    asked: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    active: bool = False
    _wanted: list[Callable[[], None]] = field(default_factory=list)
    _out: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Start the user actions."""
        chance = self.cluster.world.chance
        kinds = {
            "retention rules": self._rule,
            "automatic compaction": self._compact,
            "offset resets": self._reset,
            "marks used": self._mark_used,
            "other shapes": self._reshape,
        }
        self._wanted = [work for kind, work in kinds.items() if chance.has_action(kind)]
        # Rows that exist several times and come back cannot be distinguished.
        resets, watches = self._reset in self._wanted, chance.has_action("marks amid work")
        if resets and self._mark_used in self._wanted:
            self._wanted.remove(self._mark_used)
        self.active = True
        if self._wanted:
            self._soon()
        if watches and not resets:
            self._watch()
            self.cluster.publishes.decided = self._mark_before_publish

    @property
    def are_resets(self) -> bool:
        """Return whether rows may have been read again."""
        return bool(self.asked)

    def mark_day(self, day: int, *, used: bool) -> None:
        """Mark the segments of a day, bypassing all faults."""
        self.cluster.world.note(f"users: day {day} is {'brought back' if used else 'taken out'}")
        segments, interval = self.cluster.truth.segments, days_interval(range(day, day + 1))
        self._out = self._out - {day} if used else self._out | {day}
        self.mark = Mark(day, used)
        self.cluster.publishes.brought_back |= used
        try:
            mark = segments.mark_used_within if used else segments.mark_unused_within
            mark(self.datasource, interval)
            self.cluster.shared.committed(self.cluster.keeper)
        finally:
            self.mark = None

    def _soon(self) -> None:
        world = self.cluster.world
        world.after(world.chance.of(_RANDOM_NAME).expovariate(1 / _EVERY_S), self._have_one)

    def _have_one(self) -> None:
        if self.active:
            self.cluster.world.chance.of(_RANDOM_NAME).choice(self._wanted)()
            self._soon()

    def _watch(self) -> None:
        """Hide a day, or bring it back, while a task works there."""
        world = self.cluster.world
        if not self.active:
            return
        truth = self.cluster.truth
        rows = [row for rows in truth.locks.every().values() for row in rows]
        times = [row.interval for row in rows if row.type in {"REPLACE", "EXCLUSIVE"}]
        times += [row.interval for row in truth.segments.pending(self.datasource)]
        self._mark_one_of(times)
        world.after(_LOOK_S, self._watch)

    def _mark_before_publish(self, times: list[Interval]) -> None:
        """Mark a day between a task's decision to publish there and its commit."""
        if self.active:
            world = self.cluster.world
            world.after(0.0, lambda: self._mark_one_of(times))
            world.pause(0.01)

    def _mark_one_of(self, times: list[Interval]) -> None:
        dice = self.cluster.world.chance.of("marks amid work")
        days = [
            day
            for day in range(DAYS)
            if any(time.overlaps(days_interval(range(day, day + 1))) for time in times)
        ]
        if days and dice.random() < _NOW:
            day = dice.choice(days)
            self.mark_day(day, used=day in self._out)

    def _rule(self) -> None:
        dice = self.cluster.world.chance.of("retention rules")
        days = frozenset(day for day in range(DAYS) if dice.random() < 0.3)
        rules: list[dict[str, JsonValue]] = [
            {"type": "dropByInterval", "interval": str(days_interval(range(day, day + 1)))}
            for day in sorted(days)
        ]
        self.cluster.world.note(f"users: days {sorted(days)} are to be dropped")
        self.cluster.truth.rules.put(self.datasource, rules)
        self.dropped.append(days)

    def _compact(self) -> None:
        on = self.cluster.world.chance.of("automatic compaction").random() < 0.7
        self.cluster.world.note(f"users: automatic compaction is {'on' if on else 'off'}")
        config = parse_compaction(
            {
                "dataSource": self.datasource,
                "skipOffsetFromLatest": "P0D",
                "granularitySpec": {"segmentGranularity": "DAY"},
                "taskContext": {"useConcurrentLocks": self.concurrent},
            }
        )
        cluster = parse_cluster_compaction({"compactionTaskSlotRatio": 0.4})
        if self.cluster.world.chance.of("supervisors of compaction").random() < 0.5:
            self._supervise(config, on=on)
            return
        wanted = CompactionConfigs({self.datasource: config} if on else {}, cluster)
        CompactionConfigs.change(self.cluster.truth, lambda _was: wanted)

    def _supervise(self, config: CompactionConfig, *, on: bool) -> None:
        """Start, suspend or terminate a compaction supervisor, if there is a leader."""
        leader = self.cluster.leader()
        if leader is None or not leader.process.runs or leader.process.is_cut:
            return
        desk = leader.overlord.supervisor_service
        spec = CompactionSupervisorSpec(spec=config)
        dice = self.cluster.world.chance.of("supervisors of compaction")
        if on:
            desk.submit(spec.to_json())
        elif dice.random() < 0.5:
            desk.suspend(spec.supervisor_id)
        else:
            desk.terminate(spec.supervisor_id)

    def _reset(self) -> None:
        dice = self.cluster.world.chance.of("offset resets")
        lengths = self.cluster.topics.lengths(self.datasource)
        offsets = None
        if dice.random() < 0.7:
            offsets = {p: dice.randrange(n + 1) for p, n in lengths.items() if dice.random() < 0.7}
        for p in lengths:
            if offsets is None:
                self.asked[p].add(0)
            elif p in offsets:
                self.asked[p].add(offsets[p])
        self.cluster.world.note(f"users: offsets are reset to {offsets or 'the first'}")
        self.reset(offsets)

    def _mark_used(self) -> None:
        dice = self.cluster.world.chance.of("marks used")
        self.mark_day(dice.randrange(DAYS), used=dice.random() < 0.6)

    def _reshape(self) -> None:
        dice = self.cluster.world.chance.of("other shapes")
        tasks, replicas = dice.choice([1, 2]), dice.choice([1, 2])
        self.cluster.world.note(f"users: {tasks} tasks of {replicas} replicas")
        self.reshape(tasks, replicas)


def days_interval(days: range) -> Interval:
    """Return the interval of some days."""
    return Interval(START_MS + days.start * DAY_MS, START_MS + days.stop * DAY_MS)


__all__ = ["AdminActions", "Mark", "days_interval"]
