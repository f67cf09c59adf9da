"""Undo log of one datasource's lock changes, which also derives the rows to store.

Records the changes since the last `settle`. Invariants: all of them can be undone, back to any mark
in between; the rows to store are derived from the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.indexing.lockbox.model import HeldLock, LockChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.indexing.lockbox.model import TaskLock


class Mark(NamedTuple):
    """A position to roll back to, until `settle`."""

    undo: int
    rows: int


class WayBack:
    """The recorded changes, in order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        # A task, the posse that it holds, and the row before and after the change.
        self._rows: list[tuple[str, Hashable, TaskLock | None, TaskLock | None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def note(self, undo: Callable[[], object]) -> None:
        """Record how to undo a change."""
        self._undo.append(undo)

    def note_row(
        self, task_id: str, holds: Hashable, before: TaskLock | None, after: TaskLock | None
    ) -> None:
        """Record the change of a row of a task and its holding; None: the row does not exist."""
        self._rows.append((task_id, holds, before, after))

    def mark(self) -> Mark:
        """Return the current position."""
        return Mark(len(self._undo), len(self._rows))

    def back_to(self, mark: Mark) -> None:
        """Undo the changes after a mark."""
        while len(self._undo) > mark.undo:
            self._undo.pop()()
        del self._rows[mark.rows :]

    def back(self) -> None:
        """Undo all changes."""
        self.back_to(Mark(0, 0))

    def changes(self) -> LockChanges:
        """Return the net change of each row since `settle`."""
        if not self._rows:
            return LockChanges()
        net: dict[tuple[str, Hashable], tuple[TaskLock | None, TaskLock | None]] = {}
        for task_id, holds, before, after in self._rows:
            first = net.get((task_id, holds))
            net[task_id, holds] = (before if first is None else first[0], after)
        added, replaced, removed = [], [], []
        for (task_id, _), (before, after) in net.items():
            if after is None:
                if before is not None:
                    removed.append(HeldLock(task_id, before))
            elif before is None:
                added.append(HeldLock(task_id, after))
            elif before != after:
                replaced.append(HeldLock(task_id, after))
        return LockChanges(tuple(added), tuple(replaced), tuple(removed))

    def settle(self) -> None:
        """Keep the changes: they can no longer be undone."""
        self._undo.clear()
        self._rows.clear()
