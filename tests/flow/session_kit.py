"""A small world for process sessions: queues and a FlowFile repository in memory, real content.

The repository refuses what the real one refuses, and knows at every instant which FlowFile is in
which queue; `SessionWorld.check` says whether queues, journal and references to content agree.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.errors import Conflict, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.processor import ProcessSession, RelationshipRetry, StateManager
from penstock.flow.queue.queue import FilterVerdict, PollResult
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.services import SessionContext, SessionServices
from penstock.flow.session.session_transaction import SessionTransaction
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem


class FakeQueue:
    def __init__(self, queue_id: str, clock: VirtualClock) -> None:
        self.id = queue_id
        self.flowfiles: list[FlowFile] = []
        self.unacknowledged = [0, 0]
        self.is_full = False
        self.expiration_ms = 0
        self._clock = clock

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        self.flowfiles += flowfiles

    def poll(self) -> PollResult:
        return self.poll_many(1)

    def poll_many(self, limit: int) -> PollResult:
        taken = 0

        def accept(_: FlowFile) -> FilterVerdict:
            nonlocal taken
            taken += 1
            return FilterVerdict.ACCEPT if taken < limit else FilterVerdict.ACCEPT_AND_STOP

        return self.poll_where(accept)

    def poll_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> PollResult:
        now_ms = self._clock.now_ms()
        polled = PollResult([])
        kept: list[FlowFile] = []
        stopped = False
        for flowfile in self.flowfiles:
            if stopped or flowfile.is_penalized(now_ms):
                kept.append(flowfile)
            elif self.expiration_ms and flowfile.entry_ms + self.expiration_ms < now_ms:
                polled.expired.append(flowfile)
            else:
                verdict = accept(flowfile)
                stopped = verdict in {FilterVerdict.ACCEPT_AND_STOP, FilterVerdict.REJECT_AND_STOP}
                accepted = verdict in {FilterVerdict.ACCEPT, FilterVerdict.ACCEPT_AND_STOP}
                (polled.flowfiles if accepted else kept).append(flowfile)
        self.flowfiles = kept
        self.unacknowledged[0] += len(polled.flowfiles)
        self.unacknowledged[1] += sum(flowfile.size for flowfile in polled.flowfiles)
        return polled

    def acknowledge(self, count: int, size_bytes: int) -> None:
        self.unacknowledged[0] -= count
        self.unacknowledged[1] -= size_bytes
        assert min(self.unacknowledged) >= 0


class FakeRepository:
    def __init__(self, content: ContentRepository) -> None:
        self.known: dict[int, tuple[str, FlowFile]] = {}
        self.states: dict[str, bytes] = {}
        self.commits: list[tuple[Changes, bool]] = []
        self.missing: list[FlowFile] = []
        self.fails: Exception | None = None
        self.before_commit: Callable[[], None] = lambda: None
        self._content = content
        self._ids = itertools.count(1)
        self._next_id = 1
        self._next_index = 1

    def next_ids(self, count: int) -> int:
        self._next_id += count
        return self._next_id - count

    def next_queue_indexes(self, count: int) -> int:
        self._next_index += count
        return self._next_index - count

    def state(self, key: str) -> bytes | None:
        return self.states.get(key)

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        self.before_commit()
        if self.fails is not None:
            raise self.fails
        gone = [*changes.removes, *changes.missing]
        puts = [(queue, one) for queue, many in changes.puts.items() for one in many]
        replaced = [flowfile.id for flowfile in changes.replaced]
        new = {one.id for _, one in puts} - set(replaced)
        for number in [*replaced, *(flowfile.id for flowfile in gone)]:
            if number not in self.known:
                raise Conflict(f"{number} is not known")
        assert len(puts) == len({one.id for _, one in puts})
        assert set(replaced) <= {one.id for _, one in puts}
        assert new.isdisjoint(self.known)
        assert not {f.id for f in gone} & {one.id for _, one in puts}
        references: Counter[ResourceClaim] = Counter()
        for number in [*replaced, *(flowfile.id for flowfile in gone)]:
            claim = self.known.pop(number)[1].claim
            if claim is not None:
                references[claim.resource] -= 1
        for queue, one in puts:
            self.known[one.id] = (queue, one)
            if one.claim is not None:
                references[one.claim.resource] += 1
        for claim in changes.written:
            references[claim.resource] -= 1
        self.count_references({r: n for r, n in references.items() if n})
        self.missing += changes.missing
        for key, data in changes.states.items():
            if data is None:
                self.states.pop(key, None)
            else:
                self.states[key] = data
        self.commits.append((changes, durable))

    def count_references(self, changes: Mapping[ResourceClaim, int]) -> None:
        self._content.references.adjust(changes)


@dataclass
class SessionWorld:
    """One processor named `p` with inputs `a` and `b`, outputs for its relationships.

    Relationships: `success` -> `out`; `both` -> `out`, `copy`; `loop` -> `a` itself;
    `ends` is terminated; `lost` has no connection.
    """

    clock: VirtualClock = field(default_factory=VirtualClock)
    fs: FileSystem = field(default_factory=CrashableFileSystem)
    folder: str = "content"

    def __post_init__(self) -> None:
        self.content = ContentRepository.open(self.folder, fs=self.fs, clock=self.clock)
        self.content.recover({})
        self.repository = FakeRepository(self.content)
        self.queues = {name: FakeQueue(name, self.clock) for name in ("a", "b", "out", "copy")}
        self.set_up()

    def set_up(self) -> None:
        self.uuids = (f"uuid-{number}" for number in itertools.count(1))
        self.services = SessionServices(
            self.repository, self.content, self.clock, lambda: next(self.uuids), self.fs
        )
        self.state = StateManager("p", self.repository)
        self.yielded: list[int] = []
        self.session_context = self.wire()

    def wire(
        self,
        *,
        retries: Mapping[str, RelationshipRetry] | None = None,
        any_open: bool = False,
        inputs: str = "ab",
        loop: bool = False,
    ) -> SessionContext:
        q = self.queues
        outputs = {"success": [q["out"]], "both": [q["copy"], q["out"]]}
        if loop:
            outputs["loop"] = [q["a"]]
        self.session_context = SessionContext(
            processor="p",
            state=self.state,
            inputs=[q[name] for name in inputs],
            outputs=outputs,
            relationships=frozenset({"success", "both", "loop", "ends", "lost"}),
            auto_terminated=frozenset({"ends"}),
            retries=retries or {},
            any_open=any_open,
            yield_for=self.yielded.append,
        )
        return self.session_context

    def begin(self, *, batching: bool = False) -> tuple[ProcessSession, SessionTransaction]:
        transaction = SessionTransaction(self.session_context, self.services, batching=batching)
        return ProcessSession(transaction), transaction

    def session(self) -> ProcessSession:
        return self.begin()[0]

    def feed(self, queue: str, *contents: bytes, **attributes: str) -> list[FlowFile]:
        """Put FlowFiles into a queue, as an earlier processor would have."""
        flowfiles, written = [], []
        for data in contents:
            claim = self.content.put(data)
            number = self.repository.next_ids(1)
            flowfiles.append(
                FlowFile(
                    number,
                    {"uuid": f"fed-{number}", "filename": "f", "path": "./", **attributes},
                    len(data),
                    claim,
                    entry_ms=self.clock.now_ms(),
                    lineage_start_ms=self.clock.now_ms(),
                    lineage_index=number,
                )
            )
            written += [claim] if claim is not None else []
        self.repository.commit(Changes(puts={queue: flowfiles}, written=written))
        self.queues[queue].put_many(flowfiles)
        return flowfiles

    def read(self, flowfile: FlowFile) -> bytes:
        if flowfile.claim is None:
            assert not flowfile.size
            return b""
        return self.content.read(flowfile.claim, flowfile.content_offset, flowfile.size)

    def contents(self, queue: str) -> list[bytes]:
        return [self.read(flowfile) for flowfile in self.queues[queue].flowfiles]

    def check(self) -> None:
        """Queues, journal and references to content agree; no session is open."""
        queued = {
            flowfile.id: name for name, queue in self.queues.items() for flowfile in queue.flowfiles
        }
        assert sum(len(queue.flowfiles) for queue in self.queues.values()) == len(queued)
        assert queued == {number: queue for number, (queue, _) in self.repository.known.items()}
        for queue in self.queues.values():
            assert queue.unacknowledged == [0, 0]
            for flowfile in queue.flowfiles:
                committed = self.repository.known[flowfile.id][1]
                assert committed.attributes == flowfile.attributes
                assert committed.claim == flowfile.claim
        claims = [one.claim for _, one in self.repository.known.values()]
        assert self.references() == Counter(c.resource for c in claims if c is not None)

    def references(self) -> Counter[ResourceClaim]:
        return Counter(self.content.references.counts())


def full_disk() -> Unavailable:
    return Unavailable("journal: no space left on the device; free space")


def uuids(flowfiles: Iterable[FlowFile]) -> list[str]:
    return [flowfile.attributes["uuid"] for flowfile in flowfiles]
