"""Context of a processor's sessions: its inputs, its outputs, and shared services.

Owns which inputs may be polled now, and their rotation. Does not own the queues (`queue`), nor
back-pressure that keeps a processor from being triggered (`scheduling`).

Invariant: the session context of a processor is created again when its connections change. All of
its sessions share it, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor_state import StateManager
from penstock.flow.queue.queue import FilterVerdict, PollResult
from penstock.flow.relationships import RelationshipRetry
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.batch_limit import BatchLimit
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.filesystem import FileSystem


class SessionQueue(Protocol):
    """Queue of a connection, as sessions use it."""

    @property
    def id(self) -> str:
        """Return the id of the connection."""
        ...

    @property
    def is_full(self) -> bool:
        """Return whether back-pressure stops the component that feeds the queue."""
        ...

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles, including those that a session gives back."""
        ...

    def poll(self) -> PollResult:
        """Take the first FlowFile that is not penalized, if there is one."""
        ...

    def poll_many(self, limit: int) -> PollResult:
        """Take up to `limit` FlowFiles, in order."""
        ...

    def poll_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> PollResult:
        """Take the FlowFiles that a filter accepts."""
        ...

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Record that FlowFiles which a session took left the queue."""
        ...


class SessionRepository(Protocol):
    """FlowFile repository, as sessions use it."""

    def next_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids that no FlowFile has or had."""
        ...

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of `count` consecutive indexes, for FlowFiles of one millisecond."""
        ...

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Commit changes, completely or not at all."""
        ...

    def state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key."""
        ...


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Services that all sessions share.

    Attributes:
        repository: Repository of FlowFiles.
        content: Repository of their content.
        clock: The current time.
        new_uuid: Returns a unique text.
        fs: File system for importing and exporting content.
        records: Whether commits get notes for the record of provenance.
        revision: Returns the revision of the flow that runs.
    """

    repository: SessionRepository
    content: ContentRepository
    clock: Clock
    new_uuid: Callable[[], str]
    fs: FileSystem
    records: bool = False
    revision: Callable[[], int] = lambda: 0


class _Rotation:
    """Rotation of the inputs. It needs no lock: concurrent threads only make it less even."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0


@dataclass(frozen=True)
class SessionContext:
    """Connections and settings of one processor.

    Attributes:
        processor: Its id.
        state: Its stored state.
        inputs: Queues of incoming connections.
        outputs: Queues of outgoing connections, by relationship.
        relationships: All its relationships, connected or not.
        auto_terminated: Relationships whose FlowFiles are removed.
        retries: Relationships whose FlowFiles are retried first.
        any_open: Whether it runs while at least one relationship has room.
        penalty_ms: Time for which a penalized FlowFile is not returned.
        yield_ms: Time for which the processor does not run after it yields.
        yield_for: Makes the processor yield for a number of milliseconds.
        batch_limit: Maximum number of FlowFiles of a session after a failed trigger.
    """

    processor: str
    state: StateManager
    inputs: Sequence[SessionQueue] = ()
    outputs: Mapping[str, Sequence[SessionQueue]] = field(default_factory=dict)
    relationships: frozenset[str] = frozenset()
    auto_terminated: frozenset[str] = frozenset()
    retries: Mapping[str, RelationshipRetry] = field(default_factory=dict)
    any_open: bool = False
    penalty_ms: int = 30_000
    yield_ms: int = 1_000
    yield_for: Callable[[int], None] = lambda _wait_ms: None
    batch_limit: BatchLimit = field(
        default_factory=BatchLimit, init=False, repr=False, compare=False
    )
    _rotation: _Rotation = field(default_factory=_Rotation, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inputs = {queue.id for queue in self.inputs}
        outputs = {queue.id for queues in self.outputs.values() for queue in queues}
        object.__setattr__(self, "_loops", [q for q in self.inputs if q.id in outputs])
        away = {
            name: [queue for queue in queues if queue.id not in inputs]
            for name, queues in self.outputs.items()
        }
        object.__setattr__(self, "_away", [away.get(name, []) for name in self._names()])

    _loops: list[SessionQueue] = field(init=False, repr=False, compare=False)
    _away: list[list[SessionQueue]] = field(init=False, repr=False, compare=False)

    def pollable(self) -> Iterable[SessionQueue]:
        """Return the inputs that may be polled now, in the order of the rotation.

        While an output is full, only loops of the processor may be polled. Otherwise they would
        never become empty.
        """
        queues = self.inputs if self._has_room() else self._loops
        if len(queues) < 2:
            return queues
        first = self._rotation.next % len(queues)
        return [*queues[first:], *queues[:first]]

    def rotate_after(self, queue: SessionQueue) -> None:
        """Continue the rotation with the input after this one."""
        if len(self.inputs) > 1:
            self._rotation.next = 1 + next(
                place for place, known in enumerate(self.inputs) if known is queue
            )

    def _has_room(self) -> bool:
        if self.any_open and self._away:
            return any(not _any_full(queues) for queues in self._away)
        return not any(_any_full(queues) for queues in self._away)

    def _names(self) -> frozenset[str]:
        return self.relationships | self.outputs.keys()


def _any_full(queues: Iterable[SessionQueue]) -> bool:
    return any(queue.is_full for queue in queues)
