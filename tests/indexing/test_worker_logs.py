"""Logs and reports of tasks: read while they run, kept after, within bounds."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_log import LogPart
from penstock.indexing.worker.log_store import LogStore, LogStoreOptions, TaskLogs, part_bounds
from penstock.indexing.worker.task_attempts import TaskAttempts
from penstock.storage.disk import OsFileSystem
from tests.harness.mailbox_kit import StepLanes

_memory_stores = itertools.count()


@pytest.fixture(params=["folder", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    if request.param == "folder":
        return LogStore(str(tmp_path / "kept"))
    return LogStore(f"memory://logs{next(_memory_stores)}")


@pytest.fixture
def lanes() -> StepLanes:
    return StepLanes()


@pytest.fixture
def logs(tmp_path: Path, store: LogStore, lanes: StepLanes) -> TaskLogs:
    return TaskLogs([str(tmp_path / "one"), str(tmp_path / "two")], OsFileSystem(), store, lanes)


def task_folder(tmp_path: Path, log: bytes, base: str = "two") -> TaskFolder:
    folder = TaskFolder(str(tmp_path / base / "t"), OsFileSystem())
    Path(folder.path, "log").write_bytes(log)
    return folder


def test_a_log_is_read_while_it_grows_and_when_its_folder_is_gone(
    tmp_path: Path, logs: TaskLogs, lanes: StepLanes
) -> None:
    folder = task_folder(tmp_path, b"0123")
    assert logs.read_log("t", 2) == LogPart(b"23", 2, 4)
    with Path(folder.path, "log").open("ab") as stream:
        stream.write(b"456789")
    assert logs.read_log("t", 4) == LogPart(b"456789", 4, 10)
    shipped = logs.ship("t", folder.path)
    lanes.run_one("task logs")
    shipped.result(0)
    folder.remove()
    for offset, size in ((0, 3), (-4, 2), (4, 100), (10, 5), (99, 5), (-99, 100)):
        start, end = part_bounds(10, offset, size)
        assert logs.read_log("t", offset, size) == LogPart(b"0123456789"[start:end], start, 10)


def test_the_newest_report_is_read_in_both_places(
    tmp_path: Path, logs: TaskLogs, lanes: StepLanes
) -> None:
    folder = task_folder(tmp_path, b"")
    with pytest.raises(NotFound):
        logs.read_report("t")
    attempts = TaskAttempts(folder, OsFileSystem())
    for number in (1, 2):
        attempts.write_report(attempts.begin(restorable=True), {"attempt": number})
    attempts.begin(restorable=True)  # was cut
    assert logs.read_report("t") == b'{"attempt":2}'
    logs.ship("t", folder.path)
    lanes.run_one("task logs")
    folder.remove()
    assert logs.read_report("t") == b'{"attempt":2}'


def test_a_task_that_never_ran_leaves_an_empty_log(
    tmp_path: Path, logs: TaskLogs, lanes: StepLanes
) -> None:
    folder = TaskFolder(str(tmp_path / "one" / "t"), OsFileSystem())
    logs.ship("t", folder.path).add_done_callback(lambda done: done.result(0))
    lanes.run_one("task logs")
    folder.remove()
    assert logs.read_log("t") == LogPart(b"", 0, 0)
    with pytest.raises(NotFound):
        logs.read_report("t")


@pytest.mark.parametrize("task_id", ["unknown", "../one/t", "..", "", "a\0b", ".hidden"])
def test_there_is_no_log_of_what_is_no_task(tmp_path: Path, logs: TaskLogs, task_id: str) -> None:
    task_folder(tmp_path, b"x", "one")
    for read in (logs.read_log, logs.read_report):
        with pytest.raises(NotFound, match="no log"):
            read(task_id)


def test_of_a_large_log_the_end_is_kept(tmp_path: Path, lanes: StepLanes) -> None:
    store = LogStore(str(tmp_path / "kept"), LogStoreOptions(log_bytes_max=4))
    logs = TaskLogs([str(tmp_path / "two")], OsFileSystem(), store, lanes)
    folder = task_folder(tmp_path, b"begin and end!")
    logs.ship("t", folder.path)
    lanes.run_one("task logs")
    folder.remove()
    assert logs.read_log("t").content == b"end!"


def test_kept_logs_are_bounded_by_number_and_size(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    options = LogStoreOptions(tasks_max=3, total_bytes_max=100, tidy_every=1_000)
    store = LogStore(str(kept), options)

    def put(task_id: str, size: int, modified_s: int) -> list[str]:
        store.put(task_id, bytes(size), b"{}")
        for path in kept.glob(f"{task_id}.*"):
            os.utime(path, (modified_s, modified_s))
        store.delete_excess()
        names = sorted(path.name.partition(".")[0] for path in kept.glob("*.log"))
        assert names == sorted(path.name.partition(".")[0] for path in kept.glob("*.json"))
        return names

    assert put("a", 10, 1) == ["a"]
    assert put("b", 10, 2) == ["a", "b"]
    assert put("c", 10, 3) == ["a", "b", "c"]
    assert put("d", 10, 4) == ["b", "c", "d"]
    assert put("e", 80, 5) == ["d", "e"]
    assert put("f", 500, 6) == ["f"]
    (kept / "notes.txt").write_text("not ours")
    store.delete_excess()
    assert (kept / "notes.txt").exists()


def test_a_task_whose_id_ends_like_a_log_is_counted_alone(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    store = LogStore(str(kept), LogStoreOptions(tasks_max=1, tidy_every=1_000))
    for number, task_id in enumerate(("t", "t.log")):
        store.put(task_id, b"1", b"{}")
        for path in kept.glob(f"{task_id}.*"):
            os.utime(path, (number, number))
    store.delete_excess()
    assert sorted(path.name for path in kept.iterdir()) == ["t.log.log", "t.log.report.json"]


def test_now_and_then_the_store_is_tidied(tmp_path: Path) -> None:
    store = LogStore(str(tmp_path / "kept"), LogStoreOptions(tasks_max=2, tidy_every=4))
    for number in range(12):
        store.put(f"t{number}", b"x", None)
    assert len(list((tmp_path / "kept").iterdir())) <= 2


def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="install the fsspec package"):
        LogStore("nosuchscheme://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot write t"):
        LogStore(str(tmp_path / "file" / "below")).put("t", b"", None)


@given(st.binary(max_size=50), st.integers(-60, 60), st.integers(1, 60))
def test_parts_are_slices(log: bytes, offset: int, size: int) -> None:
    start, end = part_bounds(len(log), offset, size)
    expected = log[offset:][:size] if offset >= 0 or -offset <= len(log) else log[:size]
    assert log[start:end] == expected


def test_logs_of_others_in_folders_below_are_left_alone(tmp_path: Path) -> None:
    store = LogStore(str(tmp_path / "kept"), LogStoreOptions(tasks_max=1))
    store.put("new", b"1", None)
    theirs = tmp_path / "kept" / "nginx" / "access.log"
    theirs.parent.mkdir()
    theirs.write_bytes(b"theirs")
    os.utime(theirs, (0, 0))
    store.delete_excess()
    assert theirs.read_bytes() == b"theirs"
