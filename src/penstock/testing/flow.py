"""Running one processor in a test: feed it, trigger it, look at what it sent where.

Owns a processor with an input and a queue behind each relationship, on the real FlowFile repository
and content, in memory. Does not own scheduling: a trigger happens when the test says so.

    with ProcessorRunner(Greet, {"greeting": "Hello"}) as runner:
        runner.enqueue(b"Ada")
        runner.run()
        [greeted] = runner.sent("success")
        assert greeted.content == b"Hello Ada"

Invariants: a trigger is committed or rolled back as in a service; `restart` keeps what was
committed, FlowFiles and state, and nothing else.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.flow.flowfile import FILENAME, PATH, UUID, FlowFile
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessorIdentity,
    ProcessSession,
    PropertyValue,
    Relationship,
    Retry,
    StateManager,
)
from penstock.flow.queue.queue import Polled, Verdict
from penstock.flow.repository.changes import Changes
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository import FlowFileRepository
from penstock.flow.session.statistics import SessionStatistics
from penstock.flow.session.transaction import Transaction
from penstock.flow.session.wiring import SessionServices, Wiring
from penstock.storage.content.repository import ContentRepository
from penstock.storage.filesystem import FileSystem, OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.crashable import CrashableFileSystem

P = TypeVar("P", bound=Processor)

PROCESSOR_ID: Final = "tested"
_INPUT: Final = "input"
_FOLDERS: Final = ("content", "flowfiles")
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A FlowFile that the processor sent somewhere.

    Attributes:
        flowfile: As it is in the queue.
        content: Its bytes.
    """

    flowfile: FlowFile
    content: bytes

    @property
    def attributes(self) -> Mapping[str, str]:
        """Return its attributes."""
        return self.flowfile.attributes

    @property
    def is_penalized(self) -> bool:
        """Say whether it was penalized, now or before."""
        return self.flowfile.penalty_until_ms > 0


