"""Files of large answers: what workers write, what the router reads, and when files are deleted."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.errors import Unavailable
from penstock.core.sql.lookup_calls import LookupRead
from penstock.core.sql.metadata_reads import MetadataRead
from penstock.core.sql.metadata_tables import METADATA_TABLES
from penstock.indexing.engine import EngineFailure
from penstock.spark.sql import answer_files
from penstock.spark.sql.answer_files import (
    BATCH_BYTES,
    FULL,
    TOO_LARGE,
    UNSHARED,
    AnswerFolder,
    AnswersFull,
    SpilledRows,
    SpillReport,
    SpillTarget,
    pieces,
    spill,
    used_bytes,
)
from penstock.spark.sql.lookup_tables import StatementLookups
from penstock.spark.sql.metadata_rows import MetadataRows
from penstock.spark.tables.table_files import Columns
from penstock.storage.lookup_rows import LookupTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def rows(begin: int, end: int, text: str = "x") -> pa.RecordBatch:
    numbers = pa.array(range(begin, end), pa.int64())
    return pa.record_batch([numbers, pa.array([text] * (end - begin))], names=["c0", "c1"])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[AnswerFolder]:
    made = AnswerFolder(tmp_path / "answers")
    made.open()
    yield made
    made.close()


def target_of(folder: AnswerFolder, rows_max: int = 1_000_000) -> SpillTarget:
    return SpillTarget(str(folder.new_answer()), str(folder.root), rows_max)


def files(folder: AnswerFolder) -> list[Path]:
    return [path for path in folder.root.glob("*/*") if path.name != "lock"]


def test_rows_come_back_in_order_and_cut_at_the_limit(folder: AnswerFolder) -> None:
    target = target_of(folder)
    written = [
        spill(target, 0, [rows(0, 30), rows(30, 50)]),
        spill(target, 1, []),
        spill(target, 2, [rows(50, 80)]),
    ]
    assert [report.rows for report in written] == [50, 0, 30]
    names = [report.file for report in written if report.rows]
    found = SpilledRows(SCHEMA, Path(target.folder), names, 60)
    table = pa.Table.from_batches(found.to_batches(), SCHEMA)
    assert table.column("n").to_pylist() == list(range(60))
    assert list(found.to_batches()) == list(found.to_batches())  # as often as is asked
    found.close()
    assert files(folder) == []


def test_a_worker_reports_its_longest_row(folder: AnswerFolder) -> None:
    target = target_of(folder)
    report = spill(
        target, 0, [rows(0, 5).slice(5), rows(0, 5), rows(5, 8, "y" * 1_000), rows(8, 9)]
    )
    assert report.row_bytes_max == 8 + 1_000
    assert spill(target, 1, []).row_bytes_max == 0


def test_batches_are_small_however_large_they_were_written(folder: AnswerFolder) -> None:
    target = target_of(folder)
    report = spill(target, 0, [rows(0, 5_000, "y" * 1_000)])
    found = SpilledRows(SCHEMA, Path(target.folder), [report.file], report.rows)
    sizes = [batch.nbytes for batch in found.to_batches()]
    assert len(sizes) > 4
    assert max(sizes) < 2 * BATCH_BYTES


def test_a_piece_has_one_row_at_least() -> None:
    assert [one.num_rows for one in pieces(rows(0, 5, "z" * 100), 10)] == [1] * 5
    assert [one.num_rows for one in pieces(rows(0, 5), 1_000_000, 2)] == [2, 2, 1]
    assert list(pieces(rows(0, 0), 10)) == []


def test_limits_end_the_writing_early(folder: AnswerFolder) -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield rows(0, 100_000)

    target = replace(target_of(folder, 10**9), checked_every_bytes=0)
    assert spill(replace(target, bytes_max=100_000), 0, endless()).problem == TOO_LARGE
    # The files of all partitions count.
    assert spill(replace(target, bytes_max=150_000), 1, endless()).problem == TOO_LARGE
    assert used_bytes(folder.root) < 2_000_000
    assert spill(replace(target, total_bytes_max=100_000), 2, endless()).problem == FULL
    assert spill(replace(target, free_bytes_min=1 << 60), 3, endless()).problem == FULL
    elsewhere = replace(target, folder=f"{target.folder}/elsewhere")
    assert spill(elsewhere, 4, endless()) == SpillReport("", 0, UNSHARED)


@pytest.mark.parametrize(("problem", "error"), [(TOO_LARGE, EngineFailure), (FULL, AnswersFull)])
def test_rows_of_the_router_are_written_whole_or_refused(
    folder: AnswerFolder,
    monkeypatch: pytest.MonkeyPatch,
    problem: str,
    error: type[Exception],
) -> None:
    monkeypatch.setattr(answer_files, "_limit_reached", lambda _target: problem)
    noise = np.random.default_rng(1).bytes(answer_files.CHECKED_EVERY_BYTES)
    table = pa.table({"text": pa.array([noise, b"the last row"])})
    with pytest.raises(error):
        folder.write(pa.Table.from_batches(table.to_batches(max_chunksize=1)))
    assert files(folder) == []


def test_rows_that_cannot_be_returned_leave_no_files(
    folder: AnswerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(answer_files, "SpilledRows", fail)
    with pytest.raises(MemoryError):
        folder.write(pa.table({"n": [1, 2]}))
    assert files(folder) == []


def test_partitions_write_no_more_than_the_answer_needs(folder: AnswerFolder) -> None:
    target = replace(target_of(folder, 100), checked_every_bytes=0)

    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield rows(0, 70)

    assert spill(target, 7, endless()).rows == 100
    assert spill(target, 0, [rows(0, 60)]).rows == 60
    assert spill(target, 2, endless()).rows == 100
    assert spill(target, 1, [rows(0, 30)]).rows == 30  # those before it have 60
    # What is complete before these is enough; one of them learns that while it writes.
    assert spill(target, 3, endless()) == SpillReport("", 0)
    assert spill(target, 8, endless()) == SpillReport("", 0)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(0, 10)
        spill(other, 0, [rows(0, 100)])
        yield from endless()

    other = replace(target_of(folder, 100), checked_every_bytes=0)
    assert spill(other, 1, overtaken()) == SpillReport("", 0)
    assert [path.name for path in Path(other.folder).iterdir() if path.name.startswith("1")] == []


def test_files_go_with_the_answer_that_nobody_refers_to(folder: AnswerFolder) -> None:
    found = folder.write(pa.table({"n": [1, 2], "text": ["a", "b"]}))
    assert [batch.num_rows for batch in found.to_batches()] == [2]
    assert len(files(folder)) == 1
    del found
    gc.collect()
    assert files(folder) == []


KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from penstock.spark.sql.answer_files import AnswerFolder
folder = AnswerFolder(Path(sys.argv[1]))
kept = folder.write(pa.table({"n": [1]}))
print("written", flush=True)
sys.stdin.read()
"""


