"""The worker: takes tasks, runs each in a peon, and keeps what ended until the overlord knows.

All state belongs to its mailbox, and can be found again from the tasks' folders alone. Invariants:

- a task is written down before the overlord hears that it was taken;
- a peon that dies is started again in the same folder, where its task goes on; one that dies too
  often within a while has failed, for the reason that its log ends with;
- a task that ended is reported until the overlord says to forget it, and its folder is deleted a
  while after that, when no query reads its files any more; its log is kept longer.

| task | how it got there | what may follow |
|---|---|---|
| running | assigned, or found at the start of the worker | ended; running again, if its peon died |
| ended | its peon wrote how; it was shut down; it died too often | forgotten |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.indexing.errand import Retry
from penstock.indexing.ports import TaskLocation, TaskState, WorkerReport, WorkerTask
from penstock.indexing.task.folder import TaskFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.core.clock import Clock
    from penstock.indexing.ports import PeonLauncher, PeonProcess
    from penstock.indexing.taskspec import TaskSpec
    from penstock.indexing.worker.tasklogs import TaskLogs
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.filesystem import FileSystem

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S: Final = 30.0
_LOG_END_BYTES: Final = 2_000


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker behaves.

    Attributes:
        capacity: Peons at a time.
        watch_interval_ms: How often it looks at its peons.
        deaths_max: A task whose peon died so often within `deaths_window_ms` has failed. Another
            task reads again what it has not published, which is better than trying for ever.
        deaths_window_ms: Deaths that are longer ago are forgotten.
        restart: How long to wait before a peon is started again.
        forget_delay_ms: How long the folder of a forgotten task is kept.
    """

    capacity: int = 4
    watch_interval_ms: int = 200
    deaths_max: int = 8
    deaths_window_ms: int = 600_000
    restart: Retry = field(default_factory=lambda: Retry(200, 5_000))
    forget_delay_ms: int = 60_000


