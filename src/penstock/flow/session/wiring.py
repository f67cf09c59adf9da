"""Where a processor's sessions take FlowFiles from, where they put them, and what they work with.

Owns: which inputs may be polled now, and in which order they take turns. Does not own the queues
(`queue`), nor back-pressure that keeps a processor from being triggered at all (`scheduling`).

Invariant: the wiring of a processor is made anew when its connections change; all of its sessions
share it, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.queue import Polled, Verdict
from penstock.flow.relationships import Retry
from penstock.flow.repository.changes import Changes
from penstock.flow.state import StateManager
from penstock.storage.content.repository import ContentRepository
from penstock.storage.filesystem import FileSystem


class SessionQueue(Protocol):
    """What a session needs of a connection's queue."""

    @property
    def id(self) -> str:
        """Return the id of the connection."""
        ...

    @property
    def is_full(self) -> bool:
        """Say whether back-pressure holds the source back."""
        ...

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles; also those that a session gives back."""
        ...

    def poll(self) -> Polled:
        """Take the first FlowFile, if there is one that is not penalized."""
        ...

    def poll_many(self, limit: int) -> Polled:
        """Take up to so many, in order."""
        ...

    def poll_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        """Take what a filter accepts."""
        ...

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Count what a session took as gone."""
        ...


class SessionRepository(Protocol):
    """What a session needs of the FlowFile repository."""

    def next_ids(self, count: int) -> int:
        """Return the first of so many ids that no FlowFile has or had."""
        ...

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of so many indexes that order FlowFiles of one millisecond."""
        ...

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Make changes, whole or not at all."""
        ...

    def state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key."""
        ...


@dataclass(frozen=True, slots=True)
class SessionServices:
    """What all sessions of a service work with.

    Attributes:
        repository: Where FlowFiles are durable.
        content: Where their bytes are.
        clock: What time it is.
        new_uuid: Gives text that was never given before.
        fs: For content that is imported from and exported to files.
    """

    repository: SessionRepository
    content: ContentRepository
    clock: Clock
    new_uuid: Callable[[], str]
    fs: FileSystem


class _Turn:
    """Whose turn it is among the inputs. Threads that meet here only make turns less even."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0


@dataclass(frozen=True)
class Wiring:
    """The connections of one processor, and what was set for them.

    Attributes:
        processor: Its id.
        state: What it remembers.
        inputs: Queues that lead to it.
        outputs: Queues that lead away, by relationship.
        relationships: All that it has, connected or not.
        auto_terminated: Those at which FlowFiles end.
        retries: Those for which is tried again first.
        any_open: It runs while one relationship has room.
        penalty_ms: For how long a penalized FlowFile is not handed out.
        yield_ms: For how long the processor rests when it yields.
        yield_for: Has the processor rest for so many milliseconds.
    """

    processor: str
    state: StateManager
    inputs: Sequence[SessionQueue] = ()
    outputs: Mapping[str, Sequence[SessionQueue]] = field(default_factory=dict)
    relationships: frozenset[str] = frozenset()
    auto_terminated: frozenset[str] = frozenset()
    retries: Mapping[str, Retry] = field(default_factory=dict)
    any_open: bool = False
    penalty_ms: int = 30_000
    yield_ms: int = 1_000
    yield_for: Callable[[int], None] = lambda _wait_ms: None
    _turn: _Turn = field(default_factory=_Turn, init=False, repr=False, compare=False)

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
        """Return the inputs that may be polled now, the one whose turn it is first.

        While there is no room for what would come of it, only the processor's own loops are: they
        would never empty otherwise.
        """
        queues = self.inputs if self._has_room() else self._loops
        if len(queues) < 2:
            return queues
        first = self._turn.next % len(queues)
        return [*queues[first:], *queues[:first]]

    def took_from(self, queue: SessionQueue) -> None:
        """Give the turn to the input after this one."""
        if len(self.inputs) > 1:
            self._turn.next = 1 + next(
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