def test_what_a_killed_router_left_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    root = tmp_path / "answers"
    command = [sys.executable, "-c", KILLED, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as router:
        assert router.stdout is not None
        assert router.stdout.readline() == b"written\n"
        # One that runs beside it leaves its files alone.
        other = AnswerFolder(root)
        other.open()
        assert used_bytes(root) > 0
        router.send_signal(signal.SIGKILL)
        router.wait(120)
    other.close()
    assert used_bytes(root) > 0
    following = AnswerFolder(root)
    following.open()
    assert used_bytes(root) == 0
    assert len(list(root.iterdir())) == 1
    following.close()
    assert list(root.iterdir()) == []


def test_an_answer_that_ends_while_sizes_are_summed_up_does_not_count(
    folder: AnswerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, ended = target_of(folder), target_of(folder)
    for target in (kept, ended):
        assert spill(target, 0, [rows(0, 10)]).rows == 10
    scan = os.scandir

    def scan_late(place: object) -> object:
        if str(place) == ended.folder:
            answer_files.delete_answer(Path(ended.folder))
        return scan(place)  # type: ignore[call-overload]

    before = used_bytes(Path(kept.folder), depth=1)
    monkeypatch.setattr(os, "scandir", scan_late)
    assert used_bytes(folder.root) == before > 0


def test_a_folder_that_cannot_be_written_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "answers").write_text("a file")
    folder = AnswerFolder(tmp_path / "answers")
    folder.open()  # a router starts all the same
    assert "large answers cannot be written to" in caplog.text
    with pytest.raises(Unavailable, match="large answers cannot be written to"):
        folder.new_answer()


class FullDisk(AnswerFolder):
    """A folder whose files cannot grow."""

    def new_answer(self) -> Path:
        folder = super().new_answer()
        (folder / "rows").symlink_to("/dev/full")
        return folder


def test_rows_of_metadata_and_lookups_on_a_full_disk_are_refused(tmp_path: Path) -> None:
    folder = FullDisk(tmp_path / "answers")
    folder.open()
    texts = [os.urandom(500).hex() for _ in range(100)]
    read = MetadataRead(METADATA_TABLES["sys", "segments"], frozenset({"segment_id"}))
    with closing(folder), closing(MetadataRows(read, folder)) as metadata:

        def fill() -> None:
            for _ in range(100):
                metadata.append({"segment_id": texts}, len(texts))

        with pytest.raises(Unavailable, match="No space left on device"):
            fill()
        metadata.close()
        table = pa.table({"k": [f"{number}{text}" for number in range(20) for text in texts]})
        source = OneLookup(LookupTable("names", 1, table))
        found = StatementLookups.of((LookupRead("names"),), source)
        with (
            pytest.raises(Unavailable, match="No space left on device"),
            found.views(cast("SparkSession", None), folder),
        ):
            pass
        assert not files(folder)


@dataclass(frozen=True)
class OneLookup:
    """`LookupSource` of one lookup."""

    table: LookupTable

    def names(self) -> list[str]:
        return [self.table.name]

    def current(self, name: str) -> LookupTable:
        del name
        return self.table

    def described(self) -> Iterator[tuple[str, Columns]]:
        yield from ()
