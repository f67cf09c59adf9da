"""Discovery by ZooKeeper: an ephemeral node for each process, in Druid's layout.

    <base>/internal-discovery/<ROLE>/<host:port>       the announced document

One thread makes all calls that wait for the server. ZooKeeper's callbacks only mark what must be
read: a role whose nodes changed, or, after the session was lost, everything. The thread also reads
everything once a minute, so a lost notification costs a minute at most. Without a connection every
process keeps the nodes that it knows.

Invariant: an announced node exists whenever the session does. A node of an earlier session of this
process is replaced, so that it does not disappear when that session expires.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.discovery.calls import CallThread
from penstock.services.discovery.node import Node
from penstock.services.discovery.watchers import RoleWatchers
from penstock.services.discovery.zkclient import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.services.discovery.discovery import NodeListener, Watch
    from penstock.services.discovery.watcher import RoleWatcher

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 60.0
TRY_AGAIN_S: Final = 1.0
FOLDER: Final = "internal-discovery"


class ZooKeeperDiscovery:
    """`Discovery` by ZooKeeper.

    The condition's mutex guards the marks of what the thread must read.

    Args:
        zookeeper: The client; this class also starts and stops it.
        clock: Time.
    """

    def __init__(self, zookeeper: ZooKeeper, clock: Clock) -> None:
        self._zookeeper = zookeeper
        self._clock = clock
        self._calls = CallThread(clock)
        self._watchers = RoleWatchers(self._calls, clock, self._mark)
        self._changed = threading.Condition()
        self._marked: set[str] = set()
        self._all_marked = False
        self._stop_asked = False
        self._announced: dict[str, Node] = {}
        self._thread = OwnedThread("discovery", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Connect, and start to read nodes. Raises Unavailable if no server answers."""
        self._zookeeper.on_session(self._mark_all)
        self._zookeeper.start()
        self._calls.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; the session ends, and with it all announcements."""
        self._thread.expect_end()
        with self._changed:
            self._stop_asked = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._zookeeper.stop()
        self._calls.stop()

    def announce(self, node: Node) -> _Announced:
        """Create a node's ephemeral node, now and in each later session."""
        path = self._path(node.role, node.key)
        with self._changed:
            self._announced[path] = node
        try:
            self._put(path, node)
        except BaseException:
            with self._changed:
                self._announced.pop(path, None)
            raise
        return _Announced(self, path)

    def withdraw(self, path: str) -> None:
        """Delete an ephemeral node; if that fails, it disappears with the session."""
        with self._changed:
            if self._announced.pop(path, None) is None:
                return
        try:
            self._zookeeper.delete(path)
        except Unavailable as error:
            logger.warning(
                "%s could not be withdrawn and will disappear with the session: %s", path, error
            )

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for the nodes of a role."""
        return self._watchers.watch(role, listener)

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role."""
        return self._watchers.nodes(role)

    def _path(self, role: str, *more: str) -> str:
        return "/".join((self._zookeeper.base, FOLDER, role.upper(), *more))

    def _mark(self, role: str) -> None:
        with self._changed:
            self._marked.add(role)
            self._changed.notify_all()

    def _mark_all(self) -> None:
        with self._changed:
            self._all_marked = True
            self._changed.notify_all()

    # The thread

    def _run(self) -> None:
        self._mark_all()  # marks from before an unexpected end are handled
        wait_s, has_failed = LOOK_EVERY_S, False
        while True:
            with self._changed:
                is_idle = not (self._marked or self._all_marked or self._stop_asked)
                # Marks that are set meanwhile stay.
                if is_idle and not self._clock.wait(self._changed, wait_s):
                    self._all_marked = True
                if self._stop_asked:
                    return
                whole, self._all_marked = self._all_marked or has_failed, False
                marked, self._marked = self._marked, set()
                announced = dict(self._announced)
            try:
                if whole:
                    for path, node in announced.items():
                        self._put_again(path, node)
                for watcher in self._watchers.all():
                    if whole or watcher.role in marked:
                        self._look(watcher)
                wait_s, has_failed = LOOK_EVERY_S, False
            except Unavailable as error:
                logger.warning("ZooKeeper does not answer, trying again: %s", error)
                # These roles are read again with all others.
                wait_s, has_failed = TRY_AGAIN_S, True

    def _put_again(self, path: str, node: Node) -> None:
        self._put(path, node)
        with self._changed:
            withdrawn = path not in self._announced
        if withdrawn:  # meanwhile
            self._zookeeper.delete(path)

    def _put(self, path: str, node: Node) -> None:
        owner = self._zookeeper.owner(path)
        if owner == self._zookeeper.session:
            return
        if owner is not None:
            # Of an earlier session that has not ended yet.
            self._zookeeper.delete(path)
        try:
            self._zookeeper.create(path, orjson.dumps(node.to_json()))
        except Unavailable:
            # The announcing thread and this thread may run this at once: one of them was first.
            if self._zookeeper.owner(path) != self._zookeeper.session:
                raise

    def _look(self, watcher: RoleWatcher) -> None:
        folder, role = self._path(watcher.role), watcher.role
        names = self._zookeeper.children(folder, lambda: self._mark(role))
        found = [self._read(f"{folder}/{name}") for name in names]
        watcher.synchronise({node.key: node for node in found if node is not None})

    def _read(self, path: str) -> Node | None:
        content = self._zookeeper.read(path)
        try:
            return None if content is None else Node.from_json(orjson.loads(content))
        except (InvalidRequest, orjson.JSONDecodeError) as error:
            logger.warning("%s has an unreadable document: %s", path, error)
            return None


class _Announced:
    """An announced ephemeral node."""

    def __init__(self, home: ZooKeeperDiscovery, path: str) -> None:
        self._home = home
        self._path = path

    def withdraw(self) -> None:
        """Delete the node; repeated calls do nothing."""
        self._home.withdraw(self._path)
