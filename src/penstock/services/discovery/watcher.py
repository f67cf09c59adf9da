"""Known nodes of one role, and the listeners that are called for changes.

    NOT_INITIALISED --initialise--> INITIALISED      one nodes_added of all, view_initialised
                    --30 s--------> TIMED_OUT        the same with view_initialised_timed_out;
                                                     an initialisation that comes later is ignored

    change            before initialisation          afterwards
       add, unknown      recorded                       listeners called
       add, known        ignored: the first one stays   ignored
       add, other role   logged, ignored                logged, ignored
       remove, known     recorded                       listeners called
       remove, unknown   logged                         logged
       synchronise       recorded                       one call for all added, one for all removed

Owns the state; the back ends report the changes. Invariant: the sum of the calls to a listener
equals the known nodes, except for calls that are still queued.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.services.discovery.discovery import INITIALISED_WITHIN_S, NodeListener

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.services.discovery.calls import CallThread
    from penstock.services.discovery.node import Node

logger = logging.getLogger(__name__)


class ViewState(enum.Enum):
    """State of a view's initialisation."""

    NOT_INITIALISED = "NOT_INITIALISED"
    INITIALISED = "INITIALISED"
    TIMED_OUT = "TIMED_OUT"


class _Listening:
    """One listener; it is not called after `stop`."""

    def __init__(self, watcher: RoleWatcher, listener: NodeListener) -> None:
        self._watcher = watcher
        self.listener: NodeListener | None = listener

    def added(self, nodes: Sequence[Node]) -> None:
        if self.listener is not None:
            self.listener.nodes_added(nodes)

    def removed(self, nodes: Sequence[Node]) -> None:
        if self.listener is not None:
            self.listener.nodes_removed(nodes)

    def initialised(self, state: ViewState) -> None:
        if self.listener is None:
            return
        if state is ViewState.INITIALISED:
            self.listener.view_initialised()
        else:
            self.listener.view_initialised_timed_out()

    def stop(self) -> None:
        """Stop calling the listener."""
        self.listener = None
        self._watcher.forget(self)


class RoleWatcher:
    """Watcher of one role; thread-safe.

    Its mutex makes each change and the queueing of its calls one step, so listeners see changes
    in their order. No listener is called while the mutex is held.

    Args:
        role: The role to watch.
        calls: Queue of calls to listeners.
        clock: Time.
        within_s: Time limit of the initialisation.
    """

    def __init__(
        self,
        role: str,
        calls: CallThread,
        clock: Clock,
        within_s: float = INITIALISED_WITHIN_S,
    ) -> None:
        self.role: Final = role
        self._calls = calls
        self._clock = clock
        self._within_s = within_s
        self._changed = threading.Condition()
        self._state = ViewState.NOT_INITIALISED
        self._nodes: dict[str, Node] = {}
        self._listening: list[_Listening] = []
        calls.call_later(within_s, self._time_out)

    def listen(self, listener: NodeListener) -> _Listening:
        """Register a listener: it is called for the known nodes and then for each change."""
        one = _Listening(self, listener)
        with self._changed:
            self._listening.append(one)
            if self._state is not ViewState.NOT_INITIALISED:
                self._tell_all_of_it([one])
        return one

    def forget(self, one: _Listening) -> None:
        """Remove a listener."""
        with self._changed:
            if one in self._listening:
                self._listening.remove(one)

    def nodes(self) -> list[Node] | None:
        """Return the known nodes, after a wait; None if not even the time limit was reached."""
        until_s = self._clock.monotonic_s() + self._within_s + 1
        with self._changed:
            while self._state is ViewState.NOT_INITIALISED:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return None
                self._clock.wait(self._changed, left_s)
            return list(self._nodes.values())

    def add(self, node: Node) -> None:
        """Record that a node appeared."""
        if node.role != self.role:
            logger.error("%s announces itself as %s among the %ss", node.key, node.role, self.role)
            return
        with self._changed:
            if node.key not in self._nodes:
                self._nodes[node.key] = node
                self._tell_changes([node], [])

    def remove(self, key: str) -> None:
        """Record that a node disappeared."""
        with self._changed:
            gone = self._nodes.pop(key, None)
            if gone is not None:
                self._tell_changes([], [gone])
                return
        logger.warning("removed node %s was not known among the %ss", key, self.role)

    def synchronise(self, present: Mapping[str, Node]) -> None:
        """Record all present nodes by key, remove all others, and initialise the view."""
        right = {key: node for key, node in present.items() if node.role == self.role}
        for key in present.keys() - right.keys():
            logger.error("%s announces itself among the %ss, and is none", key, self.role)
        with self._changed:
            gone = [self._nodes.pop(key) for key in list(self._nodes) if key not in right]
            fresh = {key: node for key, node in right.items() if key not in self._nodes}
            self._nodes.update(fresh)
            self._tell_changes(list(fresh.values()), gone)
            self._settle(ViewState.INITIALISED)

    def initialise(self) -> None:
        """Record that all initial nodes are known."""
        with self._changed:
            self._settle(ViewState.INITIALISED)

    def _time_out(self) -> None:
        with self._changed:
            if self._state is ViewState.NOT_INITIALISED:
                logger.warning(
                    "no complete list within %g s of all nodes in the role %s",
                    self._within_s,
                    self.role,
                )
            self._settle(ViewState.TIMED_OUT)

    # With the mutex held

    def _settle(self, state: ViewState) -> None:
        if self._state is ViewState.NOT_INITIALISED:
            self._state = state
            self._changed.notify_all()
            self._tell_all_of_it(self._listening)

    def _tell_all_of_it(self, listening: Sequence[_Listening]) -> None:
        nodes = list(self._nodes.values())
        for one in listening:
            self._calls.call(partial(one.added, nodes))
            self._calls.call(partial(one.initialised, self._state))

    def _tell_changes(self, added: Sequence[Node], removed: Sequence[Node]) -> None:
        if self._state is ViewState.NOT_INITIALISED:
            return
        for one in self._listening:
            if removed:
                self._calls.call(partial(one.removed, removed))
            if added:
                self._calls.call(partial(one.added, added))
