"""Requests of users at random times: events, batch tasks, and all operations on a supervisor.

Owns the events sent and the work of each batch task, with which the checker compares the results.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import orjson

from penstock.core.errors import PenstockError
from penstock.core.intervals import format_time
from penstock.indexing.batch.input_segments import visible_segments
from tests.harness.cluster_simulation.admin_actions import AdminActions, days_interval
from tests.harness.cluster_simulation.world import DAY_MS, DAYS, START_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from pydantic import JsonValue

    from penstock.core.intervals import Interval
    from tests.harness.cluster_simulation.cluster import Cluster, SimOverlord

T = TypeVar("T")

DATASOURCE: Final = "flights"
_BATCH_EVENTS: Final = 1_000_000
_TOGETHER_S: Final = 6.0
_CHOSEN: Final = 0.5
_BY_SEGMENT: Final = 0.8
_SCHEMA: Final[Mapping[str, JsonValue]] = {
    "dataSource": DATASOURCE,
    "timestampSpec": {"column": "time", "format": "millis"},
    "dimensionsSpec": {"dimensions": ["carrier", {"type": "long", "name": "n"}]},
    "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
}

Fate = Literal["processed", "unparseable", "late", "early"]
BatchKind = Literal["append", "overwrite", "replace", "compact", "kill", "noop"]


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch task: the rows that it writes, and the days that it may change."""

    kind: BatchKind
    numbers: frozenset[int] = frozenset()
    days: frozenset[int] = frozenset()


# Short, so that task groups begin and end within a run while everything else happens.
_SCALER: Final[Mapping[str, JsonValue]] = {
    "autoScalerStrategy": "costBased",
    "enableTaskAutoScaler": True,
    "taskCountMin": 1,
    "taskCountMax": 3,
    "criticalLagThreshold": 12,
    "scaleActionPeriodMillis": 2_000,
    "minScaleUpDelay": 4_000,
    "minScaleDownDelay": 6_000,
}

