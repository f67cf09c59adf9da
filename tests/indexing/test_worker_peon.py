"""The peon: a task of any kind is run in its folder, and how it ended is written down."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Condition
from typing import Any, cast

import pytest
from pydantic import JsonValue

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.indexing.actions.streams import AnnounceFiles
from penstock.indexing.ports import ActionClient, DeepStorePort, TaskLocation, TaskState
from penstock.indexing.specs.batch.batch_task_specs import NoopSpec
from penstock.indexing.task import TaskResult
from penstock.indexing.task.streaming_state import TaskPorts
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec, parse_task
from penstock.indexing.worker.builtin_kinds import (
    NoopTask,
    StreamingPeonTask,
    noop_kind,
    streaming_kind,
)
from penstock.indexing.worker.peon import Peon
from penstock.indexing.worker.peon_task import (
    UNPARSEABLE_SAMPLES_MAX,
    IngestionReport,
    IngestionState,
    TaskKind,
    TaskKinds,
)
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from penstock.mailbox.lanes import ThreadLanes
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.harness.engine_kit import FakeEngine
from tests.indexing.indexing_kit import FakeBroker, make_task


class Agreeing:
    def perform(self, action: AnnounceFiles) -> bool:
        return True


class SteppingClock(VirtualClock):
    """Time passes while somebody waits."""

    def wait(self, condition: Condition, timeout_s: float | None) -> bool:
        assert timeout_s is not None
        self.advance_to(self.monotonic_s() + timeout_s)
        return False


def stream_ports(broker: FakeBroker) -> TaskPorts:
    return TaskPorts(
        engine=FakeEngine(read=broker.read),
        broker=broker,
        dead_letters=broker,
        actions=cast("ActionClient", Agreeing()),
        deep_store=cast("DeepStorePort", None),
        fs=OsFileSystem(),
        lanes=ThreadLanes("peon"),
        clock=VirtualClock(),
        new_token=lambda: "t",
    )


class Scripted:
    """A task that does what a test says."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    def run(self) -> TaskResult:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return cast("TaskResult", self.outcome)

    def stop(self) -> None:
        pass

    def report(self) -> IngestionReport:
        return IngestionReport(IngestionState.COMPLETED, {"buildSegments": {"processed": 3}})


def scripted(outcome: object, *, restorable: bool = False, kind: str = "noop") -> TaskKinds:
    def make(_spec: TaskSpec, _folder: TaskFolder) -> Scripted:
        if isinstance(outcome, MakingRaises):
            raise outcome.error
        return Scripted(outcome)

    return TaskKinds([TaskKind(kind, make, restorable)])


class MakingRaises:
    """The making itself raises this."""

    def __init__(self, error: PenstockError) -> None:
        self.error = error


def folder_of(path: str, fs: CrashableFileSystem | None = None, **task: Any) -> TaskFolder:
    folder = TaskFolder(path, fs or OsFileSystem())
    folder.write_json("task.json", task or {"type": "noop", "id": "a"})
    return folder


def run(
    folder: TaskFolder,
    kinds: TaskKinds,
    *,
    fs: FileSystem | None = None,
    clock: SteppingClock | None = None,
    serve: Callable[..., TaskLocation] | None = None,
) -> TaskResult:
    serve = serve or (lambda _spec, _task: TaskLocation("h", 1))
    return Peon(folder.path, fs or OsFileSystem(), clock or SteppingClock(), kinds, serve).run()


def attempts(folder: TaskFolder, fs: CrashableFileSystem | None = None) -> TaskAttempts:
    return TaskAttempts(folder, fs or OsFileSystem())


def _end(folder: TaskFolder) -> AttemptEnd:
    found = attempts(folder).end()
    assert found is not None
    return found


def _read(folder: TaskFolder, name: str) -> dict[str, Any]:
    found = folder.read_json(name)
    assert found is not None
    return found


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.create("flights")
    return made


def stream_folder(tmp_path: Path, **changes: object) -> TaskFolder:
    return folder_of(
        str(tmp_path / "a"),
        **cast("dict[str, Any]", make_task().model_copy(update=changes).to_json()),
    )


