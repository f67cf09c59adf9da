"""Where locks are kept across restarts: what the lockboxes ask of it, and one in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.indexing.lockbox.model import HeldLock, LockChanges


class LockStore(Protocol):
    """The rows of task locks. Any thread may call."""

    def apply(self, changes: LockChanges) -> None:
        """Add, replace and remove rows in one transaction: all of them or none.

        Raises:
            Unavailable: Nothing was changed.
            Fenced: Another leader has taken over.
        """
        ...

    def every(self) -> Sequence[HeldLock]:
        """Return all rows.

        Raises:
            Unavailable: The store does not answer.
        """
        ...


class MemoryLockStore:
    """Rows that are gone with the process: for tests, and for who tries the lockbox alone.

    The mutex keeps rows whole between lanes, which all write here; it is held for one transaction.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._rows: dict[tuple[object, ...], HeldLock] = {}

    def apply(self, changes: LockChanges) -> None:
        """Add, replace and remove rows."""
        with self._mutex:
            for row in changes.removed:
                del self._rows[row_key(row)]
            for row in changes.replaced:
                if row_key(row) not in self._rows:
                    raise AssertionError(f"no row to replace: {row}")
                self._rows[row_key(row)] = row
            for row in changes.added:
                if row_key(row) in self._rows:
                    raise AssertionError(f"a row twice: {row}")
                self._rows[row_key(row)] = row

    def every(self) -> Sequence[HeldLock]:
        """Return all rows."""
        with self._mutex:
            return list(self._rows.values())


def row_key(row: HeldLock) -> tuple[object, ...]:
    """Return what a row is found by: a task holds at most one lock of it."""
    lock = row.lock
    return (
        row.task_id,
        lock.datasource,
        lock.granularity,
        lock.type,
        lock.interval,
        lock.partition_number,
    )