@dataclass(slots=True)
class _Running:
    """A task with a peon, or one that will be started again."""

    folder: TaskFolder
    since_s: float
    process: PeonProcess | None = None
    start_again_s: float = 0.0
    deaths_s: list[float] = field(default_factory=list)
    location: TaskLocation | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A task that ended, until it is forgotten."""

    folder: TaskFolder
    state: TaskState
    error: str
    duration_ms: int


class Worker:
    """A worker. `report`, `assign` and `shutdown` are for any thread and wait for its mailbox.

    Args:
        base_folder: Holds a folder for each task.
        fs: The file system.
        launcher: Starts peons.
        processor: Its mailbox, on a thread that runs it.
        clock: Tells how long peons live.
        options: How it behaves.
        logs: Keeps the logs of tasks whose folder goes; None: they go with it.
    """

    def __init__(
        self,
        base_folder: str,
        fs: FileSystem,
        launcher: PeonLauncher,
        processor: MailboxProcessor,
        clock: Clock,
        options: WorkerOptions | None = None,
        logs: TaskLogs | None = None,
    ) -> None:
        self._base_folder = base_folder
        self._fs = fs
        self._launcher = launcher
        self._processor = processor
        self._clock = clock
        self._options = options or WorkerOptions()
        self._logs = logs
        self._running: dict[str, _Running] = {}
        self._ended: dict[str, _Ended] = {}
        self._started = False
        self._stopping = False

    # Any thread

    def start(self) -> Future[None]:
        """Go on with the tasks whose folders are there."""
        return self._processor.main_executor.submit(self._start, "start")

    def stop(self) -> Future[None]:
        """Ask all peons to stop; their tasks go on when the worker is started again."""
        return self._processor.main_executor.submit(self._stop, "stop")

    def report(self) -> WorkerReport:
        """Return everything the worker has.

        Raises:
            Unavailable: It is starting.
        """
        return self._answer(self._report, "report")

    def assign(self, task: TaskSpec) -> None:
        """Take a task; it is written down when this returns. One that is here already is fine.

        Raises:
            Conflict: No slot is free.
            Unavailable: It is starting, or the disk is full.
        """
        self._answer(lambda: self._assign(task), "assign")

    def shutdown(self, task_id: str) -> None:
        """End a task without ceremony, or forget one that ended; an unknown one is fine."""
        self._answer(lambda: self._shutdown(task_id), "shutdown")

    def _answer(self, command: Callable[[], T], description: str) -> T:
        if self._processor.mailbox.is_mailbox_thread:
            return command()
        future = self._processor.main_executor.submit(command, description)
        try:
            return future.result(_ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable("the worker is busy and did not answer in time: try again") from error

    # The mailbox thread

    def _start(self) -> None:
        self._fs.mkdir(self._base_folder)
        for name in self._fs.listdir(self._base_folder):
            if self._fs.stat(f"{self._base_folder}/{name}").is_folder:
                self._find(name)
        self._started = True
        self._processor.timers.schedule_every(
            self._options.watch_interval_ms, self._watch, "watch the peons", first_after_ms=0
        )

    def _find(self, task_id: str) -> None:
        folder = self._folder(task_id)
        try:
            if folder.read_json("task.json") is None:
                # Cut before it was taken, or while it was deleted.
                folder.remove()
                return
            status = folder.read_json("status.json")
        except PenstockError as error:
            self._end(task_id, folder, TaskState.FAILED, f"its folder cannot be read: {error}")
            return
        if status is None:
            self._running[task_id] = _Running(folder, self._clock.monotonic_s())
        else:
            self._ended[task_id] = _ended_from_json(folder, status)

    def _stop(self) -> None:
        # Peons that end from now on were told to: the next worker starts them again.
        self._stopping = True
        for running in self._running.values():
            if running.process is not None:
                running.process.terminate()

    def _report(self) -> WorkerReport:
        self._require_started()
        tasks = [
            WorkerTask(task_id, TaskState.RUNNING, self._location(running))
            for task_id, running in self._running.items()
        ]
        tasks += [
            WorkerTask(task_id, ended.state, None, ended.error, ended.duration_ms)
            for task_id, ended in self._ended.items()
        ]
        return WorkerReport(self._options.capacity, tuple(tasks))

    def _assign(self, task: TaskSpec) -> None:
        self._require_started()
        if task.id in self._running or task.id in self._ended:
            return
        if len(self._running) >= self._options.capacity:
            raise Conflict(
                f"all {self._options.capacity} slots of the worker are taken: raise its capacity"
                " or wait for a task to end"
            )
        if "/" in task.id or task.id.startswith("."):
            raise InvalidRequest(f"{task.id!r} cannot name a folder, so it is no id of a task")
        folder = self._folder(task.id)
        folder.remove()
        folder = self._folder(task.id)
        folder.write_json("task.json", dict(task.to_json()))
        self._running[task.id] = _Running(folder, self._clock.monotonic_s())
        self._watch_one(task.id)

    def _shutdown(self, task_id: str) -> None:
        self._require_started()
        running = self._running.get(task_id)
        if running is not None:
            # Written down first: a worker that dies now must not start the peon again.
            self._end(task_id, running.folder, TaskState.FAILED, "it was shut down")
            if running.process is not None:
                running.process.kill()
        ended = self._ended.pop(task_id, None)
        if ended is not None:
            self._processor.timers.schedule_after(
                self._options.forget_delay_ms,
                lambda: self._delete(task_id, ended.folder),
                "delete the folder of a task",
            )

    def _delete(self, task_id: str, folder: TaskFolder) -> None:
        if task_id in self._running or task_id in self._ended:
            return
        if self._logs is not None:
            self._logs.keep(task_id)
        try:
            folder.remove()
        except PenstockError as error:
            _log.warning("the folder of task %s is left: %s", task_id, error)

    def _watch(self) -> None:
        if self._stopping:
            return
        for task_id in list(self._running):
            self._watch_one(task_id)

    def _watch_one(self, task_id: str) -> None:
        running = self._running[task_id]
        now_s = self._clock.monotonic_s()
        if running.process is None:
            if now_s >= running.start_again_s:
                self._launch(task_id, running)
            return
        code = running.process.exit_code()
        if code is None:
            return
        running.process, running.location = None, None
        try:
            status = running.folder.read_json("status.json")
        except PenstockError as error:
            self._end(task_id, running.folder, TaskState.FAILED, str(error))
            return
        if status is not None:
            del self._running[task_id]
            self._ended[task_id] = _ended_from_json(running.folder, status)
            return
        self._died(task_id, running, f"its peon ended with exit code {code}")

    def _launch(self, task_id: str, running: _Running) -> None:
        try:
            # The place of the peon before; a reader must not take it for the new one's.
            running.folder.write_json("location.json", {})
            running.process = self._launcher.launch(task_id, running.folder.path)
        except Unavailable as error:
            # A full disk or a full machine is no fault of the task. If it lasts, the overlord ends
            # the task, which does not answer.
            delay_ms = self._options.restart.max_ms
            running.start_again_s = self._clock.monotonic_s() + delay_ms / 1000
            _log.warning("task %s waits for its peon: %s", task_id, error)
        except PenstockError as error:
            self._died(task_id, running, f"its peon cannot be started: {error}")

    def _died(self, task_id: str, running: _Running, reason: str) -> None:
        now_s = self._clock.monotonic_s()
        since_s = now_s - self._options.deaths_window_ms / 1000
        running.deaths_s = [*(death_s for death_s in running.deaths_s if death_s > since_s), now_s]
        deaths = len(running.deaths_s)
        if deaths >= self._options.deaths_max:
            text = f"{reason}; it died {deaths} times within {now_s - running.deaths_s[0]:.0f} s"
            end = self._log_end(running.folder)
            self._end(task_id, running.folder, TaskState.FAILED, text + end)
            return
        delay_ms = self._options.restart.delay_ms(deaths)
        running.start_again_s = now_s + delay_ms / 1000
        _log.warning("task %s: %s; starting it again in %d ms", task_id, reason, delay_ms)

    def _end(self, task_id: str, folder: TaskFolder, state: TaskState, error: str) -> None:
        running = self._running.pop(task_id, None)
        since_s = running.since_s if running is not None else self._clock.monotonic_s()
        duration_ms = int((self._clock.monotonic_s() - since_s) * 1000)
        ended = _Ended(folder, state, error, duration_ms)
        self._ended[task_id] = ended
        try:
            folder.write_json("status.json", status_to_json(state, error, duration_ms))
        except PenstockError as failure:
            _log.warning("the end of task %s is not written down: %s", task_id, failure)

    def _location(self, running: _Running) -> TaskLocation | None:
        if running.location is None and running.process is not None:
            try:
                found = running.folder.read_json("location.json") or {}
            except PenstockError:
                return None
            host, port = found.get("host"), found.get("port")
            if isinstance(host, str) and isinstance(port, int):
                running.location = TaskLocation(host, port)
        return running.location

    def _log_end(self, folder: TaskFolder) -> str:
        try:
            file = self._fs.open_read(f"{folder.path}/log")
        except PenstockError:
            return ""
        try:
            size = file.size()
            end = file.pread(_LOG_END_BYTES, max(0, size - _LOG_END_BYTES))
        finally:
            file.close()
        text = end.decode(errors="replace").strip()
        return f". Its log ends with: {text}" if text else ""

    def _folder(self, task_id: str) -> TaskFolder:
        return TaskFolder(f"{self._base_folder}/{task_id}", self._fs)

    def _require_started(self) -> None:
        if not self._started:
            raise Unavailable("the worker is starting and has not looked at its tasks yet")
        if self._stopping:
            raise Unavailable("the worker is stopping: ask again when it is back")


def status_to_json(state: TaskState, error: str, duration_ms: int) -> dict[str, object]:
    """Return what ``status.json`` says of a task that ended."""
    return {"status": state.value, "errorMsg": error, "duration": duration_ms}


def _ended_from_json(folder: TaskFolder, value: dict[str, object]) -> _Ended:
    try:
        state = TaskState(str(value.get("status")))
    except ValueError:
        state = TaskState.FAILED
    duration = value.get("duration")
    return _Ended(
        folder,
        state if state.complete else TaskState.FAILED,
        str(value.get("errorMsg") or ""),
        duration if isinstance(duration, int) else -1,
    )
