"""The disk queue over the file system that can fail: what it promises to its users."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pyarrow as pa
import pytest

from penstock.core.errors import Closed, Conflict, Full, InvalidRequest, NotFound, Unavailable
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.cursors import CursorStore
from penstock.storage.queue.disk_queue import (
    DiskQueue,
    DiskQueueOptions,
    OffsetRange,
    OffsetsDeleted,
)
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

FOLDER = "/queue"


def options(**changes):
    return DiskQueueOptions(
        **{"max_bytes_per_file": 1000, "sync_in_background": False, "sync_every_messages": 10**9}
        | changes
    )


@pytest.fixture
def fs():
    return CrashableFileSystem()


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def open_queue(fs, clock):
    def open_it(on=None, **changes):
        return DiskQueue.open(FOLDER, options(**changes), fs=on or fs, clock=clock)

    return open_it


def messages_of(queue, start=None):
    offset = queue.earliest if start is None else start
    found = []
    while offset < queue.latest and (blocks := queue.read(offset, 1 << 20)):
        for block in blocks:
            found += [
                (block.base_offset + index, message)
                for index, message in enumerate(block.messages.to_pylist())
                if block.base_offset + index >= offset
            ]
        offset = blocks[-1].base_offset + blocks[-1].count
    return found


def fill(queue, count, size=100):
    return [queue.append([f"{n}".encode().ljust(size, b".")]) for n in range(count)]


def test_a_batch_gets_the_next_offsets_and_is_read_back(open_queue):
    queue = open_queue()
    assert queue.append([b"a", b"", b"ccc"]) == OffsetRange(0, 3)
    assert queue.append([b"d"]) == OffsetRange(3, 4)
    assert messages_of(queue) == [(0, b"a"), (1, b""), (2, b"ccc"), (3, b"d")]
    assert messages_of(queue, 2) == [(2, b"ccc"), (3, b"d")]
    assert (queue.earliest, queue.latest, queue.durable) == (0, 4, 0)


def test_an_empty_batch_writes_nothing(open_queue, fs):
    queue = open_queue()
    steps = fs.steps
    assert len(queue.append([])) == 0
    assert fs.steps == steps


def test_a_slice_of_an_arrow_array_is_written_as_what_it_shows(open_queue):
    queue = open_queue()
    array = pa.array([b"no", b"yes", b"", b"too", b"no"], pa.binary())
    queue.append(array.slice(1, 3))
    assert [message for _, message in messages_of(queue)] == [b"yes", b"", b"too"]


@pytest.mark.parametrize(
    "batch", [[b"a", None], [1], pa.array([b"a", None], pa.binary()), [b"x" * 3000]]
)
def test_a_batch_that_is_none_is_refused_and_changes_nothing(open_queue, batch):
    queue = open_queue(max_block_bytes=2000)
    with pytest.raises(InvalidRequest):
        queue.append(batch)
    assert queue.latest == 0


def test_files_roll_and_their_size_may_change_at_any_time(open_queue, fs):
    queue = open_queue(max_bytes_per_file=500)
    fill(queue, 8)
    queue.close()
    assert len([name for name in fs.listdir(FOLDER) if name.endswith(".log")]) == 4
    queue = open_queue(max_bytes_per_file=10_000)
    fill(queue, 8)
    queue.close()
    queue = open_queue(max_bytes_per_file=200)
    fill(queue, 3)
    assert [offset for offset, _ in messages_of(queue)] == list(range(19))


def test_a_batch_larger_than_a_file_gets_a_file_of_its_own(open_queue):
    queue = open_queue(max_bytes_per_file=100)
    fill(queue, 3, size=500)
    assert queue.statistics().log_files == 3
    assert len(messages_of(queue)) == 3


def test_durable_means_fsynced(open_queue, fs):
    queue = open_queue()
    queue.append([b"a"])
    assert queue.durable == 0
    queue.append([b"b"], durable=True)
    assert queue.durable == 2
    after = open_queue(fs.crash(1))
    assert [message for _, message in messages_of(after)] == [b"a", b"b"]


def test_so_many_messages_are_synced_without_being_asked(open_queue):
    queue = open_queue(sync_every_messages=3)
    queue.append([b"a", b"b"])
    assert queue.durable == 0
    queue.append([b"c"])
    assert queue.durable == 3


def test_the_interval_bounds_how_old_an_unsynced_message_is(open_queue, clock):
    queue = open_queue(sync_interval_ms=2000)
    queue.append([b"a"])
    clock.advance(ms=2000)
    queue.append([b"b"])
    assert queue.durable == 2


def test_after_an_fsync_that_failed_the_next_one_does_not_lie(open_queue, fs):
    queue = open_queue()
    queue.append([b"kept"], durable=True)
    queue.append([b"a" * 600])
    fs.fail_next("fsync")
    with pytest.raises(Unavailable, match="fsync"):
        queue.sync()
    assert queue.durable == 1
    assert queue.sync() == 2
    after = open_queue(fs.crash(1))
    assert [message for _, message in messages_of(after)] == [b"kept", b"a" * 600]


def test_a_roll_that_failed_leaves_no_file_that_cuts_the_one_before(open_queue, fs):
    for seed in range(20):
        disk = CrashableFileSystem()
        queue = open_queue(disk, max_bytes_per_file=500)
        fill(queue, 2)
        disk.fail_next("append")
        with pytest.raises(Unavailable):
            queue.append([b"x" * 300])  # needs a new file, whose header cannot be written
        queue.append([b"small"], durable=True)  # fits into the old one
        after = open_queue(disk.crash(seed))
        assert (2, b"small") in messages_of(after)


def test_what_a_killed_process_left_unsynced_is_not_called_durable(open_queue, fs):
    for seed in range(20):
        disk = CrashableFileSystem()
        queue = open_queue(disk, max_bytes_per_file=500)
        fill(queue, 4)
        disk = disk.kill_process()
        queue = open_queue(disk, max_bytes_per_file=500)
        assert (queue.latest, queue.durable) == (4, 0)
        assert queue.sync() == 4
        after = open_queue(disk.crash(seed), max_bytes_per_file=500)
        assert len(messages_of(after)) == 4


def test_a_full_disk_refuses_the_batch_and_the_next_one_works_when_there_is_room(open_queue, fs):
    queue = open_queue()
    queue.append([b"a"])
    fs.capacity_bytes = fs.used_bytes() + 50
    with pytest.raises(Unavailable, match="space"):
        queue.append([b"b" * 100])
    assert messages_of(queue) == [(0, b"a")]
    fs.capacity_bytes = None
    assert queue.append([b"b" * 100]) == OffsetRange(1, 2)
    assert len(messages_of(queue)) == 2


def test_a_write_cut_by_an_error_is_not_visible(open_queue, fs):
    queue = open_queue()
    queue.append([b"a"])
    size = len(fs.read_bytes(f"{FOLDER}/{0:020d}.log"))
    fs.fail_next("append", keep_bytes=60)
    with pytest.raises(Unavailable):
        queue.append([b"b" * 100])
    assert len(fs.read_bytes(f"{FOLDER}/{0:020d}.log")) == size
    assert queue.latest == 1


def test_a_read_only_disk_says_so(open_queue, fs):
    queue = open_queue()
    queue.append([b"kept"])
    queue.close()
    fs.read_only = True
    queue = open_queue()
    assert messages_of(queue) == [(0, b"kept")]
    with pytest.raises(Unavailable, match="read-only"):
        queue.append([b"refused"])
    queue.close()


def test_two_owners_of_one_folder(open_queue):
    queue = open_queue()
    with pytest.raises(Conflict, match="open"):
        open_queue()
    queue.close()
    open_queue().close()


def test_a_closed_queue_says_so(open_queue):
    queue = open_queue()
    queue.close()
    queue.close()
    for call in (lambda: queue.append([b"a"]), queue.sync, lambda: queue.read(0, 1)):
        with pytest.raises(Closed):
            call()


def test_reads_are_bounded_and_hold_at_least_one_block(open_queue):
    queue = open_queue(max_bytes_per_file=5000)
    fill(queue, 10)
    assert [block.base_offset for block in queue.read(0, 1)] == [0]
    some = queue.read(3, 400)
    assert [block.base_offset for block in some] == [3, 4]
    assert bytes(some[0].raw)[48:] != b""
    assert queue.read(10, 100) == []
    with pytest.raises(InvalidRequest, match="beyond"):
        queue.read(11, 100)


def test_offset_at_finds_the_first_message_of_a_time(open_queue, clock):
    queue = open_queue(max_bytes_per_file=2000)
    times = []
    for n in range(60):
        clock.advance(ms=10)
        times.append(clock.now_ms())
        queue.append([f"{n}".encode() * 30])
    assert queue.statistics().log_files > 3
    for offset, time_ms in enumerate(times):
        assert queue.offset_at(time_ms) == offset
        assert queue.offset_at(time_ms + 1) == offset + 1
    assert queue.offset_at(0) == 0


def test_times_never_go_back(open_queue, clock):
    queue = open_queue()
    queue.append([b"a"])
    first = queue.read(0, 1)[0].append_time_ms
    queue.close()
    earlier = DiskQueue.open(FOLDER, options(), fs=queue._fs, clock=VirtualClock(start_ms=5))
    earlier.append([b"b"])
    assert earlier.read(1, 1)[0].append_time_ms == first


def test_a_message_that_holds_the_bytes_of_the_log_itself_confuses_nobody(open_queue, fs):
    queue = open_queue(max_bytes_per_file=1 << 20)
    fill(queue, 50)
    own_blocks = b"".join(bytes(block.raw) for block in queue.read(0, 1 << 20))
    for pad in range(4):
        queue.append([b"-" * pad + own_blocks * 3])
    fill(queue, 50)
    everything = messages_of(queue)
    assert [offset for offset, _ in everything] == list(range(104))
    for offset in range(104):
        fresh = queue.read(offset, 1)[0]
        assert fresh.base_offset == offset
        queue._reader._places.clear()
    assert queue.statistics().messages_lost == 0
    queue.close()
    fs.damage(f"{FOLDER}/{0:020d}.log", lambda content: flip(content, -9000))
    queue = open_queue(max_bytes_per_file=1 << 20)
    kept = messages_of(queue)
    assert set(kept) < set(everything)
    assert queue.statistics().messages_lost == len(everything) - len(kept)


def flip(content, position):
    content[position] ^= 1


# -- cursors and retention


def test_a_cursor_survives_and_moves_forward(open_queue, fs):
    queue = open_queue()
    fill(queue, 5)
    cursor = queue.cursor("channel")
    cursor.advance(3)
    cursor.advance(2)
    assert cursor.position == 3
    with pytest.raises(InvalidRequest, match="ends at"):
        cursor.advance(6)
    queue.sync()
    after = open_queue(fs.crash(3))
    assert after.cursor("channel").position == 3
    moved = after.cursor("channel")
    moved.seek(1)
    assert after.statistics().cursors == {"channel": 1}
    moved.delete()
    with pytest.raises(NotFound, match="channel"):
        moved.advance(2)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "ü", "x" * 101])
def test_a_cursor_name_that_is_no_file_name_is_refused(open_queue, name):
    with pytest.raises(InvalidRequest, match="invalid"):
        open_queue().cursor(name)


def test_a_cursor_is_never_saved_beyond_what_is_durable(open_queue, fs):
    queue = open_queue()
    fill(queue, 4)
    queue.cursor("fast").advance(4)
    fs.fail_next("fsync")
    with pytest.raises(Unavailable):
        queue.sync()
    after = open_queue(fs.crash(7))
    assert after.cursor("fast").position <= after.latest
    assert after.statistics().cursors_reset == 0


def test_retention_deletes_what_is_consumed_and_old(open_queue, clock, fs):
    queue = open_queue(max_bytes_per_file=500, retention_ms=1000)
    fill(queue, 10)
    cursor = queue.cursor("slow")
    queue.sync()
    clock.advance(ms=5000)
    assert queue.retention.retain(clock.now_ms()).held_back_by == "slow"
    cursor.advance(5)
    report = queue.retention.retain(clock.now_ms())
    assert (report.files_deleted, report.earliest, report.held_back_by) == (2, 4, "slow")
    with pytest.raises(OffsetsDeleted) as caught:
        queue.read(3, 100)
    assert caught.value.earliest == 4
    cursor.delete()
    queue.retention.retain(clock.now_ms())
    assert queue.statistics().log_files == 1
    assert queue.latest == 10
    after = open_queue(fs.crash(1))
    assert (after.earliest, after.latest) == (8, 10)


def test_a_reader_that_keeps_up_lets_every_full_file_go(open_queue, clock):
    queue = open_queue(max_bytes_per_file=500, retention_ms=0)
    cursor = queue.cursor("live")
    for n in range(50):
        queue.append([f"{n}".encode() * 40])
        assert len(messages_of(queue, n)) == 1
        cursor.advance(n + 1)
        queue.sync()
        queue.retention.retain(clock.now_ms())
        assert queue.statistics().log_files <= 2
    names = queue._fs.listdir(FOLDER)
    assert [name for name in names if not name.endswith((".log", ".cursor"))] == []


def test_retention_by_size_and_none_keeps(open_queue, clock):
    queue = open_queue(max_bytes_per_file=500)
    fill(queue, 20)
    queue.sync()
    clock.advance(ms=10**9)
    assert queue.retention.retain(clock.now_ms()).files_deleted == 0
    queue.close()
    queue = open_queue(max_bytes_per_file=500, retention_bytes=1000)
    queue.sync()
    queue.retention.retain(clock.now_ms())
    assert 1000 <= queue.statistics().bytes < 1600


# -- the real disk, with its threads


def test_waiting_appends_share_fsyncs(tmp_path):
    class CountingFileSystem(OsFileSystem):
        """Holds the first fsync until every append waits."""

        def fsync_folder(self, folder):
            if folder.endswith("queue"):
                begun.set()
                assert everyone_waits.wait(120)
            super().fsync_folder(folder)

    begun, everyone_waits = threading.Event(), threading.Event()
    queue = DiskQueue.open(str(tmp_path / "queue"), fs=CountingFileSystem())
    first = queue.request_sync()
    assert begun.wait(120)
    with ThreadPoolExecutor(16) as pool:
        appends = [pool.submit(queue.append, [b"%d" % n], durable=True) for n in range(16)]
        while len(queue._syncer._waiters) < 16:
            queue.read(queue.latest, 1)
        everyone_waits.set()
        assert sorted(one.result().start for one in appends) == list(range(16))
    assert first.result() <= queue.durable
    assert queue.statistics().syncs == 2
    queue.close()


def threads_of(folder):
    return [one for one in threading.enumerate() if one.name.startswith(f"sync {folder}")]


def test_many_threads_append_and_read(tmp_path):
    queue = DiskQueue.open(str(tmp_path / "queue"), DiskQueueOptions(max_bytes_per_file=5000))
    with ThreadPoolExecutor(4) as pool:
        ranges = list(
            pool.map(lambda n: queue.append([b"%d" % n] * 3, durable=n % 10 == 0), range(200))
        )
    assert sorted(one.start for one in ranges) == list(range(0, 600, 3))
    by_offset = dict(messages_of(queue))
    for n, written in enumerate(ranges):
        assert by_offset[written.start] == b"%d" % n
    assert threads_of(tmp_path)
    queue.close()
    assert not threads_of(tmp_path)


def test_the_interval_syncs_in_the_background(tmp_path, clock):
    queue = DiskQueue.open(str(tmp_path / "queue"), clock=clock)
    queue.append([b"a"])
    clock.wait_for_waiting(1)
    assert queue.durable == 0
    clock.advance(ms=2000)
    while queue.durable == 0:
        queue.read(0, 1)
    queue.close()


def test_a_cancelled_request_does_not_stop_the_syncer(tmp_path):
    queue = DiskQueue.open(str(tmp_path / "queue"))
    queue.append([b"a"])
    queue.request_sync().cancel()
    assert queue.sync() == 1
    queue.close()


@pytest.mark.parametrize("seed", range(10))
def test_random_batches_come_back_in_order(open_queue, seed):
    rng = random.Random(seed)
    queue = open_queue(max_bytes_per_file=3000)
    expected = []
    for _ in range(40):
        batch = [rng.randbytes(rng.randint(0, 90)) for _ in range(rng.randint(1, 9))]
        expected += batch
        queue.append(batch)
    assert [message for _, message in messages_of(queue)] == expected


def test_a_full_file_grows_on_while_the_one_before_is_not_synced_but_not_for_ever(open_queue, fs):
    queue = open_queue(max_bytes_per_file=500)
    fill(queue, 2)
    fs.fail_next("fsync")
    fill(queue, 1)  # rolls; the sync of the first file fails, and has to wait for the interval
    for _ in range(4):
        queue.append([b"x" * 100], wait=False)
    with pytest.raises(Full, match="does not keep up"):
        queue.append([b"x" * 100], wait=False)
    latest = queue.latest
    assert latest == 7
    sizes = [fs.stat(f"{FOLDER}/{name}").size for name in fs.listdir(FOLDER)]
    assert len(sizes) == 2
    assert 500 < sizes[1] <= 1000
    assert queue.append([b"x" * 100]) == OffsetRange(latest, latest + 1)  # waits
    assert queue.statistics().log_files == 3
    assert [offset for offset, _ in messages_of(queue)] == list(range(latest + 1))


def test_an_event_loop_gets_room_again_without_anybody_asking_for_a_sync(open_queue, fs, clock):
    queue = open_queue(max_bytes_per_file=200)
    fill(queue, 1)
    fs.fail_next("fsync")
    fill(queue, 1)
    with pytest.raises(Full, match="does not keep up"):
        queue.append([b"x" * 300], wait=False)
    clock.advance(ms=3000)
    queue.append([b"x"], wait=False)  # still fits; the sync that is due comes with it
    assert queue.append([b"x" * 300], wait=False).start == 3


def test_a_failing_disk_is_asked_again_after_the_interval_and_not_with_each_append(
    open_queue, fs, clock
):
    queue = open_queue(sync_every_messages=1, sync_interval_ms=2000)
    fs.fail_next("fsync")
    fill(queue, 5)
    assert (queue.statistics().syncs, queue.statistics().sync_failures) == (1, 1)
    assert queue.durable == 0
    clock.advance(ms=2000)
    fill(queue, 1)
    assert queue.durable == 6


def test_the_first_sync_also_covers_the_name_of_the_folder(tmp_path):
    class Watched(OsFileSystem):
        synced: ClassVar[list[str]] = []

        def fsync_folder(self, folder):
            self.synced.append(folder)
            super().fsync_folder(folder)

    folder = str(tmp_path / "topic" / "0")
    (tmp_path / "topic" / "0").mkdir(parents=True)  # by a process that was killed before it synced
    with DiskQueue.open(folder, options(), fs=Watched()) as queue:
        queue.append([b"a"], durable=True)
        assert Watched.synced == [folder, str(tmp_path / "topic")]
        queue.append([b"a"], durable=True)
        assert len(Watched.synced) == 2


@pytest.mark.parametrize("failing", ["delete", "fsync"])
def test_a_cursor_whose_delete_failed_is_still_there_and_can_be_deleted_again(
    open_queue, fs, failing
):
    queue = open_queue()
    queue.append([b"a"], durable=True)
    cursor = queue.cursor("reader")
    fs.fail_next(failing)
    with pytest.raises(Unavailable):
        cursor.delete()
    assert queue.statistics().cursors == {"reader": 0}
    cursor.delete()
    assert queue.statistics().cursors == {}
    assert "reader" not in open_queue(fs.crash(1)).statistics().cursors


@pytest.mark.parametrize("failing", ["delete", "fsync"])
def test_a_cursor_whose_delete_failed_keeps_its_saved_position(fs, failing):
    """The next save wrote a lower one, as the log of a queue that was killed is less durable."""
    fs.mkdir(FOLDER)
    cursors = CursorStore(fs, FOLDER)
    cursors.create("reader", 5, 5)
    fs.fail_next(failing)
    with pytest.raises(Unavailable):
        cursors.delete("reader")
    assert cursors.unsaved
    cursors.save(durable=0)
    assert not cursors.unsaved
    found = CursorStore(fs, FOLDER)
    found.load(fs.listdir(FOLDER), 0, 9)
    assert found.all_positions() == {"reader": 5}


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_bytes_per_file": 0},
        {"sync_pause_ms": -1},
        {"retention_ms": -1},
        {"retention_bytes": -1},
        {"max_block_bytes": 0},
        {"max_block_bytes": 1 << 31},
        {"max_producers": 0},
        {"max_producers": 1 << 16},
    ],
)
def test_options_that_cannot_be_are_refused_by_name(wrong):
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        DiskQueueOptions(**wrong)


def test_a_saved_cursor_is_never_above_what_is_durable(open_queue, fs, clock):
    queue = open_queue()
    queue.append([b"a", b"b"], durable=True)
    cursor = queue.cursor("reader")
    queue.append([b"c", b"d"])
    cursor.advance(4)
    queue.retention.retain(clock.now_ms())  # saves cursors, and syncs no messages
    for seed in range(10):
        after = open_queue(fs.crash(seed))
        assert after.cursor("reader").position == 2
        assert after.statistics().cursors_reset == 0


def test_a_log_file_that_somebody_removed_does_not_stop_retention(open_queue, fs, clock):
    queue = open_queue(max_bytes_per_file=300, retention_bytes=0)
    fill(queue, 8)
    queue.sync()
    logs = [name for name in fs.listdir(FOLDER) if name.endswith(".log")]
    assert len(logs) >= 4
    fs.unlink(f"{FOLDER}/{logs[0]}")
    assert queue.retention.retain(clock.now_ms()).files_deleted == len(logs) - 1
    assert queue.statistics().log_files == 1


def test_retention_stops_where_the_queue_is_closed(tmp_path):
    class Watched(OsFileSystem):
        deleting = threading.Event()
        closing = threading.Event()
        deleted = 0

        def unlink(self, path):
            super().unlink(path)
            self.deleted += 1

        def fsync_folder(self, folder):
            super().fsync_folder(folder)
            if self.deleted:
                self.deleting.set()
                assert self.closing.wait(120)

    disk = Watched()
    chosen = DiskQueueOptions(max_bytes_per_file=300, retention_bytes=0, sync_interval_ms=60_000)
    queue = DiskQueue.open(str(tmp_path), chosen, fs=disk)
    for n in range(8):
        queue.append([f"{n}".encode().ljust(100, b".")])
        queue.sync()  # or the active log file might be overfull, and retention would roll it
    before = queue.statistics().log_files
    with ThreadPoolExecutor(2) as pool:
        retaining = pool.submit(queue.retention.retain, 0)
        assert disk.deleting.wait(120)
        closing = pool.submit(queue.close)
        while True:  # until the close has begun
            try:
                queue.read(queue.latest, 1)
            except Closed:
                break
        assert not closing.done()
        disk.closing.set()
        with pytest.raises(Closed):
            retaining.result(120)
        closing.result(120)
    assert disk.deleted == 1
    with DiskQueue.open(str(tmp_path), chosen) as again:
        assert again.statistics().log_files == before - 1


def test_a_deferred_batch_says_when_it_is_due_also_beside_a_producers_mark(open_queue):
    queue = open_queue()
    queue.append([b"now"])
    queue.append([b"later", b"too"], due_ms=77)
    queue.append([b"marked"], producer=(5, 9), due_ms=88)
    assert [block.due_ms for block in queue.read(0, 1 << 20)] == [0, 77, 88]
    queue.close()
    again = open_queue()
    assert again.last_sequence(5) == 9
    assert [block.due_ms for block in again.read(0, 1 << 20)] == [0, 77, 88]


def test_consumed_files_go_where_no_window_is_set(open_queue, clock):
    queue = open_queue(max_bytes_per_file=500)
    for n in range(30):
        queue.append([b"%d" % n * 20])
    queue.sync()
    assert queue.retention.retain(clock.now_ms()).files_deleted == 0
    held = queue.retention.retain(clock.now_ms(), held={"slow": 10}, consumed=True)
    assert 0 < queue.earliest <= 10
    assert held.held_back_by == "slow"
    queue.retention.retain(clock.now_ms(), held={"slow": 30}, consumed=True)
    assert queue.statistics().log_files == 1
