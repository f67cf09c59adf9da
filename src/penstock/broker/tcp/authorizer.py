"""Authorization of clients: ``AUTH``, and the check of each command that needs a right.

Owns the principal of a connection, the checks before a command is executed, and NSQ's codes and
texts for their outcome. Does not own who has a right (`core.access`, `broker.security.rights`) nor
the answers of authorization servers (`broker.security.permissions`).

A connection has, in this order:

1. the principal of the token, or of the user and password, that it sent with ``AUTH``;
2. the permissions that an authorization server grants for any other secret of ``AUTH``, if such
   servers are configured: they decide alone, but never about the topic of the audit;
3. the owner, if the client is a process of the server's own user on this host, nothing is
   configured in Penstock, and no authorization server is;
4. the principal of its client certificate;
5. none: `NOBODY`.

Invariants: without a valid answer nothing is allowed; a client learns that it was refused, but not
why. A connection whose credential was removed or has expired gets no further messages within a few
seconds, and executes no further command that needs a right.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson

from penstock.broker.protocol import commands as c
from penstock.broker.protocol import frames
from penstock.broker.security.auth_servers import AuthQuestion
from penstock.broker.security.peers import KeyWaits, PasswordQueue, check_role
from penstock.broker.security.rights import READ_CHANNEL, WRITE_TOPIC, channel_name
from penstock.core.access.peer_user import own_user_id
from penstock.core.access.principal import ASSIGNABLE, NOBODY, Principal, PrincipalKind
from penstock.core.access.rules import Resource, ResourceKind
from penstock.core.errors import InvalidRequest, PenstockError, QuotaExceeded, Unauthenticated
from penstock.core.loop_tasks import run_on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from penstock.broker.security.auth_servers import AuthServers
    from penstock.broker.security.permissions import Permissions
    from penstock.broker.tcp.client_session import ClientSession
    from penstock.broker.tcp.tcp_connection import TcpConnection
    from penstock.core.access.access_control import AccessControl
    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_PASSWORD_BYTES_MAX: Final = 4_096
_NO_GRANT: Final = "AUTH no authorizations found"


class Authorizer:
    """Checks the rights of clients.

    Args:
        access: The access control.
        authority: The authorization servers, if there are any.
        clock: For the expiry of answers.
        asks_certificates: Clients must present certificates.
    """

    def __init__(
        self,
        access: AccessControl,
        authority: AuthServers | None,
        clock: Clock,
        *,
        asks_certificates: bool = False,
    ) -> None:
        self._access = access
        self._authority = authority
        self._clock = clock
        self._own_user_id = own_user_id()
        self._passwords = PasswordQueue(access)
        self._key_waits = KeyWaits(access)
        self._asks_certificates = asks_certificates

    def needs_auth(self, session: ClientSession) -> bool:
        """Return whether a client must send ``AUTH`` before other commands.

        A client that must present a certificate after this answer need not, if certificates have
        roles: NSQ's clients disconnect if they need a secret and have none.
        """
        if self._principal(session) is not NOBODY:
            return False
        return not (self._asks_certificates and self._access.has_certificates)

    def knows(self, session: ClientSession) -> bool:
        """Return whether a client has a principal, or permissions of an authorization server."""
        return session.authorized or self._principal(session) is not NOBODY

    def authenticate(self, connection: TcpConnection, command: c.Command) -> Awaitable[None] | None:
        """Authenticate a client, and answer it.

        Raises:
            CommandRefused: The secret is not accepted, or the client is authorized already.
        """
        assert isinstance(command, c.Authenticate)
        if connection.session.authorized:
            raise c.CommandRefused("E_INVALID", "AUTH already set")
        secret = command.secret
        if b":" in secret and len(secret) <= _PASSWORD_BYTES_MAX and self._access.is_configured:
            return self._check_password(connection, secret)
        return self._check_token(connection, secret)

    def check(
        self, connection: TcpConnection, command: str, topic: str, channel: str = ""
    ) -> Awaitable[None] | None:
        """Check a command; return an awaitable if the check is not complete yet.

        Raises:
            CommandRefused: The command is not allowed; the awaitable raises it, too.
        """
        if connection.rights.remembers((topic, channel)):
            return None
        permissions = connection.session.permissions
        if permissions is None:
            self._require(connection, command, topic, channel)
            return None
        audit = self._access.audit.options
        if audit.topic and audit.has(Resource(ResourceKind.TOPIC, topic)):
            # The servers do not know the rights that records of the audit need.
            raise _unauthorized(command, topic, channel)
        if self._clock.now_ms() >= permissions.expires_ms:
            return self._query_servers(connection, command, topic, channel)
        if permissions.takes_long(topic, channel):
            return _require_beside(permissions, command, topic, channel)
        _require(permissions, command, topic, channel)
        return None

    def left(self, session: ClientSession) -> None:
        """Count one connection less for the principal of a session that has ended."""
        if session.counted_for is not None:
            self._access.quotas.connections.leave(session.counted_for)
            session.counted_for = None

    def _count(self, session: ClientSession, principal: Principal) -> None:
        """Count a connection for its principal.

        Raises:
            CommandRefused: The principal has as many connections as its quota allows.
        """
        counted = session.counted_for
        if counted is not None and counted.id == principal.id:
            return
        if principal.kind not in ASSIGNABLE:
            return  # it has no quotas
        try:
            self._access.quotas.connections.enter(principal, session.address)
        except QuotaExceeded as error:  # narrow: translates
            raise c.CommandRefused("E_AUTH_FAILED", f"AUTH failed {error}") from error
        self.left(session)
        session.counted_for = principal

    def may_stay(self, connection: TcpConnection) -> bool:
        """Return whether a connection may receive messages, after access has changed."""
        session, consumer = connection.session, connection.consumer
        if consumer is None or session.permissions is not None:
            return True
        try:
            self._require(connection, "SUB", consumer.topic.name, consumer.channel.name)
        except c.CommandRefused:
            return False
        return True

    def _require(self, connection: TcpConnection, command: str, topic: str, channel: str) -> None:
        """Return if the principal of a connection may execute a command.

        Raises:
            CommandRefused: It may not.
        """
        session = connection.session
        principal = self._principal(session)
        if principal is NOBODY and not session.is_authenticated:
            raise c.CommandRefused("E_AUTH_FIRST", f"AUTH required before {command}")
        if not session.is_authenticated:
            self._count(session, principal)  # of a certificate; `AUTH` has counted all others
        right, name = WRITE_TOPIC, topic
        if channel:
            right, name = READ_CHANNEL, channel_name(topic, channel)
        try:
            connection.rights.require(principal, right, name, (topic, channel))
        except InvalidRequest:  # narrow: translates
            raise _unauthorized(command, topic, channel) from None

    def _principal(self, session: ClientSession) -> Principal:
        """Return the principal of a session in the current generation of the access control."""
        generation = self._access.generation
        if session.generation != generation:
            session.generation = generation
            session.principal = self._found(session)
        return session.principal

    def _found(self, session: ClientSession) -> Principal:
        if session.is_authenticated:
            if session.principal.kind is PrincipalKind.USER and not session.principal.via:
                return session.principal  # refused by the access control if it has changed
            try:
                return (
                    self._access.authenticator.of_bearer(session.secret, origin=session.address)
                    or NOBODY
                )
            except PenstockError:  # narrow: a token of an issuer that is not valid any more
                return NOBODY
        owner = None if self._authority is not None else self._access.of_owner()
        if owner is not None:
            is_own = self._own_user_id is not None and session.user_id == self._own_user_id
            if is_own or self._access.is_open:
                return owner
        found = (
            self._access.authenticator.of_certificate(session.common_name)
            if session.common_name
            else None
        )
        return found or NOBODY

    async def _check_password(self, connection: TcpConnection, secret: bytes) -> None:
        try:
            user, _, password = secret.decode().partition(":")
            origin = connection.session.address
            principal = await self._passwords.principal(user, password, origin)
        except UnicodeDecodeError:  # narrow: no user has such a password
            principal = None
        except PenstockError as error:
            raise c.CommandRefused("E_AUTH_FAILED", "AUTH failed") from error
        if principal is not None:
            self._let_in(connection, principal)
            return
        asking = self._check_token(connection, secret)
        if asking is not None:
            await asking

    def _check_token(self, connection: TcpConnection, secret: bytes) -> Awaitable[None] | None:
        """Check a token; ask the authorization servers about one that Penstock does not know.

        Raises:
            CommandRefused: It is unknown, and there are no such servers.
        """
        session = connection.session
        if self._access.oidc.keys_awaited(secret) is not None:
            return self._wait_for_keys(connection, secret)
        try:
            principal = self._access.authenticator.of_bearer(secret, origin=session.address)
            if principal is not None:
                check_role(principal, session.certificate_role)
        except Unauthenticated:  # narrow: a client does not learn why
            principal = None
        except PenstockError as error:
            raise c.CommandRefused("E_AUTH_FAILED", "AUTH failed") from error
        return self._let_in_or_ask(connection, secret, principal)

    async def _wait_for_keys(self, connection: TcpConnection, secret: bytes) -> None:
        try:
            principal = await self._key_waits.principal(secret, connection.session.address)
        except Unauthenticated:  # narrow: a client does not learn why
            principal = None
        except PenstockError as error:
            raise c.CommandRefused("E_AUTH_FAILED", "AUTH failed") from error
        asking = self._let_in_or_ask(connection, secret, principal)
        if asking is not None:
            await asking

    def _let_in_or_ask(
        self, connection: TcpConnection, secret: bytes, principal: Principal | None
    ) -> Awaitable[None] | None:
        """Let a client in that has a principal; ask the authorization servers about others.

        Raises:
            CommandRefused: There are no such servers.
        """
        session = connection.session
        if principal is not None:
            self._let_in(connection, principal)
            session.secret = secret
            return None
        if self._authority is not None:
            session.secret = secret
            return self._ask_first(connection)
        if self._principal(session).kind is PrincipalKind.OWNER:
            raise c.CommandRefused("E_AUTH_DISABLED", "AUTH disabled")
        raise c.CommandRefused("E_UNAUTHORIZED", _NO_GRANT)

    def _let_in(self, connection: TcpConnection, principal: Principal) -> None:
        """Record the principal of `AUTH`, and answer.

        Raises:
            CommandRefused: The principal has too many connections.
        """
        session = connection.session
        self._count(session, principal)
        session.principal, session.is_authenticated = principal, True
        connection.rights.forget()
        _answer(connection, principal.id, "", 1)

    async def _ask_first(self, connection: TcpConnection) -> None:
        permissions = await self._ask(connection)
        if not permissions.grants:
            raise c.CommandRefused("E_UNAUTHORIZED", _NO_GRANT)
        connection.session.permissions = permissions
        connection.rights.forget()  # the servers decide from here on
        _answer(connection, permissions.identity, permissions.identity_url, len(permissions.grants))

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


def _answer(connection: TcpConnection, identity: str, identity_url: str, count: int) -> None:
    answer = {"identity": identity, "identity_url": identity_url, "permission_count": count}
    connection.output.send(frames.response(orjson.dumps(answer)))


async def _require_beside(permissions: Permissions, command: str, topic: str, channel: str) -> None:
    # The client's next command waits for this one, so one thread at a time uses its permissions.
    await run_on_thread(partial(permissions.allows, topic, channel))
    _require(permissions, command, topic, channel)


def _require(permissions: Permissions, command: str, topic: str, channel: str) -> None:
    if not permissions.allows(topic, channel):
        raise _unauthorized(command, topic, channel)


def _unauthorized(command: str, topic: str, channel: str) -> c.CommandRefused:
    shown = f'"{topic}" "{channel}"'
    return c.CommandRefused("E_UNAUTHORIZED", f"AUTH failed for {command} on {shown}")
