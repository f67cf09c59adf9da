"""Watchers of the nodes of each role, and the thread that calls their listeners.

    NOT_INITIALISED --initialise--> INITIALISED      one nodes_added of all, view_initialised
                    --30 s--------> TIMED_OUT        the same with view_initialised_timed_out;
                                                     a later initialisation is ignored

    change            before initialisation          afterwards
    add, unknown      recorded                       reported
    add, known        ignored: the first one stays   ignored
    add, other role   logged, ignored                logged, ignored
    remove, known     recorded                       reported
    remove, unknown   logged                         logged
    synchronise       recorded                       one call for all added, one for all removed

`RoleWatcher` owns this state for one role, `RoleWatchers` creates the watchers on demand, and
`CallThread` makes the calls to listeners, one after the other. The changes come from the
implementations of discovery. All classes may be used from any thread; a mutex guards each
table.

Invariant: the calls that a listener received add up to the known nodes, except for calls that
are still queued.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.membership.discovery import INITIALISED_WITHIN_S, NodeListener

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.services.membership.discovery import Node


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
                self._notify_of_view([one])
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

    def require_nodes(self) -> list[Node]:
        """Return the known nodes, after a wait.

        Raises:
            Unavailable: No nodes of the role were received in time.
        """
        found = self.nodes()
        if found is None:
            raise Unavailable(f"the {self.role}s are not known yet: try again")
        return found

    def add(self, node: Node) -> None:
        """Record that a node appeared."""
        if node.role != self.role:
            logger.error("%s announces itself as %s among the %ss", node.key, node.role, self.role)
            return
        with self._changed:
            if node.key not in self._nodes:
                self._nodes[node.key] = node
                self._notify_of_changes([node], [])

    def remove(self, key: str) -> None:
        """Record that a node disappeared."""
        with self._changed:
            gone = self._nodes.pop(key, None)
            if gone is not None:
                self._notify_of_changes([], [gone])
                return
        logger.warning("removed node %s was not known among the %ss", key, self.role)

    def synchronise(self, present: Mapping[str, Node]) -> None:
        """Record all present nodes by key, remove all others, and initialise the view."""
        right = {key: node for key, node in present.items() if node.role == self.role}
        for key in present.keys() - right.keys():
            logger.error(
                "%s is announced with the role %s, but its document has another role",
                key,
                self.role,
            )
        with self._changed:
            gone = [self._nodes.pop(key) for key in list(self._nodes) if key not in right]
            fresh = {key: node for key, node in right.items() if key not in self._nodes}
            self._nodes.update(fresh)
            self._notify_of_changes(list(fresh.values()), gone)
            self._set_state_once(ViewState.INITIALISED)

    def initialise(self) -> None:
        """Record that all initial nodes are known."""
        with self._changed:
            self._set_state_once(ViewState.INITIALISED)

    def _time_out(self) -> None:
        with self._changed:
            if self._state is ViewState.NOT_INITIALISED:
                logger.warning(
                    "no complete list within %g s of all nodes in the role %s",
                    self._within_s,
                    self.role,
                )
            self._set_state_once(ViewState.TIMED_OUT)

    # With the mutex held

    def _set_state_once(self, state: ViewState) -> None:
        if self._state is ViewState.NOT_INITIALISED:
            self._state = state
            self._changed.notify_all()
            self._notify_of_view(self._listening)

    def _notify_of_view(self, listening: Sequence[_Listening]) -> None:
        nodes = list(self._nodes.values())
        for one in listening:
            self._calls.call(partial(one.added, nodes))
            self._calls.call(partial(one.initialised, self._state))

    def _notify_of_changes(self, added: Sequence[Node], removed: Sequence[Node]) -> None:
        if self._state is ViewState.NOT_INITIALISED:
            return
        for one in self._listening:
            if removed:
                self._calls.call(partial(one.removed, removed))
            if added:
                self._calls.call(partial(one.added, added))


class RoleWatchers:
    """Watchers by role; thread-safe. Its mutex guards the table.

    Args:
        calls: Queue of calls to listeners.
        clock: Time.
    """

    def __init__(self, calls: CallThread, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._mutex = threading.Lock()
        self._watchers: dict[str, RoleWatcher] = {}

    def all(self) -> Sequence[RoleWatcher]:
        """Return the watchers of all requested roles."""
        with self._mutex:
            return list(self._watchers.values())

    def of(self, role: str) -> tuple[RoleWatcher, bool]:
        """Return the watcher of a role, and whether it is new: a new one is not polled yet."""
        with self._mutex:
            found = self._watchers.get(role)
            if found is not None:
                return found, False
            made = self._watchers[role] = RoleWatcher(role, self._calls, self._clock)
            return made, True


Call = Callable[[], None]


class CallThread:
    """Runs calls in the order in which they were submitted, and delayed calls when due.

    Its mutex guards the two queues: any thread may submit, and never waits for a call. The number
    of queued calls is bounded by how often nodes appear and disappear.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._later: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._stopped = False
        self._thread = OwnedThread("discovery calls", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start to run calls, including those submitted before."""
        self._thread.start()

    def stop(self) -> None:
        """Run no further calls; return when the current call has ended."""
        self._thread.expect_end()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def call(self, call: Call) -> None:
        """Run a call after those submitted before."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def call_later(self, delay_s: float, call: Call) -> None:
        """Run a call after a delay."""
        with self._changed:
            at_s = self._clock.monotonic_s() + delay_s
            heapq.heappush(self._later, (at_s, next(self._numbers), call))
            self._changed.notify_all()

    def _next(self) -> Call | None:
        with self._changed:
            while not self._stopped:
                if self._calls:
                    return self._calls.popleft()
                wait_s = None
                if self._later:
                    wait_s = self._later[0][0] - self._clock.monotonic_s()
                    if wait_s <= 0:
                        return heapq.heappop(self._later)[2]
                self._clock.wait(self._changed, wait_s)
        return None

    def _run(self) -> None:
        while (call := self._next()) is not None:
            # The documented top-level boundary: an error of one listener must not affect others.
            try:
                call()
            except Exception:
                logger.exception("a listener failed; it will be called for the next change")
