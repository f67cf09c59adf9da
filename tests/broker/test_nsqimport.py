"""Data folders of an nsqd, whole and with every damage that is known to happen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.nsq_import import (
    NsqdChannel,
    NsqdDamage,
    NsqdFolder,
    NsqdRecords,
    NsqdTopic,
    NsqImportOptions,
    QueueName,
    QueueReport,
)
from penstock.broker.nsq_import.metadata import parse_metadata
from penstock.broker.nsq_import.nsqd_records import RecordScanner
from penstock.core.errors import Conflict, NotFound
from penstock.storage.disk import OsFileSystem
from tests.broker.nsqd_writer_kit import TIME_NS, NsqdQueue, record, write_topics

TEXT = [b'{"number": %d, "text": "some words"}'.ljust(69) % i for i in range(100, 300)]


@pytest.fixture
def queue(tmp_path: Path) -> NsqdQueue:
    """200 records of 100 bytes, ten in a file."""
    made = NsqdQueue(tmp_path)
    made.put(*TEXT)
    made.sync()
    return made


def read(
    folder: Path, queue: str = "t", *, include_bad: bool = False, batch_bytes: int = 4_000_000
) -> tuple[list[NsqdRecords], QueueReport]:
    options = NsqImportOptions(include_bad=include_bad, batch_bytes=batch_bytes)
    with NsqdFolder.open(str(folder), fs=OsFileSystem(), options=options) as opened:
        reader = opened.read(QueueName.parse(queue))
        return list(reader), reader.report


def whole(batches: list[NsqdRecords]) -> list[bytes]:
    return [body for batch in batches if not batch.doubtful for body in batch.bodies.to_pylist()]


def doubtful(batches: list[NsqdRecords]) -> list[bytes]:
    return [body for batch in batches if batch.doubtful for body in batch.bodies.to_pylist()]


def without(*numbers: int) -> list[bytes]:
    return [body for i, body in enumerate(TEXT) if i not in numbers]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- whole folders


def test_everything_in_order(queue: NsqdQueue) -> None:
    before = content(queue.folder)
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT
    assert (report.records, report.doubtful, report.lost, report.metadata) == (200, 0, 0, "")
    assert report.expected == 200
    assert [file.records for file in report.files] == [len(batch) for batch in batches]
    assert sum(file.bytes_read for file in report.files) == sum(
        end - start for _, start, end in queue.places
    )
    assert np.concatenate([b.ids for b in batches]).tolist() == list(range(1, 201))
    times = np.concatenate([b.times_ns for b in batches])
    assert times.tolist() == [TIME_NS + i for i in range(200)]
    assert content(queue.folder) == before


@pytest.mark.parametrize("batch_bytes", [1, 100, 300])
def test_batches_are_bounded(queue: NsqdQueue, batch_bytes: int) -> None:
    batches, report = read(queue.folder, batch_bytes=batch_bytes)
    assert whole(batches) == TEXT
    assert report.lost == 0
    assert max(len(batch) for batch in batches) <= batch_bytes // 100 + 1


def test_attempts_empty_bodies_and_large_ones(tmp_path: Path) -> None:
    bodies = [b"", b"x" * 3_000_000, b"\0" * 100]
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(
        b"".join(record(i, body, attempts=i * 30_000) for i, body in enumerate(bodies))
    )
    batches, _ = read(tmp_path)
    assert whole(batches) == bodies
    assert np.concatenate([b.attempts for b in batches]).tolist() == [0, 30_000, 60_000]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 150, 199, 200])
def test_from_the_read_position(queue: NsqdQueue, count: int) -> None:
    queue.consume(count)
    queue.sync()
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT[count:]
    assert (report.metadata, report.expected, report.lost) == ("", 200 - count, 0)


def test_topics_channels_and_queues(tmp_path: Path) -> None:
    write_topics(
        tmp_path, ("b", True, [("y", False), ("x", True)]), ("a.diskqueue.000001", False, [])
    )
    for name in ("b", "b:x", "a.diskqueue.000001", "c;z", "..:w"):
        NsqdQueue(tmp_path, name).put(b"m")
    NsqdQueue(tmp_path, "d").sync()
    (tmp_path / "nsqd.dat.123.tmp").write_bytes(b"")
    (tmp_path / "b.diskqueue.meta.dat.99.tmp").write_bytes(b"")
    with NsqdFolder.open(str(tmp_path), fs=OsFileSystem()) as folder:
        assert folder.topics == (
            NsqdTopic("b", True, (NsqdChannel("y"), NsqdChannel("x", True))),  # noqa: FBT003
            NsqdTopic("a.diskqueue.000001"),
            NsqdTopic("..", channels=(NsqdChannel("w"),)),
            NsqdTopic("c", channels=(NsqdChannel("z"),)),
            NsqdTopic("d"),
        )
        queues = [("..", "w"), ("a.diskqueue.000001", ""), ("b", ""), ("b", "x"), ("c", "z")]
        assert folder.queues == tuple(QueueName(*queue) for queue in queues)
        assert [str(queue) for queue in folder.queues][2:4] == ["b", "b:x"]
        assert any("'..'" in text and "is not a valid name" in text for text in folder.warnings)
        assert any("c:z" in text for text in folder.warnings)
        with pytest.raises(NotFound, match="no files"):
            folder.read(QueueName("d"))


@pytest.mark.parametrize("damaged", [None, b"", b'{"topics":[{"na', b'{"topics":[{"name":1}]}'])
def test_without_a_sound_list_of_topics(queue: NsqdQueue, damaged: bytes | None) -> None:
    NsqdQueue(queue.folder, "t:c").put(b"m")
    if damaged is not None:
        (queue.folder / "nsqd.dat").write_bytes(damaged)
    with NsqdFolder.open(str(queue.folder), fs=OsFileSystem()) as folder:
        assert folder.topics == (NsqdTopic("t", channels=(NsqdChannel("c"),)),)
        assert "nsqd.dat" in folder.warnings[0]


def test_a_running_nsqd_is_noticed(queue: NsqdQueue) -> None:
    lock = OsFileSystem().lock_folder(str(queue.folder))  # nsqd locks its folder in the same way
    with pytest.raises(Conflict):
        NsqdFolder.open(str(queue.folder), fs=OsFileSystem())
    lock.release()


def test_pipes_and_devices_among_the_files_cost_nothing(tmp_path: Path) -> None:
    NsqdQueue(tmp_path).put(*TEXT[:5])
    os.mkfifo(tmp_path / "t.diskqueue.000001.dat")
    (tmp_path / "z.diskqueue.000000.dat").symlink_to("/dev/zero")
    with NsqdFolder.open(str(tmp_path), fs=OsFileSystem()) as folder:
        for name, bodies in (("t", TEXT[:5]), ("z", [])):
            reader = folder.read(QueueName(name))
            assert whole(list(reader)) == bodies
            assert reader.report.files[-1].state == "unreadable"


# -- metadata


@pytest.mark.parametrize("cut", [None, b"", b"700\n2,93", b"200\n0,0\n14,2", b"x\n0,0\n0,0\n"])
def test_metadata_that_is_missing_or_cut_costs_nothing(queue: NsqdQueue, cut: bytes | None) -> None:
    queue.consume(15)
    queue.metadata.unlink()
    if cut is not None:
        queue.metadata.write_bytes(cut)
    batches, report = read(queue.folder)
    # What was handed out of the file that was being read comes again.
    assert whole(batches) == TEXT[10:]
    assert "everything was read" in report.metadata
    assert report.expected is None


def test_stale_metadata_reads_what_was_written_since(tmp_path: Path) -> None:
    queue = NsqdQueue(tmp_path)
    queue.put(*TEXT[:20])
    queue.consume(3)
    queue.sync()
    queue.put(*TEXT[20:])
    batches, report = read(tmp_path)
    assert whole(batches) == TEXT[3:]
    assert (report.expected, report.lost) == (None, 0)


def test_stale_metadata_whose_read_file_is_gone(queue: NsqdQueue) -> None:
    queue.consume(9)
    queue.sync()
    queue.path(0).unlink()
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT[10:]
    assert "file 0" in report.metadata


@pytest.mark.parametrize("text", ["9\n99,0\n99,5\n", "9\n3,0\n2,0\n", "9\n0,17\n14,5\n"])
def test_metadata_that_does_not_fit_the_files(queue: NsqdQueue, text: str) -> None:
    queue.metadata.write_text(text)
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT
    assert "everything was read" in report.metadata


def test_files_that_were_overwritten_in_place_after_the_metadata_was_lost(
    queue: NsqdQueue,
) -> None:
    new = b"".join(record(i, b"new %d" % i) for i in (500, 501, 502))
    queue.damage(0, 0, new)
    queue.metadata.write_text(f"3\n0,0\n0,{len(new)}\n")
    batches, report = read(queue.folder)
    # The old record that the last new one ends in is torn; all behind it are there.
    torn = next(i for i, place in enumerate(queue.places) if place[2] > len(new))
    assert whole(batches) == [b"new 500", b"new 501", b"new 502", *TEXT[torn + 1 :]]
    assert len(report.files[0].damage) == 1
    assert report.doubtful == 0


def test_files_behind_the_read_position_are_left_out(queue: NsqdQueue) -> None:
    kept = queue.path(0).read_bytes()
    queue.consume(20)
    queue.sync()
    queue.path(0).write_bytes(kept)
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT[20:]
    assert [file.state for file in report.files][:2] == ["consumed", "read"]


def test_metadata_is_read_strictly() -> None:
    assert parse_metadata(b"-3\n2,9314\n8,190\n") is not None
    for wrong in (b"1\n2,3\n4,5", b"1\n2,3\n4,5\n6", b"1\n-2,3\n4,5\n", b"1 \n2,3\n4,5\n"):
        assert parse_metadata(wrong) is None


# -- damaged files


@pytest.mark.parametrize("length", [0, 7, -1, 2**31 - 1, 5_000])
@pytest.mark.parametrize("number", [20, 25, 29])
def test_a_damaged_length_costs_no_other_record(queue: NsqdQueue, number: int, length: int) -> None:
    file, start, _ = queue.places[number]
    queue.damage(file, start, length.to_bytes(4, "big", signed=True))
    batches, report = read(queue.folder)
    assert whole(batches) == without(number)
    # The last of a file has nothing behind it that would tell where it ends.
    if number == 29:
        assert report.lost == 1
        assert len(report.files[2].damage) == 1
    else:
        assert doubtful(batches) == [TEXT[number]]
        assert report.lost == 0


@pytest.mark.parametrize("change", [-29, -1, 1, 30, 70])
def test_a_length_that_is_legal_but_wrong(queue: NsqdQueue, change: int) -> None:
    file, start, end = queue.places[23]
    queue.damage(file, start, (end - start - 4 + change).to_bytes(4, "big"))
    batches, report = read(queue.folder)
    assert whole(batches) == without(23)
    assert doubtful(batches) == [TEXT[23]]
    assert (report.records, report.doubtful, report.lost) == (199, 1, 0)
    (doubt,) = report.files[2].doubts
    assert doubt.position == start
    assert ("extends over" if change > 0 else f"ends {-change} bytes before") in doubt.reason


@pytest.mark.parametrize("with_metadata", [True, False])
@pytest.mark.parametrize("noise", [b"\xa5" * 100, b"\0" * 100, bytes(range(100)), b"\xa5" * 350])
def test_a_record_that_stands_before_noise_is_whole(
    queue: NsqdQueue, noise: bytes, with_metadata: bool
) -> None:
    if not with_metadata:
        queue.metadata.unlink()
    file, start, _ = queue.places[23]
    queue.damage(file, start, noise)
    batches, report = read(queue.folder)
    count = -(-len(noise) // 100)
    assert whole(batches) == without(*range(23, 23 + count))
    assert (report.records, report.doubtful, report.lost) == (200 - count, 0, count)
    # And the last one, behind which noise was appended.
    with queue.path(19).open("ab") as tail:
        tail.write(noise)
    batches, report = read(queue.folder)
    assert whole(batches)[-1] == TEXT[-1]
    assert (report.records, report.doubtful) == (200 - count, 0)


def test_losses_of_the_files_add_up_to_that_of_the_queue(queue: NsqdQueue) -> None:
    queue.cut(*queue.places[23][:2])  # seven records, without a trace
    for number in (43, 55):
        queue.damage(*queue.places[number][:2], b"\xa5" * 100)
    queue.path(7).unlink()
    _, report = read(queue.folder)
    assert report.lost == sum(file.lost for file in report.files) == 7 + 2 + 10
    queue.path(5).rename(queue.folder / "elsewhere")
    _, report = read(queue.folder)
    assert report.lost == sum(file.lost for file in report.files) == 7 + 1 + 20


def test_files_that_were_renumbered_are_no_loss(queue: NsqdQueue) -> None:
    for number in range(1, 20):
        queue.path(number).rename(queue.path(number + 100_000))
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT
    assert report.lost == 0
    queue.path(100_007).unlink()
    _, report = read(queue.folder)
    assert report.lost == 10


def test_a_damaged_head(queue: NsqdQueue) -> None:
    file, start, _ = queue.places[23]
    queue.damage(file, start + 14, b"XYZ")
    batches, report = read(queue.folder)
    assert whole(batches) == without(23)
    assert report.lost == 1
    (damage,) = report.files[2].damage
    assert (damage.start, damage.end) == queue.places[23][1:]
    assert damage.reason == "not a valid time and id of a message"


def test_garbage_over_two_records(queue: NsqdQueue) -> None:
    file, start, _ = queue.places[23]
    queue.damage(file, start - 10, b"\xa5" * 60)
    batches, report = read(queue.folder)
    # Without a checksum the end of record 22 is as good as any other body: its length fits.
    assert len(whole(batches)) == 199
    assert doubtful(batches) == []
    assert report.lost == 1


def test_a_middle_file_that_is_cut(queue: NsqdQueue) -> None:
    file, start, _ = queue.places[23]
    queue.cut(file, start + 33)
    batches, report = read(queue.folder)
    assert whole(batches) == without(*range(23, 30))
    assert report.lost == 7
    (damage,) = report.files[2].damage
    assert damage.reason == "the file ends within a record"


def test_a_middle_file_that_is_cut_between_records(queue: NsqdQueue) -> None:
    queue.cut(*queue.places[23][:2])
    batches, report = read(queue.folder)
    assert whole(batches) == without(*range(23, 30))
    assert report.lost == 7
    assert not any(file.damage for file in report.files)


@pytest.mark.parametrize("into", [0, 3, 40])
def test_the_rest_of_a_file_zeroed(queue: NsqdQueue, into: int) -> None:
    file, start, _ = queue.places[23]
    size = queue.path(file).stat().st_size
    queue.damage(file, start + into, b"\0" * (size - start - into))
    queue.metadata.unlink()
    batches, report = read(queue.folder)
    lost = report.lost + report.doubtful
    assert whole(batches)[:23] == TEXT[:23]
    assert whole(batches)[-170:] == TEXT[30:]
    assert lost in {6, 7}
    assert len(report.files[2].damage) == 1


def test_a_tail_file_that_is_cut(queue: NsqdQueue) -> None:
    file, start, _ = queue.places[199]
    queue.cut(file, start + 5)
    batches, report = read(queue.folder)
    assert whole(batches) == TEXT[:199]
    assert report.lost == 1


def test_missing_files(queue: NsqdQueue) -> None:
    for number in (3, 4):
        queue.path(number).unlink()
    batches, report = read(queue.folder)
    assert whole(batches) == without(*range(30, 50))
    assert report.lost == 20
    (missing,) = [file for file in report.files if file.state == "missing"]
    assert (missing.name, missing.file_count) == ("t.diskqueue.000003.dat", 2)
    queue.metadata.unlink()
    assert read(queue.folder)[1].lost == 20  # an estimate


def test_a_missing_tail_file(queue: NsqdQueue) -> None:
    queue.path(queue.file).unlink()
    _, report = read(queue.folder)
    assert report.files[-1].state == "missing"
    assert report.lost == sum(place[0] == queue.file for place in queue.places)


def test_an_empty_file(queue: NsqdQueue) -> None:
    queue.cut(1, 0)
    batches, report = read(queue.folder)
    assert whole(batches) == without(*range(10, 20))
    assert report.lost == 10


def test_files_that_nsqd_set_aside_are_read_when_asked(queue: NsqdQueue) -> None:
    for number in (0, 5):
        path = queue.path(number)
        path.rename(f"{path}.bad")
    queue.metadata.write_text(f"190\n1,0\n{queue.file},{queue.position}\n")
    batches, report = read(queue.folder)
    assert whole(batches) == without(*range(10), *range(50, 60))
    assert report.lost == 10
    batches, report = read(queue.folder, include_bad=True)
    assert whole(batches) == TEXT


def test_a_file_that_is_nothing_but_garbage(tmp_path: Path) -> None:
    (tmp_path / "t.diskqueue.000000.dat").write_bytes(b"0123456789abcdef" * 200_000)
    batches, report = read(tmp_path)
    assert batches == []
    assert report.lost == 1
    (damage,) = report.files[0].damage
    assert (damage.start, damage.end) == (0, 3_200_000)


# -- any damage


def pieces(data: bytes, batch_bytes: int = 200) -> list[NsqdRecords | NsqdDamage]:
    return list(RecordScanner(memoryview(data), 1_000_000, batch_bytes).scan(0))


def spans(found: list[NsqdRecords | NsqdDamage]) -> Iterator[tuple[int, int]]:
    for item in found:
        if isinstance(item, NsqdDamage):
            yield item.start, item.end
        else:
            yield (
                item.position,
                item.position + 30 * len(item) + sum(map(len, item.bodies.to_pylist())),
            )


@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=20),
    st.integers(0, 2_000),
    st.binary(min_size=1, max_size=80),
    st.integers(1, 400),
)
def test_whatever_is_overwritten_costs_only_what_it_touches(
    bodies: list[bytes], at: int, garbage: bytes, batch_bytes: int
) -> None:
    records = [record(i, body) for i, body in enumerate(bodies)]
    good = b"".join(records)
    at = min(at, len(good) - 1)
    data = (good[:at] + garbage + good[at + len(garbage) :])[: len(good)]
    found = pieces(data, batch_bytes)
    borders = list(spans(found))
    assert borders[0][0] == 0
    assert borders[-1][1] == len(data)
    assert all(before[1] == after[0] for before, after in pairwise(borders))
    ends = np.cumsum([len(r) for r in records]).tolist()
    touched = {
        i for i, end in enumerate(ends) if at < end and at + len(garbage) > end - len(records[i])
    }
    sure = [i for i in range(len(bodies)) if i not in touched]
    given_whole = [
        (int(i), body)
        for item in found
        if isinstance(item, NsqdRecords) and not item.doubtful
        for i, body in zip(item.ids, item.bodies.to_pylist(), strict=True)
    ]
    # Others may be among them: what was overwritten may have become another record's id.
    rest = iter(given_whole)
    assert all((i + 1, bodies[i]) in rest for i in sure)


def test_reading_a_real_file_system_folder_twice_gives_the_same() -> None:
    with tempfile.TemporaryDirectory() as name:
        queue = NsqdQueue(Path(name))
        queue.put(*TEXT)
        assert whole(read(Path(name))[0]) == whole(read(Path(name))[0]) == TEXT
