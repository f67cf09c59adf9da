"""Files, locks and threads of the storage when a call of the system raises: none is left open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Unavailable
from penstock.storage import deletion_hold, disk, filesystem
from penstock.storage.disk import OsFileSystem, OsFolderLock
from penstock.storage.filesystem import AppendFile, FolderLock, ReadFile
from penstock.storage.queue.group_commit import SyncThreads
from tests.harness.call_faults_kit import Faults
from tests.kits.port_faults_kit import check_at_each_call, open_descriptors

FS = OsFileSystem()
OPENS: dict[str, Callable[[str], AppendFile | ReadFile | FolderLock]] = {
    "create": lambda path: FS.create(path, replace=True),
    "open_append": FS.open_append,
    "open_read": FS.open_read,
    "lock_folder": lambda path: FS.lock_folder(str(Path(path).parent)),
}


def close(opened: AppendFile | ReadFile | FolderLock) -> None:
    if isinstance(opened, OsFolderLock):
        opened.release()
    else:
        opened.close()  # type: ignore[union-attr]


OPERATIONS: dict[str, Callable[[str], object]] = {
    **{name: lambda path, opens=opens: close(opens(path)) for name, opens in OPENS.items()},
    "read_bytes": FS.read_bytes,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_call_that_raises_leaves_a_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = str(tmp_path / "file")
    FS.create(path).close()
    assert check_at_each_call(monkeypatch, disk, lambda: OPERATIONS[name](path)) > 0


@pytest.mark.parametrize("name", OPENS)
def test_no_lack_of_memory_leaves_a_descriptor_open(tmp_path: Path, name: str) -> None:
    path, faults, opened, at = str(tmp_path / "file"), Faults(), None, 0
    FS.create(path).close()
    before = open_descriptors()
    while opened is None:
        assert not open_descriptors() - before, faults.raised
        with faults.armed_inside([disk.__name__, filesystem.__name__], MemoryError, at):
            opened = OPENS[name](path)
        at += 1
    close(opened)
    assert at > 2


def test_a_folder_that_cannot_be_read_as_a_file_is_closed(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(Exception, match="is a folder"):
        FS.open_read(str(tmp_path))
    assert not open_descriptors() - before


def test_a_hold_that_cannot_begin_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_and_end() -> None:
        held = deletion_hold.DeletionHold(str(tmp_path), SystemClock())
        try:
            held.begin()
        finally:
            held.end()

    assert check_at_each_call(monkeypatch, deletion_hold, begin_and_end) > 0


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_sync_threads_that_cannot_start_leave_no_thread(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], *, after: bool
) -> None:
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.endswith("timer"):
            if after:
                real(self)
            raise error("no thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    expected = Unavailable if issubclass(error, Exception) else error
    with pytest.raises(expected):
        SyncThreads(clock=SystemClock(), name="faulty")
    for one in threading.enumerate():
        if one.name.startswith("faulty"):
            one.join(120)
            assert not one.is_alive(), one.name
