"""Reading a queue's folder from outside, while its writer lives."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import NotFound
from penstock.storage.queue.disk_queue import DiskQueue, DiskQueueOptions
from penstock.storage.queue.log_reader import OffsetsDeleted, read_range
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem

SMALL = DiskQueueOptions(max_bytes_per_file=1500, sync_in_background=False, retention_ms=0)


def read(folder, start, end, **more):
    return [
        (part.base_offset + index, message)
        for part in read_range(folder, start, end, **more)
        for index, message in enumerate(part.messages.to_pylist())
    ]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    ends=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    max_block_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_any_range_gives_exactly_its_messages(sizes, ends, max_block_bytes):
    fs = CrashableFileSystem()
    written = []
    with DiskQueue.open("/q", SMALL, fs=fs, clock=VirtualClock()) as queue:
        for size in sizes:
            batch = [f"{len(written) + n}".encode() * n for n in range(size)]
            queue.append(batch)
            written += batch
    start, end = min(ends), max(ends)
    found = read("/q", start, end, fs=fs, max_block_bytes=max_block_bytes)
    assert found == list(enumerate(written))[start:end]


def test_it_reads_beside_the_writer_and_stops_at_an_unfinished_block(tmp_path):
    folder = str(tmp_path)
    with DiskQueue.open(folder) as queue:
        queue.append([b"a", b"b"])
        [path] = tmp_path.glob("*.log")
        with path.open("ab") as half:
            half.write(b"\x9dPB\x01 half a block")
        assert read(folder, 0, 100) == [(0, b"a"), (1, b"b")]
        queue.append([b"c" * 100])
        assert read(folder, 1, 100) == [(1, b"b"), (2, b"c" * 100)]


def test_slices_are_views_that_outlive_the_file(tmp_path):
    folder = str(tmp_path)
    with DiskQueue.open(folder) as queue:
        queue.append([b"%d" % n for n in range(100)])
        [part] = read_range(folder, 10, 20)
        [path] = tmp_path.glob("*.log")
        path.unlink()
        before = pa.total_allocated_bytes()
        assert part.messages.to_pylist()[0] == b"10"
        assert part.messages.offset == 10
        assert pa.total_allocated_bytes() == before
        path.touch()


def test_deleted_offsets_say_what_is_left(tmp_path):
    folder = str(tmp_path)
    with DiskQueue.open(folder, SMALL) as queue:
        for n in range(20):
            queue.append([b"%d" % n * 100])
        queue.sync()
        parts = read_range(folder, 0, 20)
        next(parts)
        earliest = queue.retention.retain(2**50).earliest
        assert earliest > 10
        with pytest.raises(OffsetsDeleted, match="earliest left") as caught:
            read(folder, 0, 20)
        assert caught.value.earliest == earliest
        with pytest.raises(OffsetsDeleted) as caught:
            list(parts)
        assert caught.value.earliest == earliest
        assert read(folder, earliest, 20)[0][0] == earliest


def test_a_damaged_block_is_left_out_and_nothing_is_put_in_its_place():
    fs = CrashableFileSystem()
    with DiskQueue.open("/q", SMALL, fs=fs, clock=VirtualClock()) as queue:
        for message in (b"a" * 99, b"b" * 99, b"c" * 99):
            queue.append([message, message])

        def flip(content):
            content[content.index(b"bbb")] ^= 1

        fs.damage("/q/00000000000000000000.log", flip)
        left = [(0, b"a"), (1, b"a"), (4, b"c"), (5, b"c")]
        for start, end in itertools.combinations(range(7), 2):
            expected = [(n, m * 99) for n, m in left if start <= n < end]
            assert read("/q", start, end, fs=fs) == expected


def test_folders_that_are_none(tmp_path):
    assert read(str(tmp_path), 5, 5) == []
    with pytest.raises(NotFound, match="no log files"):
        read(str(tmp_path), 0, 5)
    with pytest.raises(NotFound, match="nothing"):
        read(str(tmp_path / "nothing"), 0, 5)


def test_importing_it_is_cheap():
    """Spark starts many Python workers: they need no more than Arrow and the checksum."""
    script = (
        "import sys, penstock.storage.queue.log_reader; print([m for m in ('pandas', 'sqlalchemy',"
        " 'starlette', 'pyspark', 'pydantic', 'asyncio', 'pyarrow.compute') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
