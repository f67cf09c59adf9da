"""Delta tables of which each durable write is cut: by power losses, failures and other writers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from penstock.core.errors import CorruptData, Unavailable
from penstock.core.intervals import Interval
from penstock.segments.delta import table_log
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_table import DeltaTable
from penstock.segments.visible_rows import VisibleFile, VisibleRows
from penstock.storage.disk import OsAppendFile, OsFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.segments.delta_kit import CLICKS, DeltaWorld, NaiveReader
from tests.segments.visible_files_kit import DAY_MS, PLAIN

DEEP = "/deep"
STEPS_MAX = 200


def rows_of(*numbers: int) -> VisibleRows:
    files = [
        VisibleFile(f"{DEEP}/{CLICKS}/{number}.parquet", 1, 10, Interval(0, DAY_MS))
        for number in numbers
    ]
    return VisibleRows(max(numbers), files, PLAIN, [PLAIN])


def opened(fs: FileSystem, table_id: str = "t") -> DeltaTable:
    return DeltaTable(
        CLICKS, DeltaFiles(DEEP, CLICKS, fs=fs), table_id, lambda: 100, VirtualClock()
    )


def numbers_in(table: DeltaTable) -> set[int]:
    return {int(path.removesuffix(".parquet")) for path in table.state.files}


def new_disk() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    fs.mkdir(DEEP)
    fs.fsync_folder("/")
    return fs


def two_versions(monkeypatch: pytest.MonkeyPatch) -> CrashableFileSystem:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    fs = new_disk()
    opened(fs).create(rows_of(1))
    return fs


@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_loss_the_log_has_the_version_before_or_the_new_one(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for step in range(1, STEPS_MAX):
        fs = two_versions(monkeypatch)
        table = opened(fs)
        table.update(rows_of(1))
        fs.kill_at(fs.steps + step)
        try:
            table.update(rows_of(1, 2))
        except PowerLoss:
            pass
        else:
            assert step > 5
            return
        left = fs.crash(seed * STEPS_MAX + step)
        after = opened(left)
        after.check()
        assert numbers_in(after) in ({1}, {1, 2})
        after.update(rows_of(1, 2, 3))
        again = opened(left.crash(seed))
        again.check()
        assert numbers_in(again) == {1, 2, 3}, "what was written is durable"
    raise AssertionError("more steps than expected")


@pytest.mark.parametrize("seed", range(3))
def test_after_a_power_loss_a_table_is_created_or_can_be(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Over the log of another table, so that a deletion is cut, too."""
    for step in range(1, STEPS_MAX):
        fs = two_versions(monkeypatch)
        opened(fs).update(rows_of(1, 2))
        fs.kill_at(fs.steps + step)
        try:
            opened(fs, "new").create(rows_of(3))
        except PowerLoss:
            pass
        else:
            assert step > 10
            return
        left = fs.crash(seed * STEPS_MAX + step)
        opened(left, "new").create(rows_of(3, 4))
        again = opened(left.crash(seed), "new")
        again.check()
        assert numbers_in(again) == {3, 4}
    raise AssertionError("more steps than expected")


def test_a_write_that_fails_at_any_step_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, STEPS_MAX):
        fs = two_versions(monkeypatch)
        table = opened(fs)
        table.update(rows_of(1))
        fs.fail_at(fs.steps + step)
        failed = False
        try:
            table.update(rows_of(1, 2))
        except Unavailable:
            failed = True
        fs.forget_faults()
        table.update(rows_of(1, 2))
        other = opened(fs)
        other.check()
        assert numbers_in(other) == numbers_in(table) == {1, 2}
        assert other.state.version == 1, "a repeated write finds that it is done"
        if not failed and step > 30:
            return
    raise AssertionError("more steps than expected")


def test_of_two_writers_at_any_step_of_each_other_one_writes_an_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for at in range(STEPS_MAX):
        fs = two_versions(monkeypatch)
        first, second = opened(fs), opened(fs)
        for table in (first, second):
            table.update(rows_of(1))
        write = partial(second.update, rows_of(1, 2, 3))
        with before_step(fs, at, write) as was_run:
            first.update(rows_of(1, 2))
        if not was_run:
            assert at > 5
            return
        write()
        other = opened(fs)
        other.check()
        assert numbers_in(other) == {1, 2, 3}
    raise AssertionError("more steps than expected")


def test_two_routers_that_create_a_table_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the log of another table, which both of them delete."""
    for at in range(STEPS_MAX):
        fs = two_versions(monkeypatch)
        opened(fs).update(rows_of(1, 2))
        first, second = opened(fs, "new"), opened(fs, "new")
        with before_step(fs, at, partial(second.create, rows_of(3))) as was_run:
            first.create(rows_of(3))
        for numbers in ((3, 4), (4, 5), (5,)):
            for table in (first, second):
                try:
                    table.update(rows_of(*numbers))
                except CorruptData:  # it is reported, and read again at the next attempt
                    table.update(rows_of(*numbers))
                other = opened(fs, "new")
                other.check()
                assert numbers_in(other) == set(numbers)
        if not was_run:
            assert at > 10
            return
    raise AssertionError("more steps than expected")


@contextmanager
def before_step(fs: CrashableFileSystem, at: int, work: Callable[[], None]) -> Iterator[list[bool]]:
    """Call a function before a step of a disk; yield a list that has an item if it was called.

    The steps that create and remove folders are not interrupted: the system does each at once.
    """
    left = at
    was_run: list[bool] = []
    step = fs.step

    def counted(path: str, doing: str) -> object:
        nonlocal left
        if not was_run and not doing.endswith("the folder"):
            if not left:
                was_run.append(True)
                work()
            left -= 1
        return step(path, doing)

    fs.step = counted  # type: ignore[method-assign, assignment]
    try:
        yield was_run
    finally:
        fs.step = step  # type: ignore[method-assign]


class FailingDisk(OsFileSystem):
    """A disk of which one step fails."""

    def __init__(self, failing: int) -> None:
        self.left = failing

    def _step(self) -> None:
        self.left -= 1
        if not self.left:
            raise Unavailable("disk full")

    def create(self, path: str, *, replace: bool = False) -> OsAppendFile:
        self._step()
        return super().create(path, replace=replace)

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._step()
        super().link(source, target)

    def fsync_folder(self, folder: str) -> None:
        self._step()
        super().fsync_folder(folder)


def test_copies_of_a_write_that_failed_are_used_or_found(tmp_path: Path) -> None:
    world = DeltaWorld(tmp_path)
    name = world.add(0)
    world.create()
    for failing in range(1, STEPS_MAX):
        world.visible[name] = replace(world.visible[name], visible=())
        world.add(failing)
        world.build()
        before = world.expected()
        if failing % 2:
            world.hide(name)
        else:
            world.cover(name)
        disk = FailingDisk(failing)
        files = DeltaFiles(str(tmp_path), CLICKS, fs=disk)
        cut = DeltaTable(CLICKS, files, world.table_id, world.revision_now, world.clock)
        rows = world.rows()
        try:
            cut.update(rows)
        except Unavailable:
            assert NaiveReader(tmp_path / CLICKS).rows() in (before, world.expected())
        world.table.update(rows)
        assert NaiveReader(tmp_path / CLICKS).rows() == world.expected()
        if disk.left > 0:
            assert failing > 8
            return
    raise AssertionError("more steps than expected")
