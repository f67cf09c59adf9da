"""Power is lost, and the disk is full, at every step of a worker: nothing taken is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.ports import HistoryPlace, TaskState
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import TaskSpec, parse_task
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.change_history import ChangeHistory
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from penstock.mailbox import MailboxProcessor
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.harness.mailbox_kit import InlineLanes, settle


class DeadPeon:
    """A process that ends with its worker, or when told."""

    def __init__(self) -> None:
        self.code: int | None = None

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = 0

    def kill(self) -> None:
        self.code = -9


class Launcher:
    def __init__(self) -> None:
        self.peons: dict[str, DeadPeon] = {}

    def launch(self, task_id: str, _folder: str) -> DeadPeon:
        self.peons[task_id] = DeadPeon()
        return self.peons[task_id]


class Life:
    """One life of a worker on a file system that may die under it."""

    def __init__(self, fs: CrashableFileSystem) -> None:
        self.fs = fs
        self.clock = VirtualClock()
        self.launcher = Launcher()
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.worker = Worker(
            *(["/tasks"], fs, self.launcher, self.processor, self.clock, InlineLanes()),
            WorkerOptions(2),
        )
        started = self.worker.start()
        self.settle()
        started.result(0)

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds)

    def tasks(self) -> dict[str, TaskState]:
        return {task.id: task.state for task in self.worker.report().tasks}

    def peon_ends(self, task_id: str) -> None:
        """What a peon does to the end, on the same disk."""
        attempts = TaskAttempts(TaskFolder(f"/tasks/{task_id}", self.fs), self.fs)
        number = attempts.begin(restorable=True)
        attempts.write_end(number, AttemptEnd(TaskState.SUCCESS))
        self.launcher.peons[task_id].code = 0


def noop(task_id: str) -> TaskSpec:
    return parse_task({"type": "noop", "id": task_id})


class Story:
    """Assign, run, complete, forget; what others were told so far."""

    def __init__(self) -> None:
        self.taken = self.ended = self.forgotten = self.disabled = False

    def tell(self, fs: CrashableFileSystem) -> None:
        life = Life(fs)
        life.worker.assign(noop("a"))
        self.taken = True
        life.settle(6)
        life.worker.set_enabled(False)
        self.disabled = True
        life.peon_ends("a")
        life.settle(1)
        self.ended = life.tasks() == {"a": TaskState.SUCCESS}
        self.forgotten = True  # from the question on, both are fine
        life.worker.shutdown("a")
        life.settle(120)


def steps_of_the_story() -> int:
    fs = CrashableFileSystem()
    story = Story()
    story.tell(fs)
    assert story.ended
    assert fs.listdir("/tasks") == ["worker.json"]
    return fs.steps


STEPS = steps_of_the_story()


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_power_is_lost_at_a_step(step: int) -> None:
    for seed in range(4):
        fs, story = CrashableFileSystem(), Story()
        fs.kill_at(step)
        with suppress(PowerLoss, PenstockError):  # the mailbox may have wrapped it
            story.tell(fs)
        life = Life(fs.crash(random.Random(seed)))
        found = life.tasks()
        if story.taken and not story.forgotten:
            assert set(found) == {"a"}
        if story.ended and not story.forgotten:
            assert found == {"a": TaskState.SUCCESS}
        if story.disabled:
            assert not life.worker.report().enabled
        # Whatever is there, work goes on.
        if "a" not in found:
            life.worker.set_enabled(True)
            life.worker.assign(noop("a"))
        life.settle(1)
        if life.tasks() == {"a": TaskState.RUNNING}:
            life.peon_ends("a")
            life.settle(1)
        assert life.tasks() == {"a": TaskState.SUCCESS}
        life.worker.shutdown("a")
        life.settle(120)
        assert life.tasks() == {}
        assert [name for name in life.fs.listdir("/tasks") if "worker.json" not in name] == []


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_the_disk_is_full_at_a_step(step: int) -> None:
    fs, story = CrashableFileSystem(), Story()
    fs.fail_at(step)
    try:
        story.tell(fs)
    except Unavailable:
        life = Life(fs)  # it was refused, or the start failed: both are tried again
        if "a" not in life.tasks():
            life.worker.set_enabled(True)
            life.worker.assign(noop("a"))
        assert set(life.tasks()) == {"a"}
    else:
        life = Life(fs)
        assert set(life.tasks().values()) <= {TaskState.SUCCESS}


def test_a_disk_that_is_full_while_assigning_takes_nothing() -> None:
    fs = CrashableFileSystem()
    life = Life(fs)
    fs.capacity_bytes = 10
    with pytest.raises(Unavailable, match="space"):
        life.worker.assign(noop("a"))
    assert life.tasks() == {}
    assert not [name for name in fs.listdir("/tasks") if name == "a"]
    assert Life(fs).tasks() == {}
    fs.capacity_bytes = None
    life.worker.assign(noop("a"))
    assert life.tasks() == {"a": TaskState.RUNNING}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("task.json", b"{"),
        ("task.json", b"[]"),
        ("status.json", b"\xff"),
        ("shutdown.json", b"7"),
        ("attempt/1/status.json", b""),
        ("attempt/1/begun.json", b"{"),
    ],
)
def test_a_damaged_folder_is_a_failure_and_no_reason_to_stop(name: str, content: bytes) -> None:
    fs = CrashableFileSystem()
    life = Life(fs)
    life.worker.assign(noop("a"))
    life.worker.assign(noop("b"))
    fs.mkdir("/tasks/a/attempt/1")
    fs.write_atomically(f"/tasks/a/{name}", content)
    fs.write_atomically("/tasks/litter", b"no folder")
    life = Life(fs)
    told = {task.id: task for task in life.worker.report().tasks}
    assert told["a"].state is TaskState.FAILED
    assert "its folder cannot be read" in told["a"].error
    assert name in told["a"].error
    assert told["b"].state is TaskState.RUNNING
    life.worker.shutdown("a")
    life.settle(120)
    assert sorted(fs.listdir("/tasks")) == ["b", "litter"]


# the history


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(1, 8), st.data())
def test_a_history_tells_each_change_once_or_everything(
    names: Sequence[str], kept: int, data: st.DataObject
) -> None:
    history, places = ChangeHistory(1, kept), []
    for name in names:
        places.append(history.place)
        history.add(name)
    places.append(history.place)
    index = data.draw(st.integers(0, len(names)))
    told = history.since(places[index])
    if len(names) - index > kept:
        assert told is None
        return
    missed = names[index:]
    assert told is not None
    assert sorted(told) == sorted(set(missed))
    # The latest change comes last.
    assert list(told) == sorted(set(missed), key=lambda name: _last(missed, name))


def _last(names: Sequence[str], name: str) -> int:
    return max(index for index, one in enumerate(names) if one == name)


@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("ab"), max_size=5))
def test_a_place_of_another_history_is_known(one: Sequence[str], other: Sequence[str]) -> None:
    first, second = ChangeHistory(1), ChangeHistory(2)
    for name in one:
        first.add(name)
    for name in other:
        second.add(name)
    assert second.since(first.place) is None
    assert second.since(HistoryPlace()) is None
