"""A bound on the size of a queue: the oldest go, what is counted, and who is moved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.core.errors import Closed, Unavailable
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

FOLDER = "/queue"


def opened(fs: CrashableFileSystem, **changes: int) -> DiskQueue:
    options = DiskQueueOptions(
        max_bytes_per_file=changes.get("max_bytes_per_file", 1000),
        sync_in_background=False,
        sync_every_messages=10**9,
    )
    return DiskQueue.open(FOLDER, options, fs=fs, clock=VirtualClock())


def filled(fs: CrashableFileSystem, count: int = 40) -> DiskQueue:
    queue = opened(fs)
    for _ in range(count):
        queue.append([b"." * 150])
    queue.sync()
    return queue


def test_the_size_is_that_of_the_files_at_any_time() -> None:
    fs = CrashableFileSystem()
    queue = opened(fs)
    for step in range(30):
        queue.append([b"x" * (step * 20)])
        if step == 20:
            queue.sync()
            queue.retention.drop_oldest(3000)
        sizes = [fs.stat(f"{FOLDER}/{name}").size for name in fs.listdir(FOLDER)]
        assert queue.size_bytes == queue.statistics().bytes == sum(sizes)
    queue.close()
    again = opened(fs)
    assert again.size_bytes == sum(sizes)
    again.retention.clear()
    assert again.size_bytes == sum(fs.stat(f"{FOLDER}/{n}").size for n in fs.listdir(FOLDER))


def test_what_was_kept_of_a_closed_queue_deletes_nothing_of_its_next_owner() -> None:
    fs = CrashableFileSystem()
    queue = filled(fs)
    retention, names = queue.retention, fs.listdir(FOLDER)
    queue.close()
    with opened(fs) as next_owner:
        for delete in (
            lambda: retention.retain(2**50, consumed=True),
            lambda: retention.drop_oldest(0),
            retention.clear,
        ):
            with pytest.raises(Closed, match="open it again"):
                delete()
        assert fs.listdir(FOLDER) == names
        assert retention.dropped == next_owner.earliest == 0
        assert next_owner.retention.drop_oldest(0) == next_owner.earliest > 0


def test_no_more_goes_than_must() -> None:
    fs = CrashableFileSystem()
    queue = filled(fs)
    before = queue.size_bytes
    assert queue.retention.drop_oldest(before) == 0
    first_file = fs.stat(f"{FOLDER}/{fs.listdir(FOLDER)[0]}").size
    dropped = queue.retention.drop_oldest(before - 1)
    assert dropped == queue.earliest > 0
    assert queue.size_bytes == before - first_file
    assert queue.statistics().messages_dropped == dropped
    assert queue.read(queue.earliest, 1)[0].base_offset == dropped


def test_the_active_file_stays_and_so_does_one_that_is_not_synced() -> None:
    fs = CrashableFileSystem()
    queue = filled(fs)
    queue.retention.drop_oldest(0)
    assert queue.statistics().log_files == 1
    assert queue.latest == 40
    fs.fail_next("fsync")
    while queue.statistics().log_files == 1:  # the pass that a roll asks for fails
        queue.append([b"." * 150])
    assert queue.durable == 40
    assert queue.retention.drop_oldest(0) == 0
    queue.sync()
    assert queue.retention.drop_oldest(0) > 0


def test_cursors_move_to_what_is_left_and_stay_there() -> None:
    fs = CrashableFileSystem()
    queue = filled(fs)
    slow, fast = queue.cursor("slow"), queue.cursor("fast")
    fast.advance(39)
    queue.retention.drop_oldest(2000)
    earliest = queue.earliest
    assert (slow.position, fast.position) == (earliest, 39)
    queue.close()
    again = opened(fs)
    assert (again.cursor("slow").position, again.cursor("fast").position) == (earliest, 39)
    assert again.statistics().cursors_reset == 0


def steps_of_a_drop() -> int:
    fs = CrashableFileSystem()
    queue = filled(fs)
    before = fs.steps
    queue.retention.drop_oldest(2000)
    return fs.steps - before


@pytest.mark.parametrize("step", range(1, steps_of_a_drop() + 1))
def test_a_failure_at_each_step_counts_what_is_gone_and_is_made_good(step: int) -> None:
    fs = CrashableFileSystem()
    queue = filled(fs)
    queue.cursor("reader")
    fs.fail_at(fs.steps + step)
    with pytest.raises(Unavailable):
        queue.retention.drop_oldest(2000)
    assert queue.statistics().messages_dropped == queue.earliest
    assert queue.cursor("reader").position == queue.earliest
    fs.forget_faults()
    queue.retention.drop_oldest(2000)
    assert queue.size_bytes <= 2000
    assert queue.statistics().messages_dropped == queue.earliest
    assert [block.base_offset for block in queue.read(queue.earliest, 1)] == [queue.earliest]


@pytest.mark.parametrize("step", range(1, steps_of_a_drop() + 1))
def test_a_power_loss_at_each_step_leaves_whole_files_without_a_gap(step: int) -> None:
    for seed in range(3):
        fs = CrashableFileSystem()
        queue = filled(fs)
        queue.cursor("reader")
        fs.kill_at(fs.steps + step)
        with pytest.raises(PowerLoss):
            queue.retention.drop_oldest(2000)
        after = opened(fs.crash(seed))
        assert after.latest == 40
        assert after.verify().messages_lost == 0
        assert after.earliest <= after.cursor("reader").position
        after.retention.drop_oldest(2000)
        assert after.size_bytes <= 2000


def test_appends_go_on_while_a_file_is_deleted() -> None:
    class SlowDelete(CrashableFileSystem):
        deleted = 0

        def unlink(self, path: str) -> None:
            if path.endswith(".log"):
                self.deleted += 1
                assert appender.submit(queue.append, [b"meanwhile"]).result(timeout=120)
            super().unlink(path)

    fs = SlowDelete()
    with ThreadPoolExecutor(1) as appender, filled(fs) as queue:
        queue.sync()
        latest = queue.latest
        assert queue.retention.drop_oldest(1_000)
        assert fs.deleted > 1
        assert queue.latest == latest + fs.deleted
        assert queue.read(queue.earliest, 1)[0].base_offset == queue.earliest
