"""A peon: the process that runs one task in its folder, from the lock to the status file.

It owns the order of start and end. What it runs on (engine, HTTP, clients) is given by services.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, Unavailable
from penstock.indexing.actions import UpdateLocation
from penstock.indexing.ports import TaskState
from penstock.indexing.task import StreamingTask, TaskResult
from penstock.indexing.task.folder import TaskFolder
from penstock.indexing.taskspec import parse_task_spec
from penstock.indexing.worker.worker import status_to_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.indexing.ports import TaskLocation
    from penstock.indexing.task.state import TaskOptions, TaskPorts
    from penstock.indexing.taskspec import StreamTaskSpec
    from penstock.storage.filesystem import FileSystem, FolderLock

_log = logging.getLogger(__name__)

_LOCK_TRY_S: Final = 0.1
_LOCK_WAIT_S: Final = 60.0


def run_peon(
    path: str,
    fs: FileSystem,
    clock: Clock,
    make_ports: Callable[[StreamTaskSpec], TaskPorts],
    serve: Callable[[StreamingTask], TaskLocation],
    options: TaskOptions | None = None,
) -> TaskResult:
    """Run the task of a folder until it ends or is stopped.

    Args:
        path: The task's folder.
        fs: The file system.
        clock: Time.
        make_ports: Makes what the task works with, once the folder is locked.
        serve: Starts the control API of the task and says where it answers.
        options: How the task behaves.

    Returns:
        How the task ended, which is in ``status.json`` then; RUNNING if it was stopped.

    Raises:
        InvalidRequest: There is no task in the folder.
        Unavailable: Another process works in the folder and does not let go of it.
    """
    started_s = clock.monotonic_s()
    folder = TaskFolder(path, fs)
    lock = _lock(folder, clock)
    try:
        value = folder.read_json("task.json")
        if value is None:
            raise InvalidRequest(f"{path} holds no task.json: give the folder of a task")
        spec = parse_task_spec(value)
        ports = make_ports(spec)
        result = _run(spec, folder, ports, serve, options)
        if result.state is not TaskState.RUNNING:
            duration_ms = int((clock.monotonic_s() - started_s) * 1000)
            folder.write_json(
                "status.json", status_to_json(result.state, result.error, duration_ms)
            )
        ports.lanes.close()
        return result
    finally:
        lock.release()


def _run(
    spec: StreamTaskSpec,
    folder: TaskFolder,
    ports: TaskPorts,
    serve: Callable[[StreamingTask], TaskLocation],
    options: TaskOptions | None,
) -> TaskResult:
    try:
        task = StreamingTask(spec, folder, ports, options)
    except Unavailable:
        raise  # A full disk: the worker starts the peon again.
    except PenstockError as error:
        return TaskResult(TaskState.FAILED, f"it cannot go on from its folder: {error}")
    location = serve(task)
    folder.write_json("location.json", {"host": location.host, "port": location.port})
    # The worker reports the place too; this is sooner.
    tell = ports.lanes.submit(
        "location", lambda: ports.actions.perform(UpdateLocation(location.host, location.port))
    )
    tell.add_done_callback(
        lambda done: (
            _log.info("the overlord was not told: %s", done.exception())
            if not done.cancelled() and done.exception()
            else None
        )
    )
    return task.run()


def _lock(folder: TaskFolder, clock: Clock) -> FolderLock:
    """Claim the folder; a peon before this one may be on its way out."""
    until_s = clock.monotonic_s() + _LOCK_WAIT_S
    pause = threading.Condition()  # only waited on: the clock ends the wait
    while True:
        try:
            return folder.lock()
        except Conflict as error:
            if clock.monotonic_s() >= until_s:
                raise Unavailable(f"{folder.path}: another peon works here: {error}") from error
        with pause:
            clock.wait(pause, _LOCK_TRY_S)
