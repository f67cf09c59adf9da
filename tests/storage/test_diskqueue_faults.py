"""The disk queue under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import Buffer

from penstock.core.errors import Unavailable
from penstock.storage.disk import OsAppendFile
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_reader import read_range
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import FaultCases, FaultPlan, count_single

FOLDER = "/topic"
OPTIONS = DiskQueueOptions(max_bytes_per_file=600, sync_every_messages=4, sync_in_background=False)
PORTS = ("create", "open_append", "open_read", "lock_folder")
PRODUCER = 7
NEW = b"x" * 100
# A sample of the calls of long operations; `make soak` has all of them.
STRIDES = {
    **dict.fromkeys(("append_much", "append_of_producer", "reopen", "verify"), 13),
    "read": 29,
    "offset_at": 90,
    "retain": 2,
    "clear": 2,
}
STRIDE_INSIDE = 157


class DiskQueueWorld:
    """A disk queue over several files, with cursors, and what it must hold."""

    def __init__(self) -> None:
        self.faults, self.fs, self.clock = Faults(), CrashableFileSystem(), VirtualClock()
        self.queue = self.open()
        self.messages = [b"a", b"b", *(b"%d" % number * 50 for number in range(12)), b"c"]
        for message in self.messages[:-1]:
            self.queue.append([message], durable=True, producer=(PRODUCER, 1))
            self.clock.advance(ms=1_000)
        self.cursors = {"slow": 2, "fast": 12}
        for name, position in self.cursors.items():
            self.queue.cursor(name).advance(position)
        self.queue.sync()
        self.queue.append(self.messages[-1:])
        # What an operation may have done: each cursor is at one of these positions; -1: absent.
        self.possible = {name: {position} for name, position in self.cursors.items()}
        self.earliest = self.queue.earliest
        self.before = self.queue.latest

    def open(self, fs: CrashableFileSystem | None = None) -> DiskQueue:
        port = self.faults.port(fs or self.fs, results=PORTS)
        return DiskQueue.open(FOLDER, OPTIONS, fs=port, clock=self.clock)

    def reopen(self) -> None:
        self.queue.close()
        self.queue = self.open()

    def advance(self, name: str, position: int) -> None:
        self.possible[name].add(position)
        self.queue.cursor(name).advance(position)


def messages_in(queue: DiskQueue) -> dict[int, bytes]:
    """Return the messages by offset."""
    found: dict[int, bytes] = {}
    offset = queue.earliest
    while offset < queue.latest and (blocks := queue.read(offset, 300)):
        for block in blocks:
            found |= dict(enumerate(block.messages.to_pylist(), block.base_offset))
        offset = blocks[-1].base_offset + blocks[-1].count
    return found


def append(world: DiskQueueWorld) -> None:
    world.queue.append([NEW])


def append_durably(world: DiskQueueWorld) -> None:
    world.queue.append([NEW], durable=True)


def append_much(world: DiskQueueWorld) -> None:
    for _ in range(8):
        world.queue.append([NEW])


def append_of_producer(world: DiskQueueWorld) -> None:
    for sequence in range(2, 9):
        world.queue.append([NEW], producer=(PRODUCER, sequence))


def sync(world: DiskQueueWorld) -> None:
    world.queue.sync()


def read(world: DiskQueueWorld) -> None:
    assert messages_in(world.queue) == dict(enumerate(world.messages))


def offset_at(world: DiskQueueWorld) -> None:
    """Search times that all files hold, one after the other."""
    start = world.clock.now_ms() - (len(world.messages) - 1) * 1_000
    for offset in range(len(world.messages) - 1):
        assert world.queue.offset_at(start + offset * 1_000) == offset


def verify(world: DiskQueueWorld) -> None:
    assert not world.queue.verify().messages_lost


def new_cursor(world: DiskQueueWorld) -> None:
    world.possible["new"] = {-1, 5}
    assert world.queue.cursor("new", 5).position == 5


def advance_cursors(world: DiskQueueWorld) -> None:
    world.advance("slow", 9)
    world.advance("fast", 14)
    world.queue.sync()


def delete_cursor(world: DiskQueueWorld) -> None:
    world.possible["slow"].add(-1)
    world.queue.cursor("slow").delete()


def retain(world: DiskQueueWorld) -> None:
    world.advance("slow", 11)
    world.queue.retention.retain(world.clock.now_ms(), consumed=True)


def drop_oldest(world: DiskQueueWorld) -> None:
    for positions in world.possible.values():
        positions |= set(range(world.before))
    world.queue.retention.drop_oldest(700)


def clear(world: DiskQueueWorld) -> None:
    for positions in world.possible.values():
        positions.add(world.before)
    world.queue.retention.clear()


def close(world: DiskQueueWorld) -> None:
    world.queue.close()


def reopen(world: DiskQueueWorld) -> None:
    world.reopen()


OPERATIONS: Mapping[str, Callable[[DiskQueueWorld], None]] = {
    one.__name__: one
    for one in (
        *(append, append_durably, append_much, append_of_producer, sync, read, offset_at, verify),
        *(new_cursor, advance_cursors, delete_cursor, retain, drop_oldest, clear, close, reopen),
    )
}
DELETES = ("retain", "drop_oldest", "clear")
INSIDE = ("penstock.storage",)
UNSYNCED = 1  # the call of `drop_oldest` that makes its first deletion durable


def check(name: str, plan: FaultPlan) -> Faults:
    """Do it under faults; what is synced afterwards is what a restart and a power loss leave."""
    world = DiskQueueWorld()
    with plan.armed(world.faults):
        try:
            OPERATIONS[name](world)
        except Unavailable:
            assert world.faults.raised
    where = world.faults.raised
    if name in ("close", "reopen"):
        if not plan.inside:
            world.queue.close()  # which may be repeated
            assert not world.faults.unclosed, where
        world.fs = world.fs.kill_process()  # as a lock may be held that could not be released
        world.faults.unclosed.clear()
        world.queue = world.open()
    queue = world.queue
    is_undo_hit = plan.then is not None and name == "new_cursor"
    if where and (name in DELETES or is_undo_hit):
        OPERATIONS[name](world)  # as the next round of the retention does
    assert queue.earliest == world.earliest or name in DELETES, where
    new = queue.latest - world.before
    queue.append([b"d"])
    queue.sync()
    everything = dict(enumerate([*world.messages, *[NEW] * new, b"d"]))
    assert messages_in(queue) == from_offset(everything, queue.earliest), where
    cursors = queue.statistics().cursors
    for cursor, positions in world.possible.items():
        assert cursors.get(cursor, -1) in positions, where
    sequence = queue.last_sequence(PRODUCER)
    assert sequence is not None, where
    assert sequence >= 1 + new * (name == "append_of_producer"), where
    check_reopened(world, name, plan, everything)
    return world.faults


def check_reopened(
    world: DiskQueueWorld, name: str, plan: FaultPlan, everything: dict[int, bytes]
) -> None:
    """Check that a restart and a power loss leave the synced queue as it is."""
    queue, where = world.queue, world.faults.raised
    state = queue.latest, queue.last_sequence(PRODUCER), queue.statistics().cursors
    lost = world.open(world.fs.crash(plan.at))
    assert (lost.latest, lost.last_sequence(PRODUCER), lost.statistics().cursors) == state, where
    # A deletion that raised may not be durable.
    assert lost.earliest <= queue.earliest, where
    assert lost.earliest == queue.earliest or name in DELETES, where
    assert messages_in(lost) == from_offset(everything, lost.earliest), where
    assert not lost.verify().messages_lost, where
    lost.close()
    world.fs.powerless = False
    queue.close()
    assert not world.faults.unclosed or plan.inside, where


def from_offset(messages: dict[int, bytes], offset: int) -> dict[int, bytes]:
    return {at: one for at, one in messages.items() if at >= offset}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_what_was_synced_is_read_after_a_power_loss_whatever_was_raised_before(
    name: str, error: type[BaseException], after: bool
) -> None:
    assert count_single(
        lambda at: check(name, FaultPlan(error, at, after)).raised, STRIDES.get(name, 1)
    )


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_synced_is_read_after_a_memory_error(name: str) -> None:
    assert count_single(
        lambda at: check(name, FaultPlan(MemoryError, at, inside=INSIDE)).raised, STRIDE_INSIDE
    )


PAIRS = FaultCases(OPERATIONS, check, calls=300, inside=INSIDE, inside_calls=1_500)


def test_what_was_synced_is_read_after_a_pair_of_exceptions() -> None:
    failures = PAIRS.sample(25)
    assert not failures, failures[0]


@pytest.mark.parametrize("name", DELETES)
def test_a_deletion_that_took_effect_and_raised_leaves_a_queue_that_is_read(name: str) -> None:
    """The messages of the deleted file are not offered any more."""
    deletions = 0
    for at in range(30):
        world = DiskQueueWorld()
        with world.faults.armed(MemoryError, at, after=True):
            OPERATIONS[name](world)
        deletions += world.faults.raised.endswith("unlink")
        expected = from_offset(dict(enumerate(world.messages)), world.queue.earliest)
        assert messages_in(world.queue) == expected, world.faults.raised
    assert deletions


def test_a_power_loss_after_deletions_that_were_not_synced_leaves_no_gap() -> None:
    """One file is deleted, and another one in the next round; no round is synced."""
    for at in range(4):
        for seed in range(40):
            world = DiskQueueWorld()
            world.queue.sync()
            with world.faults.armed(OSError, UNSYNCED):
                drop_oldest(world)
            assert world.faults.raised.endswith("fsync_folder")
            with world.faults.armed(OSError, at):
                world.queue.retention.drop_oldest(1)
            lost = world.open(world.fs.crash(seed))
            assert not lost.verify().messages_lost, world.faults.raised
            lost.close()


def test_cursors_move_up_after_a_deletion_that_memory_ran_out_behind() -> None:
    inside = ("penstock.storage.queue.log", "penstock.storage.queue.cursors")
    assert count_single(
        lambda at: check("drop_oldest", FaultPlan(MemoryError, at, inside=inside)).raised
    )


def test_a_close_whose_sync_and_file_raise_leaves_nothing_open() -> None:
    for error in FAULTS:
        world = DiskQueueWorld()
        with world.faults.armed(OSError, 0, then=(error, 0)):
            world.queue.close()
        assert world.faults.raised == "_AppendFile.sync, then _AppendFile.close"
        assert not world.faults.unclosed


@pytest.mark.parametrize("error", FAULTS)
def test_an_opening_that_raised_leaves_the_folder_unlocked(error: type[BaseException]) -> None:
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        with DiskQueue.open(FOLDER, OPTIONS, fs=fs, clock=VirtualClock()) as queue:
            queue.append([b"a"])
        with faults.armed(error, at):
            port = faults.port(fs, results=PORTS[:-1])
            DiskQueue.open(FOLDER, OPTIONS, fs=port, clock=VirtualClock()).close()
        raised = bool(faults.raised)
        DiskQueue.open(FOLDER, OPTIONS, fs=fs, clock=VirtualClock()).close()
        at += 1
    assert at > 1


@pytest.mark.parametrize("error", FAULTS)
def test_a_close_whose_sync_failed_closes_each_file(error: type[BaseException]) -> None:
    """One file that could not be closed left the other one open."""
    options = replace(OPTIONS, sync_every_messages=99)
    at, raised = 0, ", then "
    while ", then " in raised:
        faults, fs = Faults(), CrashableFileSystem()
        port = faults.port(fs, results=PORTS)
        queue = DiskQueue.open(FOLDER, options, fs=port, clock=VirtualClock())
        queue.append([bytes(options.max_bytes_per_file)])
        fs.fail_next("fsync")
        queue.append([b"in the next file"])
        assert len(faults.unclosed) == 3  # the lock of the folder, too
        with faults.armed(OSError, 0, then=(error, at)):
            queue.close()
        raised = faults.raised
        assert not faults.unclosed, raised
        at += 1
    assert at > 3


def test_a_block_that_could_not_be_cut_off_is_cut_off_without_another_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart would find the message whose publisher got an error."""
    folder = str(tmp_path / "queue")
    is_cut = threading.Event()
    writev, truncate = OsAppendFile.writev, OsAppendFile.truncate
    failures = iter([True])

    def raising(file: OsAppendFile, buffers: Sequence[Buffer]) -> int:
        writev(file, buffers)
        raise MemoryError

    def failing_once(file: OsAppendFile, size: int) -> None:
        if next(failures, False):
            raise Unavailable("the device reports an I/O error")
        truncate(file, size)
        is_cut.set()

    queue = DiskQueue.open(folder)
    try:
        queue.append([b"kept"], durable=True)
        monkeypatch.setattr(OsAppendFile, "writev", raising)
        monkeypatch.setattr(OsAppendFile, "truncate", failing_once)
        with pytest.raises(Unavailable, match="I/O error"):
            queue.append([b"refused"])
        monkeypatch.setattr(OsAppendFile, "writev", writev)
        assert is_cut.wait(120)
    finally:
        queue.close()
    assert [len(one.messages) for one in read_range(folder, 0, 9)] == [1]
