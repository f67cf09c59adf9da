"""Metrics of a flow's status: per processor, per connection, and in total.

Owns names and labels. Does not own the numbers (`flow_status`) nor their text form (`services`).

Invariant: the number of labels is bounded: they are the names of processors and connections of the
applied flow, each once, and constants of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from penstock.core.metrics import Sample
from penstock.flow.controller.flow_status import ComponentStatus, ConnectionStatus, FlowStatus
from penstock.flow.graph.flow_index import ComponentKind
from penstock.flow.scheduling.component_lifecycle import ComponentState

_Part = TypeVar("_Part", ComponentStatus, ConnectionStatus)

_NS_PER_S: Final = 1_000_000_000
_MS_PER_S: Final = 1_000


def flow_samples(status: FlowStatus, bulletins: int) -> Iterator[Sample]:
    """Return the metrics of a flow.

    Args:
        status: Status of the flow.
        bulletins: Number of bulletins so far.
    """
    yield from _of_flow(status, bulletins)
    processors = [one for one in status.components if one.kind == ComponentKind.PROCESSOR]
    for processor, name in _named(processors):
        yield from _of_processor(processor, name)
    for connection, name in _named(status.connections):
        yield from _of_connection(connection, name)


def _named(parts: Iterable[_Part]) -> Iterator[tuple[_Part, str]]:
    """Yield each part with a name that is unique."""
    seen: set[str] = set()
    for part in parts:
        name = part.name if part.name not in seen else f"{part.name} ({part.id})"
        seen.add(name)
        yield part, name


def _of_flow(status: FlowStatus, bulletins: int) -> Iterator[Sample]:
    threads = {
        "busy": status.busy_threads,
        "free": max(0, status.threads - status.busy_threads),
        "given_up": status.terminated_threads,
    }
    for state, count in threads.items():
        yield _gauge("penstock_flow_threads", "Threads for runs", count, state=state)
    heap = {"used": status.heap_bytes, "limit": status.heap_limit_bytes}
    for what, size in heap.items():
        yield _gauge(
            "penstock_flow_heap_bytes", "Approximate memory of FlowFiles in queues", size, what=what
        )
    yield _gauge("penstock_flow_revision", "Revision of the applied flow", status.revision)
    yield _gauge(
        "penstock_flow_held_components",
        "Components that were not started, because the process of the flow kept ending",
        len(status.held),
    )
    orphaned = len(status.orphaned_queues)
    yield _gauge(
        "penstock_flow_orphaned_queues",
        "Queues with FlowFiles that belong to no connection of the flow",
        orphaned,
    )
    repository, content = status.repository, status.content
    yield _counter(
        "penstock_flow_commits_total", "Commits of the FlowFile repository", repository.commits
    )
    about = "Age of the oldest commit that is not synced to disk"
    yield _gauge("penstock_flow_unsynced_seconds", about, repository.unsynced_age_s)
    refused = repository.refused_commits
    yield _counter(
        "penstock_flow_refused_commits_total",
        "Commits refused, because the disk was full or failed",
        refused,
    )
    about = "FlowFiles lost in missing content or damaged swap files"
    lost = {"content": repository.missing_flowfiles, "swap_file": repository.damaged_flowfiles}
    for with_what, count in lost.items():
        yield _counter("penstock_flow_lost_flowfiles_total", about, count, damaged=with_what)
    yield _gauge(
        "penstock_flow_content_files", "Content files to which FlowFiles refer", content.resources
    )
    yield _counter("penstock_flow_bulletins_total", "Warnings and errors of components", bulletins)


def _of_processor(one: ComponentStatus, name: str) -> Iterator[Sample]:
    scheduling, done = one.scheduling, one.sessions
    flowfiles = {
        "in": done.in_count,
        "out": done.out_count,
        "created": done.created_count,
        "removed": done.removed_count,
        "expired": done.expired_count,
        "retried": done.retried_count,
    }
    for what, count in flowfiles.items():
        about = "FlowFiles in sessions of the processor"
        yield _counter(
            "penstock_flow_processor_flowfiles_total", about, count, processor=name, what=what
        )
    sizes = {
        "in": done.in_bytes,
        "out": done.out_bytes,
        "read": done.read_bytes,
        "written": done.written_bytes,
    }
    for what, size in sizes.items():
        about = "Content bytes in sessions of the processor"
        yield _counter(
            "penstock_flow_processor_bytes_total", about, size, processor=name, what=what
        )
    counts: tuple[tuple[str, str, float], ...] = (
        ("penstock_flow_processor_runs_total", "Runs that ended", scheduling.runs),
        (
            "penstock_flow_processor_failures_total",
            "Runs that raised an exception",
            scheduling.failures,
        ),
        (
            "penstock_flow_processor_run_seconds_total",
            "Total duration of runs",
            scheduling.run_ns / _NS_PER_S,
        ),
    )
    for metric, about, number in counts:
        yield _counter(metric, about, number, processor=name)
    longest_s = scheduling.longest_active_ms / _MS_PER_S
    gauges: tuple[tuple[str, str, float], ...] = (
        (
            "penstock_flow_processor_running",
            "1 if the processor is running",
            scheduling.state is ComponentState.RUNNING,
        ),
        (
            "penstock_flow_processor_active_tasks",
            "Threads that work for the processor",
            scheduling.active_tasks,
        ),
        (
            "penstock_flow_processor_given_up_tasks",
            "Abandoned threads that have not returned",
            scheduling.terminated_tasks,
        ),
        (
            "penstock_flow_processor_longest_run_seconds",
            "Duration of the oldest current run",
            longest_s,
        ),
    )
    for metric, about, value in gauges:
        yield _gauge(metric, about, value, processor=name)
    if scheduling.next_firing_ms is not None:
        at_s = scheduling.next_firing_ms / _MS_PER_S
        about = "Next scheduled run, Unix time"
        yield _gauge("penstock_flow_processor_next_firing_seconds", about, at_s, processor=name)


def _of_connection(one: ConnectionStatus, name: str) -> Iterator[Sample]:
    size = one.size
    parts = {
        "memory": (size.active_count, size.active_bytes),
        "swapped": (size.swapped_count, size.swapped_bytes),
        "in_sessions": (size.unacknowledged_count, size.unacknowledged_bytes),
    }
    for part, (count, size_bytes) in parts.items():
        labels = {"connection": name, "part": part}
        yield _gauge(
            "penstock_flow_connection_flowfiles", "FlowFiles in the connection", count, **labels
        )
        yield _gauge(
            "penstock_flow_connection_bytes",
            "Content bytes in the connection",
            size_bytes,
            **labels,
        )
    gauges = (
        ("penstock_flow_connection_swap_files", "Swap files", size.swap_files),
        ("penstock_flow_connection_full", "1 if back-pressure stops the source", one.is_full),
    )
    for metric, about, value in gauges:
        yield _gauge(metric, about, value, connection=name)
    swapping = one.swapping
    counters = (
        (
            "penstock_flow_connection_expired_total",
            "FlowFiles that expired in the queue",
            one.expired_count,
        ),
        (
            "penstock_flow_connection_lost_total",
            "FlowFiles lost in unreadable swap files",
            swapping.lost_count,
        ),
        (
            "penstock_flow_connection_swap_files_written_total",
            "Swap files written",
            swapping.swap_files_written,
        ),
        (
            "penstock_flow_connection_swap_failures_total",
            "Swap files that could not be written",
            swapping.swap_failures,
        ),
    )
    for metric, about, count in counters:
        yield _counter(metric, about, count, connection=name)


def _gauge(name: str, about: str, value: float, **labels: str) -> Sample:
    return Sample(name, "gauge", about, tuple(labels.items()), float(value))


def _counter(name: str, about: str, value: float, **labels: str) -> Sample:
    return Sample(name, "counter", about, tuple(labels.items()), float(value))
