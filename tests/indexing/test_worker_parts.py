"""The parts of a worker, each alone: its folders, and what becomes of tasks that ended."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from penstock.core.errors import Dependency, InvalidRequest, Unavailable
from penstock.core.waits import WaitTable
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.batch_task_specs import NoopSpec, parse_batch_task
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.worker.ended_tasks import EndedTasks
from penstock.indexing.worker.options import WorkerOptions
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from penstock.indexing.worker.task_folders import TaskFolders, worker_identity
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.background_calls import CallDispatcher
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import Faults
from tests.harness.mailbox_kit import InlineLanes, settle
from tests.indexing.indexing_kit import make_task


def noop(task_id: str) -> NoopSpec:
    made = parse_batch_task({"type": "noop", "id": task_id})
    assert isinstance(made, NoopSpec)
    return made


@pytest.fixture
def folders(tmp_path: Path) -> TaskFolders:
    made = TaskFolders([f"{tmp_path}/one", f"{tmp_path}/two"], OsFileSystem())
    assert list(made.found()) == []
    return made


def test_a_worker_is_known_by_an_id_that_moves_with_its_folder(tmp_path: Path) -> None:
    ids, fs = iter(["w1", "w2", "w3"]), OsFileSystem()
    before, after = tmp_path / "one", tmp_path / "two"
    assert worker_identity(str(before), fs, lambda: next(ids)) == "w1"
    before.rename(after)
    assert worker_identity(str(after), fs, lambda: next(ids)) == "w1"
    assert worker_identity(str(before), fs, lambda: next(ids)) == "w2"
    # It is neither a task nor changed with the worker's other state.
    folders = TaskFolders([str(after)], fs)
    folders.write_enabled(enabled=False)
    assert list(folders.found()) == []
    assert worker_identity(str(after), fs, lambda: next(ids)) == "w1"
    for damage in ("", "[]", '{"id": ""}', '{"id": 7}'):
        (after / "identity.json").write_text(damage)
        made = worker_identity(str(after), fs, lambda: "new")
        assert made == "new"


def test_folders_go_where_the_fewest_run_and_are_found_again(folders: TaskFolders) -> None:
    one = folders.make(noop("a"), [])
    two = folders.make(noop("b"), [one])
    assert one.path.rpartition("/")[0] != two.path.rpartition("/")[0]
    TaskAttempts(two, OsFileSystem()).begin(restorable=False)
    found = {task_id: end for task_id, _folder, end in folders.found()}
    assert found["a"] is None
    assert found["b"] is not None
    assert "cannot continue" in found["b"].error
    folders.remove(one)
    assert [task_id for task_id, _folder, _end in folders.found()] == ["b"]
    with pytest.raises(InvalidRequest, match="not a valid folder name"):
        folders.make(noop("a").model_copy(update={"id": ".."}), [])


def test_no_task_gets_the_name_of_a_file_that_the_worker_writes() -> None:
    """Every name that is ever in the folder, temporary ones too, is refused as a task's id."""
    fs = CrashableFileSystem()
    worker_identity("base", fs, lambda: "w")
    folders = TaskFolders(["base"], fs)
    folders.write_enabled(enabled=False)
    written = fs.listdir("base")
    assert written == ["identity.json", "worker.json"]
    for name in (*written, *(f"{one}.tmp" for one in written)):
        with pytest.raises(InvalidRequest, match="has a file of this name"):
            folders.make(noop("a").model_copy(update={"id": name}), [])
        with pytest.raises(InvalidRequest, match="has a file of this name"):
            folders.clear(name)
    assert fs.listdir("base") == written


def test_a_task_taken_again_keeps_the_log_that_may_be_nowhere_else(folders: TaskFolders) -> None:
    one = folders.make(noop("a"), [])
    TaskAttempts(one, OsFileSystem()).begin(restorable=True)
    Path(one.path, "log").write_text("why the first failed")
    assert not folders.is_clear("a")
    folders.clear("a")
    assert folders.is_clear("a")
    # The other disk has fewer tasks, but a log cannot go there.
    again = folders.make(noop("a"), [one])
    assert again.path == one.path
    assert sorted(one.name for one in Path(again.path).iterdir()) == ["log", "task.json"]
    assert Path(again.path, "log").read_text() == "why the first failed"


def test_whether_tasks_are_taken_is_written_down(folders: TaskFolders) -> None:
    assert folders.read_enabled()
    folders.write_enabled(enabled=False)
    assert not folders.read_enabled()


