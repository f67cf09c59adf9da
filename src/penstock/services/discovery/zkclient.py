"""A session with ZooKeeper, using kazoo, which `penstock-io[zookeeper]` installs.

Owns the connection and the translation of kazoo's errors. Kazoo reconnects by itself, with a new
session if the old one has expired.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from penstock.core.errors import InvalidRequest, Unavailable

try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.interfaces import IAsyncResult
    from kazoo.protocol.states import WatchedEvent
    from kazoo.retry import KazooRetry
except ImportError as error:
    raise InvalidRequest(
        "ZooKeeper is used by a package that is not installed: pip install 'penstock-io[zookeeper]'"
    ) from error

logger = logging.getLogger(__name__)

SESSION_TIMEOUT_S: Final = 6.0
CONNECT_TIMEOUT_S: Final = 15.0
CALL_TIMEOUT_S: Final = 10.0


class ZooKeeper:
    """A client, and Penstock's folder in ZooKeeper.

    Args:
        hosts: Servers, as ZooKeeper writes them: `host:port,host:port`.
        base: Path of the folder; created when needed.
        session_timeout_s: Time without a heartbeat after which the session expires.
    """

    def __init__(self, hosts: str, base: str, session_timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self.base: Final = "/" + base.strip("/")
        self._hosts = hosts
        self.client: Final = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
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
        """Return the session that owns an ephemeral node; 0 if none, None if there is no node.

        This and the next methods raise Unavailable if the servers do not answer in time, and at
        once while there is no connection; a change may have been made nevertheless.
        """
        found = self._ask(lambda: self.client.exists_async(path))
        return None if found is None else int(found.ephemeralOwner)

    @property
    def session(self) -> int:
        """Return the id of this session."""
        return int(self.client.client_id[0])

    def read(self, path: str) -> bytes | None:
        """Return the content of a node, None if it does not exist."""
        try:
            content: bytes = self._ask(lambda: self.client.get_async(path))[0]
        except NoNodeError:
            return None
        return content

    def children(self, path: str, changed: Callable[[], None]) -> list[str]:
        """Return the names in a folder, which is created if needed.

        Args:
            path: The folder.
            changed: Called once when it changes; a later call replaces this callback.
        """
        self._ask(lambda: self.client.ensure_path_async(path))
        # Kazoo keeps every distinct watch until the folder changes, which may never happen.
        self._on_change[path] = changed
        names: list[str] = self._ask(
            lambda: self.client.get_children_async(path, watch=self._folder_changed)
        )
        return names

    def create(self, path: str, content: bytes, *, sequence: bool = False) -> str:
        """Create an ephemeral node and return its path, which for a sequence ends in a number.

        Raises:
            Unavailable: Also if the node exists.
        """
        try:
            made: str = self._ask(
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
            self._ask(lambda: self.client.delete_async(path))

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

    def _ask(self, begin: Callable[[], IAsyncResult]) -> Any:
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
