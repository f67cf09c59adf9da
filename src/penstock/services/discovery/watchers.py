"""Watchers of all requested roles, created at the first request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable
from penstock.services.discovery.watcher import RoleWatcher

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.services.discovery.calls import CallThread
    from penstock.services.discovery.discovery import NodeListener, Watch
    from penstock.services.discovery.node import Node


class RoleWatchers:
    """Watchers by role; thread-safe. Its mutex guards the table.

    Args:
        calls: Queue of calls to listeners.
        clock: Time.
        asked: Called once with each requested role; it must not block.
    """

    def __init__(self, calls: CallThread, clock: Clock, asked: Callable[[str], None]) -> None:
        self._calls = calls
        self._clock = clock
        self._asked = asked
        self._mutex = threading.Lock()
        self._watchers: dict[str, RoleWatcher] = {}

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for a role."""
        return self._of(role).listen(listener)

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role, after a wait for its first view.

        Raises:
            Unavailable: No nodes of the role were received in time.
        """
        found = self._of(role).nodes()
        if found is None:
            raise Unavailable(f"the {role}s are not known yet: try again")
        return found

    def all(self) -> Sequence[RoleWatcher]:
        """Return the watchers of all requested roles."""
        with self._mutex:
            return list(self._watchers.values())

    def _of(self, role: str) -> RoleWatcher:
        with self._mutex:
            found = self._watchers.get(role)
            if found is not None:
                return found
            made = self._watchers[role] = RoleWatcher(role, self._calls, self._clock)
        self._asked(role)
        return made
