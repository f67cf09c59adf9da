"""The way back from what was done to the locks of one datasource, and which rows it would store.

Owns what was changed since the last `settle`. Invariants: all of it can be taken back, to any mark
in between; it says itself which rows must be stored for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.indexing.lockbox.model import HeldLock, LockChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.indexing.lockbox.model import TaskLock


class Mark(NamedTuple):
    """A place to go back to, until `settle`."""

    undo: int
    rows: int


class WayBack:
    """The changes, in their order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        # The row of a task and what it holds, as it was and as it is.
        self._rows: list[tuple[str, Hashable, TaskLock | None, TaskLock | None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def note(self, undo: Callable[[], object]) -> None:
        """Remember how something is taken back."""
        self._undo.append(undo)

    def note_row(
        self, task_id: str, holds: Hashable, before: TaskLock | None, after: TaskLock | None
    ) -> None:
        """Remember what became of the row of a task and of what it holds; None: there is none."""
        self._rows.append((task_id, holds, before, after))

    def mark(self) -> Mark:
        """Return the place that is reached."""
        return Mark(len(self._undo), len(self._rows))

    def back_to(self, mark: Mark) -> None:
        """Take back what came after a mark."""
        while len(self._undo) > mark.undo:
            self._undo.pop()()
        del self._rows[mark.rows :]

    def back(self) -> None:
        """Take everything back."""
        self.back_to(Mark(0, 0))

    def changes(self) -> LockChanges:
        """Return what became of each row since `settle`, however often it changed."""
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
        """Keep what was changed: there is no way back any more."""
        self._undo.clear()
        self._rows.clear()
