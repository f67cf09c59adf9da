"""One named test for each kind of damage, on the real disk and on the one in memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.storage.disk import OsFileSystem
from penstock.storage.queue.blocks import FILE_HEADER_BYTES, FileHeader, encode_file_header
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_reader import read_range
from penstock.testing.memory_disk import CrashableFileSystem

BLOCK = 48 + 8 + 104  # of one message of 100 bytes: header, starts, payload and padding
OPTIONS = DiskQueueOptions(
    max_bytes_per_file=FILE_HEADER_BYTES + 10 * BLOCK, sync_in_background=False
)


class Place:
    """A queue's folder, its files, and what was written to it."""

    def __init__(self, fs, folder):
        self.fs = fs
        self.folder = folder

    def open(self):
        return DiskQueue.open(self.folder, OPTIONS, fs=self.fs)

    def path(self, base):
        return f"{self.folder}/{base:020d}.log"

    def change(self, base, change):
        self.change_file(self.path(base), change)

    def change_file(self, path, change):
        if isinstance(self.fs, CrashableFileSystem):
            self.fs.damage(path, change)
            return
        content = bytearray(Path(path).read_bytes())
        change(content)
        Path(path).write_bytes(content)

    def bad_files(self):
        return [name for name in self.fs.listdir(self.folder) if name.endswith(".bad")]


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    """Thirty messages in three full log files."""
    if request.param == "disk":
        place = Place(OsFileSystem(), str(tmp_path / "queue"))
    else:
        place = Place(CrashableFileSystem(), "/queue")
    with place.open() as queue:
        for n in range(30):
            queue.append([message(n)])
    assert [n for n in place.fs.listdir(place.folder) if n.endswith(".log")] == [
        f"{base:020d}.log" for base in (0, 10, 20)
    ]
    return place


def message(n):
    return f"{n:03d}".encode() * 33 + b"."


def position(n):
    return FILE_HEADER_BYTES + n % 10 * BLOCK


def check(place, lost, *, bad=None, latest=30):
    """Everything but `lost` is there, in order, for both kinds of reader; the loss is counted."""
    with place.open() as queue:
        found = read_all(queue)
        gone = set(lost)
        assert found == [(n, message(n)) for n in range(latest) if n not in gone]
        assert queue.latest == latest
        assert queue.verify().messages_lost == len(gone)
        assert queue.verify().messages_lost == len(gone)
        mapped = [
            (part.base_offset + index, value)
            for part in read_range(place.folder, 0, latest, fs=place.fs)
            for index, value in enumerate(part.messages.to_pylist())
        ]
        assert mapped == found
        assert queue.append([message(latest)]).start == latest
        assert read_all(queue)[-1] == (latest, message(latest))
    if bad is not None:
        assert len(place.bad_files()) == bad
    with place.open() as queue:  # and again: known damage is not copied a second time
        assert queue.verify().messages_lost == len(gone)
    if bad is not None:
        assert len(place.bad_files()) == bad


def read_all(queue):
    found = []
    offset = queue.earliest
    while offset < queue.latest and (blocks := queue.read(offset, 300)):
        for block in blocks:
            found += list(enumerate(block.messages.to_pylist(), block.base_offset))
        offset = blocks[-1].base_offset + blocks[-1].count
    return found


def flip(at):
    def change(content):
        content[at] ^= 0x10

    return change


@pytest.mark.parametrize("base", [0, 10, 20])
@pytest.mark.parametrize(
    "at", [60, 49, 4, 0, 9, 13, 17, 25, 33, 45], ids=lambda at: f"byte {at} of the block"
)
def test_a_flipped_bit_costs_that_block_alone(place, base, at):
    place.change(base, flip(position(4) + at))
    check(place, [base + 4], bad=1)


def test_two_damaged_blocks_in_a_row(place):
    place.change(10, flip(position(4) + 60))
    place.change(10, flip(position(5) + 2))
    check(place, [14, 15], bad=2)


def test_the_first_and_the_last_block_of_a_file(place):
    place.change(10, flip(position(0) + 60))
    place.change(10, flip(position(9) + 1))
    check(place, [10, 19], bad=2)


def test_damage_in_the_body_of_the_very_last_block_keeps_its_offset(place):
    place.change(20, flip(position(9) + 60))
    check(place, [29], bad=1)


def test_damage_in_the_header_of_the_very_last_block_is_a_torn_tail(place):
    place.change(20, flip(position(9) + 1))
    check(place, [], bad=1, latest=29)


def test_the_tail_file_cut_inside_a_block(place, caplog):
    place.change(20, lambda content: content.__delitem__(slice(position(9) + 70, None)))
    with caplog.at_level(logging.WARNING), place.open() as queue:
        assert queue.statistics().torn_bytes == 70
        assert (queue.latest, queue.statistics().messages_lost) == (29, 0)
    assert "unfinished write" in caplog.text
    check(place, [], bad=1, latest=29)


