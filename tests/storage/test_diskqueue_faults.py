"""The disk queue under exceptions that nobody expects, at each call of its file system."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.errors import Unavailable
from penstock.storage.diskqueue import DiskQueue, DiskQueueOptions
from penstock.storage.logreader import read_range
from penstock.testing.clock import VirtualClock
from penstock.testing.crashable import CrashableFileSystem
from penstock.testing.injection import FAULTS, Faults

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
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        port = faults.port(fs, results=PORTS)
        queue = DiskQueue.open(FOLDER, OPTIONS, fs=port, clock=VirtualClock())
        queue.append([b"a", b"b"], durable=True)
        queue.append([b"c"])
        before = queue.latest
        with faults.armed(error, at, after=after):
            try:
                operation(queue)
            except Unavailable:
                assert faults.raised
        raised = bool(faults.raised)
        where = f"{error.__name__} at call {at}, {faults.raised}"
        more = queue.latest - before
        queue.append([b"d"])
        queue.sync()
        expected = [b"a", b"b", b"c", *[b"x" * 100] * more, b"d"]
        assert messages(fs, len(expected)) == expected, where
        assert messages(fs.crash(at), len(expected)) == expected, where
        at += 1
    assert at > 1


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
