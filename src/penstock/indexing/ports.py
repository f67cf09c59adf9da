"""Ports of indexing: protocols that services and tests implement.

All calls block, may come from any single thread, and raise the errors of `penstock.core.errors`:
`Unavailable` when there is no answer, so that the caller may repeat the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.read_plan import SeenTopic
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task_spec import TaskSpec
    from penstock.segments.deep_storage import PushedFile
    from penstock.segments.segment import SegmentId

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

DEFAULT_WORKER_CATEGORY: Final = "_default_worker_category"


# --- the broker, as used by tasks and supervisors


class BrokerPort(Protocol):
    """The stream partitions of a topic."""

    def available(
        self, topic: str, *, after: Offsets | None = None, wait_ms: int = 0, topic_id: str = ""
    ) -> SeenTopic:
        """Return the topic of this name, and the durable range of its stream partitions.

        With `after`, the call waits for messages after these offsets until the time runs out. It
        returns at once if the offsets are of `topic_id` and the name now has another topic.

        Raises:
            NotFound: The topic does not exist.
            Unavailable: The broker does not answer.
        """
        ...

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the append time of a message in epoch milliseconds; None if it is not stored.

        Raises:
            Unavailable: The broker does not answer.
        """
        ...

    def set_cursor(self, topic: str, name: str, offsets: Offsets) -> None:
        """Retain messages from these offsets on, until the cursor is moved or dropped."""
        ...

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None:
        """Drop a cursor; an unknown one is ignored."""
        ...


class DeadLetterPort(Protocol):
    """The destination of messages that cannot be parsed."""

    def publish(
        self, topic: str, messages: Sequence[bytes], *, producer: str, sequence: int
    ) -> None:
        """Append messages durably; repeating a producer's sequence number appends nothing.

        Raises:
            Unavailable: It is unknown whether they were appended: repeat the call.
        """
        ...


# --- deep storage


class DeepStorePort(Protocol):
    """Deep storage."""

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> PushedFile:
        """Copy a file to its place in deep storage, durably and atomically."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a pushed file; a missing one is ignored."""
        ...


# --- overlord and peon


class TaskAction(Protocol[R_co]):
    """A request of a task to the overlord; `penstock.indexing.actions` has the kinds."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form, with its `type`."""
        ...

    def parse_result(self, value: object) -> R_co:
        """Parse the JSON form of the answer."""
        ...


class ActionClient(Protocol):
    """Client of the overlord for one task."""

    def perform(self, action: TaskAction[R]) -> R:
        """Perform an action and return its answer.

        Raises:
            Unavailable: The overlord does not answer; it is unknown whether it performed the
                action. Every action may be repeated.
            LockRevoked: The overlord regards the task as ended: stop the task.
            InvalidRequest: The action itself is invalid.
        """
        ...


class TaskPhase(StrEnum):
    """Phase of a streaming task, in Druid's terms."""

    STARTING = "STARTING"
    READING = "READING"
    PAUSED = "PAUSED"
    PUBLISHING = "PUBLISHING"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of a streaming task in the last 15 minutes.

    Attributes:
        per_second: Messages that it persists in a second of work; 0 if it has persisted none.
        idle: Share of the time without work; None if unknown.
    """

    per_second: float = 0.0
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Status of a streaming task.

    Attributes:
        phase: Its phase.
        current: Next offset to read; messages that are being persisted count as read.
        persisted: Next offset after the persisted messages.
        end: Agreed end offsets, if any.
        checkpoints: Start offsets of each unpublished sequence, by its number.
        counts: Rows since the task started, by name.
        error: The last error, or the dependency that it waits for; empty if none.
        averages: Rows per second by name, over the spans ``1m``, ``5m`` and ``15m``.
        unparseable: Some messages that could not be parsed, with place, reason and text.
        throughput: Its recent throughput.
    """

    phase: TaskPhase
    current: Mapping[int, int]
    persisted: Mapping[int, int]
    end: Mapping[int, int] | None
    checkpoints: Mapping[int, Mapping[int, int]]
    counts: Mapping[str, int]
    error: str = ""
    averages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    unparseable: Sequence[Mapping[str, str | int]] = ()
    throughput: Throughput = field(default_factory=Throughput)


