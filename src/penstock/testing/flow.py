"""Run one processor in a test: enqueue FlowFiles, trigger it, check what it sent where.

Owns a processor and its lifecycle. Its input and a queue behind each relationship use the real
FlowFile repository and content, in memory (`surroundings`). Does not own scheduling: the test
triggers the processor.

    with ProcessorRunner(Greet, {"greeting": "Hello"}) as runner:
        runner.enqueue(b"Ada")
        runner.run()
        [greeted] = runner.sent("success")
        assert greeted.content == b"Hello Ada"

Invariants: a trigger is committed or rolled back as in a service. `restart` keeps the committed
FlowFiles and state, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessorIdentity,
    ProcessSession,
    PropertyValue,
    Relationship,
    Retry,
)
from penstock.flow.session.statistics import SessionStatistics
from penstock.storage.filesystem import FileSystem, OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.surroundings import INPUT, PROCESSOR_ID, Host, Surroundings

P = TypeVar("P", bound=Processor)

_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A FlowFile that the processor sent to a relationship.

    Attributes:
        flowfile: The FlowFile in the queue.
        content: Its bytes.
    """

    flowfile: FlowFile
    content: bytes

    @property
    def attributes(self) -> Mapping[str, str]:
        """Return the FlowFile's attributes."""
        return self.flowfile.attributes

    @property
    def is_penalized(self) -> bool:
        """Return whether the FlowFile was penalized, now or before."""
        return self.flowfile.penalty_until_ms > 0


