"""The repository under exceptions that nobody expects: each kind at each call of the file system.

Afterwards the FlowFiles are in the queues that the calls reported, in the same process and after a
power loss; or the repository has stopped, and a restart finds the whole operation or none of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from penstock.core.errors import Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.swap_store import SwapFileInfo
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.journals import FlowJournals, journal_folder
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.repository.repository_state import RepositoryState
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.flow.repository_kit import CONTENT, REPOSITORY, SMALL, SMALL_CONTENT, Opened
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

T = TypeVar("T")

Where = dict[int, str]  # the queue of each FlowFile, by its id


@dataclass
class RepositoryWorld:
    """A repository with FlowFiles in memory, in a swap file, and in memory out of it."""

    faults: Faults = field(default_factory=Faults)
    disk: CrashableFileSystem = field(default_factory=CrashableFileSystem)

    def __post_init__(self) -> None:
        self.opened = Opened.open(self.port())
        swapped = self.opened.create("in", 4)
        home = self.opened.repository.swap_store
        self.file: SwapFileInfo = home.swap_out("in", swapped, "order")
        home.loaded(self.file, [0, 1], [one.id for one in swapped[:2]])
        self.loaded, self.away = swapped[:2], swapped[2:]
        self.memory = self.opened.create("in", 4, durable=True)
        self.opened.create("other", 2)  # not synced
        self.others = self.found_others()
        everything = [*swapped, *self.memory]
        self.where: Where = {one.id: "in" for one in everything}
        self.where |= {one.id: "other" for one in self.others}
        self.made: list[FlowFile] = []

    def port(self) -> CrashableFileSystem:
        results = ("create", "open_append", "open_read", "lock_folder")
        return self.faults.port(self.disk, results=results)

    def found_others(self) -> list[FlowFile]:
        state = self.opened.repository._commits._state
        return [one for number, one in state.flowfiles.items() if state.queues[number] == "other"]

    def move(self, flowfiles: list[FlowFile], *, durable: bool) -> None:
        """Commit what a processor does: FlowFiles move, the last one ends, a child is made."""
        child = self.opened.make("child", b"c" * 200)
        self.made.append(child)
        assert child.claim is not None
        *replaced, removed = flowfiles
        changes = Changes(
            puts={"out": [*replaced, child]},
            replaced=replaced,
            removes=[removed],
            written=[child.claim],
        )
        try:
            self.opened.repository.commit(changes, durable=durable)
        except BaseException:
            self.opened.content.release(child.claim.resource)
            raise

    def moved(self, flowfiles: list[FlowFile]) -> Where:
        gone = flowfiles[-1].id
        after = {number: queue for number, queue in self.where.items() if number != gone}
        return after | {one.id: "out" for one in [*flowfiles[:-1], *self.made]}


@dataclass(frozen=True)
class Operation:
    """A call of the repository, and the queue of each FlowFile afterwards."""

    do: Callable[[RepositoryWorld], None]
    after: Callable[[RepositoryWorld], Where] = lambda world: world.where
    durable: bool = True


@dataclass(frozen=True)
class ProcessOperation:
    """A start or an end of the process, after which the FlowFiles are where they were."""

    do: Callable[[RepositoryWorld], None]
    prepare: Callable[[RepositoryWorld], None] = lambda world: None


def swap_out(world: RepositoryWorld) -> None:
    world.opened.repository.swap_store.swap_out("in", world.memory, "order")
    world.memory = []


def swap_out_again(world: RepositoryWorld) -> None:
    world.opened.repository.swap_store.swap_out("in", world.loaded, "order")
    world.loaded = []


def discard(world: RepositoryWorld) -> None:
    world.opened.repository.swap_store.discard(world.file)


def discarded(world: RepositoryWorld) -> Where:
    away = {one.id for one in world.away}
    return {number: queue for number, queue in world.where.items() if number not in away}


def drop_row(world: RepositoryWorld) -> None:
    (claim,) = [one.claim for one in world.away[:1]]
    assert claim is not None
    world.opened.repository.swap_store.drop_rows(world.file, [2], {claim.resource: 1})


def without(world: RepositoryWorld, *flowfiles: FlowFile) -> Where:
    gone = {one.id for one in flowfiles}
    return {number: queue for number, queue in world.where.items() if number not in gone}


def remove(world: RepositoryWorld) -> None:
    world.opened.repository.swap_store.remove(world.memory[:2])


def lose_row(world: RepositoryWorld) -> None:
    """Find that a row cannot be read, which is recorded by a commit."""
    world.opened.repository.swap_store.damaged(world.file, [2], "a page is damaged")


def read_swapped(world: RepositoryWorld) -> None:
    reader = world.opened.repository.swap_store.open(world.file)
    try:
        assert len(reader.read(0, 4).flowfiles) == 4
    finally:
        reader.close()


def close(world: RepositoryWorld) -> None:
    try:
        world.opened.repository.close()
    finally:
        world.opened.content.close()


def prepare_end(world: RepositoryWorld) -> None:
    world.opened.close()


def prepare_kill(world: RepositoryWorld) -> None:
    """Kill the process, which leaves files that no record mentions."""
    world.faults.unclosed.clear()
    world.opened.content.put(b"never committed")
    world.disk = world.disk.kill_process()
    for name in ("swap/0000000077.swap", "swap/0000000078.swap.tmp"):
        world.disk.create(f"{REPOSITORY}/{name}").close()


def start(world: RepositoryWorld) -> None:
    """Open content and repository, and close them again."""
    port, clock = world.port(), VirtualClock()
    content = ContentRepository.open(CONTENT, fs=port, clock=clock, options=SMALL_CONTENT)
    try:
        repository = FlowFileRepository.open(
            REPOSITORY, fs=port, clock=clock, content=content, options=SMALL
        )
        repository.close()
    finally:
        content.close()


PROCESS_OPERATIONS: Mapping[str, ProcessOperation] = {
    "close": ProcessOperation(close),
    "start after an end": ProcessOperation(start, prepare_end),
    "start after a kill": ProcessOperation(start, prepare_kill),
}
OPERATIONS: Mapping[str, Operation] = {
    "drop a row": Operation(drop_row, lambda world: without(world, world.away[0]), durable=False),
    "remove": Operation(remove, lambda world: without(world, *world.memory[:2]), durable=False),
    "read a swap file": Operation(read_swapped, durable=False),
    "commit": Operation(
        lambda world: world.move(world.memory, durable=False),
        lambda world: world.moved(world.memory),
        durable=False,
    ),
    "durable commit": Operation(
        lambda world: world.move(world.memory, durable=True),
        lambda world: world.moved(world.memory),
    ),
    "durable commit of swapped": Operation(
        lambda world: world.move(world.loaded, durable=True),
        lambda world: world.moved(world.loaded),
    ),
    "swap out": Operation(swap_out),
    "swap out again": Operation(swap_out_again),
    "discard": Operation(discard, discarded, durable=False),
    "snapshot": Operation(lambda world: world.opened.repository.compact()),
    "sync": Operation(lambda world: world.opened.repository.sync()),
}


def found(fs: CrashableFileSystem) -> Where:
    """Return the queue of each FlowFile that a start finds; each must have its content."""
    opened = Opened.open(fs)
    where: Where = {}
    for number, (queue, flowfile) in opened.found().items():
        where[number] = queue
        assert flowfile.claim is not None
        assert len(opened.content.read(flowfile.claim)) == flowfile.size
    return where


# Of the many calls of ports that a snapshot makes, each has a third of the kinds of errors.
# `make soak` has all.
STRIDES = {"snapshot": 3}


def attempt(
    world: RepositoryWorld,
    operation: Operation,
    error: type[BaseException],
    at: int,
    *,
    after: bool,
) -> bool:
    """Do it with a fault at a call; say whether it returned."""
    done = False
    with world.faults.armed(error, at, after=after):
        try:
            operation.do(world)
            done = True
        except Unavailable:
            assert world.faults.raised
    return done


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_flowfiles_are_in_the_queues_that_the_call_reported(
    name: str, error: type[BaseException], after: bool
) -> None:
    operation = OPERATIONS[name]
    stride = STRIDES.get(name, 1)
    at, raised = (FAULTS.index(error) + after) % stride, True
    while raised:
        world = RepositoryWorld()
        done = attempt(world, operation, error, at, after=after)
        raised = bool(world.faults.raised)
        where = f"{error.__name__} at call {at}, {world.faults.raised}"
        stops = not issubclass(error, Exception)
        check_reported(world, operation, at, done=done, stops=stops, where=where)
        at += stride
    assert at >= 2 * stride, "nothing was raised"


def check_reported(
    world: RepositoryWorld, operation: Operation, seed: int, *, done: bool, stops: bool, where: str
) -> None:
    """Check that FlowFiles are where the call said; or the repository has stopped, if it may."""
    possible = [world.where, operation.after(world)]
    if world.opened.repository._commits.is_stopped:
        assert stops, where
        with pytest.raises(Unavailable, match="restart"):
            world.opened.repository.sync()
        assert found(world.disk.kill_process()) in possible, where
        return
    reported = possible[1] if done else possible[0]
    world.opened.repository.sync()  # deletes what was released, too
    # All that the caller has in memory can be moved on.
    left = [one for one in [*world.memory, *world.loaded] if reported.get(one.id) == "in"]
    changes = Changes(puts={"on": left}, replaced=left)
    world.opened.repository.commit(changes)
    world.opened.repository.sync()
    reported = reported | {one.id: "on" for one in left}
    assert found(world.disk.crash(seed)) == reported, where


class FailingDisk(Faults):
    """A disk that fails at one call and at all that follow, until the block ends."""

    def call(self, name: str, reach: Callable[[], T]) -> T:
        if self._error is None or self._left:
            return super().call(name, reach)
        self.raised = self.raised or name
        raise self._error(f"fault at {name}")


@pytest.mark.parametrize("error", [Unavailable, OSError])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_disk_that_fails_for_a_while_never_stops_the_repository(
    name: str, error: type[Exception]
) -> None:
    """A full disk refuses commits; it ends no process, so it does not count towards a hold."""
    operation = OPERATIONS[name]
    stride = min(2, STRIDES.get(name, 1))  # one of the two errors from each call on
    at, raised = int(error is OSError) % stride, True
    while raised:
        world = RepositoryWorld(faults=FailingDisk())
        done = attempt(world, operation, error, at, after=False)
        raised = bool(world.faults.raised)
        where = f"{error.__name__} from call {at} on, {world.faults.raised}"
        check_reported(world, operation, at, done=done, stops=False, where=where)
        at += stride
    assert at >= 2 * stride, "nothing was raised"


def check_process(name: str, plan: FaultPlan) -> Faults:
    """Check that a start, or an end, that raised leaves files from which the next start begins."""
    operation, world = PROCESS_OPERATIONS[name], RepositoryWorld()
    operation.prepare(world)
    with plan.armed(world.faults):
        try:
            operation.do(world)
        except Unavailable:
            assert world.faults.raised
    where = world.faults.raised
    assert not world.faults.unclosed or plan.inside, where
    synced = without(world, *world.others) if where else world.where
    crashed = found(world.disk.crash(plan.at))
    assert crashed.items() >= synced.items(), where
    assert crashed.items() <= world.where.items(), where
    assert found(world.disk.kill_process()) == world.where, where
    return world.faults


def check_lost_row(plan: FaultPlan) -> Faults:
    """Check that a damaged row is lost or found damaged again, and nothing else changes."""
    world = RepositoryWorld()
    with plan.armed(world.faults):
        try:
            lose_row(world)
        except Unavailable:
            assert world.faults.raised
    where = world.faults.raised
    possible = (world.where, without(world, world.away[0]))
    assert found(world.disk.kill_process()) in possible, where
    if not where:
        assert found(world.disk.kill_process()) == possible[1]
    return world.faults


def check(name: str, plan: FaultPlan) -> Faults:
    if name in PROCESS_OPERATIONS:
        return check_process(name, plan)
    if name == LOST_ROW:
        return check_lost_row(plan)
    operation, world, done = OPERATIONS[name], RepositoryWorld(), False
    with plan.armed(world.faults):
        try:
            operation.do(world)
            done = True
        except Unavailable:
            assert world.faults.raised
    where = world.faults.raised
    check_reported(world, operation, plan.at, done=done, stops=True, where=where)
    return world.faults


LOST_ROW = "lose a row"
INSIDE = ("penstock.flow.repository",)
PAIRS = FaultCases(
    [*OPERATIONS, *PROCESS_OPERATIONS, LOST_ROW], check, calls=200, inside=INSIDE, inside_calls=800
)


def test_after_a_pair_of_exceptions_flowfiles_are_where_the_call_reported() -> None:
    failures = PAIRS.sample(30)
    assert not failures, failures[0]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", [*PROCESS_OPERATIONS, LOST_ROW])
def test_a_start_and_an_end_that_raised_lose_nothing(
    name: str, error: type[BaseException], after: bool
) -> None:
    assert count_single(lambda at: check(name, FaultPlan(error, at, after)).raised, 41)


@pytest.mark.parametrize("name", [*OPERATIONS, *PROCESS_OPERATIONS, LOST_ROW])
def test_a_memory_error_inside_the_repository_leaves_flowfiles_where_the_call_reported(
    name: str,
) -> None:
    stride = 31 if name in PROCESS_OPERATIONS else 5  # `make soak` has all
    at = count_single(
        lambda at: check(name, FaultPlan(MemoryError, at, inside=INSIDE)).raised, stride
    )
    assert at


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_after_an_exception_finds_all_that_was_to_happen_or_nothing(
    name: str, error: type[BaseException], after: bool
) -> None:
    operation = OPERATIONS[name]
    stride = STRIDES.get(name, 1)
    at, raised = (FAULTS.index(error) + after) % stride, True
    while raised:
        world = RepositoryWorld()
        done = attempt(world, operation, error, at, after=after)
        raised = bool(world.faults.raised)
        where = f"{error.__name__} at call {at}, {world.faults.raised}"
        possible = [world.where, operation.after(world)]
        others = {one.id for one in world.found_others()}
        if done and operation.durable:
            del possible[0]
        lost = [
            {one: queue for one, queue in each.items() if one not in others} for each in possible
        ]
        crashed = found(world.disk.crash(at) if at % 2 else world.disk.kill_process())
        assert crashed in possible or (at % 2 and crashed in lost), where
        at += stride
    assert at >= 2 * stride, "nothing was raised"


def test_an_exception_between_journal_and_state_stops_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later commits, durable ones too, must not be cut off with one that nobody knows of."""
    opened = Opened.open()
    (one,) = opened.create("in", durable=True)
    with monkeypatch.context() as patched:
        patched.setattr(RepositoryState, "apply", _raising)
        with pytest.raises(MemoryError):
            opened.repository.commit(Changes(puts={"out": [one]}, replaced=[one]), durable=True)
    with pytest.raises(Unavailable, match="restart"):
        opened.create("in")
    with pytest.raises(Unavailable, match="restart"):
        opened.repository.compact()
    opened.close()
    assert found(opened.fs.crash(1)) == {one.id: "out"}


