"""What indexing asks of the world outside: protocols that services and tests fulfil.

All calls block, may come from any one thread, and raise the errors of `penstock.core.errors`:
`Unavailable` when nobody answers, so that the call may be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batches import SeenTopic
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskspec import TaskSpec
    from penstock.segments.deepstore import Pushed
    from penstock.segments.model import SegmentId

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

DEFAULT_WORKER_CATEGORY: Final = "_default_worker_category"


class Lanes(Protocol):
    """Threads of a component, one for each named lane; work of a lane runs in order.

    A lane is for one kind of blocking call, so that a slow one holds up no other.
    """

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the lane's thread, after what was submitted there before."""
        ...

    def close(self) -> None:
        """Begin no more work; what is queued is cancelled."""
        ...


# --- the broker, as tasks and supervisors see it


class BrokerPort(Protocol):
    """A topic's stream partitions."""

    def available(
        self, topic: str, *, after: Offsets | None = None, wait_ms: int = 0, topic_id: str = ""
    ) -> SeenTopic:
        """Return which topic has the name, and what can be read durably of its stream partitions.

        With `after` it answers when there is something behind these offsets or the time is over,
        and at once if they are of `topic_id` and another topic has the name by now.

        Raises:
            NotFound: There is no such topic.
            Unavailable: The broker does not answer.
        """
        ...

    def append_time_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Return when a message was appended, in epoch milliseconds; None if it is not kept.

        Raises:
            Unavailable: The broker does not answer.
        """
        ...

    def set_cursor(self, topic: str, name: str, offsets: Offsets) -> None:
        """Keep messages from these offsets on, until the cursor moves or is dropped."""
        ...

    def drop_cursor(self, topic: str, name: str, partitions: Sequence[int]) -> None:
        """Let go of a cursor; an unknown one is fine."""
        ...


class DeadLetterPort(Protocol):
    """Where messages go that cannot be parsed."""

    def publish(
        self, topic: str, messages: Sequence[bytes], *, producer: str, sequence: int
    ) -> None:
        """Append messages durably; a repeat of the same producer and sequence appends nothing.

        Raises:
            Unavailable: It is not known whether they were appended: repeat the call.
        """
        ...


# --- deep storage


class DeepStorePort(Protocol):
    """Deep storage."""

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> Pushed:
        """Copy a file to its place, durably and at once or not at all."""
        ...

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a pushed file; one that is gone is fine."""
        ...


# --- overlord and peon


class TaskAction(Protocol[R_co]):
    """Something a task asks of the overlord; the kinds stand in `penstock.indexing.actions`."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form, with its `type`."""
        ...

    def parse_result(self, value: object) -> R_co:
        """Read the answer's JSON form."""
        ...


class ActionClient(Protocol):
    """The overlord, as one task sees it."""

    def perform(self, action: TaskAction[R]) -> R:
        """Have an action done and return its answer.

        Raises:
            Unavailable: The overlord does not answer; whether it was done is unknown. Every action
                may be repeated.
            LockRevoked: The overlord counts the task as ended: abandon it.
            InvalidRequest: The action itself is wrong.
        """
        ...


