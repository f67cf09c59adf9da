"""Sequence numbers of producers: with their messages or not at all, across crashes and rolls."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Unavailable
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.producers import ProducerTable, mark_of
from penstock.testing.memory_disk import CrashableFileSystem

if TYPE_CHECKING:
    from pathlib import Path

SMALL = DiskQueueOptions(max_bytes_per_file=600, sync_in_background=False, sync_every_messages=1)


def log_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def test_numbers_are_there_after_a_restart_however_often_it_rolled(tmp_path: Path) -> None:
    folder = str(tmp_path / "q")
    with DiskQueue.open(folder, SMALL) as queue:
        assert queue.last_sequence(7) is None
        for number in range(40):
            queue.append([b"x" * 50], producer=(number % 3, number))
            queue.append([b"y" * 50])
        assert queue.statistics().log_files > 5
    with DiskQueue.open(folder, SMALL) as queue:
        assert [queue.last_sequence(n) for n in range(4)] == [39, 37, 38, None]
        assert queue.statistics().producers == 3
        blocks = queue.read(0, 1 << 30)
    assert [m for b in blocks for m in b.messages.to_pylist()] == [b"x" * 50, b"y" * 50] * 40


def test_a_number_goes_with_its_torn_block_and_stays_with_a_whole_one(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    with DiskQueue.open(str(folder)) as queue:
        queue.append([b"first"], producer=(1, 5))
        queue.append([b"second"], producer=(1, 6))
    (log,) = log_files(folder)
    log.write_bytes(log.read_bytes()[:-8])
    with DiskQueue.open(str(folder)) as queue:
        assert (queue.latest, queue.last_sequence(1)) == (1, 5)


def test_a_damaged_first_block_sends_the_reader_to_the_file_before(tmp_path: Path) -> None:
    folder = tmp_path / "q"
    with DiskQueue.open(str(folder), SMALL) as queue:
        queue.append([b"a" * 100], producer=(1, 1))
        queue.append([b"b" * 200], producer=(2, 2))
        queue.append([b"c" * 250])
        queue.append([b"d" * 50], producer=(3, 3))
        assert queue.statistics().log_files == 2
    last = log_files(folder)[-1]
    data = bytearray(last.read_bytes())
    data[200] ^= 255
    last.write_bytes(data)
    with DiskQueue.open(str(folder), SMALL) as queue:
        assert queue.statistics().messages_lost == 1
        assert [queue.last_sequence(n) for n in (1, 2, 3)] == [1, 2, 3]


def test_a_clear_keeps_offsets_and_numbers(tmp_path: Path) -> None:
    folder = str(tmp_path / "q")
    with DiskQueue.open(folder) as queue:
        queue.retention.clear()
        queue.append([b"a", b"b"], producer=(1, 1))
        cursor = queue.cursor("reader", "earliest")
        queue.retention.clear()
        assert (queue.earliest, queue.latest, cursor.position) == (2, 2, 2)
        assert queue.read(2, 100) == []
        queue.retention.clear()
        queue.append([b"c"])
        assert queue.statistics().log_files == 1
    with DiskQueue.open(folder) as queue:
        assert (queue.earliest, queue.latest, queue.last_sequence(1)) == (2, 3, 1)


def test_what_is_forgotten_is_counted() -> None:
    table = ProducerTable(2)
    for producer in (1, 2, 1, 3):
        table.put(producer, 9, 0)
    assert (table.last(1), table.last(2), table.last(3), table.forgotten) == (9, None, 9, 1)


def test_an_owner_with_many_producers_loses_its_own_before_those_of_others() -> None:
    table = ProducerTable(8)
    ann = [mark_of(1, producer, 5) for producer in range(3)]
    for mark in (*ann, (77, 5)):
        table.put(*mark, 0)
    for producer in range(1_000):
        table.put(*mark_of(2, producer, 5), producer)
    assert [table.last(mark[0]) for mark in (*ann, (77, 5))] == [5] * 4
    assert [table.last(mark_of(2, producer, 0)[0]) for producer in (995, 996, 999)] == [None, 5, 5]
    # Two owners that want all of it have half of it each.
    for producer in range(1_000):
        table.put(*mark_of(1, producer, 6), producer)
    known = [sum(table.last(mark_of(o, p, 0)[0]) is not None for p in range(1_000)) for o in (1, 2)]
    assert (known, table.last(77), len(table)) == ([4, 3], 5, 8)


def test_one_producer_of_each_owner_that_published_last_is_remembered() -> None:
    table = ProducerTable(3)
    for owner in (1, 2, 3, 1, 4):
        table.put(*mark_of(owner, 9, owner), 0)
    known = [table.last(mark_of(owner, 9, 0)[0]) for owner in range(1, 5)]
    assert known == [1, None, 3, 4]


def test_owners_are_known_after_a_restart(tmp_path: Path) -> None:
    folder, options = str(tmp_path / "q"), replace(SMALL, max_producers=4)
    ann = mark_of(1, 3, 2**63 - 1)
    with DiskQueue.open(folder, options) as queue:
        queue.append([b"x"], producer=ann)
        queue.append([b"x"], producer=mark_of(1, 3, 7))
    for number in range(40):
        with DiskQueue.open(folder, options) as queue:
            queue.append([b"y" * 50], producer=mark_of(2, number, 0))
            assert queue.last_sequence(ann[0]) == 2**63 - 1
    with DiskQueue.open(folder, options) as queue:
        assert queue.statistics().producers == 4
        assert queue.last_append(mark_of(2, 39, 0)[0]) == (0, 41)


@given(
    st.lists(
        st.tuples(
            st.integers(2**64 - 3, 2**64 - 1), st.integers(0, 2**63 - 1), st.integers(1, 200)
        ),
        max_size=20,
    ),
    st.integers(0, 19),
)
def test_the_table_survives_reopening_at_any_point(
    steps: list[tuple[int, int, int]], reopen_at: int
) -> None:
    expected: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        queue = DiskQueue.open(folder, SMALL)
        for index, (producer, sequence, size) in enumerate(steps):
            if index == reopen_at:
                queue.close()
                queue = DiskQueue.open(folder, SMALL)
            queue.append([b"x" * size], producer=(producer, sequence))
            expected[producer] = max(sequence, expected.get(producer, 0))
        queue.close()
        with DiskQueue.open(folder, SMALL) as queue:
            assert {producer: queue.last_sequence(producer) for producer in expected} == expected


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 300)),
            st.sampled_from([("sync", 0), ("fails", 0)]),
            st.just(("other", 200)),
        ),
        max_size=25,
    ),
    st.integers(0, 1000),
)
def test_after_a_power_loss_a_number_is_known_just_when_its_messages_are_there(
    steps: list[tuple[str, int]], seed: int
) -> None:
    fs = CrashableFileSystem()
    options = replace(SMALL, sync_every_messages=1000, sync_interval_ms=1 << 40)
    queue = DiskQueue.open("/q", options, fs=fs)
    numbers = {"a": 0, "b": 0}
    for name, size in steps:
        with suppress(Unavailable):
            if name == "sync":
                queue.sync()
            elif name == "fails":
                fs.fail_next("fsync")  # so that a log file is begun while the last is not synced
            elif name == "other":
                queue.append([b"x" * size])
            else:
                numbers[name] += 1
                message = b"%s %d " % (name.encode(), numbers[name])
                queue.append([message.ljust(size, b".")], producer=(ord(name), numbers[name]))
    fs.forget_faults()
    for _ in range(2):
        fs = fs.crash(seed)
        with DiskQueue.open("/q", options, fs=fs) as queue:
            there: dict[bytes, int] = {}
            for block in queue.read(queue.earliest, 1 << 30):
                for message in block.messages.to_pylist():
                    if not message.startswith(b"x"):
                        name, number, *_ = message.split(b" ")
                        there[name] = int(number)
            known = {name: queue.last_sequence(name[0]) for name in (b"a", b"b")}
            assert known == {name: there.get(name) for name in (b"a", b"b")}


def test_a_number_does_not_outlive_the_whole_log_file_of_its_messages() -> None:
    options = replace(SMALL, sync_every_messages=1000, sync_interval_ms=1 << 40)
    fs = CrashableFileSystem()
    queue = DiskQueue.open("/q", options, fs=fs)
    queue.append([b"x" * 400], producer=(1, 1))
    fs.fail_next("fsync")
    queue.append([b"y" * 400])  # begins a log file, whose first block tells of the producer
    alone = 0
    for seed in range(300):
        with DiskQueue.open("/q", options, fs=fs.crash(seed)) as after:
            there = [m for b in after.read(after.earliest, 1 << 20) for m in b.messages.to_pylist()]
            assert (after.last_sequence(1) is not None) == (b"x" * 400 in there)
            alone += there == [b"y" * 400]
    assert alone
