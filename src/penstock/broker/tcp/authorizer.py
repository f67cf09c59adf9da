"""Authorization of clients: ``AUTH``, and the permissions of its secret.

Owns the checks before a command is executed, with NSQ's codes and texts. Does not own the
permissions (`penstock.broker.security`). The broker's token, if there is one, allows everything, in
addition to the permissions that authorization servers grant.

Invariants: without a valid answer nothing is allowed; a client learns that it was refused, but not
why a server could not be queried.
"""

from __future__ import annotations

import hmac
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.security.auth_servers import AuthQuestion
from penstock.broker.security.permissions import Grant, NamePattern, Permissions
from penstock.core.errors import PenstockError
from penstock.core.loop_tasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.broker.security.auth_servers import AuthServers
    from penstock.broker.tcp.tcp_connection import TcpConnection
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_NEVER_MS: Final = 1 << 62
_EVERYTHING: Final = Grant(
    NamePattern.parse(".*"), (NamePattern.parse(".*"),), frozenset({"publish", "subscribe"})
)


class Authorizer:
    """Checks the permissions of clients.

    Args:
        token: The secret that allows everything, if there is one.
        authority: The authorization servers, if there are any.
        clock: For the expiry of answers.
    """

    def __init__(self, token: str | None, authority: AuthServers | None, clock: Clock) -> None:
        self._token = None if token is None else token.encode()
        self._authority = authority
        self._clock = clock
        self.closed = token is not None or authority is not None

    def authenticate(self, connection: TcpConnection, command: c.Command) -> Awaitable[None] | None:
        """Authenticate a client, and answer it.

        Raises:
            CommandRefused: The secret is not accepted, or the client is authorized already.
        """
        assert isinstance(command, c.Authenticate)
        secret = command.secret
        if connection.session.permissions is not None:
            raise c.CommandRefused("E_INVALID", "AUTH already set")
        if not self.closed:
            raise c.CommandRefused("E_AUTH_DISABLED", "AUTH disabled")
        if self._token is not None and hmac.compare_digest(secret, self._token):
            _let_in(connection, Permissions("token", "", _NEVER_MS, (_EVERYTHING,)))
            return None
        if self._authority is None:
            raise c.CommandRefused("E_UNAUTHORIZED", "AUTH no authorizations found")
        connection.session.secret = secret
        return self._ask_first(connection)

    def check(
        self, connection: TcpConnection, command: str, topic: str, channel: str = ""
    ) -> Awaitable[None] | None:
        """Check a command; return an awaitable if the check is not complete yet.

        Raises:
            CommandRefused: The command is not allowed; the awaitable raises it, too.
        """
        if not self.closed:
            return None
        permissions = connection.session.permissions
        if permissions is None:
            raise c.CommandRefused("E_AUTH_FIRST", f"AUTH required before {command}")
        if self._clock.now_ms() >= permissions.expires_ms:
            return self._query_servers(connection, command, topic, channel)
        if permissions.takes_long(topic, channel):
            return _require_beside(permissions, command, topic, channel)
        _require(permissions, command, topic, channel)
        return None

    async def _ask_first(self, connection: TcpConnection) -> None:
        permissions = await self._ask(connection)
        if not permissions.grants:
            raise c.CommandRefused("E_UNAUTHORIZED", "AUTH no authorizations found")
        _let_in(connection, permissions)

    async def _query_servers(
        self, connection: TcpConnection, command: str, topic: str, channel: str
    ) -> None:
        permissions = await self._ask(connection)
        connection.session.permissions = permissions
        await _require_beside(permissions, command, topic, channel)

    async def _ask(self, connection: TcpConnection) -> Permissions:
        assert self._authority is not None
        session = connection.session
        question = AuthQuestion(
            session.host,
            session.tls,
            session.common_name,
            session.secret.decode(errors="replace"),
        )
        try:
            return await self._authority.ask(question)
        except PenstockError as error:
            _logger.warning("%s: AUTH failed: %s", session.address, error)
            raise c.CommandRefused("E_AUTH_FAILED", "AUTH failed") from error


def _let_in(connection: TcpConnection, permissions: Permissions) -> None:
    connection.session.permissions = permissions
    answer = {
        "identity": permissions.identity,
        "identity_url": permissions.identity_url,
        "permission_count": len(permissions.grants),
    }
    connection.output.send(frames.response(orjson.dumps(answer)))


async def _require_beside(permissions: Permissions, command: str, topic: str, channel: str) -> None:
    # The client's next command waits for this one, so one thread at a time uses its permissions.
    await run_on_thread(partial(permissions.allows, topic, channel))
    _require(permissions, command, topic, channel)


def _require(permissions: Permissions, command: str, topic: str, channel: str) -> None:
    if not permissions.allows(topic, channel):
        shown = f'"{topic}" "{channel}"'
        raise c.CommandRefused("E_UNAUTHORIZED", f"AUTH failed for {command} on {shown}")
