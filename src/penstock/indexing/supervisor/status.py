"""How a supervisor stands, in the JSON of Druid's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.intervals import format_time
from penstock.indexing.sequences import offsets_to_json

if TYPE_CHECKING:
    from penstock.indexing.supervisor import Supervisor
    from penstock.indexing.supervisor.groups import TaskGroup


def supervisor_status(supervisor: Supervisor, now_ms: int) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/status``."""
    io = supervisor.spec.io
    groups = supervisor.groups()
    lag = supervisor.lag()
    latest, looked_ms = supervisor.latest()
    state = supervisor.state
    return {
        "id": supervisor.id,
        "generationTime": format_time(now_ms),
        "payload": {
            "dataSource": supervisor.spec.data_schema.data_source,
            "stream": io.topic,
            "streamId": supervisor.topic_id,
            "partitions": len(latest),
            "replicas": io.replicas,
            "durationSeconds": io.task_duration // 1000,
            "activeTasks": [_task(supervisor, g) for g in groups if not g.is_pending],
            "publishingTasks": [_task(supervisor, g) for g in groups if g.is_pending],
            "latestOffsets": offsets_to_json(latest),
            "committedOffsets": offsets_to_json(supervisor.committed()),
            "minimumLag": offsets_to_json(lag),
            "aggregateLag": sum(lag.values()),
            "offsetsLastUpdated": format_time(looked_ms) if looked_ms else None,
            "suspended": supervisor.spec.suspended,
            "healthy": supervisor.healthy,
            "state": _coarse(state),
            "detailedState": state,
            "recentErrors": supervisor.errors(),
        },
    }


def supervisor_summary(supervisor: Supervisor) -> dict[str, object]:
    """Return one entry of ``GET …/supervisor?state=true``."""
    state = supervisor.state
    return {
        "id": supervisor.id,
        "dataSource": supervisor.spec.data_schema.data_source,
        "state": _coarse(state),
        "detailedState": state,
        "healthy": supervisor.healthy,
        "suspended": supervisor.spec.suspended,
    }


def supervisor_stats(supervisor: Supervisor) -> dict[str, object]:
    """Return the answer to ``GET …/supervisor/{id}/stats``: what tasks have counted so far."""
    stats: dict[str, dict[str, object]] = {}
    for group in supervisor.groups():
        if group.report is None:
            continue
        counts = group.report.counts
        thrown = sum(n for name, n in counts.items() if name.startswith("thrownAway"))
        totals = {
            "processed": counts.get("processed", 0),
            "processedWithError": 0,
            "thrownAway": thrown,
            "unparseable": counts.get("unparseable", 0),
        }
        by_task = stats.setdefault(str(group.task.group_id), {})
        by_task[group.task.id] = {"totals": {"buildSegments": totals}}
    return dict(stats)


def _coarse(state: str) -> str:
    """Return the state without what only streams have."""
    if state in {"CREATING_TASKS", "CONNECTING_TO_STREAM"}:
        return "RUNNING"
    if state.startswith(("UNABLE", "LOST")):
        return "UNHEALTHY_SUPERVISOR"
    return state


def _task(supervisor: Supervisor, group: TaskGroup) -> dict[str, object]:
    report = group.report
    current = report.current if report is not None else group.task.start_offsets
    latest, _ = supervisor.latest()
    return {
        "id": group.task.id,
        "groupId": group.task.group_id,
        "startingOffsets": offsets_to_json(group.task.start_offsets),
        "endOffsets": None if group.end is None else offsets_to_json(group.end),
        "startTime": format_time(group.since_ms),
        "remainingSeconds": supervisor.remaining_s(group),
        "type": "PUBLISHING" if group.is_pending else "ACTIVE",
        "phase": report.phase.value if report is not None else "STARTING",
        "currentOffsets": offsets_to_json(current),
        "lag": {str(p): max(0, latest[p] - o) for p, o in sorted(current.items()) if p in latest},
        "waitsFor": report.error if report is not None else "",
    }
