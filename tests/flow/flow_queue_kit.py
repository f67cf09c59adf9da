"""A repository for the tests of queues: homes in memory, swap files on a file system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.errors import Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer, PriorityKey
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.queue.swap_store import RestoredSwapFile, SwapFileInfo
from penstock.flow.swap.swap_file import SwapReader, write_swap_file
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import Faults

SMALL = QueueOptions(swap_threshold=8, swap_batch=4)


def flowfile(number: int, priority: object = None, **fields: object) -> FlowFile:
    attributes = {"uuid": f"u{number}", "kind": f"k{number % 3}"}
    if priority is not None:
        attributes["priority"] = str(priority)
    claim = ContentClaim(ResourceClaim(f"r{number // 5:09d}"), number, 1)
    values = {"size": 10 + number % 7, "claim": claim, "queue_index": number, **fields}
    return FlowFile(number, attributes, **values)  # type: ignore[arg-type]


def ids(flowfiles: Sequence[FlowFile]) -> list[int]:
    return [one.id for one in flowfiles]


@dataclass
class FileState:
    file: SwapFileInfo
    ids: list[int]
    done: set[int] = field(default_factory=set)
    loaded: set[int] = field(default_factory=set)


class FakeHome:
    """A `SwapHome` that checks what it is told: each row is loaded once, and ends once."""

    def __init__(self, fs: CrashableFileSystem | None = None) -> None:
        self.fs = fs or CrashableFileSystem()
        self.fs.mkdir("/swap")
        self.journal: dict[int, FlowFile] = {}
        self.files: dict[str, FileState] = {}
        self.rows: dict[int, tuple[str, int]] = {}
        self.swept: list[int] = []
        self.removed: list[int] = []
        self.damages: list[tuple[str, list[int]]] = []
        self.opened = 0
        self.attempts = 0
        self.number = 0
        self.is_full = False

    # -- what a session would do

    def commit(self, flowfiles: Sequence[FlowFile]) -> None:
        """Make the journal the home of new or changed FlowFiles."""
        for one in flowfiles:
            self._leave(one.id)
            self.journal[one.id] = one

    def _leave(self, number: int) -> None:
        self.journal.pop(number, None)
        name, row = self.rows.pop(number, ("", 0))
        if name:
            self._done(name, [row])

    def _done(self, name: str, rows: Sequence[int]) -> None:
        state = self.files[name]
        assert not state.done & set(rows)
        state.done.update(rows)
        state.loaded -= set(rows)
        if len(state.done) == state.file.summary.count:
            self.fs.unlink(f"/swap/{name}")
            del self.files[name]

    # -- SwapHome

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        self.attempts += 1
        if self.is_full:
            raise Unavailable("the disk is full")
        self.number += 1
        name = f"{self.number}.swap"
        summary = write_swap_file(self.fs, f"/swap/{name}", queue, order, flowfiles)
        file = SwapFileInfo(name, summary)  # from here on nothing raises, as in the real one
        for one in flowfiles:
            assert one.id in self.journal or one.id in self.rows, one.id
            self._leave(one.id)
        self.files[name] = FileState(file, ids(flowfiles))
        return file

    def open(self, file: SwapFileInfo) -> SwapReader:
        self.opened += 1
        return SwapReader.open(self.fs, f"/swap/{file.name}")

    def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
        state = self.files[file.name]
        assert not (state.loaded | state.done) & set(rows)
        assert [state.ids[row] for row in rows] == list(ids)
        state.loaded.update(rows)
        for number, row in zip(ids, rows, strict=True):
            self.rows[number] = (file.name, row)

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        if self.is_full:
            raise Unavailable("the disk is full")
        state = self.files[file.name]
        assert not state.loaded & set(rows)
        assert sum(claims.values()) == len(rows)
        self.swept += [state.ids[row] for row in rows]
        self._done(file.name, rows)

    def discard(self, file: SwapFileInfo) -> None:
        if self.is_full:
            raise Unavailable("the disk is full")
        state = self.files[file.name]
        rows = sorted({*range(len(state.ids))} - state.loaded - state.done)
        self.swept += [state.ids[row] for row in rows]
        self._done(file.name, rows)

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        if self.is_full:
            raise Unavailable("the disk is full")
        for one in flowfiles:
            self._leave(one.id)
        self.removed += ids(flowfiles)

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        assert reason
        self.damages.append((file.name, list(rows)))
        if self.fs.exists(f"/swap/{file.name}"):
            self._done(file.name, rows)

    # -- a restart

    def restarted(self, fs: CrashableFileSystem) -> FakeHome:
        """Return the repository as it comes back: what sessions had loaded is in its file again."""
        after = FakeHome(fs)
        after.journal = dict(self.journal)
        after.number = self.number
        after.files = {
            name: FileState(state.file, state.ids, set(state.done))
            for name, state in self.files.items()
        }
        return after

    def recovered(self) -> tuple[list[FlowFile], list[RestoredSwapFile]]:
        files = [RestoredSwapFile(one.file, sorted(one.done)) for one in self.files.values()]
        return list(self.journal.values()), files


class NoListener:
    """Is told, and does nothing."""

    def on_work(self, queue: str) -> None: ...

    def on_space(self, queue: str) -> None: ...


class FlowQueueWorld:
    """A queue, its home and a clock."""

    def __init__(
        self,
        options: QueueOptions = SMALL,
        prioritizers: Sequence[Prioritizer] = (),
        home: FakeHome | None = None,
        clock: VirtualClock | None = None,
        **arguments: object,
    ) -> None:
        self.home = home or FakeHome()
        self.clock = clock or VirtualClock()
        self.faults = Faults()
        if "background" in arguments:
            arguments["background"] = self.faults.port(arguments["background"])
        self.queue = FlowFileQueue(
            "q",
            self.faults.port(self.home, results=["open"]),
            self.faults.port(self.clock),
            options,
            **arguments,  # type: ignore[arg-type]
        )
        self.queue.listener = self.faults.port(NoListener())
        if prioritizers:
            self.order(prioritizers)

    def order(self, prioritizers: Sequence[Prioritizer]) -> None:
        """Set prioritizers whose calls are counted, too."""
        self.queue.set_prioritizers([self.faults.port(one) for one in prioritizers])

    def put(self, *flowfiles: FlowFile) -> None:
        self.home.commit(flowfiles)
        self.queue.put_many(flowfiles)

    def poll(self, limit: int = 1) -> list[int]:
        return ids(self.queue.poll_many(limit).flowfiles)

    def drain(self) -> list[int]:
        found: list[int] = []
        while taken := self.poll(5):
            found += taken
        return found


class ByNumber:
    """A user's prioritizer: not a batch one, and without a tie-breaker."""

    def __init__(self, modulus: int) -> None:
        self.name = f"ByNumber({modulus})"
        self._modulus = modulus

    def key(self, one: FlowFile) -> PriorityKey:
        return one.id % self._modulus
