"""Discovery and leader election over ZooKeeper.

    <base>/internal-discovery/<ROLE>/<host:port>       ephemeral; announced document
    <base>/leader/<service>/<token>-<number>           ephemeral; candidate URL

`ZooKeeper` owns the connection and the translation of kazoo's errors; kazoo is installed with
`penstock-io[zookeeper]` and reconnects by itself, with a new session if the old one expired.

`ZooKeeperDiscovery` makes all blocking calls on one thread. ZooKeeper's callbacks only mark the
data that this thread must read again: a role whose nodes changed, or everything after a lost
session. It also reads everything once a minute, so a lost notification costs at most a minute.
While there is no connection, the known nodes are kept.

`ZooKeeperContest` makes the candidate with the lowest number the leader. When a session ends,
its candidates disappear and the next one leads in a new term, which begins without waiting for
the old one to expire. The terms in the metadata store refuse the writes of a leader that does
not know yet that it was replaced.

Invariant: an announced node exists as long as the session. A node that belongs to an earlier
session of this process is replaced, so that it does not disappear when that session expires.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from penstock.core.errors import Fenced, InvalidRequest, Unavailable
from penstock.core.threads import OnDeath, OwnedThread
from penstock.core.waits import WaitTable
from penstock.services.membership.discovery import Node
from penstock.services.membership.election import TERM_TTL_MS, TermStore
from penstock.services.membership.watchers import CallThread, RoleWatchers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.services.membership.discovery import NodeListener, Watch
    from penstock.services.membership.watchers import RoleWatcher
    from penstock.storage.metadata import Term


try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.interfaces import IAsyncResult
    from kazoo.protocol.states import WatchedEvent
    from kazoo.retry import KazooRetry
    from kazoo.security import CREATOR_ALL_ACL
except ImportError as error:
    raise InvalidRequest(
        "ZooKeeper is used by a package that is not installed: pip install 'penstock-io[zookeeper]'"
    ) from error

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S: Final = 6.0
CONNECT_TIMEOUT_S: Final = 15.0
CALL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ZooKeeperSecurity:
    """How a client and the servers prove who they are.

    Attributes:
        uses_tls: The servers speak TLS; their certificates and host names are verified.
        authorities: File of authorities that sign their certificates, PEM, besides those of this
            machine.
        certificate: File of this process's own certificate with its key, PEM, if it has one.
        auth: ``USER:PASSWORD`` of the scheme digest; only this user may then read and change the
            nodes that this client makes. None: everyone who reaches the servers may.
    """

    uses_tls: bool = False
    authorities: str | None = None
    certificate: str | None = None
    auth: str | None = field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of kazoo's client."""
        found: dict[str, Any] = {}
        if self.uses_tls:
            found |= {"use_ssl": True, "verify_certs": True, "check_hostname": True}
            found |= {"ca": self.authorities, "certfile": self.certificate}
            found |= {"keyfile": self.certificate}  # the same file has both
        if self.auth is not None:
            found |= {"auth_data": [("digest", self.auth)], "default_acl": CREATOR_ALL_ACL}
        return found


