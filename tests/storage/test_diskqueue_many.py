"""What a queue costs while it rests: no file descriptor, no thread, no fsync."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.group_commit import SyncThreads
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.kits.port_faults_kit import open_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = "/queue"


@pytest.fixture
def threads() -> Iterator[SyncThreads]:
    with SyncThreads(clock=SystemClock(), most=2, name="shared") as shared:
        yield shared


def test_queues_that_rest_take_no_descriptor_and_share_threads(
    tmp_path: Path, threads: SyncThreads
) -> None:
    queues = [
        DiskQueue.open(f"{tmp_path}/{number}", threads=threads, lock=False) for number in range(20)
    ]
    for queue in queues:
        queue.append([b"one"])
    for future in [queue.request_sync() for queue in queues]:
        assert future.result() == 1
    assert open_below(tmp_path) == 0
    running = {one.name for one in threading.enumerate() if one.name.startswith("shared")}
    assert running <= {"shared timer", "shared_0", "shared_1"}
    for queue in queues:
        queue.append([b"two"])
        queue.close()
    assert open_below(tmp_path) == 0
    again = [
        DiskQueue.open(f"{tmp_path}/{number}", threads=threads, lock=False) for number in range(20)
    ]
    assert open_below(tmp_path) == 0
    assert [queue.latest for queue in again] == [2] * 20
    assert again[7].append([b"three"], durable=True).start == 2
    for queue in again:
        queue.close()


def test_a_queue_that_was_not_touched_is_closed_without_a_step() -> None:
    fs = CrashableFileSystem()
    options = DiskQueueOptions(max_bytes_per_file=300, sync_in_background=False)
    with DiskQueue.open(FOLDER, options, fs=fs) as queue:
        for _ in range(10):
            queue.append([b"." * 100])
    before = fs.steps
    DiskQueue.open(FOLDER, options, fs=fs).close()
    assert fs.steps == before
    with DiskQueue.open(FOLDER, options, fs=fs) as queue:
        queue.cursor("reader", "earliest").advance(10)
    with DiskQueue.open(FOLDER, options, fs=fs) as queue:
        assert queue.cursor("reader").position == 10


def test_without_a_lock_of_its_own_the_lock_above_counts(
    tmp_path: Path, threads: SyncThreads
) -> None:
    fs = OsFileSystem()
    above = fs.lock_folder(str(tmp_path))
    with pytest.raises(Conflict):
        fs.lock_folder(str(tmp_path))
    with DiskQueue.open(f"{tmp_path}/0", threads=threads, lock=False) as queue:
        queue.append([b"one"])
    above.release()


@pytest.mark.parametrize("damage", ["removed", "longer"])
def test_a_file_that_changed_while_it_was_parked_is_not_written(damage: str) -> None:
    fs = CrashableFileSystem()
    options = DiskQueueOptions(sync_in_background=False)
    queue = DiskQueue.open(FOLDER, options, fs=fs, clock=VirtualClock())
    queue.append([b"one"], durable=True)
    path = f"{FOLDER}/{fs.listdir(FOLDER)[0]}"
    if damage == "removed":
        fs.rename(path, f"{FOLDER}/elsewhere")
    else:
        fs.damage(path, lambda content: content.extend(b"by somebody else"))
    with pytest.raises(Unavailable, match=r"deleted|another program has changed it"):
        queue.append([b"two"])
    assert queue.latest == 1
    if damage == "removed":
        fs.rename(f"{FOLDER}/elsewhere", path)
        assert queue.append([b"two"], durable=True).start == 1
    queue.close()
    again = DiskQueue.open(FOLDER, options, fs=fs, clock=VirtualClock())
    assert again.latest == 1 + (damage == "removed")


def test_that_no_queue_can_be_synced_is_one_line(
    threads: SyncThreads, caplog: pytest.LogCaptureFixture
) -> None:
    fs = CrashableFileSystem()
    fs.mkdir("/many")
    queues = [
        DiskQueue.open(f"/many/{number}", fs=fs, threads=threads, lock=False)
        for number in range(10)
    ]
    for queue in queues:
        queue.append([b"one"])
    for queue in queues:
        fs.fail_next("fsync")
        with pytest.raises(Unavailable):
            queue.sync()
    said = [line for line in caplog.messages if "cannot sync" in line]
    assert len(said) == 1
    assert "/many/0: cannot sync 1 message" in said[0]
    assert [queue.statistics().sync_failures for queue in queues] == [1] * 10
    for queue in queues:
        queue.close()
