"""The disk queue under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from call_faults_kit import FAULTS, Faults
from faultcases import FaultCases
from typing_extensions import Buffer

from penstock.core.errors import Unavailable
from penstock.storage.disk import OsAppendFile
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_reader import read_range
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

FOLDER = "/topic"
OPTIONS = DiskQueueOptions(max_bytes_per_file=600, sync_every_messages=4, sync_in_background=False)
PORTS = ("create", "open_append", "open_read")


def append(queue: DiskQueue) -> None:
    queue.append([b"x" * 100])


def append_durably(queue: DiskQueue) -> None:
    queue.append([b"x" * 100], durable=True)


def append_much(queue: DiskQueue) -> None:
    for _ in range(8):
        queue.append([b"x" * 100])


def sync(queue: DiskQueue) -> None:
    queue.sync()


def messages(fs: CrashableFileSystem, end: int) -> list[bytes]:
    slices = read_range(FOLDER, 0, end, fs=fs)
    return [message for one in slices for message in one.messages.to_pylist()]


@pytest.mark.parametrize("operation", [append, append_durably, append_much, sync])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_what_was_synced_is_read_after_a_power_loss_whatever_was_raised_before(
    operation: Callable[[DiskQueue], None], error: type[BaseException], after: bool
) -> None:
    at, raised = 0, "a port"
    while raised:
        raised = check(operation, lambda faults: faults.armed(error, at, after=after), at)  # noqa: B023
        at += 1
    assert at > 1


def check(
    operation: Callable[[DiskQueue], None],
    arm: Callable[[Faults], AbstractContextManager[None]],
    seed: int,
) -> str:
    """Do it under faults; what is synced afterwards is what a power loss leaves."""
    fs, faults = CrashableFileSystem(), Faults()
    port = faults.port(fs, results=PORTS)
    queue = DiskQueue.open(FOLDER, OPTIONS, fs=port, clock=VirtualClock())
    queue.append([b"a", b"b"], durable=True)
    queue.append([b"c"])
    before = queue.latest
    with arm(faults):
        try:
            operation(queue)
        except Unavailable:
            assert faults.raised
    where = faults.raised
    more = queue.latest - before
    queue.append([b"d"])
    queue.sync()
    expected = [b"a", b"b", b"c", *[b"x" * 100] * more, b"d"]
    assert messages(fs, len(expected)) == expected, where
    assert messages(fs.crash(seed), len(expected)) == expected, where
    return where


OPERATIONS = {one.__name__: one for one in (append, append_durably, append_much, sync)}
INSIDE = ["penstock.storage"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_synced_is_read_after_a_memory_error(name: str) -> None:
    at, raised = 0, "a function"
    while raised:
        raised = check(
            OPERATIONS[name],
            lambda faults: faults.armed_inside(INSIDE, MemoryError, at),  # noqa: B023
            at,
        )
        at += 1
    assert at > 1


PAIRS = FaultCases(
    OPERATIONS,
    lambda case: ", then " in check(OPERATIONS[case.operation], case.armed, case.at),
    calls=30,
    gaps=6,
)


def test_what_was_synced_is_read_after_a_pair_of_exceptions() -> None:
    failures, reached = PAIRS.run(range(1_500))
    assert not failures, failures[0]
    assert reached > 20


@pytest.mark.parametrize("error", FAULTS)
def test_an_opening_that_raised_leaves_the_folder_unlocked(error: type[BaseException]) -> None:
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        with DiskQueue.open(FOLDER, OPTIONS, fs=fs, clock=VirtualClock()) as queue:
            queue.append([b"a"])
        with faults.armed(error, at):
            port = faults.port(fs, results=PORTS)
            DiskQueue.open(FOLDER, OPTIONS, fs=port, clock=VirtualClock()).close()
        raised = bool(faults.raised)
        DiskQueue.open(FOLDER, OPTIONS, fs=fs, clock=VirtualClock()).close()
        at += 1
    assert at > 1


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
        assert is_cut.wait(30)
    finally:
        queue.close()
    assert [len(one.messages) for one in read_range(folder, 0, 9)] == [1]