class ZooKeeper:
    """A client, and Penstock's folder in ZooKeeper.

    Args:
        hosts: Servers, as ZooKeeper writes them: `host:port,host:port`.
        base: Path of the folder; created when needed.
        session_timeout_s: Time without a heartbeat after which the session expires.
        security: TLS and the credentials of this client.
    """

    def __init__(
        self,
        hosts: str,
        base: str,
        session_timeout_s: float = SESSION_TIMEOUT_S,
        security: ZooKeeperSecurity = ZooKeeperSecurity(),
    ) -> None:
        self.base: Final = "/" + base.strip("/")
        self._hosts = hosts
        self.client: Final = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
            **security.arguments(),
        )
        self._on_session: list[Callable[[], None]] = []
        self._on_change: dict[str, Callable[[], None]] = {}
        self.client.add_listener(self._changed)

    def on_session(self, call: Callable[[], None]) -> None:
        """Register a function to call after each reconnection; it must not block."""
        self._on_session.append(call)

    @property
    def is_connected(self) -> bool:
        """Return whether the session is known to be alive."""
        return bool(self.client.state == KazooState.CONNECTED)

    @property
    def is_lost(self) -> bool:
        """Return whether the session is over, and with it all its ephemeral nodes."""
        return bool(self.client.state == KazooState.LOST)

    def owner(self, path: str) -> int | None:
        """Return the session that owns an ephemeral node; 0 if none, None if the node is missing.

        This method and the following ones raise Unavailable if the servers do not answer in time,
        and at once while there is no connection; a change may have been made nevertheless.
        """
        found = self._request(lambda: self.client.exists_async(path))
        return None if found is None else int(found.ephemeralOwner)

    @property
    def session(self) -> int:
        """Return the id of this session."""
        return int(self.client.client_id[0])

    def read(self, path: str) -> bytes | None:
        """Return the content of a node, None if it does not exist."""
        try:
            content: bytes = self._request(lambda: self.client.get_async(path))[0]
        except NoNodeError:
            return None
        return content

    def children(self, path: str, changed: Callable[[], None]) -> list[str]:
        """Return the names in a folder, which is created if needed.

        Args:
            path: The folder.
            changed: Called once when it changes; a later call replaces this callback.
        """
        self._request(lambda: self.client.ensure_path_async(path))
        # Kazoo keeps every distinct watch until the folder changes, which may never happen.
        self._on_change[path] = changed
        names: list[str] = self._request(
            lambda: self.client.get_children_async(path, watch=self._folder_changed)
        )
        return names

    def create(self, path: str, content: bytes, *, sequence: bool = False) -> str:
        """Create an ephemeral node and return its path, which for a sequence ends in a number.

        Raises:
            Unavailable: Also if the node exists.
        """
        try:
            made: str = self._request(
                lambda: self.client.create_async(
                    path, content, ephemeral=True, sequence=sequence, makepath=True
                )
            )
        except NodeExistsError:
            raise Unavailable(f"another session has just created {path}") from None
        return made

    def delete(self, path: str) -> None:
        """Delete a node, if it exists."""
        with contextlib.suppress(NoNodeError):
            self._request(lambda: self.client.delete_async(path))

    def start(self) -> None:
        """Connect.

        Raises:
            Unavailable: No server answers.
        """
        try:
            self.client.start(timeout=CONNECT_TIMEOUT_S)
        except BaseException as error:
            self.stop()
            if isinstance(error, KazooTimeoutError):
                raise Unavailable(
                    f"no ZooKeeper answers at {self._hosts}; is it running there? (--zookeeper)"
                ) from None
            raise

    def stop(self) -> None:
        """End the session."""
        self.client.stop()
        self.client.close()

    def _folder_changed(self, event: WatchedEvent) -> None:
        # The path is missing when the session is over: then every folder may have changed.
        for path in list(self._on_change) if event.path is None else [event.path]:
            self._on_change[path]()

    def _changed(self, state: str) -> None:
        logger.info("the session with ZooKeeper is %s", state)
        if state == KazooState.CONNECTED:
            for call in self._on_session:
                call()

    def _request(self, begin: Callable[[], IAsyncResult]) -> Any:
        # Without a connection, a request would wait forever, so it is refused.
        if not self.is_connected:
            raise Unavailable(f"there is no connection to ZooKeeper at {self._hosts}: try again")
        try:
            return begin().get(timeout=CALL_TIMEOUT_S)
        except (NoNodeError, NodeExistsError):
            raise
        except (KazooException, KazooTimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"ZooKeeper at {self._hosts} failed: {reason}") from None


READ_EVERY_S: Final = 60.0
TRY_AGAIN_S: Final = 1.0
FOLDER: Final = "internal-discovery"