class TaskPhase(StrEnum):
    """What a streaming task is about, as Druid names it."""

    STARTING = "STARTING"
    READING = "READING"
    PAUSED = "PAUSED"
    PUBLISHING = "PUBLISHING"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard a streaming task has worked in the last quarter of an hour.

    Attributes:
        per_second: Messages that it can persist in a second of work; 0 if it has persisted none.
        idle: Share of the time for which there was nothing to do; None if that is not known.
    """

    per_second: float = 0.0
    idle: float | None = None


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How a streaming task stands.

    Attributes:
        phase: What it is about.
        current: Next offset to read; what is being persisted counts as read.
        persisted: Next offset after what is persisted.
        end: Where it will end, once agreed.
        checkpoints: Start offsets of each unpublished sequence, by its number.
        counts: Rows since the task began, by name.
        error: What it last waited for or stumbled over, empty if nothing.
        averages: Rows a second by name, over the spans ``1m``, ``5m`` and ``15m``.
        unparseable: Some messages that could not be parsed, with place, reason and text.
        effort: How hard it has worked.
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
    effort: Effort = field(default_factory=Effort)


class TaskClient(Protocol):
    """The control API of running peons, as the overlord sees it."""

    def within(self, answer_ms: int) -> TaskClient:
        """Return the same tasks, whose answers are waited for so long."""
        ...

    def report(self, task_id: str) -> TaskReport:
        """Return how a task stands.

        Raises:
            Unavailable: The peon does not answer (it may be starting).
        """
        ...

    def pause(self, task_id: str) -> dict[int, int]:
        """Stop beginning to read; return the offsets at which it stands.

        The pause ends by itself after a while if nobody sets end offsets or resumes.

        Raises:
            Conflict: The end is agreed already.
            Unavailable: The peon does not answer.
        """
        ...

    def resume(self, task_id: str) -> None:
        """Go on reading."""
        ...

    def set_end_offsets(self, task_id: str, end: Offsets, *, finish: bool) -> None:
        """Agree on the end of the open sequence, and resume.

        Raises:
            InvalidRequest: The end does not fit.
            Unavailable: The peon does not answer.
        """
        ...


# --- overlord and worker


class TaskState(StrEnum):
    """A task's state in Druid's words."""

    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"

    @property
    def complete(self) -> bool:
        """Whether it will not change any more."""
        return self is not TaskState.RUNNING


@dataclass(frozen=True, slots=True)
class TaskLocation:
    """Where a peon answers."""

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
    """Everything a worker has: a task that is not listed is not there.

    Attributes:
        capacity: Tasks that it runs at a time.
        tasks: Those that run, and those that ended and are not forgotten.
        enabled: It takes new tasks; one that is disabled finishes what it has.
        category: Which tasks are sent to it.
        version: Its version; an overlord may ask for one at least.
    """

    capacity: int
    tasks: tuple[WorkerTask, ...]
    enabled: bool = True
    category: str = DEFAULT_WORKER_CATEGORY
    version: str = "0"


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """A place in a worker's history: how many changes there were, and what they were, hashed.

    The hash tells a worker that was started again, whose count is another history's.
    """

    counter: int = -1
    hash: int = 0


@dataclass(frozen=True, slots=True)
class WorkerChanges:
    """What changed at a worker since a place in its history.

    Attributes:
        place: Ask for what comes after it with this.
        reset: The place is not of this history, or too long ago: `report` is everything.
        tasks: Tasks that are new or changed, each once, as they are now.
        removed: Tasks that are not there any more.
        report: Everything, at the first question and after a reset; None otherwise.
        enabled: Whether it takes new tasks.
    """

    place: HistoryPlace
    reset: bool = False
    tasks: tuple[WorkerTask, ...] = ()
    removed: tuple[str, ...] = ()
    report: WorkerReport | None = None
    enabled: bool = True


class WorkerClient(Protocol):
    """One worker, as the overlord sees it."""

    @property
    def name(self) -> str:
        """Its name, the same after a restart."""
        ...

    @property
    def host(self) -> str:
        """Its host and port; the worker config may name it by these."""
        ...

    def report(self) -> WorkerReport:
        """Return everything the worker has."""
        ...

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        """Return what changed after a place, as soon as something did or when the time is over.

        `HistoryPlace()` asks for everything, at once. A task that ended is so known at once.

        Raises:
            Unavailable: The worker does not answer.
        """
        ...

    def assign(self, task: TaskSpec) -> None:
        """Have a task run; when this returns, the worker has written it down.

        Asking again for a task that it has changes nothing.

        Raises:
            Conflict: No slot is free.
            Unavailable: The worker does not answer; it may have taken the task all the same.
        """
        ...

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget one that ended; an unknown one is fine."""
        ...


class WorkerDirectory(Protocol):
    """Which workers there are."""

    def workers(self) -> Sequence[WorkerClient]:
        """Return the workers that announce themselves."""
        ...


# --- worker and peon


class PeonProcess(Protocol):
    """A running peon."""

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to stop at the next good moment."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class PeonLauncher(Protocol):
    """Starts peons."""

    def launch(self, task_id: str, folder: str) -> PeonProcess:
        """Start a peon in a task's folder; its output is appended to the folder's ``log``.

        Raises:
            Unavailable: It could not be started.
        """
        ...
