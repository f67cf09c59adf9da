"""The log of a queue by itself: no fsync but those that are called, no cursors, no threads."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.core.errors import Closed, InvalidRequest
from penstock.storage.queue.blocks import OffsetRange
from penstock.storage.queue.log import QueueLog
from penstock.storage.queue.options import DiskQueueOptions
from penstock.storage.queue.quarantine import Quarantine
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

SMALL = DiskQueueOptions(max_bytes_per_file=1000, max_producers=10)


class QueueLogWorld:
    """A log over a file system that can crash; `full` counts its requests to sync soon."""

    def __init__(self, fs: CrashableFileSystem | None = None) -> None:
        self.fs = fs or CrashableFileSystem()
        self.fs.mkdir("/q")
        self.full = 0
        self.log = QueueLog(self.fs, "/q", SMALL, VirtualClock(), self)
        self.log.recover(self.fs.listdir("/q"), Quarantine(self.fs, "/q"))

    def sync_soon(self) -> None:
        self.full += 1

    def append(self, count: int, size: int = 10, producer: int | None = None) -> OffsetRange | None:
        batch = pa.array([bytes(size)] * count, pa.binary())
        mark = None if producer is None else (producer, self.log.latest)
        return self.log.append(batch, mark, 0)


def test_only_what_was_synced_is_durable_and_offsets_go_on_behind_it() -> None:
    world = QueueLogWorld()
    assert world.append(3) == OffsetRange(0, 3)
    assert world.log.durable == 0
    assert world.log.sync() == 3
    world.append(2, producer=7)
    again = QueueLogWorld(world.fs.crash(1))
    assert again.log.latest in {3, 5}
    assert again.log.producers.last(7) == (3 if again.log.latest == 5 else None)


def test_a_full_log_file_grows_to_twice_its_size_while_the_one_before_is_not_synced() -> None:
    world = QueueLogWorld()
    while len(world.log.files) < 2:
        assert world.append(1, 300) is not None
    while world.append(1, 300) is not None:
        assert len(world.log.files) == 2
    assert world.full > 1
    assert world.log.files.active.size <= 2 * SMALL.max_bytes_per_file
    latest = world.log.latest
    world.log.sync()
    assert world.append(1, 300) == OffsetRange(latest, latest + 1)
    assert len(world.log.files) == 3


def test_a_batch_that_is_refused_changes_nothing() -> None:
    world = QueueLogWorld()
    world.log.options = DiskQueueOptions(max_block_bytes=1000)
    with pytest.raises(InvalidRequest, match="max_block_bytes"):
        world.log.append(pa.array([bytes(2000)], pa.binary()), (1, 1), 0)
    assert world.log.bounds() == (0, 0)
    assert world.log.producers.last(1) is None


def test_what_ended_takes_nothing_and_says_whether_a_sync_is_missing() -> None:
    for appended, missing in ((0, False), (1, True)):
        world = QueueLogWorld()
        if appended:
            world.append(appended)
        with world.log.mutex:
            assert world.log.end() is missing
        with pytest.raises(Closed):
            world.append(1)
        with pytest.raises(Closed):
            world.log.extent()
