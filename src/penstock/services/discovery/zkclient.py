"""A session with ZooKeeper, by kazoo, which is installed with `penstock-io[zookeeper]`.

Owns the connection and the translation of kazoo's errors. Kazoo connects again by itself, in a new
session when the old one ran out meanwhile.
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
    """A client and the folder that is ours.

    Args:
        hosts: Servers, as ZooKeeper writes them: `host:port,host:port`.
        base: Path of the folder; it is made when needed.
        session_timeout_s: How long the servers wait for a sign of life.
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
        """Have a call made when a connection is there again; it must not block."""
        self._on_session.append(call)

    @property
    def is_connected(self) -> bool:
        """Whether the session is known to live."""
        return bool(self.client.state == KazooState.CONNECTED)

    @property
    def is_lost(self) -> bool:
        """Whether the session is over, and with it all that was ephemeral in it."""
        return bool(self.client.state == KazooState.LOST)

    def owner(self, path: str) -> int | None:
        """Return the session that an ephemeral node is of; 0: of none; None: it is not there.

        This and the following raise Unavailable when the servers do not answer in time, and at
        once while there is no connection; a change may then have been made all the same.
        """
        found = self._ask(lambda: self.client.exists_async(path))
        return None if found is None else int(found.ephemeralOwner)

    @property
    def session(self) -> int:
        """The number of this session."""
        return int(self.client.client_id[0])

    def read(self, path: str) -> bytes | None:
        """Return what a node holds, None if it is not there."""
        try:
            content: bytes = self._ask(lambda: self.client.get_async(path))[0]
        except NoNodeError:
            return None
        return content

    def children(self, path: str, changed: Callable[[], None]) -> list[str]:
        """Return the names in a folder, which is made if needed.

        Args:
            path: The folder.
            changed: Called once when it changes; who asks again before that replaces it.
        """
        self._ask(lambda: self.client.ensure_path_async(path))
        # Kazoo keeps every watch that differs until the folder changes, which may be never.
        self._on_change[path] = changed
        names: list[str] = self._ask(
            lambda: self.client.get_children_async(path, watch=self._folder_changed)
        )
        return names

    def create(self, path: str, content: bytes, *, sequence: bool = False) -> str:
        """Make an ephemeral node and return its path, which ends in a number for a sequence.

        Raises:
            Unavailable: Also when it is there.
        """
        try:
            made: str = self._ask(
                lambda: self.client.create_async(
                    path, content, ephemeral=True, sequence=sequence, makepath=True
                )
            )
        except NodeExistsError:
            raise Unavailable(f"{path} was made by another session just now") from None
        return made

    def delete(self, path: str) -> None:
        """Delete a node; one that is gone is fine."""
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
        # Without a path when the session is over: then every folder may have changed.
        for path in list(self._on_change) if event.path is None else [event.path]:
            self._on_change[path]()

    def _changed(self, state: str) -> None:
        logger.info("the session with ZooKeeper is %s", state)
        if state == KazooState.CONNECTED:
            for call in self._on_session:
                call()

    def _ask(self, begin: Callable[[], IAsyncResult]) -> Any:
        # A request would wait for a connection for ever: so none is made without one.
        if not self.is_connected:
            raise Unavailable(f"there is no connection to ZooKeeper at {self._hosts}: try again")
        try:
            return begin().get(timeout=CALL_TIMEOUT_S)
        except (NoNodeError, NodeExistsError):
            raise
        except (KazooException, KazooTimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise Unavailable(f"ZooKeeper at {self._hosts} does not do it: {reason}") from None
