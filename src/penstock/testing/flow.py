"""Test harness that runs one processor over real repositories in memory.

`ProcessorRunner` owns a processor and its life. `TestHarness` owns the input, a queue behind
each relationship, and the FlowFile and content repositories, which are the real ones on a file
system in memory. There is no scheduling: a trigger happens when the test calls for it.

    with ProcessorRunner(Greet, {"greeting": "Hello"}) as runner:
        runner.enqueue(b"Ada")
        runner.run()
        [greeted] = runner.sent("success")
        assert greeted.content == b"Hello Ada"

Invariants: a trigger is committed or rolled back as in a service. `restart` keeps the committed
FlowFiles and state, and nothing else.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.flow.errors import Terminated
from penstock.flow.flowfile import FILENAME, PATH, UUID, FlowFile
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessorIdentity,
    ProcessSession,
    PropertyValue,
    Relationship,
    RelationshipRetry,
    StateManager,
)
from penstock.flow.queue.queue import FilterVerdict, PollResult
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.flow.session.statistics import SessionStatistics
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

PROCESSOR_ID: Final = "tested"
INPUT: Final = "input"
_FOLDERS: Final = ("content", "flowfiles")


class TestHarness:
    """The queues and repositories of one processor.

    Args:
        host: Host that the processor calls.
        unconnected: Relationships that are terminated automatically.
        retries: Relationships whose FlowFiles are retried first.
        clock: The clock.
        fs: The files that the processor sees.

    Attributes:
        queues: The input, and the queue behind each relationship by its name.
        repository: The FlowFile repository.
        state: The processor's state.
    """

    def __init__(
        self,
        host: Host,
        unconnected: frozenset[str],
        retries: Mapping[str, RelationshipRetry],
        clock: Clock,
        fs: FileSystem,
    ) -> None:
        self._host = host
        self._unconnected = unconnected
        self._retries = retries
        self._clock = clock
        self._fs = fs
        self._memory = CrashableFileSystem()
        self._uuids = (f"{number:032x}" for number in itertools.count(1))

    def open(self, processor: Processor) -> None:
        """Open the committed state for a processor, as at the start of a service."""
        content_folder, folder = _FOLDERS
        self._content = ContentRepository.open(content_folder, fs=self._memory, clock=self._clock)
        self.repository = Repository.open(
            folder,
            fs=self._memory,
            clock=self._clock,
            content=self._content,
            options=RepositoryOptions(sync_in_background=False),
        )
        relationships = processor.relationships().keys()
        self.queues = {
            name: Queue(name, self._clock)
            for name in (INPUT, *relationships)
            if name not in self._unconnected
        }
        self._host.queues = self.queues
        for name, found in self.repository.recovered.queues.items():
            if name in self.queues:
                in_order = sorted(found.flowfiles, key=lambda f: (f.queued_ms, f.queue_index))
                self.queues[name].put_many(in_order)
        self.state = StateManager(PROCESSOR_ID, self.repository)
        self._services = SessionServices(
            self.repository, self._content, self._clock, lambda: next(self._uuids), self._fs
        )
        self._session_context = SessionContext(
            processor=PROCESSOR_ID,
            state=self.state,
            inputs=[self.queues[INPUT]] if self._host.has_input() else [],
            outputs={name: [self.queues[name]] for name in relationships if name in self.queues},
            relationships=frozenset(relationships),
            auto_terminated=self._unconnected,
            retries=self._retries,
            any_open=processor.triggers_when_any_open,
            yield_for=self._host.yield_for,
        )

    def close(self) -> None:
        """Release everything; the committed state can be opened again."""
        self.repository.before_commit = _nothing
        self.repository.close()
        self._content.close()

    def enqueue(self, content: Iterable[bytes], attributes: Mapping[str, str]) -> FlowFile:
        """Put a FlowFile into the input."""
        with self._content.write() as writer:
            for piece in content:
                writer.write(piece)
            claim = writer.finish()
        number = self.repository.next_ids(1)
        now_ms = self._clock.now_ms()
        standard = {UUID: next(self._uuids), FILENAME: f"file-{number}", PATH: "./"}
        flowfile = FlowFile(
            number,
            {**standard, **attributes},
            0 if claim is None else claim.length,
            claim,
            entry_ms=now_ms,
            lineage_start_ms=now_ms,
            lineage_index=number,
            queued_ms=now_ms,
            queue_index=self.repository.next_queue_indexes(1),
        )
        written = [] if claim is None else [claim]
        self.repository.commit(Changes(puts={INPUT: [flowfile]}, written=written))
        self.queues[INPUT].put_many([flowfile])
        return flowfile

    def transaction(self) -> SessionTransaction:
        """Return the transaction of a session of the processor."""
        return SessionTransaction(self._session_context, self._services)

    def clear(self) -> None:
        """Remove the FlowFiles behind the relationships."""
        for name, queue in self.queues.items():
            if name != INPUT and queue.flowfiles:
                self.repository.commit(Changes(removes=queue.flowfiles))
                queue.flowfiles = []

    def content_of(self, flowfile: FlowFile) -> bytes:
        """Return the content of a FlowFile."""
        if flowfile.claim is None or not flowfile.size:
            return b""
        return self._content.read(flowfile.claim, flowfile.content_offset, flowfile.size)


class Repository(FlowFileRepository):
    """The real repository, with a hook in which a test can check or fail a commit."""

    before_commit: Callable[[], None]

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Commit changes, after the test's hook."""
        getattr(self, "before_commit", _nothing)()
        super().commit(changes, durable=durable)


