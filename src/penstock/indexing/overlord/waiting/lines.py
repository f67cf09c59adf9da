"""Tasks that wait for locks, and whom it is worth to try again when something is released.

Pure. Tasks that want the very same locks with the same priority stand in one line: what refuses the
first of them refuses the others, so only the first is tried. A line is tried again when one of
those who stood in its way has let go of something. So a release costs the lines that it may help,
not the tasks that wait. Who stands in a line and in its way is tried next: it has the locks, from a
leader before this one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Line:
    """Tasks in order. `blockers` were in the way at the last try; `trying` its first, right now."""

    tasks: dict[str, None] = field(default_factory=dict)
    blockers: frozenset[str] = frozenset()
    trying: str | None = None
    again: bool = False


class LockWaiters:
    """The lines of one datasource. Each method says who is to be tried next, if anybody."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._keys: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._keys

    def join(self, task_id: str, key: Hashable) -> str | None:
        """Put a task at the end of its line; return it if it is the first there."""
        self._keys[task_id] = key
        line = self._lines.setdefault(key, _Line())
        line.tasks[task_id] = None
        return self._next(line)

    def refused(self, task_id: str, blockers: Iterable[str]) -> str | None:
        """Keep a task at the head of its line until one of those in its way lets go."""
        line = self._line_of(task_id)
        if line is None or line.trying != task_id:
            return None
        line.trying, line.blockers = None, frozenset(blockers)
        holder = next((one for one in line.tasks if one in line.blockers), None)
        if holder is not None:
            # It has what the line wants since an earlier leader, and only has to ask for it.
            line.tasks = {holder: None} | line.tasks
            return self._next(line, again=True)
        if line.again:
            # Somebody let go while it was tried: whether before or after, it cannot know.
            return self._next(line, again=True)
        return None

    def leave(self, task_id: str) -> str | None:
        """Take a task out that ended or got its locks; return whom that makes worth a try.

        Those behind one that got its locks may get the same.
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
        """Return who is worth a try after these tasks let go; none named: all are."""
        found = []
        for line in self._lines.values():
            if task_ids and line.blockers and task_ids.isdisjoint(line.blockers):
                continue
            head = self._next(line, again=True)
            if head is not None:
                found.append(head)
        return found

    def head_of(self, task_id: str) -> tuple[str, int] | None:
        """Return who is first in the task's line and how many stand before the task."""
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
