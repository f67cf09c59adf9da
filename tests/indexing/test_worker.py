"""Stories of the worker and the peon: what is taken is run, whatever dies."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from indexing_kit import FakeBroker, make_task

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.indexing.lanes import ThreadLanes
from penstock.indexing.ports import TaskLocation, TaskState
from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.task.state import TaskPorts
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.peon import run_peon
from penstock.indexing.worker.tasklogs import TaskLogs
from penstock.mailbox import MailboxProcessor
from penstock.storage.filesystem import OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.engine import FakeEngine


class FakePeon:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.code: int | None = None
        self.told = False

    def exit_code(self):
        return self.code

    def terminate(self):
        self.told = True

    def kill(self):
        self.code = -9


class Launcher:
    def __init__(self) -> None:
        self.peons: list[FakePeon] = []
        self.broken = False

    def launch(self, task_id: str, folder: str) -> FakePeon:
        if self.broken:
            raise Unavailable("no more processes")
        self.peons.append(FakePeon(folder))
        return self.peons[-1]


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tasks"
        self.clock = VirtualClock()
        self.launcher = Launcher()
        self.options = WorkerOptions(capacity=2, deaths_max=3, deaths_window_ms=100_000)
        self.logs = TaskLogs(str(self.folder), str(folder / "log" / "tasks"), OsFileSystem())
        self.start()

    def start(self, *, look=True) -> None:
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.worker = Worker(
            str(self.folder),
            OsFileSystem(),
            self.launcher,
            self.processor,
            self.clock,
            self.options,
            self.logs,
        )
        if look:
            self.worker.start()
            self.settle()

    def settle(self, seconds: float = 0) -> None:
        end_s = self.clock.monotonic_s() + seconds
        while True:
            while self.processor.run_mailbox_step():
                pass
            due_s = self.processor.mailbox.alarm_s
            if due_s > end_s:
                self.clock.advance_to(end_s)
                return
            self.clock.advance_to(due_s)

    def tasks(self) -> dict[str, TaskState]:
        return {task.id: task.state for task in self.worker.report().tasks}

    def only(self):
        (task,) = self.worker.report().tasks
        return task


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def named(task_id: str):
    return make_task().model_copy(update={"id": task_id})


def test_a_task_is_written_down_before_the_answer(world):
    world.launcher.broken = True
    world.worker.assign(named("a"))
    assert json.loads((world.folder / "a" / "task.json").read_text())["id"] == "a"
    world.launcher.broken = False
    world.start()  # died right after
    assert [peon.folder for peon in world.launcher.peons] == [str(world.folder / "a")]


def test_the_same_task_twice_is_one(world):
    world.worker.assign(named("a"))
    world.worker.assign(named("a"))
    assert world.tasks() == {"a": TaskState.RUNNING}
    assert len(world.launcher.peons) == 1


def test_no_more_tasks_than_slots(world):
    world.worker.assign(named("a"))
    world.worker.assign(named("b"))
    with pytest.raises(Conflict, match="all 2 slots"):
        world.worker.assign(named("c"))
    assert not (world.folder / "c").exists()
    assert world.worker.report().capacity == 2


@pytest.mark.parametrize("task_id", ["../x", "a/b", ".hidden"])
def test_an_id_that_is_a_path_is_refused(world, task_id):
    with pytest.raises(InvalidRequest, match="cannot name a folder"):
        world.worker.assign(named(task_id))


def test_before_it_has_looked_it_says_nothing(world):
    world.worker.assign(named("a"))
    world.start(look=False)
    with pytest.raises(Unavailable, match="starting"):
        world.worker.report()


def test_a_peon_that_ends_well_is_reported_until_it_is_forgotten(world):
    world.worker.assign(named("a"))
    status = {"status": "SUCCESS", "errorMsg": "", "duration": 5}
    (world.folder / "a" / "status.json").write_text(json.dumps(status))
    world.launcher.peons[0].code = 0
    world.settle(1)
    assert (world.only().state, world.only().duration_ms) == (TaskState.SUCCESS, 5)
    world.start()
    assert world.tasks() == {"a": TaskState.SUCCESS}
    world.worker.shutdown("a")
    assert world.tasks() == {}
    assert (world.folder / "a").exists()  # queries may still read its files
    world.settle(61)
    assert not (world.folder / "a").exists()


def test_where_a_peon_answers_is_read_from_its_folder(world):
    world.worker.assign(named("a"))
    assert world.only().location is None
    (world.folder / "a" / "location.json").write_text('{"host": "h", "port": 7}')
    assert world.only().location == TaskLocation("h", 7)
    world.launcher.peons[0].code = -9
    world.settle(1)
    assert world.only().location is None  # the new peon has not said yet


def test_a_peon_that_dies_is_started_again_in_its_folder(world):
    world.worker.assign(named("a"))
    world.launcher.peons[0].code = -9
    world.settle(1)
    assert len({peon.folder for peon in world.launcher.peons}) == 1
    assert len(world.launcher.peons) == 2
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_a_peon_that_dies_too_often_has_failed_with_the_end_of_its_log(world):
    world.worker.assign(named("a"))
    (world.folder / "a" / "log").write_text("x" * 5000 + "\nNo such thing as Java")
    for _ in range(3):
        world.settle(30)  # however long it lives in between
        assert world.only().state is TaskState.RUNNING
        world.launcher.peons[-1].code = 1
        world.settle(2)
    assert world.only().state is TaskState.FAILED
    assert "exit code 1; it died 3 times within 6" in world.only().error
    assert world.only().error.endswith("No such thing as Java")
    assert len(world.only().error) < 2200
    world.start()
    assert world.tasks() == {"a": TaskState.FAILED}


def test_deaths_of_long_ago_are_forgotten(world):
    world.worker.assign(named("a"))
    for _ in range(6):
        world.settle(51)
        world.launcher.peons[-1].code = -9
        world.settle(1)
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_a_peon_that_cannot_be_started_is_tried_again_for_as_long_as_it_takes(world):
    world.launcher.broken = True
    world.worker.assign(named("a"))
    world.settle(200)
    assert world.tasks() == {"a": TaskState.RUNNING}
    world.launcher.broken = False
    world.settle(5)
    assert len(world.launcher.peons) == 1


def test_the_log_of_a_task_outlives_its_folder(world):
    world.worker.assign(named("a"))
    log = world.folder / "a" / "log"
    log.write_text("why it failed")
    assert world.logs.path("a") == str(log)
    world.worker.shutdown("a")
    world.settle(61)
    assert not (world.folder / "a").exists()
    assert Path(world.logs.path("a")).read_text() == "why it failed"


@pytest.mark.parametrize("task_id", ["unknown", "../tasks/a", "..", ""])
def test_there_is_no_log_of_what_is_no_task(world, task_id):
    world.worker.assign(named("a"))
    (world.folder / "a" / "log").write_text("x")
    with pytest.raises(NotFound, match="no log of task"):
        world.logs.path(task_id)


def test_kept_logs_are_bounded_by_number_and_size(tmp_path):
    logs = TaskLogs(
        str(tmp_path), str(tmp_path / "kept"), OsFileSystem(), kept_max=3, kept_bytes_max=100
    )

    def keep(task_id: str, size: int, modified_s: int) -> list[str]:
        (tmp_path / task_id).mkdir()
        log = tmp_path / task_id / "log"
        log.write_bytes(bytes(size))
        os.utime(log, (modified_s, modified_s))
        logs.keep(task_id)
        assert not log.exists()
        return sorted(path.stem for path in (tmp_path / "kept").iterdir())

    assert keep("a", 10, 1) == ["a"]
    assert keep("b", 10, 2) == ["a", "b"]
    assert keep("c", 10, 3) == ["a", "b", "c"]
    assert keep("d", 10, 4) == ["b", "c", "d"]
    assert keep("e", 85, 5) == ["d", "e"]
    assert keep("f", 500, 6) == ["f"]
    logs.keep("never ran")
    assert logs.path("f").endswith("/kept/f.log")


def test_a_task_shut_down_is_killed_and_not_found_again(world):
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    world.worker.shutdown("never seen")
    assert world.launcher.peons[0].code == -9
    assert world.tasks() == {}
    world.start()
    assert world.tasks() == {"a": TaskState.FAILED}  # until the overlord has it forgotten again
    assert len(world.launcher.peons) == 1


def test_a_task_that_is_taken_again_keeps_its_folder(world):
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    world.settle(30)
    world.worker.assign(named("a"))
    world.settle(60)  # when the folder of the first was to go
    assert (world.folder / "a" / "task.json").exists()
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_stopping_asks_the_peons_to_stop(world):
    world.worker.assign(named("a"))
    world.worker.stop()
    world.settle()
    assert world.launcher.peons[0].told


def test_litter_is_removed_and_damage_is_a_failure(world):
    (world.folder / "cut").mkdir(parents=True)
    (world.folder / "torn").mkdir()
    (world.folder / "torn" / "task.json").write_text("{")
    world.start()
    assert world.tasks() == {"torn": TaskState.FAILED}
    assert "task.json" in world.only().error
    assert not (world.folder / "cut").exists()


# the peon


class Agreeing:
    def perform(self, action):
        return True


def peon_ports(spec, broker):
    return TaskPorts(
        engine=FakeEngine(read=broker.read),
        broker=broker,
        dead_letters=broker,
        actions=Agreeing(),
        deep_store=None,
        fs=OsFileSystem(),
        lanes=ThreadLanes("peon"),
        clock=VirtualClock(),
        new_token=lambda: "t",
    )


def prepare(tmp_path, **changes):
    folder = TaskFolder(str(tmp_path / "a"), OsFileSystem())
    folder.write_json("task.json", make_task().model_copy(update=changes).to_json())
    broker = FakeBroker()
    broker.create("flights")
    return folder, broker


def test_a_peon_writes_down_how_its_task_ended(tmp_path):
    folder, broker = prepare(tmp_path, end_offsets={0: 0})
    result = run_peon(
        folder.path,
        OsFileSystem(),
        VirtualClock(),
        lambda spec: peon_ports(spec, broker),
        lambda _task: TaskLocation("h", 1),
    )
    assert result.state is TaskState.SUCCESS
    assert folder.read_json("status.json")["status"] == "SUCCESS"
    assert folder.read_json("location.json") == {"host": "h", "port": 1}


def test_a_stopped_peon_leaves_no_status(tmp_path):
    folder, broker = prepare(tmp_path)

    def serve(task):
        threading.Thread(target=task.stop).start()
        return TaskLocation("h", 1)

    result = run_peon(
        folder.path,
        OsFileSystem(),
        VirtualClock(),
        lambda spec: peon_ports(spec, broker),
        serve,
    )
    assert result.state is TaskState.RUNNING
    assert folder.read_json("status.json") is None
    folder.lock().release()


def test_a_damaged_folder_is_a_failure_that_says_where(tmp_path):
    folder, broker = prepare(tmp_path)
    OsFileSystem().write_atomically(f"{folder.path}/commit.json", b"{")
    result = run_peon(
        folder.path,
        OsFileSystem(),
        VirtualClock(),
        lambda spec: peon_ports(spec, broker),
        lambda _task: TaskLocation("h", 1),
    )
    assert result.state is TaskState.FAILED
    assert "commit.json: damaged at byte" in result.error


class FullFs(OsFileSystem):
    """A disk that has no room for a task's sequences."""

    def write_atomically(self, path: str, data: bytes) -> None:
        if path.endswith("sequences.json"):
            raise Unavailable("no space left")
        super().write_atomically(path, data)


def test_a_full_disk_at_the_start_does_not_end_the_task(tmp_path):
    folder, broker = prepare(tmp_path)
    with pytest.raises(Unavailable, match="no space left"):
        run_peon(
            folder.path,
            FullFs(),
            VirtualClock(),
            lambda spec: peon_ports(spec, broker),
            lambda _task: TaskLocation("h", 1),
        )
    assert folder.read_json("status.json") is None


def test_a_folder_without_a_task_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="holds no task"):
        run_peon(str(tmp_path / "x"), OsFileSystem(), VirtualClock(), None, None)


def test_a_stopping_worker_starts_no_peon_again(world):
    world.worker.assign(named("a"))
    world.settle()
    (peon,) = world.launcher.peons
    stopped = world.worker.stop()
    world.settle()
    assert stopped.done()
    assert peon.told
    peon.code = 0
    world.settle(30)
    assert world.launcher.peons == [peon]
    with pytest.raises(Unavailable, match="stopping"):
        world.worker.assign(named("b"))
    world.start()
    assert len(world.launcher.peons) == 2
