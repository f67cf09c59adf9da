"""Ports and options of supervisors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.indexing.operator_events import Events, NoEvents
from penstock.indexing.ports import TaskState
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import BrokerPort, TaskClient, TaskLocation
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.metadata import MetadataStore


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """Options of all supervisors, in addition to their specs.

    Attributes:
        poll_interval_ms: Minimum interval at which a supervisor polls its topic and its tasks.
        retry_delay_ms: Delay between a task failure and the next start.
        retry_delay_max_ms: Maximum delay; it doubles with each consecutive failure.
        silence_limit_ms: Time without an answer after which a task with a worker has failed. Longer
            than the timeout of a lost worker, so that the lost worker is reported as the reason.
        task_context: Default context of tasks.
    """

    poll_interval_ms: int = 1_000
    retry_delay_ms: int = 1_000
    retry_delay_max_ms: int = 60_000
    silence_limit_ms: int = 300_000
    task_context: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActiveStream:
    """An active streaming task for supervisors; `worker` is None while it waits for one.

    `waits` are the dependencies that it waits for.
    """

    task: StreamTaskSpec
    worker: str | None
    location: TaskLocation | None
    created_ms: int
    waits: tuple[DependencyWait, ...] = ()


class StreamIndex(Protocol):
    """The part of the task index that supervisors use. On the overlord's mailbox."""

    def supervisors(self) -> Sequence[str]:
        """Return the sorted ids of supervisors with active tasks."""
        ...

    def streams(self, supervisor_id: str) -> Mapping[str, ActiveStream]:
        """Return the active tasks of a supervisor by id."""
        ...


class StreamQueue(Protocol):
    """The part of the task queue that supervisors use. On the overlord's mailbox."""

    @property
    def index(self) -> StreamIndex:
        """The active tasks."""
        ...

    def add(self, task: StreamTaskSpec) -> None:
        """Store a new task and hand it to a worker once one has a free slot.

        Raises:
            Conflict: A task with this id exists.
            Unavailable: The queue is full, or the metadata store does not answer.
        """
        ...

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task with a state; return false if it is not active."""
        ...


@dataclass(frozen=True, slots=True)
class SupervisorPorts:
    """Dependencies of a supervisor; `new_token` returns a unique string."""

    metadata: MetadataStore
    queue: StreamQueue
    broker: BrokerPort
    peons: TaskClient
    lanes: Lanes
    processor: MailboxProcessor
    clock: Clock
    new_token: Callable[[], str]
    events: Events = field(default_factory=NoEvents)
    fs: FileSystem = field(default_factory=OsFileSystem)
