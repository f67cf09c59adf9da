"""One running task of a worker: its peon, which is restarted when it dies, until the task ends.

Belongs to the worker's mailbox thread. Owns the process and the status files in the task's folder.
Each method returns what it changed as a `TaskUpdate`, and the worker handles a task that has ended.

| peon | consequence |
|---|---|
| cannot be started | retried without a limit: a full machine is not a failure of the task |
| wrote the result of the task | the task has ended, though the process may take a moment longer |
| ended, and the task had to end | the task has failed for that reason |
| died, and the started task cannot continue from its folder | the task has failed |
| died otherwise | restarted after a delay; after too many deaths the task has failed |
| does not end on request | killed after `shutdown_grace_ms`, and the reason mentions it |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, PenstockError, Unavailable, counted
from penstock.core.waits import WaitTable, waits_from_json
from penstock.indexing.ports import TaskLocation, TaskState, WorkerTask
from penstock.indexing.worker.task_attempts import SHUTDOWN, STATUS, WAITS, AttemptEnd, TaskAttempts

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import PeonLauncher, PeonProcess
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.worker.options import WorkerOptions
    from penstock.mailbox import MailboxProcessor
    from penstock.storage.filesystem import FileSystem

_log = logging.getLogger(__name__)

_LOG_END_BYTES: Final = 2_000
CANNOT_GO_ON: Final = "a task of its type cannot continue from its folder: submit it again"


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The context that the tasks of a worker share.

    Attributes:
        fs: The file system.
        launcher: Starts peons.
        processor: The worker's mailbox.
        clock: Time.
        options: The worker's options.
    """

    fs: FileSystem
    launcher: PeonLauncher
    processor: MailboxProcessor
    clock: Clock
    options: WorkerOptions


@dataclass(frozen=True, slots=True)
class TaskUpdate:
    """Changes of a running task.

    Attributes:
        is_changed: Whether its status for the overlord has changed.
        end: Its result, which is stored, if it has ended.
    """

    is_changed: bool = False
    end: AttemptEnd | None = None