class ProcessorRunner(Generic[P]):
    """Runs a processor when told; a context manager starts and stops it.

    Args:
        processor: Its class.
        properties: As a flow's file has them.
        has_input: Whether a connection leads to it; None: unless it forbids one.
        unconnected: Relationships at which FlowFiles end.
        retries: Relationships for which is tried again first.
        clock: What time it is; a virtual one stands still until `advance`.
        fs: The files that the processor sees; None: those of the operating system.

    Raises:
        InvalidConfiguration: The properties will not do.
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
        self._has_input = not forbids if has_input is None else has_input
        self._unconnected = frozenset(unconnected)
        self._retries = dict(retries or {})
        self._clock: Clock = clock or VirtualClock()
        self._fs: FileSystem = fs or OsFileSystem()
        self._memory = CrashableFileSystem()
        self._uuids = (f"{number:032x}" for number in itertools.count(1))
        self._host = _Host(has_input=self._has_input)
        self.statistics = SessionStatistics()
        self.processor: P = processor.configured(self._properties)
        self._open()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # -- its life

    def start(self) -> None:
        """Start the processor, unless it is: `on_scheduled`."""
        if not self._host.started:
            self.processor.on_scheduled(self.context)
            self._host.started = True

    def stop(self) -> None:
        """Stop the processor, if it is started: `on_unscheduled`, `on_stopped`."""
        if self._host.started:
            self._host.started = False
            self.processor.on_unscheduled(self.context)
            self.processor.on_stopped(self.context)

    def restart(self, properties: Mapping[str, PropertyValue] | None = None) -> None:
        """Start anew in a process that knows only what was committed.

        Args:
            properties: Other ones; None: as before.
        """
        self.stop()
        self._close_repositories()
        if properties is not None:
            self._properties = dict(properties)
        self.processor = self._class.configured(self._properties)
        self._open()
        self.start()

    def close(self) -> None:
        """Stop, and let go of everything. Twice is fine."""
        try:
            self.stop()
        finally:
            self._close_repositories()

    # -- feeding and triggering

    def enqueue(
        self,
        content: bytes | Iterable[bytes] = b"",
        attributes: Mapping[str, str] | None = None,
        **named: str,
    ) -> FlowFile:
        """Put a FlowFile into the input; attributes by keyword or, for odd names, by a map."""
        if not self._has_input:
            raise InvalidRequest(f"{self._class.__name__} has no input here: give has_input=True")
        with self._content.write() as writer:
            for piece in [content] if isinstance(content, bytes) else content:
                writer.write(piece)
            claim = writer.finish()
        number = self._repository.next_ids(1)
        now_ms = self._clock.now_ms()
        standard = {UUID: next(self._uuids), FILENAME: f"file-{number}", PATH: "./"}
        flowfile = FlowFile(
            number,
            {**standard, **(attributes or {}), **named},
            0 if claim is None else claim.length,
            claim,
            entry_ms=now_ms,
            lineage_start_ms=now_ms,
            lineage_index=number,
            queued_ms=now_ms,
            queue_index=self._repository.next_queue_indexes(1),
        )
        written = [] if claim is None else [claim]
        self._repository.commit(Changes(puts={_INPUT: [flowfile]}, written=written))
        self._queues[_INPUT].put_many([flowfile])
        return flowfile

    def run(self, times: int = 1) -> None:
        """Trigger so many times; each is committed.

        Raises:
            Exception: What the processor raised; its session was rolled back and penalized.
        """
        self.start()
        for _ in range(times):
            self._trigger()

    def run_until_idle(self, most: int = 1_000) -> int:
        """Trigger until a trigger does nothing; return how many did something.

        Raises:
            Conflict: It did something `most` times.
            Exception: As `run`.
        """
        self.start()
        for count in range(most):
            if self._trigger().is_idle:
                return count
        raise Conflict(f"{self._class.__name__} found something to do {most:,} times")

    def run_when_woken(self, timeout_s: float = _PATIENCE_S) -> None:
        """Wait until the processor asks to be triggered, from any thread, and trigger it.

        Raises:
            Unavailable: It did not ask.
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
            raise InvalidRequest("the clock is no virtual one: it moves by itself")
        self._clock.advance(ms=ms)

    def fill(self, relationship: Relationship | str, *, full: bool = True) -> None:
        """Have back-pressure on a relationship, or not any more."""
        self._queues[_name(relationship)].is_full = full

    # -- looking

    def sent(self, relationship: Relationship | str) -> list[Sent]:
        """Return what was sent to a relationship, in order, and not taken away by `clear`."""
        queue = self._queues[_name(relationship)]
        return [Sent(flowfile, self._read(flowfile)) for flowfile in queue.flowfiles]

    def counts(self) -> dict[str, int]:
        """Return how many FlowFiles were sent to each relationship; those with none left out."""
        return {
            name: len(queue.flowfiles)
            for name, queue in self._queues.items()
            if name != _INPUT and queue.flowfiles
        }

    def clear(self) -> None:
        """Take away what was sent so far."""
        for name, queue in self._queues.items():
            if name != _INPUT and queue.flowfiles:
                self._repository.commit(Changes(removes=queue.flowfiles))
                queue.flowfiles = []

    @property
    def queued(self) -> Sequence[FlowFile]:
        """What is in the input, penalized ones too."""
        return tuple(self._queues[_INPUT].flowfiles)

    @property
    def state(self) -> Mapping[str, str]:
        """What the processor remembers."""
        return self.context.state.get()

    @property
    def yielded_ms(self) -> int:
        """For how long the processor asked to be left alone; reading it forgets it."""
        waited, self._host.yielded_ms = self._host.yielded_ms, 0
        return waited

    @property
    def durable_commits(self) -> int:
        """How many commits were asked to survive a power loss, since the last restart."""
        return self._repository.statistics().durable_commits

    def before_commit(self, action: Callable[[], None]) -> None:
        """Have something done right before each commit, such as to raise `Unavailable`."""
        self._repository.before_commit = action

    # -- inside

    def _open(self) -> None:
        content_folder, folder = _FOLDERS
        self._content = ContentRepository.open(content_folder, fs=self._memory, clock=self._clock)
        self._repository = _Repository.open(
            folder,
            fs=self._memory,
            clock=self._clock,
            content=self._content,
            options=RepositoryOptions(sync_in_background=False),
        )
        relationships = self.processor.relationships().keys()
        self._queues = {
            name: _Queue(name, self._clock)
            for name in (_INPUT, *relationships)
            if name not in self._unconnected
        }
        self._host.queues = self._queues
        for name, found in self._repository.recovered.queues.items():
            if name in self._queues:
                in_order = sorted(found.flowfiles, key=lambda f: (f.queued_ms, f.queue_index))
                self._queues[name].put_many(in_order)
        state = StateManager(PROCESSOR_ID, self._repository)
        self._services = SessionServices(
            self._repository, self._content, self._clock, lambda: next(self._uuids), self._fs
        )
        self._wiring = Wiring(
            processor=PROCESSOR_ID,
            state=state,
            inputs=[self._queues[_INPUT]] if self._has_input else [],
            outputs={name: [self._queues[name]] for name in relationships if name in self._queues},
            relationships=frozenset(relationships),
            auto_terminated=self._unconnected,
            retries=self._retries,
            any_open=self.processor.triggers_when_any_open,
            yield_for=self._host.yield_for,
        )
        identity = ProcessorIdentity(PROCESSOR_ID, self._class.__name__)
        self.context = ProcessContext(identity, self._host, state, self._clock, self._fs)

    def _close_repositories(self) -> None:
        self._repository.before_commit = _nothing
        self._repository.close()
        self._content.close()

    def _trigger(self) -> SessionStatistics:
        transaction = Transaction(self._wiring, self._services)
        session = ProcessSession(transaction)
        done = False
        try:
            self.processor.on_trigger(self.context, session)
            transaction.commit()
            done = True
        finally:
            if not done and not transaction.is_terminated:
                transaction.rollback(penalize=True, whole=True)
            self.statistics += transaction.statistics
        return transaction.statistics

    def _read(self, flowfile: FlowFile) -> bytes:
        if flowfile.claim is None or not flowfile.size:
            return b""
        return self._content.read(flowfile.claim, flowfile.content_offset, flowfile.size)