class Host:
    """Host that the processor calls."""

    def __init__(self, *, has_input: bool) -> None:
        self.started = False
        self.yielded_ms = 0
        self.unavailable: Unavailable | None = None
        self.woken = threading.Event()
        self.queues: Mapping[str, Queue] = {}
        self._has_input = has_input

    def yield_for(self, wait_ms: int) -> None:
        """Record that the processor yielded."""
        self.yielded_ms = max(self.yielded_ms, wait_ms)

    def wake(self) -> None:
        """Record that the processor asked to be triggered."""
        self.woken.set()

    def report_unavailable(self, error: Unavailable, tries: int | None) -> None:  # noqa: ARG002 - of the port
        """Record the dependency that fails."""
        self.unavailable = error

    def is_scheduled(self) -> bool:
        """Return whether the processor is started."""
        return self.started

    def is_connected(self, relationship: str) -> bool:
        """Return whether a relationship is connected."""
        return relationship in self.queues

    def is_available(self, relationship: str) -> bool:
        """Return whether the queue behind a relationship has room."""
        queue = self.queues.get(relationship)
        return queue is None or not queue.is_full

    def has_input(self) -> bool:
        """Return whether the processor has an incoming connection."""
        return self._has_input


class Queue:
    """First in, first out; penalized FlowFiles are skipped."""

    def __init__(self, queue_id: str, clock: Clock) -> None:
        self.id = queue_id
        self.flowfiles: list[FlowFile] = []
        self.is_full = False
        self._clock = clock

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles at the end."""
        self.flowfiles = [*self.flowfiles, *flowfiles]

    def poll(self) -> PollResult:
        """Take the first FlowFile that is not penalized."""
        return self.poll_many(1)

    def poll_many(self, limit: int) -> PollResult:
        """Take up to a number of FlowFiles that are not penalized."""
        now_ms = self._clock.now_ms()
        taken = [f for f in self.flowfiles if not f.is_penalized(now_ms)][:limit]
        return self._take(taken)

    def poll_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> PollResult:
        """Take the FlowFiles that a filter accepts."""
        now_ms = self._clock.now_ms()
        taken: list[FlowFile] = []
        for flowfile in self.flowfiles:
            if flowfile.is_penalized(now_ms):
                continue
            verdict = accept(flowfile)
            if verdict.is_accepted:
                taken.append(flowfile)
            if verdict.is_last:
                break
        return self._take(taken)

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Do nothing: no test depends on it."""

    def _take(self, taken: list[FlowFile]) -> PollResult:
        ids = {flowfile.id for flowfile in taken}
        self.flowfiles = [flowfile for flowfile in self.flowfiles if flowfile.id not in ids]
        return PollResult(taken)


def _nothing() -> None:
    """Do nothing."""


P = TypeVar("P", bound=Processor)

_TIMEOUT_S: Final = 30.0


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
        retries: Mapping[str, RelationshipRetry] | None = None,
        clock: Clock | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self._class = processor
        self._properties = dict(properties or {})
        forbids = processor.input is InputRequirement.FORBIDDEN
        self._clock: Clock = clock or VirtualClock()
        self._fs: FileSystem = fs or OsFileSystem()
        self._host = Host(has_input=not forbids if has_input is None else has_input)
        self._around = TestHarness(
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
            try:
                self.processor.on_scheduled(self.context)
            except BaseException as error:
                if isinstance(error, Unavailable):
                    self._host.report_unavailable(error, None)
                raise
            self._host.started = True

    def stop(self) -> None:
        """Stop the processor, if it runs: `on_unscheduled`, `on_stopped`."""
        if self._host.started:
            self._host.started = False
            self.processor.on_unscheduled(self.context)
            self.processor.on_stopped(self.context)

    def restart(self, properties: Mapping[str, PropertyValue] | None = None) -> None:
        """Start again as in a new process, which has only committed data.

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
            Exception: The processor's own; its session was rolled back as in a service: one
                FlowFile is penalized, several are retried in halves. After a `ProcessError`, all
                are penalized.
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

    def run_when_woken(self, timeout_s: float = _TIMEOUT_S) -> None:
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
        """Return the FlowFiles sent to a relationship, in order, since the last `clear`."""
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
        """Discard the FlowFiles that were sent."""
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
    def unavailable(self) -> Unavailable | None:
        """Return the last `Unavailable` that was reported or raised; reading resets it."""
        reported, self._host.unavailable = self._host.unavailable, None
        return reported

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
        try:
            self.processor.on_trigger(self.context, session)
            transaction.commit()
        except BaseException as error:
            with suppress(Terminated):
                transaction.fail(error)
            if isinstance(error, Unavailable):
                self._host.report_unavailable(error, None)
            raise
        finally:
            self.statistics += transaction.statistics
        return transaction.statistics


def _name(relationship: Relationship | str) -> str:
    return relationship if isinstance(relationship, str) else relationship.name
