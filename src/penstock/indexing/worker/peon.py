"""A peon: the process that runs one task in its folder, from the lock to the status file.

It owns the order of start and end:

1. acquire the folder's lock: an earlier peon may still be exiting;
2. read ``task.json``, create the task, start its control API, store its address;
3. start an attempt: from here on a task that cannot continue from its folder is lost if the peon
   dies;
4. run;
5. write the report, then the status. A task that was stopped and can continue writes neither.

The services supply everything that a task runs on (engine, HTTP, clients).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.clock import pause
from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.indexing.ports import TaskState
from penstock.indexing.task import TaskResult
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import parse_task
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task_spec import TaskSpec
    from penstock.indexing.worker.peon_task import PeonTask, TaskKind, TaskKinds
    from penstock.storage.filesystem import FileSystem, FolderLock

_log = logging.getLogger(__name__)

_LOCK_TRY_S: Final = 0.1
_LOCK_WAIT_S: Final = 60.0
# A full disk may be freed; the result of a task that cannot continue must not be lost meanwhile.
_WRITE_TRY_S: Final = 1.0
_WRITE_WAIT_S: Final = 120.0


class Peon:
    """Runs the task of a folder, once.

    Args:
        path: The task's folder.
        fs: The file system.
        clock: Time.
        kinds: The kinds of task that it can run.
        serve: Starts the control API of the task and returns its address.
        located: Called with the address, once that is stored in the folder; it must not block.
    """

    def __init__(
        self,
        path: str,
        fs: FileSystem,
        clock: Clock,
        kinds: TaskKinds,
        serve: Callable[[TaskSpec, PeonTask], TaskLocation],
        located: Callable[[TaskSpec, TaskLocation], None] = lambda _spec, _location: None,
    ) -> None:
        self._path = path
        self._fs = fs
        self._clock = clock
        self._kinds = kinds
        self._serve = serve
        self._located = located
        self._folder = TaskFolder(path, fs)
        self._attempts = TaskAttempts(self._folder, fs)
        # Used only for waits that the clock ends.

    def run(self) -> TaskResult:
        """Run the task until it ends or is stopped.

        Returns:
            The result of the task, which is then in the attempt's ``status.json``; RUNNING if it
            was stopped and continues when a peon is restarted.

        Raises:
            InvalidRequest: The folder contains no task.
            Unavailable: Another process keeps the lock of the folder, or the disk is full.
        """
        lock = self._lock()
        try:
            return self._run_locked()
        finally:
            lock.release()

    def _run_locked(self) -> TaskResult:
        started_s = self._clock.monotonic_s()
        value = self._folder.read_json("task.json")
        if value is None:
            raise InvalidRequest(f"{self._path} has no task.json: specify the folder of a task")
        task: PeonTask | None = None
        restorable = True
        try:
            spec = parse_task(value)
            kind = self._kinds.find(spec.type)
            task, restorable = self._make(kind, spec), kind.restorable
        except Unavailable:
            raise  # A full disk: the worker restarts the peon.
        except PenstockError as error:
            result = TaskResult(TaskState.FAILED, f"it cannot be run from its folder: {error}")
            number = self._attempts.begin(restorable=True)
        else:
            number = self._attempts.begin(restorable=restorable)
            result = self._run(task, restorable=restorable)
        if result.state is not TaskState.RUNNING:
            duration_ms = int((self._clock.monotonic_s() - started_s) * 1000)
            end = AttemptEnd(result.state, result.error, duration_ms)
            if task is not None:
                self._write_report(number, spec, task)
            self._write_end(number, end)
        return result

    def _make(self, kind: TaskKind, spec: TaskSpec) -> PeonTask:
        task = kind.make(spec, self._folder)
        location = self._serve(spec, task)
        self._folder.write_json("location.json", {"host": location.host, "port": location.port})
        self._located(spec, location)
        return task

    def _run(self, task: PeonTask, *, restorable: bool) -> TaskResult:
        try:
            return task.run()
        except Unavailable as error:
            if restorable:
                raise  # The next peon continues.
            return TaskResult(TaskState.FAILED, str(error))
        except PenstockError as error:
            return TaskResult(TaskState.FAILED, str(error))

    def _write_report(self, number: int, spec: TaskSpec, task: PeonTask) -> None:
        try:
            report = task.report().to_json(spec.id, spec.context)
            self._attempts.write_report(number, report)
        except PenstockError as error:
            # The result of the task is more important.
            _log.warning("cannot store the report of task %s: %s", spec.id, error)

    def _write_end(self, number: int, end: AttemptEnd) -> None:
        until_s = self._clock.monotonic_s() + _WRITE_WAIT_S
        while True:
            try:
                self._attempts.write_end(number, end)
            except Unavailable as error:
                if self._clock.monotonic_s() >= until_s:
                    raise
                _log.warning("the task ended %s, but cannot store that: %s", end.state, error)
            else:
                return
            self._wait(_WRITE_TRY_S)

    def _lock(self) -> FolderLock:
        until_s = self._clock.monotonic_s() + _LOCK_WAIT_S
        while True:
            try:
                return self._folder.lock()
            except Conflict as error:
                if self._clock.monotonic_s() >= until_s:
                    raise Unavailable(f"{self._path}: another peon works here: {error}") from error
            self._wait(_LOCK_TRY_S)

    def _wait(self, seconds: float) -> None:
        pause(self._clock, seconds)
