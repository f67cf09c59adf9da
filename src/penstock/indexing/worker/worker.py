"""Worker: accepts tasks, runs each in a peon, and keeps ended tasks until they are forgotten.

All state belongs to the worker's mailbox and can be restored from the task folders. `Worker` sends
the commands of other threads as mail. `RunningTasks` carries them out. `WorkerState` holds the
running and ended tasks and whether the worker accepts more; it defines the report for overlords.
`FolderSizes` measures the folders of running tasks on a lane, one round at a time, because the
mailbox must not wait for a disk with very many files. A running peon belongs to `running_task`, an
ended task to `ended_tasks`, the location of folders to `task_folders`.

Invariants:

- A task is written to disk before the overlord gets the answer that it was accepted.
- A peon that dies is restarted in the same folder, where its task continues if it can.
- An ended task is reported until the overlord forgets it. Its folder is deleted some time
  later, when no query reads its files and its log is in the log store.
- Disabling the worker survives its restart.
- A size is reported only for a task that still runs, and not for another one with the same id.

| task | reached when | next |
|---|---|---|
| running | assigned, or found at the start of the worker | ended |
| ended | its peon wrote the result; it had to end; it died too often | forgotten |
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, Conflict, NotFound, PenstockError, Unavailable, counted
from penstock.core.waits import WaitTable, merged, owned
from penstock.indexing.ports import WorkerReport
from penstock.indexing.worker.change_history import WORKER, ChangeHistory, LongPoll
from penstock.indexing.worker.ended_tasks import EndedTasks, LogShipper
from penstock.indexing.worker.options import WorkerOptions
from penstock.indexing.worker.running_task import RunningTask, WorkerContext, write_end
from penstock.indexing.worker.task_folders import TaskFolders
from penstock.mailbox.background_calls import CallDispatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.ports import HistoryPlace, PeonLauncher, WorkerChanges, WorkerTask
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import TaskSpec
    from penstock.indexing.worker.running_task import TaskUpdate
    from penstock.indexing.worker.task_attempts import AttemptEnd
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.filesystem import FileSystem


T = TypeVar("T")

_ANSWER_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)


class WorkerState:
    """The state of a worker.

    Attributes:
        running: The running tasks, by id.
        enabled: Whether new tasks are accepted.

    Args:
        options: The number of slots, and other reported properties.
        running: The running tasks, by id.
        ended: The ended tasks.
    """

    def __init__(
        self, options: WorkerOptions, running: dict[str, RunningTask], ended: EndedTasks
    ) -> None:
        self.running: Final = running
        self.enabled = True
        self._options = options
        self._ended = ended

    def everything(self) -> WorkerReport:
        """Return the full state of the worker."""
        tasks = [running.status() for running in self.running.values()]
        tasks += self._ended.statuses()
        options = self._options
        return WorkerReport(
            options.capacity, tuple(tasks), self.enabled, options.category, options.version
        )

    def task(self, task_id: str) -> WorkerTask | None:
        """Return the state of a task; None if it does not exist."""
        running = self.running.get(task_id)
        return self._ended.status(task_id) if running is None else running.status()

    def require_room(self) -> None:
        """Check that a new task can be accepted.

        Raises:
            Conflict: No slot is free, or the worker is disabled.
        """
        if not self.enabled:
            raise Conflict("the worker is disabled: enable it, or assign the task to another")
        if len(self.running) >= self._options.capacity:
            raise Conflict(
                f"all of the worker's {counted(self._options.capacity, 'slot')} are in use: raise"
                " its capacity, or wait for a task to end"
            )


class FolderSizes:
    """Measures the folders of tasks.

    Args:
        fs: The file system.
        calls: Runs the measurements on a lane, and returns the sizes as mail.
    """

    def __init__(self, fs: FileSystem, calls: CallDispatcher) -> None:
        self._fs = fs
        self._calls = calls
        self._busy = False

    def measure(
        self,
        tasks: Mapping[str, RunningTask],
        measured: Callable[[str, RunningTask, int], None],
    ) -> None:
        """Measure the tasks' folders, unless the previous round still runs.

        Args:
            tasks: The tasks by id.
            measured: Called in a later mail with each task and the size of its folder in bytes.
        """
        if self._busy:
            return
        self._busy = True
        # The lane gets only paths: the tasks belong to the mailbox.
        of_round = [(task_id, running, running.folder.path) for task_id, running in tasks.items()]
        self._calls.call(
            "measure",
            lambda: [self._size(path) for _id, _running, path in of_round],
            lambda sizes: self._report(of_round, sizes, measured),
            self._failed,
        )

    def _report(
        self,
        of_round: list[tuple[str, RunningTask, str]],
        sizes: list[int | None],
        measured: Callable[[str, RunningTask, int], None],
    ) -> None:
        self._busy = False
        for (task_id, running, _path), size_bytes in zip(of_round, sizes, strict=True):
            if size_bytes is not None:
                measured(task_id, running, size_bytes)

    def _failed(self, error: PenstockError) -> None:
        self._busy = False
        _log.warning("cannot measure the folders of the tasks: %s", error)

    def _size(self, path: str) -> int | None:
        """Return the size of a folder in bytes, None if it cannot be read. On the lane."""
        try:
            return sum(_sizes(self._fs, path))
        except PenstockError as error:
            _log.warning("cannot measure the task folder %s: %s", path, error)
            return None


def _sizes(fs: FileSystem, path: str) -> Iterator[int]:
    # Files may be deleted meanwhile: a missing one has size 0, and does not end the round.
    with suppress(NotFound):
        found = fs.stat(path)
        if not found.is_folder:
            yield found.size
            return
        for name in fs.listdir(path):
            yield from _sizes(fs, f"{path}/{name}")


class RunningTasks:
    """Starts, checks and ends the tasks of a worker. On the worker's mailbox thread.

    Args:
        context: The context that the tasks share.
        state: The tasks, and whether the worker accepts more.
        ended: Receives the tasks that ended.
        folders: The folders of the tasks.
        long_poll: Reports changes to overlords.
        calls: Runs measurements of folders on a lane.
    """

    def __init__(
        self,
        context: WorkerContext,
        state: WorkerState,
        ended: EndedTasks,
        folders: TaskFolders,
        long_poll: LongPoll,
        calls: CallDispatcher,
    ) -> None:
        self._context = context
        self._state = state
        self._ended = ended
        self._folders = folders
        self._long_poll = long_poll
        self._measuring = FolderSizes(context.fs, calls)
        self._started = False
        self._stopping = False

    def start(self) -> None:
        """Continue the tasks of the existing folders."""
        self._state.enabled = self._folders.read_enabled()
        for task_id, folder, end in self._folders.found():
            self._take_over(task_id, folder, end)
        self._started = True
        timers, options = self._context.processor.timers, self._context.options
        timers.schedule_every(
            options.watch_interval_ms, self._watch, "watch the peons", first_after_ms=0
        )
        if options.task_bytes_max is not None:
            timers.schedule_every(options.size_interval_ms, self._measure, "measure the tasks")

    def stop(self) -> None:
        """Ask all peons to stop."""
        # Peons end on request from now on: the next worker restarts them.
        self._stopping = True
        self._long_poll.close()
        for running in self._state.running.values():
            running.terminate()

    def assign(self, task: TaskSpec) -> bool:
        """Accept a task; return false if files of an earlier one must be deleted first."""
        if self._state.task(task.id) is not None:
            return True
        self._state.require_room()
        self._ended.require_no_deletion(task.id)
        if not self._folders.is_clear(task.id):
            self._ended.begin_deletion(task.id)
            return False
        running = self._state.running
        since_s = self._context.clock.monotonic_s()
        # Nothing may raise between the two: the next worker would start a task that was refused.
        folder = self._folders.make(task, [one.folder for one in running.values()])
        running[task.id] = RunningTask(task.id, folder, self._context, since_s)
        self._long_poll.changed(task.id)
        self.check(task.id)
        return True

    def shutdown(self, task_id: str) -> None:
        """End a task, or forget one that ended."""
        running = self._state.running.get(task_id)
        if running is not None:
            self._apply(task_id, running, running.request_end("it was shut down"))
        elif self._ended.forget(task_id):
            self._long_poll.changed(task_id)

    def set_enabled(self, enabled: bool) -> None:
        """Store the setting, then apply it."""
        self._folders.write_enabled(enabled=enabled)
        if enabled != self._state.enabled:
            self._state.enabled = enabled
            self._long_poll.changed(WORKER)

    def check(self, task_id: str, *, reported: bool = False) -> None:
        """Check a task's peon; `reported`: it has reported something."""
        running = self._state.running.get(task_id)
        if running is not None and not self._stopping:
            self._apply(task_id, running, running.check(reported=reported))

    def require_started(self) -> None:
        """Raise Unavailable while the worker is starting or stopping."""
        if not self._started:
            raise Unavailable("the worker is starting and has not read its tasks yet: try again")
        if self._stopping:
            raise Unavailable("the worker is stopping: try again after its restart")

    def _take_over(self, task_id: str, folder: TaskFolder, end: AttemptEnd | None) -> None:
        if end is None:
            since_s = self._context.clock.monotonic_s()
            self._state.running[task_id] = RunningTask(task_id, folder, self._context, since_s)
        else:
            write_end(folder, task_id, end)
            self._ended.keep(task_id, folder, end)

    def _watch(self) -> None:
        for task_id, folder, end in self._folders.found_later(self._is_free):
            self._take_over(task_id, folder, end)
            self._long_poll.changed(task_id)
        for task_id in list(self._state.running):
            self.check(task_id)

    def _measure(self) -> None:
        self._measuring.measure(self._state.running, self._measured)

    def _measured(self, task_id: str, running: RunningTask, size_bytes: int) -> None:
        # Another task with the same id may already run.
        if self._state.running.get(task_id) is running and not self._stopping:
            self._apply(task_id, running, running.hold_to_limit(size_bytes))

    def _is_free(self, task_id: str) -> bool:
        return self._state.task(task_id) is None and not self._ended.is_deleting(task_id)

    def _apply(self, task_id: str, running: RunningTask, update: TaskUpdate) -> None:
        """Report what changed about a running task; keep one that has ended."""
        if update.end is not None:
            del self._state.running[task_id]
            self._ended.keep(task_id, running.folder, update.end)
        if update.is_changed or update.end is not None:
            self._long_poll.changed(task_id)


