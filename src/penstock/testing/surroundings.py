"""Environment of a processor under test: repository, content and queues, in memory.

Owns the input, a queue behind each relationship, and their durable state. Does not own the
processor, nor its triggers (`flow`).

Invariant: after reopening, only committed state exists.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from penstock.flow.flowfile import FILENAME, PATH, UUID, FlowFile
from penstock.flow.processor import Retry, StateManager
from penstock.flow.queue.queue import Polled, Verdict
from penstock.flow.repository.changes import Changes
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository import FlowFileRepository
from penstock.flow.session.services import SessionServices, Wiring
from penstock.flow.session.transaction import Transaction
from penstock.storage.content.repository import ContentRepository
from penstock.testing.crashable import CrashableFileSystem

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.processor import Processor
    from penstock.storage.filesystem import FileSystem

PROCESSOR_ID: Final = "tested"
INPUT: Final = "input"
_FOLDERS: Final = ("content", "flowfiles")


class Surroundings:
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
        retries: Mapping[str, Retry],
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
        self._wiring = Wiring(
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

    def transaction(self) -> Transaction:
        """Return the transaction of a session of the processor."""
        return Transaction(self._wiring, self._services)

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
        self.woken = threading.Event()
        self.queues: Mapping[str, Queue] = {}
        self._has_input = has_input

    def yield_for(self, wait_ms: int) -> None:
        """Record that the processor yielded."""
        self.yielded_ms = max(self.yielded_ms, wait_ms)

    def wake(self) -> None:
        """Record that the processor asked to be triggered."""
        self.woken.set()

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

    def poll(self) -> Polled:
        """Take the first FlowFile that is not penalized."""
        return self.poll_many(1)

    def poll_many(self, limit: int) -> Polled:
        """Take up to a number of FlowFiles that are not penalized."""
        now_ms = self._clock.now_ms()
        taken = [f for f in self.flowfiles if not f.is_penalized(now_ms)][:limit]
        return self._take(taken)

    def poll_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
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

    def _take(self, taken: list[FlowFile]) -> Polled:
        ids = {flowfile.id for flowfile in taken}
        self.flowfiles = [flowfile for flowfile in self.flowfiles if flowfile.id not in ids]
        return Polled(taken)


def _nothing() -> None:
    """Do nothing."""
