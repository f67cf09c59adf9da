"""`kill`: rows and files of unused segments are deleted for good.

Rows go before files, batch by batch: no row ever names a file that is gone. What a kill at the
wrong moment leaves are files without a row, which the janitor deletes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.intervals import parse_time
from penstock.indexing.actions import LockTryAcquire, SegmentListUnused, SegmentNuke
from penstock.indexing.actions.wire import strings
from penstock.indexing.batch.insisting import Insistence, Stopped
from penstock.indexing.batch.locks.locking import acquire
from penstock.indexing.batch.progress import shown_wait, wait_fields
from penstock.indexing.filekilling import delete_files
from penstock.indexing.ports import TaskState
from penstock.indexing.task import TaskResult
from penstock.indexing.worker.peontask import IngestionReport, IngestionState

if TYPE_CHECKING:
    from pydantic import JsonValue

    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.indexing.spec.batch import KillSpec
    from penstock.indexing.task.folder import TaskFolder

_log = logging.getLogger(__name__)

_GONE: Final = "killed.json"


class KillTask:
    """One `kill`. On its own thread, but for `stop` and `report`.

    Args:
        spec: What the task is.
        folder: Its folder, which this process has locked.
        ports: What it works with.
    """

    def __init__(self, spec: KillSpec, folder: TaskFolder, ports: BatchPorts) -> None:
        self._spec = spec
        self._folder = folder
        self._ports = ports
        self._insistence = Insistence(ports.actions, ports.clock, told=self._tried)
        self._wait: DependencyWait | None = None
        self._state = IngestionState.NOT_STARTED
        self._error = ""
        self._rows_deleted = 0
        self._files_deleted = 0

    def stop(self) -> None:
        """Have `run` return soon; what is not deleted yet is when it is started again."""
        self._insistence.stop()

    def report(self) -> IngestionReport:
        """Tell how many are gone."""
        more: dict[str, JsonValue] = {
            "segmentsKilled": self._rows_deleted,
            "filesDeleted": self._files_deleted,
        }
        if (wait := self._wait) is not None:
            more |= wait_fields(wait)
        return IngestionReport(self._state, error=self._error, more=more)

    def _tried(self, wait: DependencyWait | None) -> None:
        self._wait = None if wait is None else shown_wait(wait)
        self._ports.waits_changed(() if self._wait is None else (self._wait,))

    def run(self) -> TaskResult:
        """Run to the end and say how it ended."""
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
        spec, ask = self._spec, self._insistence.ask
        timeout_ms = spec.settings.lock_timeout_ms
        action = LockTryAcquire((spec.time,))
        acquire(self._ports, self._insistence, action, timeout_ms=timeout_ms)
        # What an earlier peon had begun it may have done, or not: done once more it surely is.
        self._delete(self._recall())
        changed = spec.max_used_status_last_updated_time
        changed_before_ms = None if changed is None else parse_time(changed) + 1
        while (wanted := self._next_batch()) > 0:
            listing = SegmentListUnused(spec.time, spec.versions, wanted, changed_before_ms)
            found = ask("listing segments", listing)
            if not found:
                return
            self._delete(tuple(row.id for row in found))

    def _delete(self, ids: tuple[str, ...]) -> None:
        if not ids:
            return
        self._keep(ids)
        free = self._insistence.ask("deleting rows", SegmentNuke(ids))
        self._rows_deleted += len(ids)
        for _ in delete_files(self._ports.store, free):
            self._files_deleted += 1
        self._keep()

    def _keep(self, begun: tuple[str, ...] = ()) -> None:
        """Keep what is gone, and which segments are next, for one that is started again.

        Raises:
            Unavailable: There is no room for it, and it is to stop at its limit. One without a
                limit goes on, as it is what makes room.
        """
        gone = {"rows": self._rows_deleted, "files": self._files_deleted}
        try:
            self._folder.write_json(_GONE, {**gone, "begun": list(begun)})
        except Unavailable as full:
            if self._spec.limit is not None:
                raise
            _log.warning("a kill that is started again will tell of less: %s", full)

    def _recall(self) -> tuple[str, ...]:
        """Take over what an earlier peon kept, if there was one; return what it had begun."""
        value = self._folder.read_json(_GONE) or {}
        self._rows_deleted = int(str(value.get("rows", 0)))
        self._files_deleted = int(str(value.get("files", 0)))
        return tuple(strings(value.get("begun", [])))

    def _next_batch(self) -> int:
        """Return how many segments may go next."""
        limit = self._spec.limit
        left = self._spec.batch_size if limit is None else limit - self._rows_deleted
        return min(self._spec.batch_size, left)