def test_how_a_task_ended_is_in_its_attempt(tmp_path: Path, broker: FakeBroker) -> None:
    folder = stream_folder(tmp_path, end_offsets={0: 0}, context={"team": "a"})
    result = run(folder, TaskKinds([streaming_kind(lambda _spec: stream_ports(broker))]))
    assert result.state is TaskState.SUCCESS
    assert _read(folder, "attempt/1/status.json")["status"] == "SUCCESS"
    whole = folder.read_json("attempt/1/report.json")
    assert whole is not None
    report: Any = whole["ingestionStatsAndErrors"]
    assert (report["taskId"], report["payload"]["ingestionState"]) == ("task-1", "COMPLETED")
    names = ["processed", "processedBytes", "processedWithError", "thrownAway", "unparseable"]
    counted = report["payload"]["rowStats"]["buildSegments"]
    assert {name: counted[name] for name in names} == dict.fromkeys(names, 0)
    assert report["payload"]["segmentAvailabilityConfirmed"] is True
    assert whole["taskContext"] == {
        "type": "taskContext",
        "taskId": "task-1",
        "payload": {"team": "a"},
    }
    assert folder.read_json("location.json") == {"host": "h", "port": 1}
    assert _end(folder).state is TaskState.SUCCESS


def test_a_stopped_stream_leaves_no_end_and_goes_on(tmp_path: Path, broker: FakeBroker) -> None:
    folder = stream_folder(tmp_path)
    kinds = TaskKinds([streaming_kind(lambda _spec: stream_ports(broker))])

    def stop_soon(_spec: StreamTaskSpec, task: StreamingPeonTask) -> TaskLocation:
        threading.Thread(target=task.stop).start()
        return TaskLocation("h", 1)

    for number in (1, 2):
        assert run(folder, kinds, serve=stop_soon).state is TaskState.RUNNING
        assert (attempts(folder).newest(), attempts(folder).end()) == (number, None)
        assert not attempts(folder).is_lost()
    folder.lock().release()


def test_a_damaged_folder_is_a_failure_that_says_where(tmp_path: Path, broker: FakeBroker) -> None:
    folder = stream_folder(tmp_path)
    OsFileSystem().write_atomically(f"{folder.path}/commit.json", b"{")
    result = run(folder, TaskKinds([streaming_kind(lambda _spec: stream_ports(broker))]))
    assert result.state is TaskState.FAILED
    assert "commit.json: damaged at byte" in result.error


class FullFs(OsFileSystem):
    """A disk that has no room for a task's sequences."""

    def write_atomically(self, path: str, data: bytes) -> None:
        if path.endswith("sequences.json"):
            raise Unavailable("no space left")
        super().write_atomically(path, data)


def test_a_full_disk_at_the_start_does_not_end_the_task(tmp_path: Path, broker: FakeBroker) -> None:
    folder = stream_folder(tmp_path)
    kinds = TaskKinds([streaming_kind(lambda _spec: stream_ports(broker))])
    with pytest.raises(Unavailable, match="no space left"):
        run(folder, kinds, fs=FullFs())
    assert attempts(folder).end() is None
    assert not attempts(folder).is_lost()


def test_a_noop_task_sleeps_and_has_succeeded(tmp_path: Path) -> None:
    clock = SteppingClock()
    folder = folder_of(str(tmp_path / "a"), type="noop", id="a", runTime=60_000)
    assert run(folder, TaskKinds([noop_kind(clock)]), clock=clock).state is TaskState.SUCCESS
    assert clock.monotonic_s() >= 60
    assert _end(folder).duration_ms >= 60_000


def test_a_noop_task_that_is_stopped_has_failed(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "a"), type="noop", id="a", runTime=60_000)

    def stop(_spec: NoopSpec, task: NoopTask) -> TaskLocation:
        task.stop()
        return TaskLocation("h", 1)

    result = run(folder, TaskKinds([noop_kind(VirtualClock())]), serve=stop)
    assert result.state is TaskState.FAILED
    assert "stopped" in _end(folder).error


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"type": "index_nothing", "id": "a"}, "'index_nothing' is not a kind of"),
        ({"type": "index_penstock", "id": "a"}, "topic"),
        ({"type": "noop", "id": "a", "runTime": -1}, "runTime"),
    ],
)
def test_a_task_that_cannot_be_read_has_failed_and_says_why(
    tmp_path: Path, task: dict[str, Any], says: str
) -> None:
    folder = folder_of(str(tmp_path / "a"), **task)
    result = run(folder, TaskKinds([noop_kind(VirtualClock())]))
    assert result.state is TaskState.FAILED
    assert says in result.error
    assert result is not None
    assert _end(folder).error == result.error


def test_a_kind_that_is_not_here_has_failed(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "a"))
    result = run(folder, scripted(TaskResult(TaskState.SUCCESS), kind="other"))
    assert "cannot run tasks of type 'noop': the types are other" in result.error


