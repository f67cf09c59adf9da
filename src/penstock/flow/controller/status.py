"""What a flow is doing: immutable snapshots of it and its components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.flow.queue.queue import QueueStatistics
from penstock.flow.queue.size import QueueOptions, QueueSize
from penstock.flow.repository.options import RepositoryStatistics
from penstock.flow.scheduling.statistics import ComponentStatistics
from penstock.flow.session.statistics import SessionStatistics
from penstock.storage.content.options import ContentStatistics


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """A processor, funnel or port.

    Attributes:
        id: Its id.
        kind: `processor`, `funnel`, `input port` or `output port`.
        name: Its name, those of its groups before it, parted by slashes.
        type: Of a processor; else empty.
        scheduling: How it runs.
        sessions: What its sessions did since it was made.
        problems: Why it cannot run.
    """

    id: str
    kind: str
    name: str
    type: str
    scheduling: ComponentStatistics
    sessions: SessionStatistics
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """A connection and its queue.

    Attributes:
        id: Its id.
        name: `Group/Read.success → Validate`.
        source: Id of the component at its beginning.
        destination: Id of the component at its end.
        size: What is in it.
        options: Its thresholds and limits.
        is_full: Whether back-pressure holds the source back.
        expired_count: FlowFiles that expired while nobody polled, since the start.
        swapping: What became of its swap files since the start.
    """

    id: str
    name: str
    source: str
    destination: str
    size: QueueSize
    options: QueueOptions
    is_full: bool
    expired_count: int
    swapping: QueueStatistics


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """A flow at work.

    Attributes:
        name: Its name.
        version: Its author's.
        revision: Of what was applied.
        components: Processors, funnels and ports.
        connections: The queues.
        threads: Runs that may go on at once.
        busy_threads: Those that do.
        terminated_threads: Threads that were given up and have not come back.
        heap_bytes: FlowFiles in memory, about.
        heap_limit_bytes: The bound of that.
        orphaned_queues: Queues with FlowFiles whose connection is in no flow any more.
        repository: Of the FlowFile repository.
        content: Of the content repository.
    """

    name: str
    version: str
    revision: int
    components: Sequence[ComponentStatus]
    connections: Sequence[ConnectionStatus]
    threads: int
    busy_threads: int
    terminated_threads: int
    heap_bytes: int
    heap_limit_bytes: int
    orphaned_queues: Sequence[str]
    repository: RepositoryStatistics
    content: ContentStatistics
