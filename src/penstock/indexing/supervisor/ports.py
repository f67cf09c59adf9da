"""What supervisors are given: how to behave, and what to work with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.indexing.events import Events, NoEvents
from penstock.indexing.ports import TaskState
from penstock.storage.filesystem import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import BrokerPort, Lanes, TaskClient, TaskLocation
    from penstock.indexing.taskspec import StreamTaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.metadata import MetadataStore


@dataclass(frozen=True, slots=True)
class SupervisorOptions:
    """How supervisors behave beside what their specs say.

    Attributes:
        look_interval_ms: How often at most a supervisor looks at its topic and its tasks.
        retry_delay_ms: How long it waits after a task failed before it starts the next.
        retry_delay_max_ms: The longest such wait; it doubles with each failure in a row.
        silence_limit_ms: A task that has a worker and does not answer for so long has failed. It is
            longer than a lost worker is waited for, so that one is named as the reason.
        task_context: What the context of a spec is taken to say that does not say it: tasks get it.
    """

    look_interval_ms: int = 1_000
    retry_delay_ms: int = 1_000
    retry_delay_max_ms: int = 60_000
    silence_limit_ms: int = 300_000
    task_context: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActiveStream:
    """An active streaming task, as supervisors see it: with `worker` None it waits for one.

    `waits` are the dependencies that it waits for.
    """

    task: StreamTaskSpec
    worker: str | None
    location: TaskLocation | None
    created_ms: int
    waits: tuple[DependencyWait, ...] = ()


class StreamIndex(Protocol):
    """The active tasks, as supervisors see them; on the overlord's mailbox."""

    def supervisors(self) -> Sequence[str]:
        """Return which supervisors have active tasks, by id."""
        ...

    def streams(self, supervisor_id: str) -> Mapping[str, ActiveStream]:
        """Return the active tasks of a supervisor, by id."""
        ...


class StreamQueue(Protocol):
    """The task queue, as supervisors see it; on the overlord's mailbox."""

    @property
    def index(self) -> StreamIndex:
        """The active tasks."""
        ...

    def add(self, task: StreamTaskSpec) -> None:
        """Keep a new task and hand it to a worker when one has a free slot.

        Raises:
            Conflict: The id is taken.
            Unavailable: The queue is full, or the metadata store does not answer.
        """
        ...

    def shutdown(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> bool:
        """End an active task, which has that state then; false if it is not active."""
        ...


@dataclass(frozen=True, slots=True)
class SupervisorPorts:
    """What a supervisor works with; `new_token` gives texts that were never given before."""

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
