"""A flow's status as metrics: per processor, per connection, and of the whole.

Owns names and labels. Does not own the numbers (`status`) nor their text form (`services`).

Invariant: labels are bounded: they are the names of processors and connections of the flow that is
applied, each once, and words that stand here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from penstock.core.metrics import Sample
from penstock.flow.controller.status import ComponentStatus, ConnectionStatus, FlowStatus
from penstock.flow.graph.index import Kind as ComponentKind
from penstock.flow.scheduling.lifecycle import ComponentState

_Part = TypeVar("_Part", ComponentStatus, ConnectionStatus)

_NS_PER_S: Final = 1_000_000_000
_MS_PER_S: Final = 1_000


def flow_samples(status: FlowStatus, bulletins: int) -> Iterator[Sample]:
    """Return the metrics of a flow.

    Args:
        status: What it is doing.
        bulletins: Warnings and errors of components so far.
    """
    yield from _of_flow(status, bulletins)
    processors = [one for one in status.components if one.kind == ComponentKind.PROCESSOR]
    for processor, name in _named(processors):
        yield from _of_processor(processor, name)
    for connection, name in _named(status.connections):
        yield from _of_connection(connection, name)


def _named(parts: Iterable[_Part]) -> Iterator[tuple[_Part, str]]:
    """Go through parts with a name for each that no other has."""
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
        yield _gauge("penstock_flow_heap_bytes", "FlowFiles in memory, about", size, what=what)
    yield _gauge("penstock_flow_revision", "Of the flow that is applied", status.revision)
    orphaned = len(status.orphaned_queues)
    yield _gauge("penstock_flow_orphaned_queues", "With FlowFiles, in no flow", orphaned)
    repository, content = status.repository, status.content
    yield _counter("penstock_flow_commits_total", "Of sessions", repository.commits)
    about = "Age of the oldest commit that is not on the disk"
    yield _gauge("penstock_flow_unsynced_seconds", about, repository.unsynced_age_s)
    refused = repository.refused_commits
    yield _counter("penstock_flow_refused_commits_total", "Disk full, or failing", refused)
    about = "FlowFiles that were lost with what was damaged"
    lost = {"content": repository.missing_flowfiles, "swap_file": repository.damaged_flowfiles}
    for with_what, count in lost.items():
        yield _counter("penstock_flow_lost_flowfiles_total", about, count, damaged=with_what)
    yield _gauge("penstock_flow_content_files", "That FlowFiles refer to", content.resources)
    yield _counter("penstock_flow_bulletins_total", "Warnings and errors", bulletins)


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
        about = "FlowFiles of its sessions"
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
        about = "Content of its sessions"
        yield _counter(
            "penstock_flow_processor_bytes_total", about, size, processor=name, what=what
        )
    counts: tuple[tuple[str, str, float], ...] = (
        ("penstock_flow_processor_runs_total", "Runs that ended", scheduling.runs),
        ("penstock_flow_processor_failures_total", "Runs that raised", scheduling.failures),
        (
            "penstock_flow_processor_run_seconds_total",
            "Time of its runs",
            scheduling.run_ns / _NS_PER_S,
        ),
    )
    for metric, about, number in counts:
        yield _counter(metric, about, number, processor=name)
    longest_s = scheduling.longest_active_ms / _MS_PER_S
    gauges: tuple[tuple[str, str, float], ...] = (
        (
            "penstock_flow_processor_running",
            "1 when it runs",
            scheduling.state is ComponentState.RUNNING,
        ),
        ("penstock_flow_processor_active_tasks", "Threads in it", scheduling.active_tasks),
        ("penstock_flow_processor_given_up_tasks", "And not back", scheduling.terminated_tasks),
        ("penstock_flow_processor_longest_run_seconds", "The oldest under way", longest_s),
    )
    for metric, about, value in gauges:
        yield _gauge(metric, about, value, processor=name)
    if scheduling.next_firing_ms is not None:
        at_s = scheduling.next_firing_ms / _MS_PER_S
        about = "When it runs next, Unix time"
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
        yield _gauge("penstock_flow_connection_flowfiles", "FlowFiles in it", count, **labels)
        yield _gauge("penstock_flow_connection_bytes", "Their content", size_bytes, **labels)
    gauges = (
        ("penstock_flow_connection_swap_files", "Swap files", size.swap_files),
        ("penstock_flow_connection_full", "1 when back-pressure holds its source", one.is_full),
    )
    for metric, about, value in gauges:
        yield _gauge(metric, about, value, connection=name)
    swapping = one.swapping
    counters = (
        ("penstock_flow_connection_expired_total", "While nobody polled", one.expired_count),
        ("penstock_flow_connection_lost_total", "In unreadable swap files", swapping.lost_count),
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
