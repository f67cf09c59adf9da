"""Order of components when more could run than there are threads.

Owns the order: round robin, one run at a time, so that a component with many tasks does not
overtake the others. Also owns the limits of process groups. Does not depend on threads or time.

Invariants: a component waits in at most one queue. Each run that `take` returned is given back by
`ended` once. A component that was stopped while it waited is still returned; the caller checks
that.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.core.errors import InvalidRequest

if TYPE_CHECKING:
    from penstock.flow.scheduling.component import Component


class _Group:
    """Process group with a limit."""

    __slots__ = ("limit", "running", "waiting")

    def __init__(self) -> None:
        self.limit: int | None = None
        self.running = 0
        self.waiting: deque[Component] = deque()


class ReadyQueue:
    """Components that are ready to run and wait for a thread."""

    def __init__(self) -> None:
        self._ready: deque[Component] = deque()
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._ready) + sum(len(group.waiting) for group in self._groups.values())

    def add(self, component: Component) -> None:
        """Add a component at the end, unless it already waits."""
        if not component.queued:
            component.queued = True
            self._ready.append(component)

    def take(self) -> Component | None:
        """Take the first component that no group limit blocks, and count a run of it."""
        while self._ready:
            component = self._ready.popleft()
            full = self._full_group(component)
            if full is not None:
                full.waiting.append(component)
                # The slot of an outer group for which it was released was used by another
                # component.
                for name in component.schedule.groups:
                    self._release(self._group(name))
                continue
            component.queued = False
            for name in component.schedule.groups:
                self._group(name).running += 1
            return component
        return None

    def ended(self, groups: tuple[str, ...]) -> None:
        """Give back a run that `take` counted, for the groups of its component at that time."""
        for name in groups:
            group = self._group(name)
            group.running -= 1
            self._release(group)

    def limit(self, name: str, threads: int | None) -> None:
        """Limit the runs of a group; None: no limit.

        Raises:
            InvalidRequest: The limit is below 1.
        """
        if threads is not None and threads < 1:
            raise InvalidRequest(
                f"limit of {threads} threads for group {name}: use 1 or more", place="threads"
            )
        group = self._group(name)
        group.limit = threads
        self._release(group)

    def _full_group(self, component: Component) -> _Group | None:
        for name in component.schedule.groups:
            group = self._group(name)
            if group.limit is not None and group.running >= group.limit:
                return group
        return None

    def _release(self, group: _Group) -> None:
        """Release components for which the group has room; another group may then block them."""
        room = len(group.waiting) if group.limit is None else group.limit - group.running
        for _ in range(min(room, len(group.waiting))):
            self._ready.append(group.waiting.popleft())

    def _group(self, name: str) -> _Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group