# Priorities of replicas; some sets differ from others by one replica.
_PRIORITIES: Final[Sequence[Mapping[str, int]]] = (
    {"0": 1, "1": 1},
    {"1": 1},
    {"1": 2},
    {"-3": 1, "0": 0, "1": 1},
    {"0": 1, "1": 2},
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """Parameters of a run's users.

    Attributes:
        concurrent: Tasks use concurrent locks.
        tasks: Task groups of the supervisor.
        replicas: Tasks of each group.
        batches: Batch tasks are submitted.
        operators: Supervisors are suspended, changed, ended; tasks are shut down.
        every_s: Mean seconds between two requests.
    """

    concurrent: bool = False
    tasks: int = 1
    replicas: int = 1
    batches: bool = True
    operators: bool = True
    every_s: float = 1.5


@dataclass(slots=True)
class Users:
    """The users of a run.

    Attributes:
        cluster: The simulated cluster.
        wishes: Their parameters.
        good: Events sent that can be parsed.
        bad: Number of events sent that cannot be parsed.
        batches: Batch tasks by id.
        admin_actions: Further user actions.
        events: Events of each stream partition: the number, or None if unparseable.
        places: The stream partition and the offset of each event.
        late: Streams drop the first day as too old.
        early: Streams drop the last day as too far ahead.
    """

    cluster: Cluster
    wishes: Wishes
    good: set[int] = field(default_factory=set)
    bad: int = 0
    batches: dict[str, Batch] = field(default_factory=dict)
    admin_actions: AdminActions = field(init=False)
    events: list[list[int | None]] = field(default_factory=lambda: [[], []])
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    late: bool = False
    early: bool = False
    active: bool = False
    _mixes_locks: bool = False
    _releases: dict[str, JsonValue] = field(default_factory=dict)
    _scaling: dict[str, JsonValue] = field(default_factory=dict)
    _priorities: Mapping[str, int] = field(default_factory=dict)
    _compacts_some: bool = False
    _locks_segments: bool = False
    _replicas: int = 1
    _sent: int = 0
    _written: int = _BATCH_EVENTS

    def __post_init__(self) -> None:
        self.admin_actions = AdminActions(
            self.cluster,
            DATASOURCE,
            self.wishes.concurrent,
            lambda offsets: self.ask(
                lambda leader: leader.overlord.supervisor_service.reset(DATASOURCE, offsets)
            ),
            lambda tasks, replicas: self.want_supervisor(tasks=tasks, replicas=replicas),
        )
        self._mixes_locks = self.cluster.world.chance.has_action("mixed locks")
        if self.cluster.world.chance.has_action("released locks"):
            self._releases = {"releaseLocksOnHandoff": True}
        if self.cluster.world.chance.has_action("scaling by cost"):
            self._scaling = {"autoScalerConfig": dict(_SCALER)}
        if self.cluster.world.chance.has_action("server priorities"):
            self._prioritize()
        self._compacts_some = self.cluster.world.chance.has_action("minor compactions")
        self._locks_segments = self.cluster.world.chance.has_action("locks of segments")
        if self.cluster.world.chance.has_action("message windows"):
            dice = self.cluster.world.chance.of("message windows")
            self.late, self.early = dice.choice([(True, True), (True, False), (False, True)])
        self.cluster.rules_version = lambda: len(self.admin_actions.dropped) - 1

    def begin(self) -> None:
        """Create the topic, and submit the supervisor until it exists."""
        self.cluster.topics.topics[DATASOURCE] = [[], []]
        self.active = True
        self.want_supervisor()
        self._soon()
        self.admin_actions.begin()
        if self.wishes.batches and self.cluster.world.chance.has_action("tasks together"):
            self._meet()

    def end(self) -> None:
        """Make no further requests."""
        self.active = self.admin_actions.active = False

    def between(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[int | None]:
        """Return the events between offsets; None for events that cannot be parsed."""
        return [n for p, stop in end.items() for n in self.events[p][start.get(p, stop) : stop]]

    def fate(self, n: int | None) -> Fate:
        """Return the outcome of an event that a stream reads."""
        if n is None:
            return "unparseable"
        if self.late and n % DAYS == 0:
            return "late"
        return "early" if self.early and n % DAYS == DAYS - 1 else "processed"

    def send(self, count: int) -> None:
        """Send events; a few of them cannot be parsed."""
        dice = self.cluster.world.chance.of("events")
        topic = self.cluster.topics.topics[DATASOURCE]
        for _ in range(count):
            n, self._sent = self._sent, self._sent + 1
            if dice.random() < 0.03:
                self.bad += 1
                event, message = None, f"broken {n}".encode()
            else:
                self.good.add(n)
                event, message = n, _event(n)
            partition = dice.randrange(len(topic))
            topic[partition].append(message)
            if event is not None:
                self.places[event] = (partition, len(self.events[partition]))
            self.events[partition].append(event)

    @property
    def priorities(self) -> list[int]:
        """Return the priorities of each group's replicas, as last submitted."""
        counts = self._priorities or {"0": self._replicas}
        return [int(priority) for priority, count in counts.items() for _ in range(count)]

    def want_supervisor(
        self, task_duration_s: int = 10, *, tasks: int = 0, replicas: int = 0
    ) -> None:
        """Submit the supervisor's spec to the leader."""
        spec = self.spec(task_duration_s, tasks, replicas)
        self._replicas = replicas or self.wishes.replicas
        self.ask(lambda leader: leader.overlord.supervisor_service.submit(spec))

    def spec(
        self, task_duration_s: int = 10, tasks: int = 0, replicas: int = 0
    ) -> dict[str, JsonValue]:
        """Return the supervisor's spec; 0 means the value from the wishes."""
        return {
            "type": "penstock",
            "spec": {
                "dataSchema": dict(_SCHEMA),
                "ioConfig": {
                    "topic": DATASOURCE,
                    "useEarliestOffset": True,
                    "taskDuration": f"PT{task_duration_s}S",
                    "period": "PT5S",
                    "startDelay": "PT1S",
                    "completionTimeout": "PT2M",
                    "taskCount": tasks or self.wishes.tasks,
                    **self._replication(replicas),
                    **self._windows(),
                    **self._scaling,
                },
                "tuningConfig": {"maxRowsPerSegment": 60, "maxTotalRows": 150, **self._releases},
            },
            "context": {"useConcurrentLocks": True} if self.wishes.concurrent else {},
        }

    def _replication(self, replicas: int) -> dict[str, JsonValue]:
        if self._priorities:
            return {"serverPriorityToReplicas": dict(self._priorities)}
        return {"replicas": replicas or self.wishes.replicas}

    def _prioritize(self) -> None:
        """Request replicas of other priorities from now on."""
        self._priorities = self.cluster.world.chance.of("server priorities").choice(_PRIORITIES)

    def _windows(self) -> dict[str, JsonValue]:
        """Return the rejection periods, chosen so that clock errors make no difference."""
        found: dict[str, JsonValue] = {}
        if self.late:
            found["lateMessageRejectionStartDateTime"] = format_time(START_MS + DAY_MS)
        if self.early:
            found["earlyMessageRejectionPeriod"] = "PT36H"
        return found

    def ask(self, question: Callable[[SimOverlord], Future[T]]) -> Future[T] | None:
        """Send a request to the leader; None if there is no leader."""
        leader = self.cluster.leader()
        if leader is None or not leader.process.runs or leader.process.is_cut:
            return None
        return question(leader)

    # Wishes

    def _meet(self) -> None:
        """Submit several tasks at one moment that write to one day, from time to time."""
        world = self.cluster.world
        if not self.active:
            return
        dice = world.chance.of("tasks together")
        days = range((day := dice.randrange(DAYS)), day + 1)
        kinds: list[BatchKind] = ["append", dice.choice(["replace", "overwrite", "compact"])]
        kinds += dice.sample(["append", "compact", "kill"], dice.randrange(3))
        for kind in dice.sample(kinds, len(kinds)):
            self._submit(kind, days, dice.randrange(1, 8))
        world.after(dice.expovariate(1 / _TOGETHER_S), self._meet)

    def _soon(self) -> None:
        world = self.cluster.world
        world.after(world.chance.of("users").expovariate(1 / self.wishes.every_s), self._wish)

    def _wish(self) -> None:
        if not self.active:
            return
        dice = self.cluster.world.chance.of("users")
        wishes = ["send"] * 6
        if self.wishes.batches:
            wishes += ["append", "append", "overwrite", "replace", "compact", "compact"]
            wishes += ["kill", "mark", "noop"]
        if self.wishes.operators:
            wishes += ["hand off", "suspend", "resume", "resume", "shut down", "change", "end"]
        wish = dice.choice(wishes)
        if wish == "send":
            self.send(dice.randrange(1, 40))
        elif wish == "mark":
            self.admin_actions.mark_day(dice.randrange(DAYS), used=False)
        elif wish in {"append", "overwrite", "replace", "compact", "kill", "noop"}:
            first = dice.randrange(DAYS)
            last = dice.randrange(first, DAYS)
            self._submit(wish, range(first, last + 1), dice.randrange(1, 8))  # type: ignore[arg-type]  # checked above
        else:
            self._operate(wish)
        self._soon()

    def _operate(self, wish: str) -> None:
        world = self.cluster.world
        world.note(f"users: {wish}")
        match wish:
            case "hand off":
                self.ask(lambda leader: leader.overlord.supervisor_service.hand_off(DATASOURCE))
            case "suspend":
                self.ask(lambda leader: leader.overlord.supervisor_service.suspend(DATASOURCE))
            case "resume":
                self.ask(lambda leader: leader.overlord.supervisor_service.resume(DATASOURCE))
            case "end":
                self.ask(lambda leader: leader.overlord.supervisor_service.terminate(DATASOURCE))
                world.after(8.0, self.want_supervisor)
            case "change":
                if self._priorities:
                    self._prioritize()
                self.want_supervisor(world.chance.of("users").randrange(5, 20))
            case _:
                active = sorted(row.id for row in self.cluster.truth.tasks.list(active=True))
                if active:
                    task_id = world.chance.of("users").choice(active)
                    world.note(f"users: task {task_id} is to end")
                    self.ask(lambda leader: leader.overlord.shutdown_task(task_id))

    def _submit(self, kind: BatchKind, days: range, count: int) -> None:
        task_id = f"{kind}-{len(self.batches)}"
        value: dict[str, JsonValue] = {"id": task_id, "type": kind, "dataSource": DATASOURCE}
        dice = self.cluster.world.chance.of("segment locks")
        if self._locks_segments and kind != "noop" and dice.random() < _BY_SEGMENT:
            value["context"] = {"forceTimeChunkLock": False}
        elif self._is_concurrent() and kind != "noop":
            value["context"] = {"useConcurrentLocks": True}
        interval = str(days_interval(days))
        numbers: frozenset[int] = frozenset()
        match kind:
            case "compact":
                value |= self._compaction(days)
            case "kill":
                value["interval"] = interval
            case "noop":
                value["runTime"] = count * 500
            case _:
                numbers = frozenset(range(self._written, self._written + count * len(days)))
                self._written += count * len(days)
                value["type"] = "index_parallel"
                del value["dataSource"]
                value["spec"] = self._index(kind, days, sorted(numbers))
        self.batches[task_id] = Batch(kind, numbers, frozenset(days))
        self.cluster.world.note(f"users: {task_id} of days {days.start} to {days.stop - 1}")

        def note(done: Future[str]) -> None:
            error = done.exception()
            if error is not None:
                self.cluster.world.note(f"users: {task_id} is refused: {error}")

        try:
            asked = self.ask(lambda leader: leader.overlord.task_service.submit(value))
        except PenstockError as error:
            self.cluster.world.note(f"users: {task_id} is refused: {error}")
        else:
            if asked is not None:
                asked.add_done_callback(note)

    def _compaction(self, days: range) -> dict[str, JsonValue]:
        """Return the fields of a compaction beside its type: all segments of the days, or some."""
        interval = days_interval(days)
        given: dict[str, JsonValue] = {"type": "interval", "interval": str(interval)}
        said: dict[str, JsonValue] = {"granularitySpec": {"segmentGranularity": "DAY"}}
        if self._compacts_some and (some := self._some_of(interval)):
            given |= {"type": "minor", "segments": some}
            said["context"] = {"useConcurrentLocks": True}
        return {
            **said,
            "ioConfig": {
                "type": "compact",
                "inputSpec": given,
                "dropExisting": given["type"] == "minor",
            },
        }

    def _some_of(self, interval: Interval) -> list[JsonValue]:
        """Return some of the visible segments, as a minor compaction lists them."""
        dice = self.cluster.world.chance.of("minor compactions")
        rows = self.cluster.truth.segments.used(DATASOURCE, interval)
        segments = {str(one.segment.id): one.segment for one in visible_segments(rows, [interval])}
        chosen = [one for one in segments.values() if dice.random() < _CHOSEN]
        return [
            {"itvl": str(s.interval), "ver": s.version, "part": s.shard_spec.partition_number}
            for s in chosen
        ]

    def _is_concurrent(self) -> bool:
        if self._mixes_locks:
            return self.cluster.world.chance.of("lock types").random() < 0.5
        return self.wishes.concurrent

    def _index(self, kind: BatchKind, days: range, numbers: list[int]) -> JsonValue:
        lines = [_event(n, days[i % len(days)]).decode() for i, n in enumerate(numbers)]
        granularity: dict[str, JsonValue] = {"segmentGranularity": "DAY", "rollup": False}
        if kind != "append":
            granularity["intervals"] = [str(days_interval(days))]
        source: JsonValue = {"type": "inline", "data": "\n".join(lines)}
        return {
            "dataSchema": {**_SCHEMA, "granularitySpec": granularity},
            "ioConfig": {
                "inputSource": source,
                "inputFormat": {"type": "json"},
                "appendToExisting": kind == "append",
                "dropExisting": kind == "replace",
            },
            "tuningConfig": {
                "type": "index_parallel",
                "partitionsSpec": {"type": "dynamic", "maxRowsPerSegment": 5},
            },
        }


def day_of(time_ms: int) -> int:
    """Return the day of a time."""
    return (time_ms - START_MS) // DAY_MS


def _event(n: int, day: int | None = None) -> bytes:
    day = n % DAYS if day is None else day
    time_ms = START_MS + day * DAY_MS + n % DAY_MS
    return orjson.dumps({"time": time_ms, "carrier": "UA", "n": n})


__all__ = ["Batch", "Fate", "Users", "Wishes", "day_of"]
