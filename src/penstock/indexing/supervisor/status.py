"""Status of a supervisor in the JSON of Druid's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.intervals import format_time
from penstock.indexing.engine_json import row_stats
from penstock.indexing.sequences import offsets_to_json
from penstock.indexing.supervisor.standing import WAITING_FOR

if TYPE_CHECKING:
    from penstock.indexing.supervisor import Supervisor
    from penstock.indexing.supervisor.groups import Replica, TaskGroup
    from penstock.indexing.supervisor.standing import Standing


def supervisor_status(supervisor: Supervisor, now_ms: int) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/status``."""
    io = supervisor.spec.io
    standing = supervisor.standing
    groups = standing.groups()
    lag = standing.lag()
    latest, looked_ms = standing.latest()
    state = standing.state
    return {
        "id": supervisor.id,
        "generationTime": format_time(now_ms),
        "payload": {
            "type": supervisor.spec.type,
            "dataSource": supervisor.spec.data_schema.data_source,
            "stream": io.stream,
            "streamId": standing.stream_id,
            "partitions": len(latest),
            "replicas": io.replicas,
            "durationSeconds": io.task_duration // 1000,
            "activeTasks": _tasks(standing, [g for g in groups if not g.is_pending]),
            "publishingTasks": _tasks(standing, [g for g in groups if g.is_pending]),
            "latestOffsets": offsets_to_json(latest),
            "committedOffsets": offsets_to_json(standing.committed()),
            "minimumLag": offsets_to_json(lag),
            "aggregateLag": sum(lag.values()),
            "maxLag": max(lag.values(), default=0),
            "avgLag": sum(lag.values()) / len(lag) if lag else 0,
            **_time_lag(standing),
            "offsetsLastUpdated": format_time(looked_ms) if looked_ms else None,
            "suspended": supervisor.spec.suspended,
            "healthy": standing.healthy,
            "state": _coarse(state),
            "detailedState": state,
            "waits": [wait.to_json() for wait in standing.waits()],
            "recentErrors": standing.errors(),
        },
    }


def supervisor_summary(supervisor: Supervisor) -> dict[str, object]:
    """Return one entry of ``GET …/supervisor?state=true``."""
    standing = supervisor.standing
    state = standing.state
    return {
        "id": supervisor.id,
        "type": supervisor.spec.type,
        "dataSource": supervisor.spec.data_schema.data_source,
        "state": _coarse(state),
        "detailedState": state,
        "healthy": standing.healthy,
        "suspended": supervisor.spec.suspended,
        "waits": [wait.to_json() for wait in standing.waits()],
        "aggregateLag": sum(standing.lag().values()),
        **{name: ms for name, ms in _time_lag(standing).items() if name != "minimumLagMillis"},
    }


def supervisor_stats(supervisor: Supervisor) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/stats``: the row counts of its tasks."""
    stats: dict[str, dict[str, object]] = {}
    for group in supervisor.standing.groups():
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
                    "pollIdleRatio": replica.report.effort.idle,
                    "perSecond": replica.report.effort.per_second,
                },
            }
    return dict(stats)


def supervisor_parse_errors(supervisor: Supervisor) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/parseErrors``: samples of each task."""
    found: dict[str, dict[str, object]] = {}
    for group in supervisor.standing.groups():
        for task_id, replica in group.replicas.items():
            samples = replica.report.unparseable if replica.report is not None else ()
            by_task = found.setdefault(str(group.group_id), {})
            by_task[task_id] = [dict(sample) for sample in samples]
    return dict(found)


def _time_lag(standing: Standing) -> dict[str, object]:
    """Return the lag in milliseconds, empty if it is not enabled.

    A total is known only if the lag of every stream partition is.
    """
    found = standing.time_lag_ms()
    if found is None:
        return {}
    known = [ms for ms in found.values() if ms is not None]
    is_whole = len(known) == len(found)
    return {
        "minimumLagMillis": {str(p): ms for p, ms in sorted(found.items())},
        "aggregateLagMillis": sum(known) if is_whole else None,
        "maxLagMillis": max(known, default=0) if is_whole else None,
    }


def _coarse(state: str) -> str:
    """Return the basic state for a detailed one."""
    if state in {"CREATING_TASKS", "CONNECTING_TO_STREAM", "DISCOVERING_INITIAL_TASKS"}:
        return "RUNNING"
    if state.startswith(("UNABLE", "LOST")):
        return "UNHEALTHY_SUPERVISOR"
    if state.startswith(WAITING_FOR):
        return "UNHEALTHY_TASKS"
    return state


def _tasks(standing: Standing, groups: list[TaskGroup]) -> list[dict[str, object]]:
    return [_task(standing, g, replica) for g in groups for replica in g.replicas.values()]


def _task(standing: Standing, group: TaskGroup, replica: Replica) -> dict[str, object]:
    report = replica.report
    current = report.current if report is not None else replica.task.start_offsets
    latest, _ = standing.latest()
    return {
        "id": replica.task.id,
        "groupId": group.group_id,
        "startingOffsets": offsets_to_json(group.task.start_offsets),
        "endOffsets": None if group.end is None else offsets_to_json(group.end),
        "startTime": format_time(replica.since_ms),
        "remainingSeconds": standing.remaining_s(group),
        "type": "PUBLISHING" if group.is_pending else "ACTIVE",
        "serverPriority": replica.task.server_priority,
        "phase": report.phase.value if report is not None else _phase_before_reports(replica),
        "currentOffsets": offsets_to_json(current),
        "lag": {str(p): max(0, latest[p] - o) for p, o in sorted(current.items()) if p in latest},
        "waitsFor": report.error if report is not None else "",
    }


def _phase_before_reports(replica: Replica) -> str:
    return "STARTING" if replica.has_worker else "PENDING"