@pytest.mark.parametrize("restorable", [True, False])
def test_what_a_task_raises(tmp_path: Path, restorable: bool) -> None:
    folder = folder_of(str(tmp_path / "a"))
    result = run(folder, scripted(InvalidRequest("wrong"), restorable=restorable))
    assert (result.state, result.error) == (TaskState.FAILED, "wrong")
    other = folder_of(str(tmp_path / "b"))
    kinds = scripted(Unavailable("full"), restorable=restorable)
    if restorable:
        with pytest.raises(Unavailable):
            run(other, kinds)
        assert not attempts(other).is_lost()
    else:
        assert run(other, kinds).error == "full"
    bug = folder_of(str(tmp_path / "c"))
    with pytest.raises(ZeroDivisionError):
        run(bug, scripted(ZeroDivisionError(), restorable=restorable))
    assert attempts(bug).is_lost() is not restorable


def test_a_task_that_cannot_be_made_now_is_not_lost(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "a"))
    with pytest.raises(Unavailable):
        run(folder, scripted(MakingRaises(Unavailable("full"))))
    assert not attempts(folder).is_lost()
    assert run(folder, scripted(MakingRaises(Conflict("odd")))).state is TaskState.FAILED


def test_a_folder_without_a_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="has no task"):
        run(TaskFolder(str(tmp_path / "x"), OsFileSystem()), TaskKinds([]))


def test_two_peons_never_work_in_one_folder(tmp_path: Path) -> None:
    folder = folder_of(str(tmp_path / "a"))
    lock = folder.lock()
    clock = SteppingClock()
    with pytest.raises(Unavailable, match="another peon works here"):
        run(folder, scripted(TaskResult(TaskState.SUCCESS)), clock=clock)
    assert clock.monotonic_s() >= 60
    lock.release()
    assert run(folder, scripted(TaskResult(TaskState.SUCCESS))).state is TaskState.SUCCESS


def test_the_end_of_a_task_waits_for_room_on_the_disk(tmp_path: Path) -> None:
    class FullForAWhile(OsFileSystem):
        tries = 0

        def write_atomically(self, path: str, data: bytes) -> None:
            if path.endswith("/status.json"):
                self.tries += 1
                if self.tries < 5:
                    raise Unavailable("no space left")
            super().write_atomically(path, data)

    folder = folder_of(str(tmp_path / "a"))
    run(folder, scripted(TaskResult(TaskState.SUCCESS)), fs=FullForAWhile())
    assert _end(folder).state is TaskState.SUCCESS


def test_a_report_that_cannot_be_kept_does_not_change_how_the_task_ended(tmp_path: Path) -> None:
    class NoReports(OsFileSystem):
        def write_atomically(self, path: str, data: bytes) -> None:
            if path.endswith("/report.json"):
                raise Unavailable("no space left")
            super().write_atomically(path, data)

    folder = folder_of(str(tmp_path / "a"))
    assert run(folder, scripted(TaskResult(TaskState.SUCCESS)), fs=NoReports()).state.complete
    assert attempts(folder).report_path() is None
    assert _end(folder).state is TaskState.SUCCESS


def test_reports_are_bounded() -> None:
    rows: list[JsonValue] = [
        {"input": str(number)} for number in range(UNPARSEABLE_SAMPLES_MAX + 50)
    ]
    report = IngestionReport(
        IngestionState.COMPLETED, {}, {"buildSegments": rows}, error="x" * 1_000_000
    )
    shown: Any = report.to_json("t")["ingestionStatsAndErrors"]
    payload = shown["payload"]
    assert len(payload["unparseableEvents"]["buildSegments"]) == UNPARSEABLE_SAMPLES_MAX
    assert len(payload["errorMsg"]) == 20_000
    assert payload["segmentAvailabilityConfirmed"] is False


@pytest.mark.parametrize("restorable", [True, False])
def test_a_power_loss_at_any_step_leaves_a_task_to_run_or_its_end(restorable: bool) -> None:
    """What the next worker finds: nothing begun, an attempt that was cut, or the end."""
    kinds = scripted(TaskResult(TaskState.SUCCESS), restorable=restorable)
    fs = CrashableFileSystem()
    folder = folder_of("/t/a", fs)
    begun_at = fs.steps
    run(folder, kinds, fs=fs)
    for step in range(begun_at + 1, fs.steps + 1):
        for seed in range(5):
            fs = CrashableFileSystem()
            folder = folder_of("/t/a", fs)
            fs.kill_at(step)
            with pytest.raises(PowerLoss):
                run(folder, kinds, fs=fs)
            left = fs.crash(random.Random(seed))
            after = TaskFolder("/t/a", left)
            end = attempts(after, left).end()
            assert parse_task(after.read_json("task.json")).id == "a"
            if end is None:
                assert not (restorable and attempts(after, left).is_lost())
            else:
                assert end == AttemptEnd(TaskState.SUCCESS, "", 0)
                assert attempts(after, left).report_path() is not None
