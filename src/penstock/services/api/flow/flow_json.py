"""JSON forms of a flow's values in the HTTP API, with NiFi's names.

Owns the forms. Does not own the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from penstock.core.instants import format_time
from penstock.flow.controller.applied_flow import AppliedFlow
from penstock.flow.controller.bulletins import Bulletin
from penstock.flow.controller.flow_status import ComponentStatus, ConnectionStatus, FlowStatus
from penstock.flow.flowfile import FlowFile
from penstock.flow.graph.diff import FlowChange
from penstock.flow.graph.export import document
from penstock.flow.graph.source_locations import FlowProblem
from penstock.flow.queue.drop_requests import DropProgress
from penstock.flow.queue.queue_size import QueueSize
from penstock.flow.repository.repository_changes import RecoveryEvent

Json = dict[str, object]

_NS_PER_MS = 1_000_000


def applied_json(applied: AppliedFlow, owner: str) -> Json:
    """Return the JSON of an applied flow, with its owner as people see it."""
    return {
        "revision": applied.revision,
        "owner": owner,
        "running": applied.wanted.all_running,
        "exceptions": dict(applied.wanted.exceptions),
        "flow": document(applied.flow),
    }


def problem_json(problem: FlowProblem) -> Json:
    """Return the JSON of a problem of a flow, with its place."""
    return {**asdict(problem.place), "message": problem.message}


def change_json(change: FlowChange, waiting: QueueSize | None = None) -> Json:
    """Return the JSON of a component's change.

    Args:
        change: The change.
        waiting: Size of the queue of a connection that would be removed.
    """
    return {
        "kind": change.kind,
        "component": change.component,
        "id": change.id,
        "name": change.name,
        "fields": [asdict(field) for field in change.fields],
        "stops": list(change.stops),
        "queued": 0 if waiting is None else waiting.count,
        "queuedBytes": 0 if waiting is None else waiting.size_bytes,
        "text": "\n".join(change.lines()),
    }


def head_json(status: FlowStatus, owner: str) -> Json:
    """Return the JSON of a flow's status without lists, with its owner as people see it."""
    return {
        "name": status.name,
        "version": status.version,
        "revision": status.revision,
        "owner": owner,
        "threads": status.threads,
        "busyThreads": status.busy_threads,
        "terminatedThreads": status.terminated_threads,
        "heapBytes": status.heap_bytes,
        "heapLimitBytes": status.heap_limit_bytes,
        "repository": asdict(status.repository),
        "content": asdict(status.content),
    }


def status_json(status: FlowStatus, owner: str, events: Sequence[RecoveryEvent]) -> Json:
    """Return the JSON of a flow's status, with its owner as people see it."""
    return {
        **head_json(status, owner),
        "components": [component_json(one) for one in status.components],
        "connections": [connection_json(one) for one in status.connections],
        "held": list(status.held),
        "orphanedQueues": list(status.orphaned_queues),
        "events": [asdict(event) for event in events],
    }


def component_json(status: ComponentStatus) -> Json:
    """Return the JSON of the status of a processor, funnel or port."""
    scheduling, sessions = status.scheduling, status.sessions
    return {
        "id": status.id,
        "kind": status.kind,
        "name": status.name,
        "type": status.type,
        "state": scheduling.state.value,
        "desired": scheduling.desired.value,
        "problems": list(status.problems),
        "waits": [wait.to_json() for wait in status.waits],
        "activeTasks": scheduling.active_tasks,
        "terminatedTasks": scheduling.terminated_tasks,
        "longestActiveMs": scheduling.longest_active_ms,
        "waitsFor": scheduling.waits_for,
        "nextFiring": _time(scheduling.next_firing_ms),
        "yieldedUntil": _time(scheduling.yielded_until_ms),
        "runs": scheduling.runs,
        "failures": scheduling.failures,
        "runMs": scheduling.run_ns // _NS_PER_MS,
        "in": sessions.in_count,
        "inBytes": sessions.in_bytes,
        "out": sessions.out_count,
        "outBytes": sessions.out_bytes,
        "readBytes": sessions.read_bytes,
        "writtenBytes": sessions.written_bytes,
        "created": sessions.created_count,
        "removed": sessions.removed_count,
        "expired": sessions.expired_count,
        "missing": sessions.missing_count,
        "retried": sessions.retried_count,
        "counters": dict(sessions.counters),
    }


def connection_json(status: ConnectionStatus) -> Json:
    """Return the JSON of a connection's status."""
    size, options, swapping = status.size, status.options, status.swapping
    return {
        "id": status.id,
        "name": status.name,
        "source": status.source,
        "destination": status.destination,
        "queued": size.count,
        "queuedBytes": size.size_bytes,
        "active": size.active_count,
        "swapped": size.swapped_count,
        "activeBytes": size.active_bytes,
        "swappedBytes": size.swapped_bytes,
        "unacknowledged": size.unacknowledged_count,
        "penalized": size.penalized_count,
        "swapFiles": size.swap_files,
        "swapFilesWritten": swapping.swap_files_written,
        "swapFailures": swapping.swap_failures,
        "lastSwapFailure": swapping.last_swap_failure,
        "lost": swapping.lost_count,
        "full": status.is_full,
        "backPressureCount": options.backpressure_count,
        "backPressureBytes": options.backpressure_bytes,
        "expirationMs": options.expiration_ms,
        "expired": status.expired_count,
    }


def flowfile_json(flowfile: FlowFile, now_ms: int, position: int | None = None) -> Json:
    """Return the JSON of a FlowFile of a queue, with its place from 1 on if it is known."""
    return {
        "id": flowfile.id,
        "size": flowfile.size,
        "entryDate": format_time(flowfile.entry_ms),
        "lineageStartDate": format_time(flowfile.lineage_start_ms),
        "queuedDate": format_time(flowfile.queued_ms),
        "position": position,
        "penalized": flowfile.is_penalized(now_ms),
        "penalizedUntil": format_time(flowfile.penalty_until_ms)
        if flowfile.is_penalized(now_ms)
        else None,
        "attributes": dict(flowfile.attributes),
    }


def bulletin_json(bulletin: Bulletin, name: str) -> Json:
    """Return the JSON of a bulletin of a component, whose name is empty if it was removed."""
    return {**asdict(bulletin), "name": name, "time": format_time(bulletin.time_ms)}


def drop_json(number: int, progress: DropProgress) -> Json:
    """Return the JSON of a drop request's progress."""
    return {
        "request": number,
        "state": progress.state.value,
        "original": progress.original.count,
        "dropped": progress.dropped_count,
        "droppedBytes": progress.dropped_bytes,
        "failure": progress.failure,
    }


def _time(time_ms: int | None) -> str | None:
    return None if time_ms is None else format_time(time_ms)
