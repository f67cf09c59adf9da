"""Looks at the tasks that the metadata store counts as active: what is there counts.

State of the overlord's mailbox; the store is read on a lane. Owns which tasks ended during a look,
so that one that was read before its end does not come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from penstock.storage.metadata import TaskFilter, TaskRow

if TYPE_CHECKING:
    from penstock.core.errors import PenstockError
    from penstock.indexing.errand import Calls
    from penstock.storage.metadata import MetadataStore

_log = logging.getLogger(__name__)

Stored: TypeAlias = Mapping[str, TaskRow | None]
"""The stored active tasks by id, the oldest first; whole only those that were not known."""


class StoreLooks:
    """The looks, one at a time. On the overlord's mailbox.

    Args:
        metadata: The store.
        calls: Runs the looks.
        is_known: Tells whether a task is active here; any thread.
        seen: Told what a look that began at a number has seen; tasks that ended meanwhile may be
            among it, but not whole.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        calls: Calls,
        *,
        is_known: Callable[[str], bool],
        seen: Callable[[Stored, int], None],
    ) -> None:
        self._metadata = metadata
        self._calls = calls
        self._is_known = is_known
        self._seen = seen
        self._ended: set[str] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Tell nothing any more."""
        self._stopped = True

    def look(self, number: int) -> None:
        """Look, unless a look is under way."""
        if self._stopped or self._ended is not None:
            return
        self._ended = set()

        def done(stored: Stored) -> None:
            ended, self._ended = self._ended or set(), None
            if not self._stopped:
                # One that was here and ended meanwhile was read as one that is not known.
                rows = {i: None if i in ended else row for i, row in stored.items()}
                self._seen(rows, number)

        def failed(error: PenstockError) -> None:
            self._ended = None
            _log.info("the tasks cannot be compared with the store: %s", error)

        self._calls.call("tasks", self._read, done, failed)

    def task_ended(self, task_id: str) -> None:
        """A task ended here: a look under way does not count for it."""
        if self._ended is not None:
            self._ended.add(task_id)

    def _read(self) -> Stored:
        tasks = self._metadata.tasks
        ids = [row.id for row in reversed(tasks.summaries(TaskFilter(active=True)))]
        return {i: None if self._is_known(i) else tasks.get(i) for i in ids}