class Worker:
    """A worker. All methods but `start`, `stop`, `changes` and `check` wait for its mailbox.

    Any thread may call them.

    Args:
        base_folders: Hold a folder for each task; a new one goes where the fewest run.
        fs: The file system.
        launcher: Starts peons.
        processor: Its mailbox, on a thread that runs it.
        clock: Measures how long peons run.
        lanes: Threads on which the folders of tasks are measured and deleted.
        options: Its options.
        logs: Store for the logs of ended tasks; None: logs are deleted with their folder.
    """

    def __init__(
        self,
        base_folders: Sequence[str],
        fs: FileSystem,
        launcher: PeonLauncher,
        processor: MailboxProcessor,
        clock: Clock,
        lanes: Lanes,
        options: WorkerOptions | None = None,
        logs: LogShipper | None = None,
    ) -> None:
        self._processor = processor
        self._options = options or WorkerOptions()
        self._folders = TaskFolders(base_folders, fs)
        calls = CallDispatcher(lanes, processor)
        self._waits = WaitTable(clock)
        running: dict[str, RunningTask] = {}
        self._ended = EndedTasks(
            *(processor, self._options, logs, calls),
            folders=self._folders,
            running=running,
            waits=self._waits,
        )
        self._has = WorkerState(self._options, running, self._ended)
        history = ChangeHistory(clock.now_ms())
        self._long_poll = LongPoll(history, processor, self._has, self._options.waiters_max)
        self._tasks = RunningTasks(
            WorkerContext(fs, launcher, processor, clock, self._options),
            *(self._has, self._ended, self._folders, self._long_poll, calls),
        )

    def start(self) -> Future[None]:
        """Continue the tasks of the existing folders."""
        return self._processor.main_executor.submit_change(self._tasks.start, "start")

    def stop(self) -> Future[None]:
        """Ask all peons to stop; their tasks continue when the worker is restarted."""
        return self._processor.main_executor.submit_change(self._tasks.stop, "stop")

    def report(self) -> WorkerReport:
        """Return the full state of the worker.

        Raises:
            Unavailable: It is starting.
        """
        return self._answer(self._has.everything, "report", is_question=True)

    def changes(self, after: HistoryPlace, wait_ms: int) -> Future[WorkerChanges]:
        """Return the changes after a position: at once if there are any, or after `wait_ms`.

        The future raises Unavailable while the worker is starting.
        """
        answer: Future[WorkerChanges] = Future()

        def poll() -> None:
            try:
                self._tasks.require_started()
            except Unavailable as error:
                if answer.set_running_or_notify_cancel():  # the caller may have disconnected
                    answer.set_exception(error)
                return
            self._long_poll.answer_on_change(answer, after, wait_ms)

        self._processor.main_executor.execute(poll, "long poll")
        return answer

    def assign(self, task: TaskSpec) -> None:
        """Accept a task; it is stored when this returns. An existing one is ignored.

        Raises:
            Conflict: No slot is free, or the worker is disabled.
            Unavailable: It is starting, the disk is full, or the folder of an earlier task of that
                id is being deleted.
        """

        def too_late(taken: bool) -> None:
            if not taken:  # Nothing is clearing the folder now.
                self._report_cleared(task.id, whole=False)

        while not self._answer(lambda: self._tasks.assign(task), "assign", too_late):
            self._clear(task.id)

    def shutdown(self, task_id: str) -> None:
        """End a task at once, or forget one that ended; an unknown one is ignored.

        The peon gets a signal first and is killed after a while; the task is RUNNING until it has
        exited.
        """
        self._answer(lambda: self._tasks.shutdown(task_id), "shutdown")

    def set_enabled(self, enabled: bool) -> None:
        """Enable or disable the worker; the setting is stored when this returns.

        Raises:
            Unavailable: The disk is full; nothing changed.
        """
        self._answer(lambda: self._tasks.set_enabled(enabled), "enable or disable")

    def waits(self) -> list[DependencyWait]:
        """Return the waits of the worker and its tasks, which they name; any thread.

        Raises:
            Unavailable: The worker is starting, stopping or busy.
        """
        tasks = self.report().tasks
        return merged([self._waits.all(), *(owned(one.waits, f"task {one.id}") for one in tasks)])

    def check(self, task_id: str) -> None:
        """Check a task's peon now: it has reported something, or has ended. Does not wait."""
        try:
            self._processor.main_executor.execute(
                lambda: self._tasks.check(task_id, reported=True), "check %s", task_id
            )
        except Closed:
            _log.debug("the worker has stopped and does not check the peon")

    def _clear(self, task_id: str) -> None:
        """Delete the files of an earlier task: on a lane, because it may take long."""
        whole = False
        try:
            self._folders.clear(task_id)
            whole = True
        finally:
            self._report_cleared(task_id, whole=whole)

    def _report_cleared(self, task_id: str, *, whole: bool) -> None:
        if self._processor.mailbox.is_mailbox_thread:
            self._ended.end_deletion(task_id, whole=whole)
            return
        self._processor.post(
            lambda: self._ended.end_deletion(task_id, whole=whole), "cleared %s", task_id
        )

    def _answer(
        self,
        command: Callable[[], T],
        description: str,
        too_late: Callable[[T], None] | None = None,
        *,
        is_question: bool = False,
    ) -> T:
        """Run a command on the mailbox, and return its answer.

        Args:
            command: The command.
            description: For logs.
            too_late: Called with the answer if the caller no longer waits for it; any thread.
            is_question: Whether the command changes nothing, so that an error cannot leave a
                partial change.
        """

        def run() -> T:
            self._tasks.require_started()
            return command()

        if self._processor.mailbox.is_mailbox_thread:
            return run()
        executor = self._processor.main_executor
        submit = executor.submit if is_question else executor.submit_change
        future = submit(run, description)
        try:
            return future.result(_ANSWER_TIMEOUT_S)
        except TimeoutError as error:  # narrow: any other is the answer of the command
            # The caller tries another worker: a task that started here later would run twice.
            if not future.cancel() and too_late is not None:
                future.add_done_callback(partial(_report_late, too_late))
            raise Unavailable("the worker is busy and did not answer in time: try again") from error
        except CancelledError as error:
            raise Unavailable("the worker ended before it answered: try again") from error


def _report_late(too_late: Callable[[T], None], answer: Future[T]) -> None:
    if not answer.cancelled() and answer.exception() is None:
        too_late(answer.result())
