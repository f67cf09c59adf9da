"""The hold on deletions: what is deleted meanwhile is kept aside, and for a bounded time."""

from __future__ import annotations

import fcntl
import shutil
import threading
from pathlib import Path

import pytest

from penstock.core.errors import Conflict, NotFound, Unavailable
from penstock.storage.deletion_hold import (
    HOLD_FOLDER,
    HOLD_MS,
    DeletionHold,
    HoldingFileSystem,
    clear_expired,
)
from penstock.storage.disk import OsFileSystem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "a b#ü%20%"
    (root / "topics").mkdir(parents=True)
    return root


def put(root: Path, name: str, text: str = "x") -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def held(root: Path) -> dict[str, str]:
    folder = root / HOLD_FOLDER / "held"
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_deleted_file_is_kept_aside_while_a_hold_lasts(root: Path, clock) -> None:
    fs, hold = HoldingFileSystem(str(root), clock), DeletionHold(str(root), clock)
    before = put(root, "topics/before")
    fs.unlink(before)
    hold.begin()
    fs.unlink(put(root, "topics/a/0.log", "first"))
    fs.unlink(put(root, "topics/a/0.log", "second"))
    fs.unlink(put(root, "topics/a/x.tmp"))
    fs.unlink(put(root.parent, "elsewhere"))
    with pytest.raises(NotFound):
        fs.unlink(before)
    assert held(root) == {"topics/a/0.log": "first"}
    fs.rmdir(str(root / "topics" / "a"))
    hold.end()
    hold.end()
    assert held(root) == {}
    after = put(root, "topics/after")
    fs.unlink(after)
    assert not Path(after).exists()
    assert held(root) == {}


def test_a_hold_whose_owner_died_expires_and_its_files_go(root: Path, clock) -> None:
    fs, dead = HoldingFileSystem(str(root), clock), DeletionHold(str(root), clock)
    dead.begin()
    fs.unlink(put(root, "topics/a"))
    clear_expired(str(root), clock)
    assert held(root) == {"topics/a": "x"}
    clock.ms += HOLD_MS
    fs.unlink(put(root, "topics/b"))
    assert held(root) == {"topics/a": "x"}
    clear_expired(str(root), clock)
    assert held(root) == {}
    with pytest.raises(Unavailable, match="expired"):
        dead.renew()
    dead.end()


def test_a_hold_lasts_as_long_as_it_is_renewed(root: Path, clock) -> None:
    fs, hold = HoldingFileSystem(str(root), clock), DeletionHold(str(root), clock)
    hold.begin()
    for number in range(5):
        clock.ms += HOLD_MS - 1
        hold.renew()
        fs.unlink(put(root, f"topics/{number}"))
    assert len(held(root)) == 5
    hold.end()
    with pytest.raises(Unavailable, match="run the backup again"):
        hold.renew()


def test_two_backups_of_a_folder_do_not_run_at_once(root: Path, clock) -> None:
    first, second = DeletionHold(str(root), clock), DeletionHold(str(root), clock)
    first.begin()
    with pytest.raises(Conflict, match="another backup"):
        second.begin()
    first.end()
    second.begin()
    second.end()


def test_a_damaged_hold_holds_nothing(root: Path, clock) -> None:
    put(root, f"{HOLD_FOLDER}/hold.json", "{")
    path = put(root, "topics/a")
    HoldingFileSystem(str(root), clock).unlink(path)
    assert held(root) == {}


def test_a_deletion_under_way_is_over_before_a_hold_begins(root: Path, clock, monkeypatch) -> None:
    """It has looked for a hold, found none, and not deleted yet."""
    fs, hold = HoldingFileSystem(str(root), clock), DeletionHold(str(root), clock)
    path = put(root, "topics/a")
    looked, go_on, begun = threading.Event(), threading.Event(), threading.Event()
    plain = OsFileSystem.unlink

    def slow(self: OsFileSystem, name: str) -> None:
        looked.set()
        assert go_on.wait(120)
        plain(self, name)

    monkeypatch.setattr(OsFileSystem, "unlink", slow)
    deleting = threading.Thread(target=fs.unlink, args=(path,))
    deleting.start()
    assert looked.wait(120)
    beginning = threading.Thread(target=lambda: (hold.begin(), begun.set()))
    beginning.start()
    assert not begun.wait(0.05)
    go_on.set()
    deleting.join(120)
    beginning.join(120)
    assert begun.is_set()
    assert not Path(path).exists()
    assert held(root) == {}
    hold.end()


def test_no_deletion_waits_while_what_was_kept_aside_is_deleted(
    root: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes as long as there are files, and deletions are made on the broker's event loop."""
    fs, hold = HoldingFileSystem(str(root), clock), DeletionHold(str(root), clock)
    hold.begin()
    fs.unlink(put(root, "topics/a"))
    plain, deleted = shutil.rmtree, []

    def checked(path: Path, *, ignore_errors: bool) -> None:
        with (root / HOLD_FOLDER / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        plain(path, ignore_errors=ignore_errors)
        deleted.append(path)

    monkeypatch.setattr(shutil, "rmtree", checked)
    hold.end()
    assert len(deleted) == 1
    hold.begin()
    fs.unlink(put(root, "topics/b"))
    clock.ms += HOLD_MS
    clear_expired(str(root), clock)
    assert len(deleted) == 2
    assert sorted(one.name for one in (root / HOLD_FOLDER).iterdir()) == [
        *("hold.json", "lock", "owner"),
    ]
    hold.end()
