"""Queues of tasks that wait for locks, and which of them to try after a release.

Pure. Tasks that want the same locks with the same priority wait in one line: a conflict of the
first task affects the others too, so only the first is tried. A line is tried again when one of the
tasks that blocked it has released a lock. So the cost of a release depends on the lines that it may
unblock, not on the waiting tasks. A task that waits in a line that it blocks itself is tried next:
it holds the locks from an earlier leader.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Line:
    """Tasks in order. `blockers` blocked the last try; `trying` is the one being tried now."""

    tasks: dict[str, None] = field(default_factory=dict)
    blockers: frozenset[str] = frozenset()
    trying: str | None = None
    again: bool = False


class LockWaiters:
    """The lines of one datasource. Each method returns which tasks to try next, if any."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._keys: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._keys

    def join(self, task_id: str, key: Hashable) -> str | None:
        """Add a task to the end of its line; return it if it is the first."""
        self._keys[task_id] = key
        line = self._lines.setdefault(key, _Line())
        line.tasks[task_id] = None
        return self._next(line)

    def refused(self, task_id: str, blockers: Iterable[str]) -> str | None:
        """Keep a task at the head of its line until one of its blockers releases a lock."""
        line = self._line_of(task_id)
        if line is None or line.trying != task_id:
            return None
        line.trying, line.blockers = None, frozenset(blockers)
        holder = next((one for one in line.tasks if one in line.blockers), None)
        if holder is not None:
            # It holds the locks since an earlier leader and only needs to request them.
            line.tasks = {holder: None} | line.tasks
            return self._next(line, again=True)
        if line.again:
            # A release came during the try, which may have seen it or not.
            return self._next(line, again=True)
        return None

    def leave(self, task_id: str) -> str | None:
        """Remove a task that ended or got its locks; return the task to try next, if any.

        Tasks behind one that got its locks may get the same locks.
        """
        line = self._line_of(task_id)
        if line is None:
            return None
        key = self._keys.pop(task_id)
        del line.tasks[task_id]
        if not line.tasks:
            del self._lines[key]
            return None
        if line.trying != task_id:
            return None
        line.trying = None
        return self._next(line, again=True)

    def released(self, task_ids: frozenset[str]) -> list[str]:
        """Return the tasks to try after these tasks released locks; if empty: all heads."""
        found = []
        for line in self._lines.values():
            if task_ids and line.blockers and task_ids.isdisjoint(line.blockers):
                continue
            head = self._next(line, again=True)
            if head is not None:
                found.append(head)
        return found

    def head_of(self, task_id: str) -> tuple[str, int] | None:
        """Return the head of the task's line and how many tasks are before the task."""
        line = self._line_of(task_id)
        if line is None:
            return None
        order = list(line.tasks)
        return order[0], order.index(task_id)

    def _line_of(self, task_id: str) -> _Line | None:
        return self._lines.get(self._keys[task_id]) if task_id in self._keys else None

    def _next(self, line: _Line, *, again: bool = False) -> str | None:
        if line.trying is not None:
            line.again = line.again or again
            return None
        if line.blockers and not again:
            return None
        line.trying = next(iter(line.tasks))
        line.again = False
        return line.trying