class _Repository(FlowFileRepository):
    """The real one, with a place for a test to look or to fail."""

    before_commit: Callable[[], None]

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Make changes, after what the test wants."""
        getattr(self, "before_commit", _nothing)()
        super().commit(changes, durable=durable)


class _Host:
    """What the processor asks of whoever runs it."""

    def __init__(self, *, has_input: bool) -> None:
        self.started = False
        self.yielded_ms = 0
        self.woken = threading.Event()
        self.queues: Mapping[str, _Queue] = {}
        self._has_input = has_input

    def yield_for(self, wait_ms: int) -> None:
        self.yielded_ms = max(self.yielded_ms, wait_ms)

    def wake(self) -> None:
        self.woken.set()

    def is_scheduled(self) -> bool:
        return self.started

    def is_connected(self, relationship: str) -> bool:
        return relationship in self.queues

    def is_available(self, relationship: str) -> bool:
        queue = self.queues.get(relationship)
        return queue is None or not queue.is_full

    def has_input(self) -> bool:
        return self._has_input


class _Queue:
    """First in, first out; penalized FlowFiles are passed over."""

    def __init__(self, queue_id: str, clock: Clock) -> None:
        self.id = queue_id
        self.flowfiles: list[FlowFile] = []
        self.is_full = False
        self._clock = clock

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        self.flowfiles = [*self.flowfiles, *flowfiles]

    def poll(self) -> Polled:
        return self.poll_many(1)

    def poll_many(self, limit: int) -> Polled:
        now_ms = self._clock.now_ms()
        taken = [f for f in self.flowfiles if not f.is_penalized(now_ms)][:limit]
        return self._take(taken)

    def poll_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        now_ms = self._clock.now_ms()
        taken: list[FlowFile] = []
        for flowfile in self.flowfiles:
            if flowfile.is_penalized(now_ms):
                continue
            verdict = accept(flowfile)
            if verdict in {Verdict.ACCEPT, Verdict.ACCEPT_AND_STOP}:
                taken.append(flowfile)
            if verdict in {Verdict.ACCEPT_AND_STOP, Verdict.REJECT_AND_STOP}:
                break
        return self._take(taken)

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Nothing depends on it here."""

    def _take(self, taken: list[FlowFile]) -> Polled:
        ids = {flowfile.id for flowfile in taken}
        self.flowfiles = [flowfile for flowfile in self.flowfiles if flowfile.id not in ids]
        return Polled(taken)


def _nothing() -> None:
    """Do nothing."""


def _name(relationship: Relationship | str) -> str:
    return relationship if isinstance(relationship, str) else relationship.name
