"""The journal under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from penstock.storage.journal import Journal
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

FOLDER = "/journal"


class JournalWorld:
    """A journal whose file system counts its calls, with a snapshot and records."""

    def __init__(self) -> None:
        self.faults, self.fs = Faults(), CrashableFileSystem()
        self._port = self.faults.port(self.fs, results=("create", "open_append", "open_read"))
        self.journal = self.open()
        self.journal.compact(b"old")
        self.journal.append([b"a"])
        self.journal.sync()
        self.journal.append([b"b"])

    def open(self, *, strict: bool = True) -> Journal:
        port = self._port
        return Journal.open(FOLDER, fs=port, clock=VirtualClock(), strict=strict)

    def reopen(self, fs: CrashableFileSystem | None = None, *, strict: bool = True) -> None:
        """Open it again with its files as they are, or as a crash has left them."""
        self.journal.close()
        if fs is not None:
            self.fs = fs
            self._port = self.faults.port(fs, results=("create", "open_append", "open_read"))
        self.journal = self.open(strict=strict)


@dataclass(frozen=True)
class Operation:
    """A call of the journal.

    Attributes:
        do: Makes it.
        prepare: The calls before it, without faults.
        appends: The call appends a record.
        compacts: The call replaces the records by a snapshot.
    """

    do: Callable[[JournalWorld], object]
    prepare: Callable[[JournalWorld], None] = lambda world: None
    appends: bool = False
    compacts: bool = False


def prepare_torn(world: JournalWorld) -> None:
    """Tear the end of the file, as a kill in the middle of a write does."""
    world.journal.append([b"torn"])
    name = max(world.fs.listdir(FOLDER))
    world.journal.close()
    fs = world.fs.kill_process()
    fs.damage(f"{FOLDER}/{name}", lambda content: content.__delitem__(slice(-3, None)))
    world.reopen(fs)


def prepare_parked(world: JournalWorld) -> None:
    world.journal.sync()
    world.journal.park()


def prepare_two_files(world: JournalWorld) -> None:
    """Leave the old file of a `compact` whose process died, and a file without its name."""
    fs = world.fs
    (name,) = fs.listdir(FOLDER)
    old = fs.read_bytes(f"{FOLDER}/{name}")
    world.journal.compact(b"old")
    world.journal.append([b"a", b"b"])
    world.journal.close()
    for left in (name, "1.tmp"):
        file = fs.create(f"{FOLDER}/{left}", replace=True)
        file.writev([old])
        file.close()
    world.reopen()


def park(world: JournalWorld) -> None:
    world.journal.sync()
    world.journal.park()


OPERATIONS: Mapping[str, Operation] = {
    "append": Operation(lambda w: w.journal.append([b"faulty"]), appends=True),
    "append behind a torn end": Operation(
        lambda w: w.journal.append([b"faulty"]), prepare_torn, appends=True
    ),
    "append when parked": Operation(
        lambda w: w.journal.append([b"faulty"]), prepare_parked, appends=True
    ),
    "compact": Operation(lambda w: w.journal.compact(b"new"), compacts=True),
    "compact when parked": Operation(
        lambda w: w.journal.compact(b"new"), prepare_parked, compacts=True
    ),
    "sync": Operation(lambda w: w.journal.sync()),
    "sync behind a torn end": Operation(lambda w: w.journal.sync(), prepare_torn),
    "park": Operation(park),
    "close": Operation(lambda w: w.journal.close()),
    "open": Operation(lambda w: w.reopen()),
    "open two files": Operation(lambda w: w.reopen(), prepare_two_files),
}
INSIDE = ["penstock.storage"]


def check(name: str, plan: FaultPlan) -> Faults:
    """Do it under faults; what is synced afterwards is what a power loss leaves."""
    world, operation = JournalWorld(), OPERATIONS[name]
    operation.prepare(world)
    with plan.armed(world.faults):
        operation.do(world)
    where = world.faults.raised
    world.journal.append([b"c"])
    world.journal.sync()
    world.journal.close()
    assert not world.faults.unclosed or plan.inside, where
    again = world.open()
    read = Journal.open(FOLDER, fs=world.fs.crash(plan.at), clock=VirtualClock())
    assert (again.snapshot, again.records) == (read.snapshot, read.records), where
    is_appended = operation.appends and not where
    expected = [(b"old", [b"a", b"b", *[b"faulty"] * is_appended, b"c"])]
    if operation.compacts:
        expected.append((b"new", [b"c"]))
        if not where:
            del expected[0]
    assert (read.snapshot, read.records) in expected, where
    return world.faults


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_synced_after_an_exception_is_read_after_a_power_loss(
    name: str, error: type[BaseException], after: bool
) -> None:
    assert count_single(lambda at: check(name, FaultPlan(error, at, after)).raised)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_synced_is_read_after_a_memory_error(name: str) -> None:
    inside = tuple(INSIDE)
    assert count_single(lambda at: check(name, FaultPlan(MemoryError, at, inside=inside)).raised)


PAIRS = FaultCases(OPERATIONS, check, calls=24, inside=INSIDE, inside_calls=200)


def test_what_is_synced_is_read_after_a_pair_of_exceptions() -> None:
    failures = PAIRS.sample(60)
    assert not failures, failures[0]


def damage_synced(content: bytearray) -> None:
    content[content.index(b"synced")] ^= 1


@pytest.mark.parametrize("error", FAULTS)
def test_damage_is_replaced_whatever_was_raised_before(error: type[BaseException]) -> None:
    """The damaged file stays aside, and the journal goes on with the new snapshot."""
    at, raised = 0, True
    while raised:
        world = JournalWorld()
        world.journal.sync()
        world.journal.append([b"synced"])
        world.journal.sync()
        world.journal.append([b"behind it"])
        name = max(world.fs.listdir(FOLDER))
        fs = world.fs.kill_process()
        fs.damage(f"{FOLDER}/{name}", damage_synced)
        world.reopen(fs, strict=False)
        with world.faults.armed(error, at):
            world.journal.compact(b"new")
        raised = bool(world.faults.raised)
        if raised:
            world.reopen(strict=False)
            world.journal.compact(b"new")
        world.journal.append([b"c"])
        world.journal.sync()
        after = fs.crash(at)
        read = Journal.open(FOLDER, fs=after, clock=VirtualClock())
        assert (read.snapshot, read.records) == (b"new", [b"c"])
        assert after.exists(f"{FOLDER}/{name}.bad")
        at += 1
    assert at > 1