class TaskClient(Protocol):
    """The control API of running peons, as used by the overlord."""

    def within(self, answer_ms: int) -> TaskClient:
        """Return a client of the same tasks with this timeout for answers."""
        ...

    def report(self, task_id: str) -> TaskReport:
        """Return the status of a task.

        Raises:
            Unavailable: The peon does not answer (it may be starting).
        """
        ...

    def pause(self, task_id: str) -> dict[int, int]:
        """Pause reading; return the offsets that the task has reached.

        The pause ends by itself after a while without `set_end_offsets` or `resume`.

        Raises:
            Conflict: The end offsets are agreed already.
            Unavailable: The peon does not answer.
        """
        ...

    def resume(self, task_id: str) -> None:
        """Continue reading."""
        ...

    def set_end_offsets(self, task_id: str, end: Offsets, *, finish: bool) -> None:
        """Set the end offsets of the open sequence, and resume.

        Raises:
            InvalidRequest: The end offsets do not match the sequence.
            Unavailable: The peon does not answer.
        """
        ...


# --- overlord and worker


class TaskState(StrEnum):
    """State of a task, in Druid's terms."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"

    @property
    def complete(self) -> bool:
        """Whether the state is final."""
        return self is not TaskState.RUNNING


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """Address of a peon."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """One task as a worker reports it; `waits` are the dependencies that it waits for."""

    id: str
    state: TaskState
    location: TaskLocation | None = None
    error: str = ""
    duration_ms: int = -1
    waits: tuple[DependencyWait, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """Full state of a worker: a task that is not listed does not exist there.

    Attributes:
        capacity: Maximum number of tasks that run at once.
        tasks: Running tasks, and ended tasks that are not forgotten yet.
        enabled: Whether it accepts new tasks; a disabled worker finishes its tasks.
        category: Category for the selection of workers.
        version: Its version; an overlord may require a minimum.
    """

    capacity: int
    tasks: tuple[WorkerTask, ...]
    enabled: bool = True
    category: str = DEFAULT_WORKER_CATEGORY
    version: str = "0"


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """A position in a worker's history: the number of changes, and a hash of them.

    The hash detects that the worker was restarted, so that the number belongs to another history.
    """

    counter: int = -1
    hash: int = 0


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """Changes of a worker since a position in its history.

    Attributes:
        place: Position to pass to the next call.
        reset: The requested position is too old or not of this history: `report` is complete.
        tasks: New or changed tasks, without duplicates, in their current state.
        removed: Tasks that no longer exist.
        report: The full state, for the first call and after a reset; None otherwise.
        enabled: Whether it accepts new tasks.
    """

    place: HistoryPlace
    reset: bool = False
    tasks: tuple[WorkerTask, ...] = ()
    removed: tuple[str, ...] = ()
    report: WorkerReport | None = None
    enabled: bool = True


class WorkerClient(Protocol):
    """Client of one worker, as used by the overlord."""

    @property
    def name(self) -> str:
        """Its name, which stays the same after a restart."""
        ...

    @property
    def host(self) -> str:
        """Its host and port; the worker config may refer to it by these."""
        ...

    def report(self) -> WorkerReport:
        """Return the full state of the worker."""
        ...

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        """Return the changes after a position: at once if there are any, or after `wait_ms`.

        `HistoryPlace()` requests the full state, at once. The wait ends as soon as a task ends.

        Raises:
            Unavailable: The worker does not answer.
        """
        ...

    def assign(self, task: TaskSpec) -> None:
        """Assign a task; when this returns, the worker has stored it.

        Assigning a task again changes nothing.

        Raises:
            Conflict: No slot is free.
            Unavailable: The worker does not answer; it may have accepted the task nevertheless.
        """
        ...

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget one that ended; an unknown one is ignored."""
        ...


class WorkerDirectory(Protocol):
    """Directory of the workers."""

    def workers(self) -> Sequence[WorkerClient]:
        """Return the workers that have announced themselves."""
        ...


# --- worker and peon


class PeonProcess(Protocol):
    """A running peon."""

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        ...

    def terminate(self) -> None:
        """Request that it stops at the next suitable time."""
        ...

    def kill(self) -> None:
        """Kill it at once."""
        ...


class PeonLauncher(Protocol):
    """Starts peons."""

    def launch(self, task_id: str, folder: str) -> PeonProcess:
        """Start a peon in a task's folder; its output is appended to the folder's ``log``.

        Raises:
            Unavailable: It could not be started.
        """
        ...