def test_a_repository_that_stops_has_its_process_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened.open()
    (one,) = opened.create("in", durable=True)
    told: list[str] = []
    opened.repository.call_when_stopped(lambda: told.append("before"))
    with monkeypatch.context() as patched:
        patched.setattr(RepositoryState, "apply", _raising)
        for _ in range(2):
            with pytest.raises((MemoryError, Unavailable)):
                opened.repository.commit(Changes(puts={"out": [one]}, replaced=[one]))
    opened.repository.call_when_stopped(lambda: told.append("afterwards"))
    assert told == ["before", "afterwards"]


def test_an_exception_before_the_journal_refuses_one_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened.open()
    (one,) = opened.create("in", durable=True)
    with monkeypatch.context() as patched:
        patched.setattr(RepositoryState, "undo_of", _raising)
        with pytest.raises(MemoryError):
            opened.repository.commit(Changes(puts={"out": [one]}, replaced=[one]), durable=True)
    (other,) = opened.create("in", durable=True)
    opened.repository.commit(Changes(puts={"on": [one]}, replaced=[one]), durable=True)
    assert found(opened.fs.crash(1)) == {one.id: "on", other.id: "in"}


def test_where_no_further_thread_can_be_started_commits_are_durable_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = Opened.open(options=RepositoryOptions(snapshot_bytes=1000))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        opened.create("in", 20)
        made = opened.create("in", 20, durable=True)
        # The thread that started with the repository may have done all work, or none.
        assert opened.repository.statistics().unsynced_commits == 0
    committer, written = opened.repository._committer, threading.Event()
    real = committer.snapshot

    def snapshot() -> None:
        real()
        written.set()

    monkeypatch.setattr(committer, "snapshot", snapshot)
    opened.create("in", 200)  # plans a snapshot
    assert written.wait(120)
    opened.close()
    assert found(opened.fs.crash(1)).keys() >= {one.id for one in made}


def _raising(*_: object) -> None:
    raise MemoryError("once")


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("error", FAULTS)
def test_a_journal_that_cannot_be_closed_leaves_no_other_one_open(
    error: type[BaseException],
) -> None:
    faults, clock = Faults(), VirtualClock()
    disk = faults.port(CrashableFileSystem(), results=("create", "open_append"))
    journal = Journal.open(journal_folder(REPOSITORY, 1), fs=disk, clock=clock)
    journal.compact(b"")
    journals = FlowJournals(REPOSITORY, disk, clock, {1: journal}, 0, 0)
    journals.append(b"first")
    journals.create_next()
    journals.switch()
    journals.append(b"second")
    assert len(faults.unclosed) == 2
    with faults.armed(error, 0):
        journals.close()
    assert faults.raised
    assert not faults.unclosed


def test_files_that_cannot_be_closed_do_not_keep_commits_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit that came while the repository was closed waited without end."""
    opened = Opened.open(CrashableFileSystem())

    def fail(journals: FlowJournals) -> None:
        del journals
        raise MemoryError

    monkeypatch.setattr(FlowJournals, "close", fail)
    with pytest.raises(MemoryError):
        opened.repository.close()
    assert opened.repository._committer._stopped.is_set()
    opened.content.close()
