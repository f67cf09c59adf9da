"""Batch tasks on object stores: two attempts, and what is found of the one that was cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from penstock.core.clock import SystemClock
from penstock.segments.deep_storage import DeepStore
from penstock.segments.remote_files import RemoteFiles
from penstock.segments.segment_cache import NotCached, SegmentCache, StoredFile
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from tests.kits.s3_server_kit import s3_bucket
from tests.spark.spark_batch_kit import PARTS, external, lines, local, orphans, request

if TYPE_CHECKING:
    import s3fs

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def s3(s3_port: int) -> Iterator[s3fs.S3FileSystem]:
    import s3fs

    with s3_bucket("lake", s3_port):
        yield s3fs.S3FileSystem()


@pytest.fixture
def batch(sessions: SparkSessions, s3: s3fs.S3FileSystem) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions, SparkBatchOptions(split_bytes_min=4_000, parallelism=2))
    yield engine
    engine.close()


def test_inputs_and_segments_in_a_bucket(
    batch: SparkBatchEngine, s3: s3fs.S3FileSystem, tmp_path: Path
) -> None:
    s3.pipe_file("lake/in/a.json", lines(600))
    s3.pipe_file("lake/in/b.json", lines(400))
    s3.pipe_file("lake/in/c.txt", b"no row")
    store = DeepStore("s3://lake/segments")
    given = external({"type": "s3", "prefixes": ["s3://lake/in/"], "objectGlob": "**.json"})
    kept: list[str] = []
    for attempt in ("first", "second"):
        folder = store.attempt_folder("things", "task", attempt)
        result = batch.write(request(folder, given, PARTS))
        assert result.counts.processed == 1_000
        found = [file.data.path for file in result.files]
        assert all(path.startswith(f"{folder}/") for path in found)
        rows = 0
        for file in result.files:
            with s3.open(file.data.path) as stored:
                rows += pq.read_table(stored).num_rows
            assert s3.size(file.data.path) == file.data.bytes
        assert rows == 1_000
        kept = [*kept, *found]
    second = kept[len(kept) // 2 :]
    assert orphans(store, second) == sorted(kept[: len(kept) // 2])
    assert orphans(store, kept) == []


def test_files_of_a_bucket_are_copied_whole(s3: s3fs.S3FileSystem, tmp_path: Path) -> None:
    content = b"PAR1" + bytes(20 << 20) + b"PAR1"
    s3.pipe_file("lake/cached/a b/part.parquet", content)
    file = StoredFile("s3://lake/cached/a b/part.parquet", len(content))
    files = RemoteFiles("s3://lake/cached")
    cache = SegmentCache(
        *(tmp_path, 32 << 20, "s3://lake/cached", files, lambda: (), SystemClock()),
    )
    cache.start()
    try:
        with cache.leased([file], lambda: None, float("inf")):
            assert Path(cache.path_of(file) or "").read_bytes() == content
        missing = StoredFile("s3://lake/cached/none.parquet", 5)
        with (
            pytest.raises(NotCached, match="store"),
            cache.leased([missing], lambda: None, float("inf")),
        ):
            pass
    finally:
        cache.stop()


def test_files_of_a_url_of_this_host(batch: SparkBatchEngine, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_bytes(lines(100))
    given = external({"type": "s3", "uris": ["s3://lake/none.json"]})
    out = f"file://{tmp_path}/out"
    with pytest.raises(Exception, match=r"lake/none\.json does not exist"):
        batch.write(request(out, given, PARTS))
    result = batch.write(request(out, local(tmp_path / "rows.json"), PARTS))
    paths = [file.data.path for file in result.files]
    assert all(path.startswith(f"{out}/") for path in paths)
    assert sum(pq.read_table(path.removeprefix("file://")).num_rows for path in paths) == 100


def test_what_a_cut_write_leaves_is_found(tmp_path: Path) -> None:
    store = DeepStore(str(tmp_path / "deep"))
    folder = Path(store.attempt_folder("things", "task", "first"))
    left = [
        folder / ".scratch-0123" / "piece-0.json",
        folder / ".scratch-0123" / "0-0.arrow",
        folder / ".2013-01-01-0-0123.parquet.tmp",
        folder / "2013-01-01-0-0123.parquet",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1")
    assert orphans(store, []) == sorted(map(str, left))
