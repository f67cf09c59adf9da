"""Status of a flow: immutable snapshots of it and its components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.core.waits import DependencyWait
from penstock.flow.queue.queue import QueueStatistics
from penstock.flow.queue.queue_size import QueueOptions, QueueSize
from penstock.flow.repository.options import RepositoryStatistics
from penstock.flow.scheduling.component import ComponentStatistics
from penstock.flow.session.statistics import SessionStatistics
from penstock.storage.content.options import ContentStatistics


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    """Status of a processor, funnel or port.

    Attributes:
        id: Id of the component.
        kind: `processor`, `funnel`, `input port` or `output port`.
        name: Its name after those of its groups, separated by slashes.
        type: Type of a processor; empty for others.
        scheduling: Statistics of the scheduler.
        sessions: Counts of its sessions since it was created.
        problems: Reasons why it cannot run.
        waits: The dependency that it waits for, with its name as the work; empty if it does not.
    """

    id: str
    kind: str
    name: str
    type: str
    scheduling: ComponentStatistics
    sessions: SessionStatistics
    problems: Sequence[str]
    waits: Sequence[DependencyWait] = ()


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """Status of a connection and its queue.

    Attributes:
        id: Id of the connection.
        name: `Group/Read.success → Validate`.
        source: Id of the source component.
        destination: Id of the destination component.
        size: Size of the queue.
        options: Its thresholds and limits.
        is_full: Whether back-pressure stops the source.
        expired_count: FlowFiles that expired while no component polled, since the start.
        swapping: Counts of its swap files since the start.
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
    """Status of a running flow.

    Attributes:
        name: Name of the flow.
        version: Version that its author set.
        revision: Revision of the applied flow.
        owner: Id of the principal for which it acts; empty: the installation.
        components: Processors, funnels and ports.
        connections: Connections with their queues.
        threads: Maximum number of concurrent runs.
        busy_threads: Number of current runs.
        terminated_threads: Abandoned threads that have not returned.
        heap_bytes: Approximate memory of FlowFiles in queues.
        heap_limit_bytes: Limit of that memory.
        held: Names of components that should run but were not started, because the process of the
            flow kept ending.
        orphaned_queues: Queues with FlowFiles whose connection is no longer in the flow.
        repository: Statistics of the FlowFile repository.
        content: Statistics of the content repository.
    """

    name: str
    version: str
    revision: int
    owner: str
    components: Sequence[ComponentStatus]
    connections: Sequence[ConnectionStatus]
    threads: int
    busy_threads: int
    terminated_threads: int
    heap_bytes: int
    heap_limit_bytes: int
    held: Sequence[str]
    orphaned_queues: Sequence[str]
    repository: RepositoryStatistics
    content: ContentStatistics
