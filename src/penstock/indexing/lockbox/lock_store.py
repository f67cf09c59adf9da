"""Storage of locks across restarts: the protocol for the lockboxes, and the metadata store's.

Converts locks to rows, and resolves transactions whose outcome is unknown. Invariant: after a
successful transaction, the rows of a datasource match its lockbox.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.core.errors import Fenced, Unavailable
from penstock.indexing.lockbox.task_locks import (
    HeldLock,
    LockChanges,
    LockGranularity,
    LockType,
    TaskLock,
)
from penstock.storage.metadata import LockRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.operator_events import Events

_logger = logging.getLogger(__name__)

RowKey: TypeAlias = (
    "tuple[str, str, LockGranularity, LockType, Interval, str, int | None]"  # See `row_key`.
)


class LockStore(Protocol):
    """The rows of task locks. Any thread may call."""

    def apply(self, changes: LockChanges) -> None:
        """Remove, replace and add rows in one transaction: all of them or none.

        Idempotent: adding a stored row or removing an absent one is allowed.

        Raises:
            Unavailable: The transaction failed, or its outcome is unknown.
            Fenced: Another leader has taken over.
        """
        ...

    def every(self) -> Sequence[HeldLock]:
        """Return all rows.

        Raises:
            Unavailable: The store does not answer.
        """
        ...

    def newest_versions(self) -> Mapping[str, str]:
        """Return the greatest version in each datasource that may come from a lock.

        Raises:
            Unavailable: The store does not answer.
        """
        ...


class LockRows(Protocol):
    """The metadata store's table of locks."""

    def apply(
        self,
        added: Sequence[LockRow] = (),
        replaced: Sequence[LockRow] = (),
        removed: Sequence[LockRow] = (),
    ) -> None:
        """Apply changes in one transaction."""
        ...

    def every(self) -> dict[str, list[LockRow]]:
        """Return all rows by datasource."""
        ...

    def newest_versions(self) -> Mapping[str, str]:
        """Return the greatest version of segments, pending segments and locks by datasource."""
        ...


class AlertingLockStore:
    """A lock store that alerts when locks cannot be stored: once, until one can be again.

    A lock that is not stored is not granted, so tasks wait or fail meanwhile.

    Args:
        store: The store.
        events: Receives the alerts.
    """

    def __init__(self, store: LockStore, events: Events) -> None:
        self._store = store
        self._events = events
        self._failed = False  # Two lanes that fail at the same time may both alert.

    def apply(self, changes: LockChanges) -> None:
        """Remove, replace and add rows. Raises as `LockStore.apply`."""
        try:
            self._store.apply(changes)
        except Fenced:
            raise  # The next leader stores its locks.
        except Unavailable as error:  # narrow: alerts
            if not self._failed:
                self._failed = True
                self._events.alert(f"task locks cannot be stored, so none is granted: {error}")
            raise
        self._failed = False

    def every(self) -> Sequence[HeldLock]:
        """Return all rows. Raises as `LockStore.every`."""
        return self._store.every()

    def newest_versions(self) -> Mapping[str, str]:
        """Return the greatest versions. Raises as `LockStore.newest_versions`."""
        return self._store.newest_versions()


class MetadataLockStore:
    """Locks as rows of the metadata store: `MetadataLockStore(store.locks)`."""

    def __init__(self, table: LockRows) -> None:
        self._table = table

    def apply(self, changes: LockChanges) -> None:
        """Apply changes in one transaction. Raises as `LockStore`."""
        self._table.apply(
            [_to_row(held) for held in changes.added],
            [_to_row(held) for held in changes.replaced],
            [_to_row(held) for held in changes.removed],
        )

    def every(self) -> Sequence[HeldLock]:
        """Return all valid rows.

        Invalid rows are left out, with a warning, because one bad row must not keep a leader from
        leading. The publish of the row's task is then refused, because no lock covers it.
        """
        found = []
        for rows in self._table.every().values():
            for row in rows:
                try:
                    found.append(_from_row(row))
                except ValueError as error:
                    _logger.warning("a stored lock of task %s is ignored: %s", row.task_id, error)
        return found

    def newest_versions(self) -> Mapping[str, str]:
        """Return the greatest used versions. Raises as `LockStore`."""
        return self._table.newest_versions()


class StoredLocks:
    """The rows of one datasource, written by its lane.

    A transaction that failed may have succeeded in the store, if a connection broke during the
    commit. The next transaction repairs the rows that it touched.
    """

    def __init__(self, store: LockStore) -> None:
        self._store = store
        # Rows that may be wrong in the store, each with whether it should exist.
        self._doubts: dict[RowKey, tuple[HeldLock, bool]] = {}

    @property
    def in_doubt(self) -> bool:
        """Whether some rows may be wrong."""
        return bool(self._doubts)

    def apply(self, changes: LockChanges) -> None:
        """Store changes and repair rows in doubt. Raises as `LockStore.apply`."""
        if not changes and not self._doubts:
            return
        try:
            self._store.apply(self._with_doubts(changes) if self._doubts else changes)
        except BaseException:
            self._doubt(changes)
            raise
        self._doubts.clear()

    def _with_doubts(self, changes: LockChanges) -> LockChanges:
        touched = {row_key(row) for row in (*changes.added, *changes.replaced, *changes.removed)}
        wrong = [item for key, item in self._doubts.items() if key not in touched]
        return LockChanges(
            changes.added,
            (*changes.replaced, *(row for row, there in wrong if there)),
            (*changes.removed, *(row for row, there in wrong if not there)),
        )

    def _doubt(self, changes: LockChanges) -> None:
        for row in changes.added:
            self._doubts.setdefault(row_key(row), (row, False))
        for row in changes.removed:
            self._doubts.setdefault(row_key(row), (row, True))
        for row in changes.replaced:
            # Only `revoked` ever changes in a lock.
            before = HeldLock(row.task_id, replace(row.lock, revoked=False))
            self._doubts.setdefault(row_key(row), (before, True))


def row_key(row: HeldLock) -> RowKey:
    """Return the key of a row: its immutable properties."""
    lock = row.lock
    return (
        row.task_id,
        lock.datasource,
        lock.granularity,
        lock.type,
        lock.interval,
        lock.version,
        lock.partition_number,
    )


def _to_row(held: HeldLock) -> LockRow:
    lock = held.lock
    return LockRow(
        task_id=held.task_id,
        datasource=lock.datasource,
        granularity=lock.granularity,
        type=lock.type,
        group_id=lock.group,
        interval=lock.interval,
        version=lock.version,
        priority=lock.priority,
        revoked=lock.revoked,
        partition_number=lock.partition_number,
        created_ms=lock.created_ms,
    )


def _from_row(row: LockRow) -> HeldLock:
    """Return the row's lock; raise ValueError for an unknown type or granularity."""
    lock = TaskLock(
        granularity=LockGranularity(row.granularity),
        type=LockType(row.type),
        group=row.group_id,
        datasource=row.datasource,
        interval=row.interval,
        version=row.version,
        priority=row.priority,
        revoked=row.revoked,
        partition_number=row.partition_number,
        created_ms=row.created_ms,
    )
    return HeldLock(row.task_id, lock)
