"""Stories of the worker: what is taken is run, whatever dies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.indexing.ports import HistoryPlace, TaskLocation, TaskState, WorkerChanges, WorkerTask
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec, parse_task
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.log_store import LogStore, TaskLogs
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from penstock.indexing.worker.task_folders import TaskFolders
from penstock.mailbox import MailboxProcessor
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileStat, FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.mailbox_kit import StepLanes, settle
from tests.indexing.indexing_kit import make_task


class FakePeon:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.code: int | None = None
        self.told = False

    def exit_code(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.told = True

    def kill(self) -> None:
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


class WorkerTasksWorld:
    def __init__(
        self,
        folder: Path,
        options: WorkerOptions | None = None,
        *,
        more_folders: int = 0,
        fs: FileSystem | None = None,
    ) -> None:
        self.folder = folder / "tasks"
        self.folders = [str(self.folder)]
        self.folders += [str(folder / f"tasks{number + 1}") for number in range(more_folders)]
        self.clock = VirtualClock()
        self.launcher = Launcher()
        self.options = options or WorkerOptions(2, deaths_max=3, deaths_window_ms=100_000)
        self.fs = fs or OsFileSystem()
        self.lanes = StepLanes()
        store = LogStore(str(folder / "log" / "tasks"))
        self.logs = TaskLogs(self.folders, self.fs, store, self.lanes)
        self.start()

    def start(self, *, look: bool = True) -> None:
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.worker = Worker(
            self.folders,
            self.fs,
            self.launcher,
            self.processor,
            self.clock,
            self.lanes,
            self.options,
            self.logs,
        )
        if look:
            self.worker.start()
            self.settle()

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds, self.lanes)

    def tasks(self) -> dict[str, TaskState]:
        return {task.id: task.state for task in self.worker.report().tasks}

    def only(self) -> WorkerTask:
        (task,) = self.worker.report().tasks
        return task

    def ask(self, place: HistoryPlace, wait_ms: int) -> WorkerChanges:
        answer = self.worker.changes(place, wait_ms)
        self.settle()
        return answer.result(0)

    def attempts(self, task_id: str) -> TaskAttempts:
        folder = next(f for f in self.folders if self.fs.exists(f"{f}/{task_id}"))
        return TaskAttempts(TaskFolder(f"{folder}/{task_id}", self.fs), self.fs)

    def begins(self, task_id: str, *, restorable: bool = True) -> int:
        return self.attempts(task_id).begin(restorable=restorable)

    def ends_well(self, task_id: str, *, settle: bool = True) -> None:
        """What the peon writes and does when its task ends."""
        number = self.begins(task_id)
        self.attempts(task_id).write_end(number, AttemptEnd(TaskState.SUCCESS, "", 5))
        peon = next(p for p in reversed(self.launcher.peons) if p.folder.endswith(f"/{task_id}"))
        peon.code = 0
        self.worker.check(task_id)
        if settle:
            self.settle()


@pytest.fixture
def world(tmp_path: Path) -> WorkerTasksWorld:
    return WorkerTasksWorld(tmp_path)


def noop(task_id: str) -> TaskSpec:
    return parse_task({"type": "noop", "id": task_id})


def named(task_id: str) -> StreamTaskSpec:
    return make_task().model_copy(update={"id": task_id})


def test_a_task_is_written_down_before_the_answer(world: WorkerTasksWorld) -> None:
    world.launcher.broken = True
    world.worker.assign(named("a"))
    assert json.loads((world.folder / "a" / "task.json").read_text())["id"] == "a"
    world.launcher.broken = False
    world.start()  # died right after
    assert [peon.folder for peon in world.launcher.peons] == [str(world.folder / "a")]


def test_the_same_task_twice_is_one(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.worker.assign(named("a"))
    assert world.tasks() == {"a": TaskState.RUNNING}
    assert len(world.launcher.peons) == 1


def test_no_more_tasks_than_slots(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.worker.assign(named("b"))
    with pytest.raises(Conflict, match="2 slots are in use"):
        world.worker.assign(named("c"))
    assert not (world.folder / "c").exists()
    assert world.worker.report().capacity == 2


@pytest.mark.parametrize("task_id", ["../x", "a/b", ".hidden"])
def test_an_id_that_is_a_path_is_refused(world: WorkerTasksWorld, task_id: str) -> None:
    with pytest.raises(InvalidRequest, match="not a valid folder name"):
        world.worker.assign(named(task_id))


def test_before_it_has_looked_it_says_nothing(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.start(look=False)
    with pytest.raises(Unavailable, match="starting"):
        world.worker.report()


def test_who_asks_before_it_has_looked_and_goes_does_no_harm(world: WorkerTasksWorld) -> None:
    world.start(look=False)
    assert world.worker.changes(HistoryPlace(-1, 0), 0).cancel()
    world.settle()
    world.worker.start()
    world.settle()
    assert world.tasks() == {}


def test_a_peon_that_ends_well_is_reported_until_it_is_forgotten(world: WorkerTasksWorld) -> None:
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


def test_where_a_peon_answers_is_read_from_its_folder(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    assert world.only().location is None
    (world.folder / "a" / "location.json").write_text('{"host": "h", "port": 7}')
    world.settle(1)
    assert world.only().location == TaskLocation("h", 7)
    world.launcher.peons[0].code = -9
    world.settle(1)
    assert world.only().location is None  # the new peon has not said yet


def test_a_peon_that_dies_is_started_again_in_its_folder(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.launcher.peons[0].code = -9
    world.settle(1)
    assert len({peon.folder for peon in world.launcher.peons}) == 1
    assert len(world.launcher.peons) == 2
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_a_peon_that_dies_too_often_has_failed_with_the_end_of_its_log(
    world: WorkerTasksWorld,
) -> None:
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


def test_deaths_of_long_ago_are_forgotten(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    for _ in range(6):
        world.settle(51)
        world.launcher.peons[-1].code = -9
        world.settle(1)
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_a_peon_that_cannot_be_started_is_tried_again_for_as_long_as_it_takes(
    world: WorkerTasksWorld,
) -> None:
    world.launcher.broken = True
    world.worker.assign(named("a"))
    world.settle(200)
    assert world.tasks() == {"a": TaskState.RUNNING}
    world.launcher.broken = False
    world.settle(5)
    assert len(world.launcher.peons) == 1


def test_a_task_that_is_shut_down_is_asked_first(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    world.worker.shutdown("never seen")
    (peon,) = world.launcher.peons
    assert (peon.told, peon.code) == (True, None)
    assert world.tasks() == {"a": TaskState.RUNNING}  # until its peon is gone
    world.worker.shutdown("a")  # asking again changes nothing
    peon.code = 0
    world.settle(1)
    assert (world.only().state, world.only().error) == (TaskState.FAILED, "it was shut down")
    world.worker.shutdown("a")
    assert world.tasks() == {}
    assert len(world.launcher.peons) == 1


def test_a_peon_that_will_not_end_is_killed_and_reported(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    world.settle(9.9)
    codes = [world.launcher.peons[0].code]
    world.settle(1)
    codes.append(world.launcher.peons[0].code)
    assert codes == [None, -9]
    assert world.only().error == (
        "it was shut down; its peon did not end within 10 s and was killed"
    )


def test_a_task_that_says_it_was_stopped_was_shut_down(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    number = world.begins("a")
    world.worker.shutdown("a")
    world.attempts("a").write_end(number, AttemptEnd(TaskState.FAILED, "it was stopped", 5))
    world.launcher.peons[0].code = 0
    world.settle(1)
    assert world.only().error == "it was shut down"


def test_a_task_that_ends_well_before_it_hears_of_the_shutdown_has_ended_well(
    world: WorkerTasksWorld,
) -> None:
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    world.ends_well("a")
    assert world.only().state is TaskState.SUCCESS


@pytest.mark.parametrize("asked", [True, False])
def test_a_task_that_was_asked_to_end_is_not_started_by_the_next_worker(
    world: WorkerTasksWorld, asked: bool
) -> None:
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    if asked:
        world.start()  # died before the peon was gone; peons die with it
    else:
        world.launcher.peons[0].code = 0
        world.settle(1)
        world.start()
    assert world.tasks() == {"a": TaskState.FAILED}  # until the overlord has it forgotten
    assert len(world.launcher.peons) == 1


def test_a_task_without_a_peon_ends_at_once(world: WorkerTasksWorld) -> None:
    world.launcher.broken = True
    world.worker.assign(named("a"))
    world.worker.shutdown("a")
    assert world.tasks() == {"a": TaskState.FAILED}


def test_a_kind_that_cannot_go_on_has_failed_with_its_peon(world: WorkerTasksWorld) -> None:
    world.worker.assign(noop("a"))
    world.launcher.peons[0].code = -9  # before it began: nothing is lost
    world.settle(1)
    assert len(world.launcher.peons) == 2
    world.begins("a", restorable=False)
    world.launcher.peons[1].code = -9
    world.settle(1)
    assert world.only().state is TaskState.FAILED
    assert "exit code -9; a task of its type cannot continue from its folder" in world.only().error


def test_a_kind_that_cannot_go_on_has_failed_with_its_worker(world: WorkerTasksWorld) -> None:
    world.worker.assign(noop("a"))
    world.worker.assign(noop("not begun"))
    world.begins("a", restorable=False)
    world.start()
    assert world.tasks() == {"a": TaskState.FAILED, "not begun": TaskState.RUNNING}


def test_a_disabled_worker_finishes_what_it_has_and_takes_nothing_new(
    world: WorkerTasksWorld,
) -> None:
    world.worker.assign(named("a"))
    world.worker.set_enabled(False)
    assert not world.worker.report().enabled
    with pytest.raises(Conflict, match="disabled"):
        world.worker.assign(named("b"))
    world.worker.assign(named("a"))  # it has that one
    world.start()
    assert not world.worker.report().enabled
    assert world.tasks() == {"a": TaskState.RUNNING}
    world.worker.set_enabled(True)
    world.worker.assign(named("b"))
    world.start()
    assert world.worker.report().enabled


def test_a_damaged_state_file_is_no_reason_to_refuse_work(world: WorkerTasksWorld) -> None:
    (world.folder / "worker.json").write_text("{")
    world.start()
    assert world.worker.report().enabled


def test_tasks_are_spread_over_the_folders_and_found_in_each(tmp_path: Path) -> None:
    world = WorkerTasksWorld(tmp_path, more_folders=1)
    world.worker.assign(named("a"))
    world.worker.assign(named("b"))
    assert sorted(Path(peon.folder).parent.name for peon in world.launcher.peons) == [
        "tasks",
        "tasks1",
    ]
    world.start()
    assert world.tasks() == {"a": TaskState.RUNNING, "b": TaskState.RUNNING}


def test_a_task_that_grows_too_large_is_ended(tmp_path: Path) -> None:
    world = WorkerTasksWorld(tmp_path, WorkerOptions(2, task_bytes_max=1_000_000))
    world.worker.assign(named("a"))
    world.worker.assign(named("b"))
    (world.folder / "a" / "persist" / "0").mkdir(parents=True)
    (world.folder / "a" / "persist" / "0" / "x.parquet").write_bytes(bytes(1_000_001))
    world.settle(30)
    told = {task.id: task for task in world.worker.report().tasks}
    assert told["b"].state is TaskState.RUNNING
    assert "more than the limit of 1,000,000 bytes" in told["a"].error


class Fleeting(OsFileSystem):
    """A file system where what is named so is gone when it is looked at."""

    def stat(self, path: str) -> FileStat:
        if path.endswith("fleeting"):
            raise NotFound(path)
        return super().stat(path)


def test_a_task_whose_files_come_and_go_is_measured(tmp_path: Path) -> None:
    world = WorkerTasksWorld(tmp_path, WorkerOptions(1, task_bytes_max=1_000), fs=Fleeting())
    world.worker.assign(named("a"))
    (world.folder / "a" / "fleeting").touch()
    (world.folder / "a" / "large").write_bytes(bytes(1_001))
    world.settle(30)
    assert (
        "more than the limit of 1,000 " in {t.id: t for t in world.worker.report().tasks}["a"].error
    )


def test_while_folders_are_measured_the_worker_goes_on(tmp_path: Path) -> None:
    world = WorkerTasksWorld(tmp_path, WorkerOptions(3, task_bytes_max=1_000))
    for task_id in ("ends", "comes again", "grows"):
        world.worker.assign(named(task_id))
        (world.folder / task_id / "large").write_bytes(bytes(1_001))
    # The disk is slow: several rounds were due, and one waits.
    settle(world.processor, world.clock, 60)
    assert world.lanes.waiting() == ["measure"]
    world.ends_well("ends", settle=False)
    world.ends_well("comes again", settle=False)
    settle(world.processor, world.clock)
    assert world.tasks()["ends"] is TaskState.SUCCESS
    world.worker.shutdown("comes again")
    world.worker.assign(named("comes again"))
    world.lanes.run_one("measure")
    settle(world.processor, world.clock)
    told = {task.id: task for task in world.worker.report().tasks}
    assert told["ends"].state is TaskState.SUCCESS
    assert told["comes again"].state is TaskState.RUNNING
    assert not next(one for one in world.launcher.peons if one.folder.endswith("again")).told
    assert next(one for one in world.launcher.peons if one.folder.endswith("grows")).told
    assert "measure" not in world.lanes.waiting()


def test_while_a_folder_is_deleted_the_worker_goes_on_but_for_its_id(tmp_path: Path) -> None:
    world = WorkerTasksWorld(tmp_path, WorkerOptions(2, forget_delay_ms=5_000))
    world.worker.assign(named("a"))
    world.ends_well("a")
    world.settle(2)  # its log is kept
    world.worker.shutdown("a")
    settle(world.processor, world.clock, 10)
    assert world.lanes.waiting() == ["delete"]
    world.worker.assign(named("b"))
    with pytest.raises(Unavailable, match="earlier task a is being deleted"):
        world.worker.assign(named("a"))
    world.settle()
    assert not (world.folder / "a").exists()
    world.worker.assign(named("a"))
    world.settle(30)
    assert world.tasks() == {"a": TaskState.RUNNING, "b": TaskState.RUNNING}
    assert (world.folder / "a" / "task.json").exists()


def test_a_thousand_tasks_go_through(tmp_path: Path) -> None:
    # In memory, as a disk would be all that is measured.
    options = WorkerOptions(1_000, watch_interval_ms=60_000)
    world = WorkerTasksWorld(tmp_path, options, fs=CrashableFileSystem())
    world.logs = cast("TaskLogs", None)
    world.start()
    ids = [f"noop-{number}" for number in range(1_000)]
    first = world.worker.changes(HistoryPlace(), 0)
    world.settle()
    place = first.result().place
    for task_id in ids:
        world.worker.assign(noop(task_id))
    with pytest.raises(Conflict, match="1,000 slots are in use"):
        world.worker.assign(noop("one more"))
    for task_id in ids:
        world.ends_well(task_id, settle=False)
    world.settle()
    assert set(world.tasks().values()) == {TaskState.SUCCESS}
    told = world.worker.changes(place, 0)
    world.settle()
    assert told.result().reset  # 2,000 changes: the report is shorter
    for task_id in ids:
        world.worker.shutdown(task_id)
    world.settle(61)
    assert world.tasks() == {}
    assert world.fs.listdir(str(world.folder)) == []


def test_a_task_has_ended_when_its_peon_says_so_though_that_takes_its_time(
    world: WorkerTasksWorld,
) -> None:
    world.worker.assign(named("a"))
    number = world.begins("a")
    world.attempts("a").write_end(number, AttemptEnd(TaskState.SUCCESS))
    world.worker.check("a")
    world.settle()
    assert world.tasks() == {"a": TaskState.SUCCESS}
    codes = [world.launcher.peons[0].code]
    world.settle(11)
    assert [*codes, world.launcher.peons[0].code] == [None, -9]
    assert world.tasks() == {"a": TaskState.SUCCESS}


def test_an_end_is_told_at_once_to_who_waits(world: WorkerTasksWorld) -> None:
    first = world.ask(HistoryPlace(), 0)
    assert first.reset
    assert first.report == world.worker.report()
    waiting = world.worker.changes(first.place, 60_000)
    world.settle(1)
    assert not waiting.done()
    world.worker.assign(named("a"))
    world.settle()
    taken = waiting.result()
    assert [task.id for task in taken.tasks] == ["a"]
    waiting = world.worker.changes(taken.place, 60_000)
    world.ends_well("a")
    assert [task.state for task in waiting.result().tasks] == [TaskState.SUCCESS]
    waiting = world.worker.changes(waiting.result().place, 60_000)
    world.worker.shutdown("a")
    world.settle()
    assert waiting.result().removed == ("a",)
    waiting = world.worker.changes(waiting.result().place, 60_000)
    world.worker.set_enabled(False)
    world.settle()
    assert not waiting.result().enabled
    waiting = world.worker.changes(waiting.result().place, 5_000)
    world.settle(5)
    assert waiting.result() == WorkerChanges(waiting.result().place, enabled=False)


def test_a_place_of_another_life_is_answered_with_everything(world: WorkerTasksWorld) -> None:
    place = world.ask(HistoryPlace(), 0).place
    world.worker.assign(named("a"))
    world.clock.advance_to(world.clock.monotonic_s() + 1)
    world.start()
    assert world.ask(place, 60_000).reset
    world.start(look=False)
    with pytest.raises(Unavailable, match="starting"):
        world.ask(place, 0)


def test_who_waits_is_answered_when_the_worker_stops_and_their_number_is_bounded(
    tmp_path: Path,
) -> None:
    world = WorkerTasksWorld(tmp_path, WorkerOptions(2, waiters_max=1))
    place = world.ask(HistoryPlace(), 0).place
    first = world.worker.changes(place, 60_000)
    second = world.worker.changes(place, 60_000)
    gone = world.worker.changes(place, 60_000)
    gone.cancel()
    world.settle()
    with pytest.raises(Unavailable, match="1 requests wait"):
        second.result()
    # Who does not wait any more takes nobody's place.
    first.cancel()
    third = world.worker.changes(place, 60_000)
    world.worker.stop()
    world.settle()
    assert third.result().tasks == ()


def test_a_task_that_is_taken_again_keeps_its_folder(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.ends_well("a")
    world.worker.shutdown("a")
    world.settle(30)
    world.worker.assign(named("a"))
    world.settle(60)  # when the folder of the first was to go
    assert (world.folder / "a" / "task.json").exists()
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_what_an_earlier_task_left_is_deleted_by_who_asks_and_the_worker_goes_on(
    world: WorkerTasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.worker.assign(named("a"))
    world.ends_well("a")
    world.worker.shutdown("a")
    (world.folder / "a" / "rows").write_text("many")
    clear, answered_meanwhile = TaskFolders.clear, []

    def clear_slowly(folders: TaskFolders, task_id: str) -> None:
        answered_meanwhile.append(world.worker.report())
        clear(folders, task_id)

    monkeypatch.setattr(TaskFolders, "clear", clear_slowly)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.worker.assign, named("a"))
        while not answer.done():
            world.settle()
    answer.result()
    assert answered_meanwhile[0].tasks == ()
    assert not (world.folder / "a" / "rows").exists()
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_what_could_not_be_cleared_goes_later_though_nobody_comes_again(
    world: WorkerTasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.worker.assign(named("a"))
    world.ends_well("a")
    world.worker.shutdown("a")

    def refuse(_folders: TaskFolders, _task_id: str) -> None:
        raise Unavailable("the disk is away")

    monkeypatch.setattr(TaskFolders, "clear", refuse)
    with pytest.raises(Unavailable, match="the disk is away"):
        world.worker.assign(named("a"))
    assert (world.folder / "a").exists()
    world.settle(1_000)
    assert world.tasks() == {}
    assert not (world.folder / "a").exists()


def test_who_gave_up_before_the_worker_saw_what_is_left_keeps_nobody_from_its_id(
    world: WorkerTasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look was under way: its answer, to clear that first, has no one to do it."""
    world.worker.assign(named("a"))
    world.ends_well("a")
    world.worker.shutdown("a")
    monkeypatch.setattr("penstock.indexing.worker.worker._ANSWER_TIMEOUT_S", 0.2)
    is_clear = TaskFolders.is_clear
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.worker.assign, named("a"))

        def look_slowly(folders: TaskFolders, task_id: str) -> bool:
            assert isinstance(answer.exception(), Unavailable)
            return is_clear(folders, task_id)

        with monkeypatch.context() as patch:
            patch.setattr(TaskFolders, "is_clear", look_slowly)
            while not answer.done():
                world.settle()
    world.settle()
    world.worker.assign(named("a"))
    assert world.tasks() == {"a": TaskState.RUNNING}


def test_what_was_not_done_in_time_is_not_done_later(
    world: WorkerTasksWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.indexing.worker.worker._ANSWER_TIMEOUT_S", 0.0)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(world.worker.assign, named("a"))
        with pytest.raises(Unavailable, match="busy"):
            answer.result()
    world.settle()
    assert world.tasks() == {}
    assert not (world.folder / "a").exists()


def test_stopping_asks_the_peons_to_stop(world: WorkerTasksWorld) -> None:
    world.worker.assign(named("a"))
    world.worker.stop()
    world.settle()
    assert world.launcher.peons[0].told


def test_litter_is_removed_and_damage_is_a_failure(world: WorkerTasksWorld) -> None:
    (world.folder / "cut").mkdir(parents=True)
    (world.folder / "torn").mkdir()
    (world.folder / "torn" / "task.json").write_text("{")
    world.start()
    assert world.tasks() == {"torn": TaskState.FAILED}
    assert "task.json" in world.only().error
    assert not (world.folder / "cut").exists()


def test_a_stopping_worker_starts_no_peon_again(world: WorkerTasksWorld) -> None:
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
