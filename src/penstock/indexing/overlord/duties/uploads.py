"""Expiry of uploads that no task needs: the leader knows all tasks that have not ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.indexing.required_access import uploads_needed

if TYPE_CHECKING:
    from penstock.indexing.overlord.task_index import TaskIndex
    from penstock.storage.uploads import UploadStore

_log = logging.getLogger(__name__)

INTERVAL_MS: Final = 600_000


class UploadsDuty:
    """Deletes uploads whose time has passed. On its lane.

    An upload that a task names does not expire before the task has ended, and then has its whole
    time again, so that the same file can be loaded once more.

    Args:
        index: The active tasks.
        store: The uploads of this host.
        interval_ms: Period of the duty.
    """

    name = "uploads"

    def __init__(
        self, index: TaskIndex, store: UploadStore, *, interval_ms: int = INTERVAL_MS
    ) -> None:
        self._index = index
        self._store = store
        self.interval_ms = interval_ms

    def run(self) -> None:
        """Run one round.

        Raises:
            NotFound: An upload was deleted meanwhile.
            Unavailable: The folder cannot be read or written.
        """
        # Uploads are used before their task is in the index: one that is submitted meanwhile names
        # uploads whose time has just begun.
        expired = {one.id for one in self._store.expired()}
        if not expired:
            return
        needed = {
            upload
            for active in self._index.all().values()
            for upload in uploads_needed(active.task)
        }
        for upload in expired & needed:
            self._store.use(upload, None)
        count = self._store.expire(needed)
        if count:
            _log.info("deleted %d uploads that were not used for a day", count)