class ProcessorRunner(Generic[P]):
    """Runs a processor on request; a context manager starts and stops it.

    Args:
        processor: Its class.
        properties: Properties as in a flow's file.
        has_input: Whether it has an incoming connection; None: unless it forbids one.
        unconnected: Relationships that are terminated automatically.
        retries: Relationships whose FlowFiles are retried first.
        clock: The clock; a virtual one moves only with `advance`.
        fs: The files that the processor sees; None: those of the operating system.

    Raises:
        InvalidConfiguration: The properties are invalid.
    """

    def __init__(
        self,
        processor: type[P],
        properties: Mapping[str, PropertyValue] | None = None,
        *,
        has_input: bool | None = None,
        unconnected: Iterable[str] = (),
        retries: Mapping[str, Retry] | None = None,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self._class = processor
        self._properties = dict(properties or {})
        forbids = processor.input is InputRequirement.FORBIDDEN
        self._clock: Clock = clock or VirtualClock()
        self._fs: FileSystem = fs or OsFileSystem()
        self._host = Host(has_input=not forbids if has_input is None else has_input)
        self._around = Surroundings(
            self._host, frozenset(unconnected), dict(retries or {}), self._clock, self._fs
        )
        self.statistics = SessionStatistics()
        self.processor: P = processor.configured(self._properties)
        self._open()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- lifecycle

    def start(self) -> None:
        """Start the processor, unless it runs: `on_scheduled`."""
        if not self._host.started:
            self.processor.on_scheduled(self.context)
            self._host.started = True

    def stop(self) -> None:
        """Stop the processor, if it runs: `on_unscheduled`, `on_stopped`."""
        if self._host.started:
            self._host.started = False
            self.processor.on_unscheduled(self.context)
            self.processor.on_stopped(self.context)

    def restart(self, properties: Mapping[str, PropertyValue] | None = None) -> None:
        """Start again as in a new process, which has only what was committed.

        Args:
            properties: New properties; None: as before.
        """
        self.stop()
        self._around.close()
        if properties is not None:
            self._properties = dict(properties)
        self.processor = self._class.configured(self._properties)
        self._open()
        self.start()

    def close(self) -> None:
        """Stop, and release everything. Repeated calls are allowed."""
        try:
            self.stop()
        finally:
            self._around.close()

    # -- feeding and triggering

    def enqueue(
        self,
        content: bytes | Iterable[bytes] = b"",
        attributes: Mapping[str, str] | None = None,
        **named: str,
    ) -> FlowFile:
        """Put a FlowFile into the input; attributes by keyword or, for any name, by a mapping."""
        if not self._host.has_input():
            raise InvalidRequest(f"{self._class.__name__} has no input: pass has_input=True")
        pieces = [content] if isinstance(content, bytes) else content
        return self._around.enqueue(pieces, {**(attributes or {}), **named})

    def run(self, times: int = 1) -> None:
        """Trigger a number of times; each trigger is committed.

        Raises:
            Exception: The processor's own; its session was rolled back and penalized.
        """
        self.start()
        for _ in range(times):
            self._trigger()

    def run_until_idle(self, most: int = 1_000) -> int:
        """Trigger until a trigger does nothing; return the number of triggers that did something.

        Raises:
            Conflict: The processor still had work after `most` triggers.
            Exception: As `run`.
        """
        self.start()
        for count in range(most):
            if self._trigger().is_idle:
                return count
        raise Conflict(f"{self._class.__name__} still had work after {most:,} triggers")

    def run_when_woken(self, timeout_s: float = _PATIENCE_S) -> None:
        """Wait until the processor asks to be triggered, from any thread, and trigger it.

        Raises:
            Unavailable: The processor did not ask in time.
            Exception: As `run`.
        """
        self.start()
        if not self._host.woken.wait(timeout_s):
            raise Unavailable(f"{self._class.__name__} did not wake within {timeout_s} s")
        self._host.woken.clear()
        self.run()

    def advance(self, ms: int) -> None:
        """Move the virtual clock."""
        if not isinstance(self._clock, VirtualClock):
            raise InvalidRequest("the clock is not virtual: use a VirtualClock to advance it")
        self._clock.advance(ms=ms)

    def fill(self, relationship: Relationship | str, *, full: bool = True) -> None:
        """Set or clear back-pressure on a relationship."""
        self._around.queues[_name(relationship)].is_full = full

    # -- looking

    def sent(self, relationship: Relationship | str) -> list[Sent]:
        """Return what was sent to a relationship, in order, since the last `clear`."""
        queue = self._around.queues[_name(relationship)]
        return [Sent(flowfile, self._around.content_of(flowfile)) for flowfile in queue.flowfiles]

    def counts(self) -> dict[str, int]:
        """Return how many FlowFiles each relationship received, if any."""
        return {
            name: len(queue.flowfiles)
            for name, queue in self._around.queues.items()
            if name != INPUT and queue.flowfiles
        }

    def clear(self) -> None:
        """Discard what was sent."""
        self._around.clear()

    @property
    def queued(self) -> Sequence[FlowFile]:
        """Return the FlowFiles in the input, including penalized ones."""
        return tuple(self._around.queues[INPUT].flowfiles)

    @property
    def state(self) -> Mapping[str, str]:
        """Return the processor's state."""
        return self.context.state.get()

    @property
    def yielded_ms(self) -> int:
        """Return the time for which the processor yielded; reading resets it."""
        waited, self._host.yielded_ms = self._host.yielded_ms, 0
        return waited

    @property
    def durable_commits(self) -> int:
        """Return how many commits had to survive a power loss since the last restart."""
        return self._around.repository.statistics().durable_commits

    def before_commit(self, action: Callable[[], None]) -> None:
        """Call a function before each commit, for example to raise `Unavailable`."""
        self._around.repository.before_commit = action

    # -- inside

    def _open(self) -> None:
        self._around.open(self.processor)
        identity = ProcessorIdentity(PROCESSOR_ID, self._class.__name__)
        self.context = ProcessContext(
            identity, self._host, self._around.state, self._clock, self._fs
        )

    def _trigger(self) -> SessionStatistics:
        transaction = self._around.transaction()
        session = ProcessSession(transaction)
        done = False
        try:
            self.processor.on_trigger(self.context, session)
            transaction.commit()
            done = True
        finally:
            if not done and not transaction.calls.is_terminated:
                transaction.rollback(penalize=True, whole=True)
            self.statistics += transaction.statistics
        return transaction.statistics


def _name(relationship: Relationship | str) -> str:
    return relationship if isinstance(relationship, str) else relationship.name
