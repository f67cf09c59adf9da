"""The worker: takes tasks, runs each in a peon, and keeps what ended until the overlord knows.

All state belongs to its mailbox, and can be found again from the tasks' folders alone. Invariants:

- a task is written down before the overlord hears that it was taken;
- a peon that dies is started again in the same folder, where its task goes on if it can
  (`penstock.indexing.worker.running`);
- a task that ended is reported until the overlord says to forget it, and its folder is deleted a
  while after that, when no query reads its files any more and its log is in the log store;
- that the worker takes no new tasks survives its restart.

| task | how it got there | what may follow |
|---|---|---|
| running | assigned, or found at the start of the worker | ended |
| ended | its peon wrote how; it was asked to end; it died too often | forgotten |
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import orjson

from penstock.core.errors import Closed, Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.indexing.ports import HistoryPlace, TaskState, WorkerReport, WorkerTask
from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.worker.attempts import Attempts, TaskEnd
from penstock.indexing.worker.history import ChangeHistory
from penstock.indexing.worker.longpoll import WORKER, LongPoll
from penstock.indexing.worker.options import WorkerOptions
from penstock.indexing.worker.running import (
    CANNOT_GO_ON,
    RunningTask,
    Surroundings,
    write_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.ports import PeonLauncher, WorkerChanges
    from penstock.indexing.taskspec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.filesystem import FileSystem

T = TypeVar("T")

_log = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S: Final = 30.0
_STATE_FILE: Final = "worker.json"


class LogShipper(Protocol):
    """Sends what is left of a task to where it can be read when its folder is gone."""

    def ship(self, task_id: str, folder: str) -> Future[None]:
        """Copy log and report; done when they are there. Repeating it is fine."""
        ...


@dataclass(slots=True)
class _Ended:
    """A task that ended, until it is forgotten and its folder is gone."""

    folder: TaskFolder
    end: TaskEnd
    shipped: bool = False
    ship_tries: int = 0

    def mark_shipped(self) -> None:
        """Note that its log and report are in the log store."""
        self.shipped = True


class Worker:
    """A worker. All but `start`, `stop`, `changes` and `look` wait for its mailbox; any thread.

    Args:
        base_folders: Hold a folder for each task; a new one goes where the fewest run.
        fs: The file system.
        launcher: Starts peons.
        processor: Its mailbox, on a thread that runs it.
        clock: Tells how long peons live.
        options: How it behaves.
        logs: Takes the logs of tasks that ended; None: they go with their folder.
    """

    def __init__(
        self,
        base_folders: Sequence[str],
        fs: FileSystem,
        launcher: PeonLauncher,
        processor: MailboxProcessor,
        clock: Clock,
        options: WorkerOptions | None = None,
        logs: LogShipper | None = None,
    ) -> None:
        self._base_folders = tuple(base_folders)
        self._fs = fs
        self._processor = processor
        self._options = options or WorkerOptions()
        self._logs = logs
        self._running: dict[str, RunningTask] = {}
        self._ended: dict[str, _Ended] = {}
        self._enabled = True
        self._started = False
        self._stopping = False
        self._surroundings = Surroundings(
            *(fs, launcher, processor, clock, self._options),
            changed=self._changed,
            ended=self._ended_now,
        )
        history = ChangeHistory(clock.now_ms())
        self._long_poll = LongPoll(history, processor, self, self._options.waiters_max)

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

    def changes(self, after: HistoryPlace, wait_ms: int) -> Future[WorkerChanges]:
        """Answer with what changed after a place, when something did or the time is over.

        The future raises Unavailable while the worker is starting.
        """
        answer: Future[WorkerChanges] = Future()

        def ask() -> None:
            try:
                self._require_started()
            except Unavailable as error:
                if answer.set_running_or_notify_cancel():  # whoever asked may have gone
                    answer.set_exception(error)
                return
            self._long_poll.ask(answer, after, wait_ms)

        self._processor.main_executor.execute(ask, "long poll")
        return answer

    def assign(self, task: TaskSpec) -> None:
        """Take a task; it is written down when this returns. One that is here already is fine.

        Raises:
            Conflict: No slot is free, or the worker is disabled.
            Unavailable: It is starting, or the disk is full.
        """
        self._answer(lambda: self._assign(task), "assign")

    def shutdown(self, task_id: str) -> None:
        """Have a task end without ceremony, or forget one that ended; an unknown one is fine.

        A peon is asked first and killed after a while; the task is RUNNING until it is gone.
        """
        self._answer(lambda: self._shutdown(task_id), "shutdown")

    def set_enabled(self, enabled: bool) -> None:
        """Have the worker take new tasks or not; it is written down when this returns.

        Raises:
            Unavailable: The disk is full; nothing changed.
        """
        self._answer(lambda: self._set_enabled(enabled), "enable or disable")

    def look(self, task_id: str) -> None:
        """Look at a task's peon now: it has said something, or has ended. Does not wait."""
        try:
            self._processor.main_executor.execute(
                lambda: self._look(task_id, told=True), "look at %s", task_id
            )
        except Closed:
            _log.debug("the worker has stopped and looks at nothing")

    def _answer(self, command: Callable[[], T], description: str) -> T:
        if self._processor.mailbox.is_mailbox_thread:
            return command()
        future = self._processor.main_executor.submit(command, description)
        try:
            return future.result(_ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise Unavailable("the worker is busy and did not answer in time: try again") from error

    # What the long poll tells; the mailbox thread

    @property
    def enabled(self) -> bool:
        """Whether it takes new tasks."""
        return self._enabled

    def everything(self) -> WorkerReport:
        """Return all that the worker has."""
        tasks = [running.told() for running in self._running.values()]
        tasks += [_told(task_id, ended.end) for task_id, ended in self._ended.items()]
        options = self._options
        return WorkerReport(
            options.capacity, tuple(tasks), self._enabled, options.category, options.version
        )

    def task(self, task_id: str) -> WorkerTask | None:
        """Return how a task stands; None: it is not there."""
        if task_id in self._running:
            return self._running[task_id].told()
        ended = self._ended.get(task_id)
        return None if ended is None else _told(task_id, ended.end)

    # The mailbox thread

    def _start(self) -> None:
        self._load_state()
        for base in self._base_folders:
            self._fs.mkdir(base)
            for name in self._fs.listdir(base):
                self._find(base, name)
        self._started = True
        timers, options = self._processor.timers, self._options
        timers.schedule_every(
            options.watch_interval_ms, self._watch, "watch the peons", first_after_ms=0
        )
        if options.task_bytes_max is not None:
            timers.schedule_every(options.size_interval_ms, self._measure, "measure the tasks")

    def _find(self, base: str, task_id: str) -> None:
        """Go on with what a folder holds. What is damaged is a task that failed, and says so."""
        path = f"{base}/{task_id}"
        if task_id in self._running or task_id in self._ended:
            _log.warning("%s is left alone: task %s is in another folder", path, task_id)
            return
        try:
            if not self._fs.stat(path).is_folder:
                return
            folder = TaskFolder(path, self._fs)
        except PenstockError as error:
            _log.warning("%s is left alone: %s", path, error)
            return
        try:
            if folder.read_json("task.json") is None:
                # Cut before it was taken, or while it was deleted.
                folder.remove()
                return
            end = self._find_end(folder)
        except PenstockError as error:
            end = TaskEnd(TaskState.FAILED, f"its folder cannot be read: {error}")
        if end is None:
            self._running[task_id] = RunningTask(task_id, folder, self._surroundings)
        else:
            write_end(folder, task_id, end)
            self._keep(task_id, _Ended(folder, end))

    def _find_end(self, folder: TaskFolder) -> TaskEnd | None:
        attempts = Attempts(folder, self._fs)
        if (end := attempts.end()) is not None:
            return end
        if (reason := attempts.shutdown_reason()) is not None:
            return TaskEnd(TaskState.FAILED, reason)
        if attempts.is_lost():
            return TaskEnd(TaskState.FAILED, f"its worker ended while it ran; {CANNOT_GO_ON}")
        return None

    def _stop(self) -> None:
        # Peons that end from now on were told to: the next worker starts them again.
        self._stopping = True
        self._long_poll.close()
        for running in self._running.values():
            running.terminate()

    def _report(self) -> WorkerReport:
        self._require_started()
        return self.everything()

    def _assign(self, task: TaskSpec) -> None:
        self._require_started()
        if task.id in self._running or task.id in self._ended:
            return
        if not self._enabled:
            raise Conflict("the worker is disabled: enable it, or give the task to another")
        if len(self._running) >= self._options.capacity:
            raise Conflict(
                f"all {self._options.capacity} slots of the worker are taken: raise its capacity"
                " or wait for a task to end"
            )
        if not task.id or "/" in task.id or task.id.startswith("."):
            raise InvalidRequest(f"{task.id!r} cannot name a folder, so it is no id of a task")
        for base in self._base_folders:
            path = f"{base}/{task.id}"
            if self._fs.exists(path):  # what is left of an earlier task of that id
                self._remove(TaskFolder(path, self._fs))
        folder = TaskFolder(f"{self._roomiest()}/{task.id}", self._fs)
        try:
            folder.write_json("task.json", dict(task.to_json()))
        except PenstockError:
            # Nobody would ever ask to have an empty folder forgotten.
            with suppress(PenstockError):
                self._remove(folder)
            raise
        self._running[task.id] = RunningTask(task.id, folder, self._surroundings)
        self._changed(task.id)
        self._look(task.id)

    def _roomiest(self) -> str:
        used = [running.folder.path.rpartition("/")[0] for running in self._running.values()]
        return min(self._base_folders, key=used.count)

    def _shutdown(self, task_id: str) -> None:
        self._require_started()
        running = self._running.get(task_id)
        if running is not None:
            running.ask_to_end("it was shut down")
            return
        ended = self._ended.pop(task_id, None)
        if ended is not None:
            self._changed(task_id)
            self._delete_later(task_id, ended)

    def _delete_later(self, task_id: str, ended: _Ended) -> None:
        self._processor.timers.schedule_after(
            self._options.forget_delay_ms,
            lambda: self._delete(task_id, ended),
            "delete the folder of a task",
        )

    def _delete(self, task_id: str, ended: _Ended) -> None:
        if task_id in self._running or task_id in self._ended:
            return
        tries_left = ended.ship_tries <= self._options.ship_tries_max
        if self._logs is not None and not ended.shipped and tries_left:
            self._ship(task_id, ended)
            self._delete_later(task_id, ended)
            return
        try:
            self._remove(ended.folder)
        except PenstockError as error:
            _log.warning("the folder of task %s is left: %s", task_id, error)

    def _remove(self, folder: TaskFolder) -> None:
        # What the task is goes first, durably: a folder that was cut without its end would be run
        # again by the next worker.
        task = f"{folder.path}/task.json"
        if self._fs.exists(task):
            self._fs.unlink(task)
            self._fs.fsync_folder(folder.path)
        folder.remove()

    def _set_enabled(self, enabled: bool) -> None:
        self._require_started()
        path = f"{self._base_folders[0]}/{_STATE_FILE}"
        self._fs.write_atomically(path, orjson.dumps({"enabled": enabled}))
        if enabled != self._enabled:
            self._enabled = enabled
            self._changed(WORKER)

    def _load_state(self) -> None:
        path = f"{self._base_folders[0]}/{_STATE_FILE}"
        try:
            if self._fs.exists(path):
                value = orjson.loads(self._fs.read_bytes(path))
                self._enabled = not (isinstance(value, dict) and value.get("enabled") is False)
        except (PenstockError, orjson.JSONDecodeError) as error:
            _log.warning("%s cannot be read, so the worker is enabled: %s", path, error)

    def _watch(self) -> None:
        for task_id in list(self._running):
            self._look(task_id)

    def _look(self, task_id: str, *, told: bool = False) -> None:
        running = self._running.get(task_id)
        if running is not None and not self._stopping:
            running.look(told=told)

    def _measure(self) -> None:
        limit = self._options.task_bytes_max
        for running in list(self._running.values()):
            try:
                size = sum(_sizes(self._fs, running.folder.path))
            except PenstockError:
                continue  # files come and go; the next look counts again
            if limit is not None and size > limit:
                running.ask_to_end(
                    f"its folder holds {size} bytes, more than the {limit} that a task may have:"
                    " raise the limit, or give it less to do at a time"
                )

    def _changed(self, name: str) -> None:
        self._long_poll.changed(name)

    def _ended_now(self, task_id: str, folder: TaskFolder, end: TaskEnd) -> None:
        del self._running[task_id]
        self._keep(task_id, _Ended(folder, end))
        self._changed(task_id)

    def _keep(self, task_id: str, ended: _Ended) -> None:
        self._ended[task_id] = ended
        if self._logs is not None:
            # The process has its last words after the task's end.
            self._processor.timers.schedule_after(
                self._options.ship_delay_ms, lambda: self._ship(task_id, ended), "ship a log"
            )

    def _ship(self, task_id: str, ended: _Ended) -> None:
        if self._logs is None:
            return
        ended.ship_tries += 1

        def note(done: Future[None]) -> None:
            error = "cancelled" if done.cancelled() else done.exception()
            if error is not None:
                _log.warning("the log of task %s is not in the log store: %s", task_id, error)
                return
            with suppress(Closed):  # the next worker ships it again, which is fine
                self._processor.main_executor.execute(
                    ended.mark_shipped, "the log of %s is kept", task_id
                )

        self._logs.ship(task_id, ended.folder.path).add_done_callback(note)

    def _require_started(self) -> None:
        if not self._started:
            raise Unavailable("the worker is starting and has not looked at its tasks yet")
        if self._stopping:
            raise Unavailable("the worker is stopping: ask again when it is back")


def _told(task_id: str, end: TaskEnd) -> WorkerTask:
    return WorkerTask(task_id, end.state, None, end.error, end.duration_ms)


def _sizes(fs: FileSystem, path: str) -> Iterator[int]:
    found = fs.stat(path)
    if not found.is_folder:
        yield found.size
        return
    for name in fs.listdir(path):
        yield from _sizes(fs, f"{path}/{name}")
