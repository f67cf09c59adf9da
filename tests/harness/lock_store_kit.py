"""Locks of tasks in memory: for tests, and for trying the lockbox alone."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.indexing.lockbox.lock_store import row_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.indexing.lockbox.lock_store import RowKey
    from penstock.indexing.lockbox.task_locks import HeldLock, LockChanges


class MemoryLockStore:
    """Store of lock rows.

    The mutex makes each transaction atomic, because all lanes write here.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._rows: dict[RowKey, HeldLock] = {}

    def apply(self, changes: LockChanges) -> None:
        """Make changes."""
        with self._mutex:
            for row in changes.removed:
                self._rows.pop(row_key(row), None)
            for row in (*changes.replaced, *changes.added):
                self._rows[row_key(row)] = row

    def every(self) -> Sequence[HeldLock]:
        """Return all rows."""
        with self._mutex:
            return list(self._rows.values())

    def newest_versions(self) -> Mapping[str, str]:
        """Return the versions of the remaining rows, because nothing is published here."""
        rows = sorted(self.every(), key=lambda row: row.lock.version)
        return {row.lock.datasource: row.lock.version for row in rows}