class Shipper:
    """Fails a number of times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.shipped: list[str] = []

    def ship(self, task_id: str, _folder: str) -> Future[None]:
        self.shipped.append(task_id)
        future: Future[None] = Future()
        if len(self.shipped) <= self.failures:
            future.set_exception(Unavailable("the store is away"))
        else:
            future.set_result(None)
        return future


class EndedTasksWorld:
    """Ended tasks alone."""

    def __init__(self, failures: int = 0) -> None:
        self.clock = VirtualClock()
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.shipper = Shipper(failures)
        self.removed: list[str] = []
        self.taken: set[str] = set()
        self.stuck = 0
        self.waits = WaitTable(self.clock)
        self.ended = EndedTasks(
            *(self.processor, WorkerOptions(forget_delay_ms=60_000, ship_tries_max=3)),
            *(self.shipper, CallDispatcher(InlineLanes(), self.processor)),
            folders=cast("TaskFolders", self),
            running=self.taken,
            waits=self.waits,
        )
        self.ended.keep("a", TaskFolder("/a", OsFileSystem()), AttemptEnd(TaskState.SUCCESS))

    def remove(self, folder: TaskFolder) -> None:
        if self.stuck:
            self.stuck -= 1
            raise Unavailable("the disk is away")
        self.removed.append(folder.path)

    def settle(self, seconds: float) -> None:
        settle(self.processor, self.clock, seconds)


def test_a_task_is_told_of_until_it_is_forgotten_and_its_folder_goes_a_while_later() -> None:
    world = EndedTasksWorld()
    world.settle(500)
    ended = world.ended.status("a")
    assert ended is not None
    assert ended.state is TaskState.SUCCESS
    assert world.removed == []
    assert world.ended.forget("a")
    assert not world.ended.forget("a")
    assert (world.ended.status("a"), world.ended.statuses()) == (None, [])
    world.settle(59)
    assert world.removed == []
    world.settle(2)
    assert (world.removed, world.shipper.shipped) == (["/a"], ["a"])


@pytest.mark.parametrize(("failures", "tries"), [(2, 3), (100, 3)])
def test_a_folder_stays_until_its_log_is_kept_or_was_tried_often(failures: int, tries: int) -> None:
    world = EndedTasksWorld(failures)
    world.ended.forget("a")
    world.settle(30)
    (wait,) = world.waits.all()
    assert (wait.dependency, wait.error) == (Dependency.STORAGE, "the store is away")
    world.settle(1_000)
    assert (world.removed, len(world.shipper.shipped)) == (["/a"], tries)
    assert world.waits.all() == (), "kept, or given up"


def test_the_folder_of_a_task_that_is_here_again_is_left() -> None:
    world = EndedTasksWorld()
    world.ended.forget("a")
    world.taken.add("a")
    world.settle(1_000)
    assert world.removed == []


def test_the_folder_of_a_later_task_of_that_id_is_kept_for_as_long_as_that_one_needs_it() -> None:
    world = EndedTasksWorld()
    world.ended.forget("a")
    world.settle(40)
    # It came again and has ended: queries may still read what it left.
    world.ended.keep("a", TaskFolder("/a", OsFileSystem()), AttemptEnd(TaskState.SUCCESS))
    world.ended.forget("a")
    world.settle(30)
    assert world.removed == []
    world.settle(40)
    assert world.removed == ["/a"]


def test_a_folder_that_could_not_be_deleted_is_tried_again() -> None:
    world = EndedTasksWorld()
    world.stuck = 2
    world.ended.forget("a")
    world.settle(61)
    assert (world.stuck, world.removed) == (1, [])
    assert [one.dependency for one in world.waits.all()] == [Dependency.DISK]
    world.ended.require_no_deletion("a")
    world.settle(1_000)
    assert (world.stuck, world.removed) == (0, ["/a"])
    assert world.waits.all() == ()


def test_what_a_later_task_could_not_clear_goes_when_nobody_comes_again() -> None:
    world = EndedTasksWorld()
    world.ended.forget("a")
    world.settle(40)
    world.ended.begin_deletion("a")
    with pytest.raises(Unavailable, match="being deleted"):
        world.ended.require_no_deletion("a")
    world.ended.end_deletion("a", whole=False)
    world.ended.require_no_deletion("a")
    # The timer of the first is over, and has nothing to delete.
    world.settle(30)
    assert world.removed == []
    world.settle(1_000)
    assert world.removed == ["/a"]


def test_what_a_later_task_has_cleared_is_not_deleted_again() -> None:
    world = EndedTasksWorld()
    world.ended.forget("a")
    world.ended.begin_deletion("a")
    world.ended.end_deletion("a", whole=True)
    world.settle(1_000)
    assert world.removed == []


def test_a_task_whose_folder_could_not_be_looked_into_is_found_later() -> None:
    """It was left alone for good: its folder stayed, and nobody knew of the task."""
    fs, faults = CrashableFileSystem(), Faults()
    folders = TaskFolders(["/tasks"], fs)
    fs.mkdir("/tasks")
    folders.make(make_task().model_copy(update={"id": "t1"}), [])
    folders = TaskFolders(["/tasks"], faults.port(fs))
    found: list[str] = []
    with faults.armed(Unavailable, 2):  # after mkdir and listdir
        found += [task_id for task_id, _folder, _end in folders.found()]
    assert faults.raised == "CrashableFileSystem.stat"
    assert found == []
    assert not list(folders.found_later(lambda _task_id: False))
    ((task_id, _folder, end),) = folders.found_later(lambda _task_id: True)
    assert (task_id, end) == ("t1", None)
    assert not list(folders.found_later(lambda _task_id: True))