def test_the_tail_file_cut_at_a_border(place):
    place.change(20, lambda content: content.__delitem__(slice(position(7), None)))
    check(place, [], bad=0, latest=27)


def test_a_middle_file_cut_inside_a_block(place):
    place.change(10, lambda content: content.__delitem__(slice(position(6) + 30, None)))
    check(place, range(16, 20), bad=1)


def test_a_middle_file_cut_at_a_border(place):
    place.change(10, lambda content: content.__delitem__(slice(position(6), None)))
    check(place, range(16, 20), bad=0)


@pytest.mark.parametrize("base", [0, 10])
def test_the_rest_of_a_file_zeroed(place, base):
    def zero(content):
        content[position(6) :] = bytes(len(content) - position(6))

    place.change(base, zero)
    check(place, range(base + 6, base + 10), bad=0)


def test_the_rest_of_the_tail_file_zeroed(place):
    def zero(content):
        content[position(6) :] = bytes(len(content) - position(6))

    place.change(20, zero)
    check(place, [], bad=0, latest=26)


@pytest.mark.parametrize("size", [0, 10, 64, 500])
def test_the_tail_file_empty_or_all_zeros(place, size):
    def zero(content):
        content[:] = bytes(size)

    place.change(20, zero)
    check(place, [], bad=0, latest=20)


def test_a_missing_middle_file(place):
    place.fs.unlink(place.path(10))
    check(place, range(10, 20), bad=0)


@pytest.mark.parametrize("base", [0, 10, 20])
def test_a_damaged_file_header_costs_nothing(place, base):
    place.change(base, flip(20))
    check(place, [], bad=0)


@pytest.mark.parametrize("base", [0, 10, 20])
def test_a_damaged_file_header_and_first_block(place, base):
    def damage(content):
        content[0 : FILE_HEADER_BYTES + 30] = b"?" * (FILE_HEADER_BYTES + 30)

    place.change(base, damage)
    check(place, [base], bad=1)


@pytest.mark.parametrize("base", [0, 10, 20])
def test_a_newer_format_is_refused_with_both_numbers(place, base):
    def newer(content):
        content[:64] = encode_file_header(FileHeader(base, 0, 0, 0, format_number=7))

    place.change(base, newer)
    with (
        pytest.raises(InvalidRequest, match="format number 7, but this release reads up to 1"),
        place.open() as queue,
    ):
        queue.verify()


def test_damage_is_logged_once(place, caplog):
    place.change(10, flip(position(4) + 60))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with place.open() as queue:
                queue.verify()
                queue.verify()
    assert caplog.text.count("lost 1 message, offsets 14 to 15") == 1


# -- cursor files


@pytest.fixture
def cursor_path(place):
    with place.open() as queue:
        queue.cursor("channel").advance(12)
    return f"{place.folder}/channel.cursor"


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.clear(),
        lambda content: content.__delitem__(slice(20, None)),
        lambda content: content.__setitem__(slice(None), b"?" * 32),
        flip(17),
    ],
    ids=["empty", "cut", "garbage", "bit"],
)
def test_an_unreadable_cursor_starts_at_the_earliest(place, cursor_path, change):
    place.change_file(cursor_path, change)
    with place.open() as queue:
        assert queue.cursor("channel", "latest").position == 0
        assert queue.statistics().cursors_reset == 1
    assert place.bad_files() == ["channel.cursor.bad"]
    with place.open() as queue:
        assert queue.statistics().cursors_reset == 0


def test_a_missing_cursor_holds_nothing_else_back(place, cursor_path):
    place.fs.unlink(cursor_path)
    with place.open() as queue:
        assert queue.statistics().cursors == {}
        assert len(read_all(queue)) == 30


def test_a_cursor_of_the_future_is_put_to_the_end(place, cursor_path):
    del cursor_path
    for base in (10, 20):
        place.fs.unlink(place.path(base))
    with place.open() as queue:
        assert queue.cursor("channel").position == queue.latest == 10
        queue.append([b"new"])
        assert read_all(queue)[queue.cursor("channel").position :] == [(10, b"new")]


def test_a_cursor_before_the_earliest_is_put_there(place, cursor_path):
    del cursor_path
    place.fs.unlink(place.path(0))
    place.fs.unlink(place.path(10))
    with place.open() as queue:
        assert queue.cursor("channel").position == queue.earliest == 20


def test_a_file_that_is_cut_while_it_is_written_costs_what_was_cut(place):
    with place.open() as queue:
        assert len(read_all(queue)) == 30

        def cut(content):
            del content[position(27) + 5 :]

        place.change(20, cut)
        assert read_all(queue) == [(n, message(n)) for n in range(27)]
        assert [part for block in queue.read(27, 1 << 20) for part in block.messages] == []
        assert queue.statistics().messages_lost == 3
        assert len(place.bad_files()) == 1
