"""Private files: permissions, atomic writes that are cut at each step, and the lock."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.access import private_file
from penstock.core.access.private_file import (
    locked,
    make_private_folder,
    read_bounded,
    replace_private,
    version_of,
)
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.testing.clock import VirtualClock


class PowerCut(BaseException):
    """The process ends here: no handler of the code runs to its end."""


class CutOs:
    """The module `os`, which stops at the n-th of the calls that change the disk."""

    CALLS = ("open", "write", "fsync", "close", "replace", "unlink")

    def __init__(self, stop_at: int, error: type[BaseException] = PowerCut) -> None:
        self.calls: list[str] = []
        self._stop_at = stop_at
        self._error = error

    def __getattr__(self, name: str) -> object:
        found = getattr(os, name)
        return self._step(name, found) if name in self.CALLS else found

    def _step(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **options: object) -> object:
            self.calls.append(name)
            if len(self.calls) == self._stop_at:
                if name == "close":
                    call(*arguments)  # the kernel closes it
                if name == "write":  # half of the bytes
                    descriptor, data = arguments
                    assert isinstance(data, memoryview)
                    os.write(int(str(descriptor)), data[: len(data) // 2])
                raise (self._error(28, "No space left on device"))
            return call(*arguments, **options)

        return step


def steps_of_a_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with monkeypatch.context() as patch:
        counted = CutOs(0)
        patch.setattr(private_file, "os", counted)
        replace_private(path, b"old")
    return counted.calls


def test_a_write_that_is_cut_at_any_step_leaves_the_old_content_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials.json"
    calls = steps_of_a_write(path, monkeypatch)
    # The content is durable before it has its name, and the name afterwards.
    assert calls == ["open", "write", "fsync", "close", "replace", "open", "fsync", "close"]
    for stop_at in range(1, len(calls) + 1):
        replace_private(path, b"old")
        with monkeypatch.context() as patch:
            patch.setattr(private_file, "os", CutOs(stop_at))
            with pytest.raises(PowerCut):
                replace_private(path, b"new content")
        expected = b"old" if stop_at <= calls.index("replace") + 1 else b"new content"
        assert read_bounded(path, 100, is_private=True) == expected
        replace_private(path, b"after")  # what the cut left does not matter
        assert read_bounded(path, 100, is_private=True) == b"after"
        assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_full_disk_is_an_error_with_the_remedy_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials.json"
    calls = steps_of_a_write(path, monkeypatch)
    for stop_at in range(1, calls.index("replace") + 2):
        with monkeypatch.context() as patch:
            patch.setattr(private_file, "os", CutOs(stop_at, OSError))
            with pytest.raises(Unavailable, match="No space left on device: check"):
                replace_private(path, b"new content")
        assert read_bounded(path, 100, is_private=True) == b"old"


def test_a_file_is_private_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder" / "secret"
    make_private_folder(path.parent)
    make_private_folder(path.parent)
    leftover = path.with_name("secret.tmp")
    leftover.write_text("of an earlier write")
    leftover.chmod(0o666)
    modes: list[int] = []
    write = os.write

    def watched(descriptor: int, data: bytes) -> int:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return write(descriptor, data)

    before = os.umask(0)
    try:
        monkeypatch.setattr(os, "write", watched)
        replace_private(path, b"x")
    finally:
        os.umask(before)
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o601, 0o666])
def test_a_private_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    replace_private(path, b"x")
    path.chmod(mode)
    with pytest.raises(InvalidRequest, match=f"chmod 600 {path}"):
        read_bounded(path, 100, is_private=True)


def test_rules_may_be_readable_but_not_writable_by_everyone(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text("x")
    path.chmod(0o644)
    assert read_bounded(path, 100, is_private=False) == b"x"
    path.chmod(0o666)
    with pytest.raises(InvalidRequest, match=f"chmod o-w {path}"):
        read_bounded(path, 100, is_private=False)


def test_a_group_may_not_change_rules_that_it_can_reach(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text("x")
    path.chmod(0o664)  # as editors write it where users have groups of their own
    tmp_path.chmod(0o700)
    assert read_bounded(path, 100, is_private=False) == b"x"
    tmp_path.chmod(0o750)
    with pytest.raises(InvalidRequest, match=f"chmod g-w {path}"):
        read_bounded(path, 100, is_private=False)


@pytest.mark.parametrize("is_private", [False, True])
def test_a_file_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_private: bool
) -> None:
    path = tmp_path / "file"
    replace_private(path, b"x")
    fstat = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        found = list(fstat(descriptor))
        found[4] = 12_345
        return os.stat_result(found)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", of_another)
        with pytest.raises(InvalidRequest, match="it belongs to user 12345"):
            read_bounded(path, 100, is_private=is_private)
        assert read_bounded(path, 100, is_private=is_private, owner=12_345) == b"x"


@pytest.mark.parametrize("is_private", [False, True])
def test_a_file_in_a_folder_that_everyone_can_change_is_refused(
    tmp_path: Path, is_private: bool
) -> None:
    path = tmp_path / "file"
    replace_private(path, b"x")
    tmp_path.chmod(0o777)
    with pytest.raises(InvalidRequest, match=f"chmod o-w {tmp_path}'"):
        read_bounded(path, 100, is_private=is_private)
    tmp_path.chmod(0o1777)  # with the sticky bit, only the owner can replace it
    assert read_bounded(path, 100, is_private=is_private) == b"x"


def test_links_folders_pipes_and_large_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    replace_private(path, b"x" * 101)
    with pytest.raises(InvalidRequest, match="more than 100 bytes"):
        read_bounded(path, 100, is_private=True)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(Unavailable, match="symbolic link"):
        read_bounded(link, 1_000, is_private=True)
    # The rules may be a link, as in a mounted configuration.
    assert len(read_bounded(link, 1_000, is_private=False)) == 101
    os.mkfifo(tmp_path / "pipe", 0o600)
    for other in (tmp_path / "pipe", tmp_path):
        with pytest.raises((InvalidRequest, Unavailable)):
            read_bounded(other, 100, is_private=False)
    with pytest.raises(NotFound):
        read_bounded(tmp_path / "missing", 100, is_private=True)


def test_a_change_of_content_or_permissions_is_another_version(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert version_of(path) is None
    replace_private(path, b"a")
    first = version_of(path)
    assert first == version_of(path)
    replace_private(path, b"b")
    second = version_of(path)
    assert second != first


def test_the_lock_excludes_other_writers_and_gives_up_after_ten_seconds(tmp_path: Path) -> None:
    clock = VirtualClock()
    with locked(tmp_path, SystemClock()):
        failed: list[Exception] = []

        def wait() -> None:
            try:
                with locked(tmp_path, clock):
                    pass
            except Unavailable as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while thread.is_alive():
            clock.advance(0.5)
        assert "locked for 10 s by another process" in str(failed[0])
    with locked(tmp_path, clock):
        pass
