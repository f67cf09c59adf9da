"""What is known of one role's nodes, and who is told of changes.

    NOT_INITIALISED --initialise--> INITIALISED      one nodes_added of all, view_initialised
                    --30 s--------> TIMED_OUT        the same with view_initialised_timed_out;
                                                     an initialisation that comes later is ignored

    change            before initialisation          afterwards
    add, unknown      recorded                       told
    add, known        ignored: the first one stays   ignored
    add, other role   logged, ignored                logged, ignored
    remove, known     recorded                       told
    remove, unknown   logged                         logged
    synchronise       recorded                       one call for all added, one for all removed

Owns the state; where changes come from are the back ends. Invariant: what a listener was told adds
up to what is known, but for calls that are still queued.
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
    """How much is known."""

    NOT_INITIALISED = "NOT_INITIALISED"
    INITIALISED = "INITIALISED"
    TIMED_OUT = "TIMED_OUT"


class _Listening:
    """One listener; it hears nothing any more after its stop."""

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
        """Hear no more."""
        self.listener = None
        self._watcher.forget(self)


class RoleWatcher:
    """One role; any thread.

    Its mutex makes each change and the queueing of its calls one step, so that listeners hear of
    changes in the order they happened; no listener is called while it is held.

    Args:
        role: What is watched.
        calls: Where listeners are called.
        clock: Time.
        within_s: How long the initialisation may take.
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
        """Have a listener hear of what is there and of what changes."""
        one = _Listening(self, listener)
        with self._changed:
            self._listening.append(one)
            if self._state is not ViewState.NOT_INITIALISED:
                self._tell_all_of_it([one])
        return one

    def forget(self, one: _Listening) -> None:
        """Let go of a listener."""
        with self._changed:
            if one in self._listening:
                self._listening.remove(one)

    def nodes(self) -> list[Node] | None:
        """Return who is there; waits; None if not even the time limit for that was reached."""
        until_s = self._clock.monotonic_s() + self._within_s + 1
        with self._changed:
            while self._state is ViewState.NOT_INITIALISED:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return None
                self._clock.wait(self._changed, left_s)
            return list(self._nodes.values())

    def add(self, node: Node) -> None:
        """Note that a node is there."""
        if node.role != self.role:
            logger.error("%s announces itself as %s among the %ss", node.key, node.role, self.role)
            return
        with self._changed:
            if node.key not in self._nodes:
                self._nodes[node.key] = node
                self._tell_changes([node], [])

    def remove(self, key: str) -> None:
        """Note that a node is gone."""
        with self._changed:
            gone = self._nodes.pop(key, None)
            if gone is not None:
                self._tell_changes([], [gone])
                return
        logger.warning("%s, which is gone, was not known among the %ss", key, self.role)

    def synchronise(self, present: Mapping[str, Node]) -> None:
        """Note all that are there, by key, and that all others are gone; initialises the view."""
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
        """Note that all that were there at the start are known."""
        with self._changed:
            self._settle(ViewState.INITIALISED)

    def _time_out(self) -> None:
        with self._changed:
            if self._state is ViewState.NOT_INITIALISED:
                logger.warning(
                    "it could not be found out within %g s which %ss there are",
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