class RunningTask:
    """A task with a peon, or one whose peon will be restarted.

    Args:
        task_id: The task.
        folder: Its folder, which holds ``task.json``.
        worker: The context that it shares with the worker's other tasks.
        since_s: When the worker took the task, on the worker's clock.
    """

    def __init__(
        self, task_id: str, folder: TaskFolder, worker: WorkerContext, since_s: float
    ) -> None:
        self._id = task_id
        self.folder = folder
        self._worker = worker
        self._attempts = TaskAttempts(folder, worker.fs)
        self._since_s = since_s
        self._process: PeonProcess | None = None
        self._start_again_s = 0.0
        self._deaths_s: list[float] = []
        self._location: TaskLocation | None = None
        self._ending: str | None = None
        self._waits: tuple[DependencyWait, ...] = ()
        self._starts = WaitTable(worker.clock)
        self._update = TaskUpdate()  # Changes since the last update that was returned.

    def status(self) -> WorkerTask:
        """Return the task's status for the overlord."""
        return WorkerTask(self._id, TaskState.RUNNING, self._location, waits=self._waits)

    def check(self, *, reported: bool = False) -> TaskUpdate:
        """Start the peon if that is due; check its address, and whether it has ended.

        Args:
            reported: Whether the peon has reported its address, or the end of the task.
        """
        self._check(reported=reported)
        return self._take_update()

    def request_end(self, reason: str) -> TaskUpdate:
        """End the task at once, for a reason; repeated calls change nothing."""
        if self._ending is None:
            self._begin_end(reason)
        return self._take_update()

    def hold_to_limit(self, size_bytes: int) -> TaskUpdate:
        """End the task if its folder, which has this size, exceeds the limit of a task."""
        limit = self._worker.options.task_bytes_max
        if limit is None or size_bytes <= limit:
            return TaskUpdate()
        return self.request_end(
            f"its folder has {size_bytes:,} bytes, more than the limit of {limit:,} bytes:"
            " increase the limit (--task-size), or give the task less work at a time"
        )

    def terminate(self) -> None:
        """Ask the peon to stop: the task continues when a worker finds its folder again."""
        if self._process is not None:
            self._process.terminate()

    def _take_update(self) -> TaskUpdate:
        update, self._update = self._update, TaskUpdate()
        return update

    def _check(self, *, reported: bool) -> None:
        if self._process is None:
            if self._worker.clock.monotonic_s() >= self._start_again_s:
                self._launch()
            return
        code = self._process.exit_code()
        if code is None:
            self._read_location()
            if reported:
                self._read_waits()
                self._read_end(self._process)
            return
        self._process = None
        self._forget_location()
        try:
            end = self._attempts.end()
            lost = end is None and self._attempts.is_lost()
        except PenstockError as error:
            self._end(AttemptEnd(TaskState.FAILED, str(error), self._lived_ms()))
            return
        if end is not None:
            self._end(end)
        elif self._ending is not None:
            self._fail(self._ending)
        elif lost:
            self._fail(f"its peon ended with exit code {code}; {CANNOT_GO_ON}{self._log_end()}")
        else:
            self._died(f"its peon ended with exit code {code}")

    def _begin_end(self, reason: str) -> None:
        self._ending = reason
        try:
            # Stored first: a worker that dies now must not start the peon again.
            self.folder.write_json(SHUTDOWN, {"reason": reason})
        except PenstockError as failure:
            _log.warning("task %s: cannot store that it must end: %s", self._id, failure)
        if self._process is None:
            self._fail(reason)
            return
        process = self._process
        process.terminate()
        self._worker.processor.timers.schedule_after(
            self._worker.options.shutdown_grace_ms,
            lambda: self._kill(process),
            "a request to end a peon",
        )

    def _kill(self, process: PeonProcess) -> None:
        if process is not self._process or process.exit_code() is not None:
            return
        grace_s = self._worker.options.shutdown_grace_ms / 1000
        text = f"its peon did not end within {grace_s:g} s and was killed"
        if self._ending is not None:
            self._ending += f"; {text}"
        _log.warning("task %s: %s", self._id, text)
        process.kill()

    def _launch(self) -> None:
        try:
            # The address of the previous peon; readers must not use it as that of the new one.
            self.folder.write_json("location.json", {})
            self.folder.write_json(WAITS, {})
            self._process = self._worker.launcher.launch(self._id, self.folder.path)
            self._starts.ended("start its process")
            self._set_waits(())
        except Unavailable as error:
            # If this continues, the overlord ends the task, because it does not answer.
            delay_ms = self._worker.options.restart.max_ms
            self._start_again_s = self._worker.clock.monotonic_s() + delay_ms / 1000
            self._starts.failed("start its process", error, dependency=Dependency.WORKER)
            self._set_waits(self._starts.all())
            _log.warning("task %s waits for its peon: %s", self._id, error)
        except PenstockError as error:
            self._died(f"its peon cannot be started: {error}")

    def _died(self, reason: str) -> None:
        options = self._worker.options
        now_s = self._worker.clock.monotonic_s()
        since_s = now_s - options.deaths_window_ms / 1000
        self._deaths_s = [*(death_s for death_s in self._deaths_s if death_s > since_s), now_s]
        deaths = len(self._deaths_s)
        if deaths >= options.deaths_max:
            within_s = now_s - self._deaths_s[0]
            text = f"{reason}; it died {counted(deaths, 'time')} within {within_s:.0f} s"
            self._fail(text + self._log_end())
            return
        delay_ms = options.restart.delay_ms(deaths)
        self._start_again_s = now_s + delay_ms / 1000
        _log.warning("task %s: %s; restarting it in %d ms", self._id, reason, delay_ms)

    def _fail(self, reason: str) -> None:
        self._end(AttemptEnd(TaskState.FAILED, reason, self._lived_ms()))

    def _end(self, end: AttemptEnd) -> None:
        write_end(self.folder, self._id, end)
        self._update = replace(self._update, end=end)

    def _lived_ms(self) -> int:
        return int((self._worker.clock.monotonic_s() - self._since_s) * 1000)

    def _read_location(self) -> None:
        if self._location is not None:
            return
        try:
            found = self.folder.read_json("location.json") or {}
        except PenstockError:
            return
        host, port = found.get("host"), found.get("port")
        if isinstance(host, str) and isinstance(port, int):
            self._location = TaskLocation(host, port)
            self._note_change()

    def _read_end(self, process: PeonProcess) -> None:
        """Check whether the task has ended, though its process may still be closing files."""
        try:
            end = self._attempts.end()
        except PenstockError:
            return  # the exit of the process will show it
        if end is None:
            return
        self._location = None
        self._end(end)
        self._worker.processor.timers.schedule_after(
            self._worker.options.shutdown_grace_ms,
            lambda: self._kill(process),
            "a peon no longer has a task",
        )

    def _read_waits(self) -> None:
        try:
            found = self.folder.read_json(WAITS) or {}
        except PenstockError:
            return  # it is written without fsync: a crash of the host may truncate it
        self._set_waits(waits_from_json(found.get("waits")))

    def _set_waits(self, waits: tuple[DependencyWait, ...]) -> None:
        if waits != self._waits:
            self._waits = waits
            self._note_change()

    def _forget_location(self) -> None:
        self._set_waits(())
        if self._location is not None:
            self._location = None
            self._note_change()

    def _note_change(self) -> None:
        self._update = replace(self._update, is_changed=True)

    def _log_end(self) -> str:
        """Return the last lines of the log; empty if it cannot be read, as the task ends anyway."""
        try:
            file = self._worker.fs.open_read(f"{self.folder.path}/log")
            try:
                size = file.size()
                end = file.pread(_LOG_END_BYTES, max(0, size - _LOG_END_BYTES))
            finally:
                file.close()
        except PenstockError as error:
            _log.debug("task %s: its log cannot be read: %s", self._id, error)
            return ""
        text = end.decode(errors="replace").strip()
        return f". Its log ends with: {text}" if text else ""


def write_end(folder: TaskFolder, task_id: str, end: AttemptEnd) -> None:
    """Store the result of a task; if that fails, the worker's next start detects the end again."""
    try:
        folder.write_json(STATUS, end.to_json())
    except PenstockError as failure:
        _log.warning("cannot store the end of task %s: %s", task_id, failure)
