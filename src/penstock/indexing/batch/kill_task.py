"""`kill`: delete rows and files of unused segments permanently.

Rows are deleted before files, batch by batch, so no row ever names a missing file. A kill that is
interrupted may leave files without a row, which the janitor deletes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.intervals import parse_time
from penstock.indexing.actions import LockTryAcquire, SegmentListUnused, SegmentNuke
from penstock.indexing.actions.action_json import strings
from penstock.indexing.batch.batch_locks import acquire
from penstock.indexing.batch.retries import wait_fields
from penstock.indexing.batch.retrying_caller import RetryingCaller, Stopped
from penstock.indexing.file_deletion import delete_files
from penstock.indexing.ports import TaskState
from penstock.indexing.task import TaskResult
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState

if TYPE_CHECKING:
    from pydantic import JsonValue

    from penstock.indexing.batch.batch_ports import BatchPorts
    from penstock.indexing.specs.batch.batch_task_specs import KillSpec
    from penstock.indexing.task.task_folder import TaskFolder

_log = logging.getLogger(__name__)

_GONE: Final = "killed.json"


class KillTask:
    """One `kill`. On its own thread, except for `stop` and `report`.

    Args:
        spec: The spec of the task.
        folder: Its folder, which this process has locked.
        ports: Its ports.
    """

    def __init__(self, spec: KillSpec, folder: TaskFolder, ports: BatchPorts) -> None:
        self._spec = spec
        self._folder = folder
        self._ports = ports
        self._retries = RetryingCaller(ports.actions, ports.clock, ports.waits_changed)
        self._state = IngestionState.NOT_STARTED
        self._error = ""
        self._rows_deleted = 0
        self._files_deleted = 0

    def stop(self) -> None:
        """Make `run` return soon; the rest is deleted when the task is restarted."""
        self._retries.stop()

    def report(self) -> IngestionReport:
        """Return the number of deleted segments."""
        more: dict[str, JsonValue] = {
            "segmentsKilled": self._rows_deleted,
            "filesDeleted": self._files_deleted,
        }
        if (wait := self._retries.wait) is not None:
            more |= wait_fields(wait)
        return IngestionReport(self._state, error=self._error, more=more)

    def run(self) -> TaskResult:
        """Run to the end and return the result."""
        self._state = IngestionState.BUILD_SEGMENTS
        try:
            self._run()
        except Stopped:
            return TaskResult(TaskState.RUNNING)
        except PenstockError as error:
            self._error = str(error)
            return TaskResult(TaskState.FAILED, str(error))
        self._state = IngestionState.COMPLETED
        removed = counted(self._rows_deleted, "segment")
        files = counted(self._files_deleted, "file")
        _log.info("task %s: %s removed, and %s of them", self._spec.id, removed, files)
        return TaskResult(TaskState.SUCCESS)

    def _run(self) -> None:
        spec, perform = self._spec, self._retries.perform
        timeout_ms = spec.settings.lock_timeout_ms
        action = LockTryAcquire((spec.time,))
        acquire(self._ports, self._retries, action, timeout_ms=timeout_ms)
        # An earlier peon may have deleted these; deleting them again does no harm.
        self._delete(self._recall())
        changed = spec.max_used_status_last_updated_time
        changed_before_ms = None if changed is None else parse_time(changed) + 1
        while (wanted := self._next_batch()) > 0:
            listing = SegmentListUnused(spec.time, spec.versions, wanted, changed_before_ms)
            found = perform("listing segments", listing)
            if not found:
                return
            self._delete(tuple(row.id for row in found))

    def _delete(self, ids: tuple[str, ...]) -> None:
        if not ids:
            return
        self._keep(ids)
        free = self._retries.perform("deleting rows", SegmentNuke(ids))
        self._rows_deleted += len(ids)
        for _ in delete_files(self._ports.store, free):
            self._files_deleted += 1
        self._keep()

    def _keep(self, begun: tuple[str, ...] = ()) -> None:
        """Store the progress and the next segments, for a restarted peon.

        Raises:
            Unavailable: The disk is full, and the task has a limit that it must not exceed. A task
                without a limit continues, because it frees space.
        """
        gone = {"rows": self._rows_deleted, "files": self._files_deleted}
        try:
            self._folder.write_json(_GONE, {**gone, "begun": list(begun)})
        except Unavailable as full:
            if self._spec.limit is not None:
                raise
            _log.warning("after a restart, this kill will report fewer segments: %s", full)

    def _recall(self) -> tuple[str, ...]:
        """Restore the progress of an earlier peon, if any; return the segments it had begun."""
        value = self._folder.read_json(_GONE) or {}
        self._rows_deleted = int(str(value.get("rows", 0)))
        self._files_deleted = int(str(value.get("files", 0)))
        return tuple(strings(value.get("begun", [])))

    def _next_batch(self) -> int:
        """Return the size of the next batch."""
        limit = self._spec.limit
        left = self._spec.batch_size if limit is None else limit - self._rows_deleted
        return min(self._spec.batch_size, left)
