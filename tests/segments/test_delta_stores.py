"""Delta tables in object stores: entries are created by conditional puts."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.core.errors import InvalidRequest, StorageUnavailable
from penstock.core.intervals import Interval
from penstock.segments.delta import table_log
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_table import UNNEEDED_S, DeltaTable
from penstock.segments.visible_rows import VisibleFile, VisibleRows
from penstock.testing.clock import VirtualClock
from tests.kits.s3_server_kit import s3_bucket
from tests.segments.delta_kit import CLICKS
from tests.segments.visible_files_kit import DAY_MS, PLAIN

HOUR_MS = 3_600_000
_folders = (f"delta{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("delta-tables") as url:
        yield url


@pytest.fixture(params=["memory", "s3"])
def root(request: pytest.FixtureRequest, bucket: str) -> str:
    folder = next(_folders)
    return f"memory://{folder}" if request.param == "memory" else f"{bucket}/{folder}"


def written(root: str, number: int) -> VisibleFile:
    """Write a file with a row each hour of a day."""
    location = f"{root}/{CLICKS}/{number}.parquet"
    start_ms = number * DAY_MS
    times = [(start_ms + at * HOUR_MS) * 1000 for at in range(24)]
    table = pa.table({"__time": pa.array(times, pa.timestamp("us", "UTC"))})
    with fsspec.open(location, "wb") as file:
        pq.write_table(table, file)
    filesystem, path = fsspec.core.url_to_fs(location)
    interval = Interval(start_ms, start_ms + DAY_MS)
    return VisibleFile(location, 24, filesystem.size(path), interval)


def rows_of(revision: int, *files: VisibleFile) -> VisibleRows:
    return VisibleRows(revision, files, PLAIN, [PLAIN])


def opened(root: str, clock: VirtualClock | None = None) -> DeltaTable:
    return DeltaTable(CLICKS, DeltaFiles(root, CLICKS), "t", lambda: 100, clock or VirtualClock())


def test_a_table_is_written_read_and_deleted(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    clock = VirtualClock()
    table = opened(root, clock)
    files = [written(root, number) for number in range(3)]
    table.create(rows_of(1, files[0]))
    half = Interval(DAY_MS, DAY_MS + 12 * HOUR_MS)
    cut = VisibleFile(files[1].location, 24, files[1].size_bytes, files[1].interval, (half,))
    table.update(rows_of(2, files[0], cut))
    table.update(rows_of(3, cut, files[2]))
    other = opened(root)
    other.check()
    assert other.state.files == table.state.files
    assert sorted(file.rows for file in other.state.files.values()) == [12, 24]
    copies = [path for path in other.state.files if path.startswith("_delta_rows/")]
    with fsspec.open(f"{root}/{CLICKS}/{copies[0]}", "rb") as file:
        assert pq.read_table(file).num_rows == 12
    assert not table.delete()
    clock.advance(seconds=UNNEEDED_S)
    assert table.delete()
    filesystem, path = fsspec.core.url_to_fs(f"{root}/{CLICKS}")
    assert sorted(Path(name).name for name in filesystem.find(path)) == [
        f"{number}.parquet" for number in range(3)
    ]


def test_of_many_writers_each_entry_has_one(root: str) -> None:
    files = [written(root, number) for number in range(4)]
    opened(root).create(rows_of(1, files[0]))
    tables = [opened(root) for _ in range(4)]

    def write(table: DeltaTable) -> None:
        for count in range(2, 5):
            table.update(rows_of(count, *files[:count]))

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(write, tables))
    last = opened(root)
    last.check()
    assert last.state.version == 3
    assert len(last.state.files) == 4


def test_a_store_that_cannot_create_a_file_once_is_refused(tmp_path: Path) -> None:
    table = opened(f"local://{tmp_path}")
    with pytest.raises(InvalidRequest, match="only if it does not exist"):
        table.check_possible(rows_of(1))
    with pytest.raises(InvalidRequest, match="use a folder, or a store of S3"):
        table.create(rows_of(1))


def test_a_store_that_ignores_the_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    root = f"memory://{next(_folders)}"
    table = opened(root)
    table.check_possible(rows_of(1))
    put = MemoryFileSystem.pipe_file

    def pipe_file(self: MemoryFileSystem, path: str, value: bytes, mode: str) -> None:
        del mode
        put(self, path, value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    with pytest.raises(InvalidRequest, match="cannot create a file only if it does not exist"):
        table.check_possible(rows_of(1))
    assert fsspec.filesystem("memory").find(root) == []


def test_a_full_disk_for_temporary_files_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StorageUnavailable, match="no file can be created"):
        DeltaFiles(str(tmp_path), CLICKS).write_copy("a", "b", ())
