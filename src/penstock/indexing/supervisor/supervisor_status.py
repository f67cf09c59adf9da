"""Status of a supervisor: state, lag and task groups, and their JSON in Druid's API.

`SupervisorSnapshot` reads the state on the overlord's mailbox and changes nothing. The
functions return the responses for ``GET .../supervisor/{id}/status``, ``.../stats`` and
``.../parseErrors``, and the entries of ``GET .../supervisor?state=true``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency
from penstock.core.intervals import format_time
from penstock.core.printable import escaped
from penstock.core.waits import merged
from penstock.indexing.engine_json import row_stats
from penstock.indexing.sequences import offsets_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.waits import DependencyWait
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.task_groups import Replica, TaskGroup


WAITING_FOR: Final = "WAITING_FOR_"
"""Prefix of the detailed state of a supervisor that waits for a dependency."""
_TRIES_MIN: Final = 3
_SKIPPED_SHOWN_MAX: Final = 10
_WAIT_MS_MIN: Final = 5_000


class SupervisorSnapshot:
    """Status of one supervisor. On the overlord's mailbox.

    Args:
        state: The supervisor.
    """

    def __init__(self, state: SupervisorState) -> None:
        self._state = state

    @property
    def spec(self) -> SupervisorSpec:
        """Its spec."""
        return self._state.spec

    @property
    def state(self) -> str:
        """Its state in Druid's terms."""
        state = self._state
        if state.stopping:
            return "STOPPING"
        if state.spec.suspended:
            return "SUSPENDED"
        now_s = state.ports.clock.monotonic_s()
        unhealthy_state = state.health.unhealthy_state(
            now_s, was_there=state.stream.available is not None
        )
        if unhealthy_state is not None:
            return unhealthy_state
        if (wait := self._lasting_wait()) is not None:
            return f"{WAITING_FOR}{wait.dependency.name}"
        if state.stream.available is None:
            return "CONNECTING_TO_STREAM" if state.begun else "PENDING"
        if state.is_complete:
            return "COMPLETED"
        if state.idle:
            return "IDLE"
        if not state.discovered:
            return "DISCOVERING_INITIAL_TASKS"
        return "RUNNING" if state.groups else "CREATING_TASKS"

    @property
    def healthy(self) -> bool:
        """Whether it works as it should."""
        return not self.state.startswith(("UN", "LOST", WAITING_FOR))

    def waits(self) -> list[DependencyWait]:
        """Return the waits of the supervisor and its tasks, one for each dependency."""
        state = self._state
        replicas = (one for group in state.groups.values() for one in group.replicas.values())
        return merged([state.waits.all(), *(replica.waits for replica in replicas)])

    def own_waits(self) -> tuple[DependencyWait, ...]:
        """Return the waits of the supervisor itself. Any thread."""
        return self._state.waits.all()

    def _lasting_wait(self) -> DependencyWait | None:
        """Return a wait that lasts longer than a restart of the dependency."""
        now_ms = self._state.ports.clock.now_ms()
        for wait in self.waits():
            is_lasting = wait.tries >= _TRIES_MIN and now_ms - wait.since_ms >= _WAIT_MS_MIN
            if is_lasting and wait.dependency is not Dependency.OTHER:
                return wait
        return None

    def lag(self) -> dict[int, int]:
        """Return the number of messages of each stream partition that are not persisted yet."""
        return {p: end - start for p, (start, end) in self.unread().items()}

    def time_lag_ms(self) -> dict[int, int | None] | None:
        """Return the lag in time of each stream partition, None if its times are unknown.

        Returns None if the lag is not enabled or not determined yet.
        """
        return self._state.time_lag_ms

    def unread(self) -> dict[int, tuple[int, int]]:
        """Return the offsets [start, end) of each stream partition that are not persisted yet."""
        state = self._state
        available = state.stream.available or {}
        if state.committed.is_left_behind:
            # Nothing of the current stream has been read yet.
            return {p: (a.earliest, a.latest) for p, a in available.items()}
        current = dict(state.committed.offsets)
        for group in state.groups.values():
            for p, offset in group.persisted.items():
                current[p] = max(offset, current.get(p, 0))
        return {
            p: (min(current.get(p, a.latest), a.latest), a.latest)
            for p, a in sorted(available.items())
        }

    def skipped_files(self) -> Mapping[str, str]:
        """Return the files of a folder that are not read, by path, and the reason of each."""
        return self._state.stream.skipped

    def groups(self) -> tuple[TaskGroup, ...]:
        """Return the task groups, reading and publishing."""
        return tuple(self._state.groups.values())

    def committed(self) -> Mapping[int, int]:
        """Return the committed offsets as last seen."""
        return dict(self._state.committed.offsets)

    @property
    def stream_id(self) -> str:
        """The id of the stream that the committed offsets belong to, empty if unknown."""
        return self._state.committed.topic_id

    def latest(self) -> tuple[dict[int, int], int]:
        """Return the end of each stream partition, and when it was seen."""
        ends = {p: a.latest for p, a in (self._state.stream.available or {}).items()}
        return ends, self._state.polled_ms

    def earliest(self) -> dict[int, int]:
        """Return the first offset that each stream partition holds, as last seen."""
        return {p: a.earliest for p, a in (self._state.stream.available or {}).items()}

    def errors(self) -> list[dict[str, str]]:
        """Return the recent errors, newest last."""
        return self._state.health.errors()

    def remaining_s(self, group: TaskGroup) -> int:
        """Return the remaining seconds in which a group may read or publish."""
        clock = self._state.ports.clock
        if group.is_publishing:
            return max(0, int(group.deadline_s - clock.monotonic_s()))
        read_ms = clock.now_ms() - group.since_ms
        return max(0, (self.spec.io.task_duration - read_ms) // 1000)


def supervisor_status(snapshot: SupervisorSnapshot, now_ms: int) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/status``."""
    io = snapshot.spec.io
    groups = snapshot.groups()
    lag = snapshot.lag()
    latest, polled_ms = snapshot.latest()
    state = snapshot.state
    return {
        "id": snapshot.spec.supervisor_id,
        "generationTime": format_time(now_ms),
        "payload": {
            "type": snapshot.spec.type,
            "dataSource": snapshot.spec.data_schema.datasource,
            "stream": io.stream,
            "streamId": snapshot.stream_id,
            "partitions": len(latest),
            "replicas": io.replicas,
            "durationSeconds": io.task_duration // 1000,
            "useEarliestOffset": io.use_earliest_offset,
            **_bounds(snapshot),
            "activeTasks": _tasks(snapshot, [g for g in groups if not g.is_publishing]),
            "publishingTasks": _tasks(snapshot, [g for g in groups if g.is_publishing]),
            "earliestOffsets": offsets_to_json(snapshot.earliest()),
            "latestOffsets": offsets_to_json(latest),
            "committedOffsets": offsets_to_json(snapshot.committed()),
            "minimumLag": offsets_to_json(lag),
            "aggregateLag": sum(lag.values()),
            "maxLag": max(lag.values(), default=0),
            "avgLag": sum(lag.values()) / len(lag) if lag else 0,
            **_time_lag(snapshot),
            **_skipped_files(snapshot),
            "offsetsLastUpdated": format_time(polled_ms) if polled_ms else None,
            "suspended": snapshot.spec.suspended,
            "healthy": snapshot.healthy,
            "state": _coarse(state),
            "detailedState": state,
            "waits": [wait.to_json() for wait in snapshot.waits()],
            "recentErrors": snapshot.errors(),
        },
    }


def supervisor_summary(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return one entry of ``GET …/supervisor?state=true``."""
    state = snapshot.state
    return {
        "id": snapshot.spec.supervisor_id,
        "type": snapshot.spec.type,
        "dataSource": snapshot.spec.data_schema.datasource,
        "state": _coarse(state),
        "detailedState": state,
        "healthy": snapshot.healthy,
        "suspended": snapshot.spec.suspended,
        "waits": [wait.to_json() for wait in snapshot.waits()],
        "aggregateLag": sum(snapshot.lag().values()),
        **{name: ms for name, ms in _time_lag(snapshot).items() if name != "minimumLagMillis"},
    }


def rows_per_second(snapshot: SupervisorSnapshot) -> float:
    """Return the rows that its tasks processed in a second, on average over the last minute.

    Replicas of a task group process the same rows, which count once.
    """
    total = 0.0
    for group in snapshot.groups():
        reports = (replica.report for replica in group.replicas.values())
        found = [one.averages.get("1m", {}) for one in reports if one is not None]
        total += max((rates.get("processed", 0.0) for rates in found), default=0.0)
    return total


def supervisor_stats(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/stats``: the row counts of its tasks."""
    stats: dict[str, dict[str, object]] = {}
    for group in snapshot.groups():
        for task_id, replica in group.replicas.items():
            if replica.report is None:
                continue
            by_task = stats.setdefault(str(group.group_id), {})
            averages = {span: row_stats(rates) for span, rates in replica.report.averages.items()}
            by_task[task_id] = {
                "movingAverages": {"buildSegments": averages},
                "totals": {"buildSegments": row_stats(replica.report.counts)},
                # Input of the autoscaler; null is unknown.
                "autoscalerMetrics": {
                    "pollIdleRatio": replica.report.throughput.idle,
                    "perSecond": replica.report.throughput.per_second,
                },
            }
    return dict(stats)


def supervisor_parse_errors(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/parseErrors``: samples of each task."""
    found: dict[str, dict[str, object]] = {}
    for group in snapshot.groups():
        for task_id, replica in group.replicas.items():
            samples = replica.report.unparseable if replica.report is not None else ()
            by_task = found.setdefault(str(group.group_id), {})
            by_task[task_id] = [dict(sample) for sample in samples]
    return dict(found)


def _time_lag(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return the lag in milliseconds, empty if it is not enabled.

    A total is known only if the lag of every stream partition is.
    """
    found = snapshot.time_lag_ms()
    if found is None:
        return {}
    known = [ms for ms in found.values() if ms is not None]
    is_whole = len(known) == len(found)
    return {
        "minimumLagMillis": {str(p): ms for p, ms in sorted(found.items())},
        "aggregateLagMillis": sum(known) if is_whole else None,
        "maxLagMillis": max(known, default=0) if is_whole else None,
    }


def _bounds(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return the range that it reads before it stops, empty if it reads without an end."""
    config = snapshot.spec.io.bounded_stream_config
    if config is None:
        return {}
    starts, ends = config.start_sequence_numbers, config.end_sequence_numbers
    return {"boundedOffsets": {p: [start, ends[p]] for p, start in starts.items()}}


def _skipped_files(snapshot: SupervisorSnapshot) -> dict[str, object]:
    """Return the number of skipped files and the first of them, empty if there are none."""
    skipped = snapshot.skipped_files()
    if not skipped:
        return {}
    shown = itertools.islice(skipped.items(), _SKIPPED_SHOWN_MAX)
    # File names may not be valid text.
    files = [{"path": escaped(path), "reason": escaped(reason)} for path, reason in shown]
    return {"skippedFiles": {"count": len(skipped), "files": files}}


def _coarse(state: str) -> str:
    """Return the basic state for a detailed one."""
    if state in {"CREATING_TASKS", "CONNECTING_TO_STREAM", "DISCOVERING_INITIAL_TASKS"}:
        return "RUNNING"
    if state.startswith(("UNABLE", "LOST")):
        return "UNHEALTHY_SUPERVISOR"
    if state.startswith(WAITING_FOR):
        return "UNHEALTHY_TASKS"
    return state


def _tasks(snapshot: SupervisorSnapshot, groups: list[TaskGroup]) -> list[dict[str, object]]:
    return [_task(snapshot, g, replica) for g in groups for replica in g.replicas.values()]


def _task(snapshot: SupervisorSnapshot, group: TaskGroup, replica: Replica) -> dict[str, object]:
    report = replica.report
    current = report.current if report is not None else replica.task.start_offsets
    latest, _ = snapshot.latest()
    return {
        "id": replica.task.id,
        "groupId": group.group_id,
        "startingOffsets": offsets_to_json(group.task.start_offsets),
        "endOffsets": None if group.end is None else offsets_to_json(group.end),
        "startTime": format_time(replica.since_ms),
        "remainingSeconds": snapshot.remaining_s(group),
        "type": "PUBLISHING" if group.is_publishing else "ACTIVE",
        "serverPriority": replica.task.server_priority,
        "phase": report.phase.value if report is not None else _phase_before_reports(replica),
        "currentOffsets": offsets_to_json(current),
        "lag": {str(p): max(0, latest[p] - o) for p, o in sorted(current.items()) if p in latest},
        "waitsFor": report.error if report is not None else "",
    }


def _phase_before_reports(replica: Replica) -> str:
    return "STARTING" if replica.has_worker else "PENDING"
