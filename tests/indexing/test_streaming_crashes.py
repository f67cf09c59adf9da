"""A task's process is cut before and after each of its durable writes; every row is there once."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures._base import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.indexing.ports import TaskState
from penstock.indexing.task.streaming_task import StreamingTask
from penstock.storage.disk import OsFileSystem
from tests.indexing.indexing_kit import OneTask, event


class CutError(Exception):
    """The process is no more."""


class CuttingFs(OsFileSystem):
    """Cuts its process at one durable step, counted from when it is armed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.cut_at = -1
        self.is_cut = False

    def _step(self, what: str) -> None:
        self.steps.append(what)
        if len(self.steps) == self.cut_at:
            self.is_cut = True
            raise CutError(what)

    def write_atomically(self, path: str, data: bytes) -> None:
        name = path.rpartition("/")[2]
        self._step(f"before {name}")
        super().write_atomically(path, data)
        self._step(f"after {name}")

    def fsync_file(self, path: str) -> None:
        self._step("before fsync")
        super().fsync_file(path)

    def unlink(self, path: str) -> None:
        self._step("before unlink")
        super().unlink(path)


class Cut(OneTask):
    """A task that is cut once and started again, in a world whose own writes are not counted."""

    def __init__(self, folder: Path, cut_at: int) -> None:
        self.disk = CuttingFs()
        super().__init__(folder)
        self.fs = self.disk
        self.kill()
        self.start()
        self.disk.steps.clear()
        self.disk.cut_at = cut_at
        self.cuts = 0
        self.stored: list[dict[int, int]] = []
        self.reached = {0: 0, 1: 0}

    def step(self, choose: random.Random | None = None) -> bool:
        moved = False
        with suppress(CutError):
            moved = super().step(choose)
        if self.disk.is_cut:  # It may be known to a future alone.
            self.disk.is_cut = False
            self.cuts += 1
            self.kill()
            self.start()
            moved = True
        now = dict(self.metadata.offsets("flights") or {})
        if not self.stored or self.stored[-1] != now:
            self.stored.append(now)
        commit, sequences = self.task._context.state.commit, self.task._context.state.sequences
        first = sequences.items[0].start if sequences.items else sequences.final
        planned = self.task._reader.planned
        assert first is not None
        assert all(planned[p] >= commit.current[p] >= first[p] for p in first)
        assert all(planned[p] <= o for p, o in (sequences.final or {}).items())
        return moved

    def agree(self, end: Mapping[int, int], *, finish: bool) -> None:
        """Tell an end as a supervisor does: again, until it is heard."""
        for _ in range(3):
            if self._heard(self.task, self.task.pause()) or self._is_final():
                set_end = self.task.set_end_offsets(end, finish=finish)
                if self._heard(self.task, set_end):
                    return
        raise AssertionError("it was not heard")

    def _heard(self, task: StreamingTask, future: Future[Any]) -> bool:
        """Whether a call was answered well; not if the process was cut meanwhile."""
        self.run(lambda: future.done() or self.task is not task)
        return self.task is task and future.exception() is None

    def _is_final(self) -> bool:
        return self.task._context.state.sequences.final is not None


def story(world: Cut) -> None:
    world.broker.add("flights", 0, [event(0), b"broken", event(1)])
    world.broker.add("flights", 1, [event(2)])
    world.run(lambda: world.report().persisted == {0: 3, 1: 1})
    world.agree({0: 3, 1: 1}, finish=False)
    world.broker.add("flights", 1, [event(3), event(4)])
    world.run(lambda: world.report().persisted == {0: 3, 1: 3})
    world.agree({0: 3, 1: 3}, finish=True)
    world.run(lambda: world.task.result.state.complete)


def durable_steps(folder: Path) -> list[str]:
    world = Cut(folder, -1)
    story(world)
    world.metadata.close()
    return world.disk.steps


def test_the_writes_that_are_cut_are_those_that_matter(tmp_path: Path) -> None:
    names = set(durable_steps(tmp_path))
    for name in ("commit.json", "sequences.json"):
        assert {f"before {name}", f"after {name}"} <= names
    assert "before fsync" in names


@pytest.mark.parametrize("part", range(4))
def test_cut_at_any_durable_write_every_row_is_published_once(
    tmp_path_factory: pytest.TempPathFactory, part: int
) -> None:
    count = len(durable_steps(tmp_path_factory.mktemp("whole")))
    for cut_at in range(1 + part, count + 1, 4):
        world = Cut(tmp_path_factory.mktemp("cut"), cut_at)
        story(world)
        told = f"cut at {cut_at}: {world.disk.steps[cut_at - 1]}"
        assert world.cuts == 1, told
        assert world.task.result.state is TaskState.SUCCESS, told
        assert world.published() == [0, 1, 2, 3, 4], told
        assert world.metadata.counts("flights").processed == 5, told
        assert len(world.broker.topics["flights.dead-letter"][0]) == 1, told
        # Stored offsets never go back.
        pairs = zip(world.stored, world.stored[1:], strict=False)
        assert all(b[p] >= a[p] for a, b in pairs for p in a), told
        world.metadata.close()