class ZooKeeperDiscovery:
    """`Discovery` by ZooKeeper.

    The condition's mutex guards the marks of data that the thread must read.

    Args:
        zookeeper: The client; this class also starts and stops it.
        clock: Time.
    """

    def __init__(self, zookeeper: ZooKeeper, clock: Clock) -> None:
        self._zookeeper = zookeeper
        self._clock = clock
        self._calls = CallThread(clock)
        self._watchers = RoleWatchers(self._calls, clock)
        self._changed = threading.Condition()
        self._marked: set[str] = set()
        self._all_marked = False
        self._announced: dict[str, Node] = {}
        self._thread = OwnedThread("discovery", self._run, on_death=OnDeath.RESTART)
        self._waits = WaitTable(clock)

    @property
    def faults(self) -> int:
        """Return 0: kazoo handles the errors of its own threads."""
        return 0

    @property
    def waits(self) -> WaitTable:
        """Return an empty table: kazoo retries by itself."""
        return self._waits

    def start(self) -> None:
        """Connect, and start to read nodes. Raises Unavailable if no server answers."""
        self._zookeeper.on_session(self._mark_all)
        self._zookeeper.start()
        self._calls.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; the session ends, and with it all announcements."""
        self._thread.end(self._changed)
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
        return self._watcher(role).listen(listener)

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role."""
        return self._watcher(role).require_nodes()

    def _watcher(self, role: str) -> RoleWatcher:
        watcher, is_new = self._watchers.of(role)
        if is_new:
            self._mark(role)
        return watcher

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
        wait_s, has_failed = READ_EVERY_S, False
        while True:
            with self._changed:
                is_idle = not (self._marked or self._all_marked or self._thread.is_end_expected)
                # Marks that are set meanwhile stay.
                if is_idle and not self._clock.wait(self._changed, wait_s):
                    self._all_marked = True
                if self._thread.is_end_expected:
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
                        self._synchronise(watcher)
                wait_s, has_failed = READ_EVERY_S, False
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
            # It belongs to an earlier session that has not ended yet.
            self._zookeeper.delete(path)
        try:
            self._zookeeper.create(path, orjson.dumps(node.to_json()))
        except Unavailable:
            # The announcing thread and this thread may run this at once: one of them was first.
            if self._zookeeper.owner(path) != self._zookeeper.session:
                raise

    def _synchronise(self, watcher: RoleWatcher) -> None:
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


class ZooKeeperContest:
    """`Contest` over ZooKeeper.

    Args:
        zookeeper: A client, which the caller starts and stops.
        terms: The metadata store's terms.
        service: The service to lead.
        holder: This candidate's URL, as others reach it.
        token: Distinguishes this process's candidates from others'.
        ttl_ms: How long a term lasts without a renewal.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        terms: TermStore,
        service: str,
        holder: str,
        token: str,
        ttl_ms: int = TERM_TTL_MS,
    ) -> None:
        self._zookeeper = zookeeper
        self._terms = terms
        self._service = service
        self._holder = holder
        self._token = token
        self._ttl_ms = ttl_ms
        self._folder = f"{zookeeper.base}/leader/{service}"
        self._changed: Callable[[], None] = lambda: None

    def start(self, changed: Callable[[], None]) -> None:
        """Take part; `changed` is called when candidates appear or disappear."""
        self._changed = changed
        self._zookeeper.on_session(changed)

    def stop(self) -> None:
        """Leave the election."""
        try:
            self._step_aside()
        except Unavailable as error:
            logger.warning("a candidate stays until its session ends: %s", error)

    def seek(self) -> Term | None:
        """Register as a candidate; return a new term if this is the first candidate."""
        candidates = self._candidates()
        mine = next((one for one in candidates if self._is_mine(one)), None)
        if mine is not None and self._zookeeper.owner(self._path(mine)) != self._zookeeper.session:
            # It belongs to an earlier session of this process that has not ended yet.
            self._zookeeper.delete(self._path(mine))
            mine = None
        if mine is None:
            content = self._holder.encode()
            self._zookeeper.create(self._path(f"{self._token}-"), content, sequence=True)
            candidates = self._candidates()
        if not candidates or not self._is_mine(candidates[0]):
            return None
        seen = self._terms.current(self._service)
        return self._terms.take(self._service, self._holder, self._ttl_ms, instead_of=seen)

    def keep(self, term: Term) -> Term:
        """Renew a term while this one is the first candidate.

        Raises:
            Fenced: It is not the first, the session is over, or there is a newer term.
            Unavailable: The leader is not known now.
        """
        if self._zookeeper.is_lost:
            raise Fenced(f"the session in which {self._holder} led is over: stand again")
        candidates = self._candidates()
        if not candidates or not self._is_mine(candidates[0]):
            raise Fenced(f"{self._holder} is no longer the first candidate: stand again")
        return self._terms.renew(term)

    def resign(self, term: Term) -> None:
        """Move behind all other candidates, and resign the term."""
        self._step_aside()
        self._terms.resign(term)

    def leader(self) -> str | None:
        """Return the holder of the current term."""
        found = self._terms.current(self._service)
        return None if found is None else found.holder

    def _candidates(self) -> list[str]:
        names = self._zookeeper.children(self._folder, self._changed)
        return sorted(names, key=lambda name: name.rpartition("-")[2])

    def _step_aside(self) -> None:
        for name in self._candidates():
            if self._is_mine(name):
                self._zookeeper.delete(self._path(name))

    def _is_mine(self, name: str) -> bool:
        return name.rpartition("-")[0] == self._token

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
