"""Registration of this broker's topics and channels with nsqlookupd servers.

`LookupdAnnouncer` owns the list of servers and reconnects to a server after a lost connection.
`LookupdConnection` owns the bytes and timers of one connection. `LookupOptions` has the server
addresses and the address that this broker announces to clients. The content of the registration
is in `registration`.

Invariants: used on the broker's event loop. An unresponsive server delays neither other servers nor
the creation of topics. An unreachable server is logged once until it can be reached again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import orjson

from penstock.broker.lookupd.registration import Registration
from penstock.core.backoff import RetryPolicy
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.loop_tasks import keep_running
from penstock.core.threads import OnDeath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.broker.lookupd.registration import RegisteredTopics


class LookupdConnection(asyncio.Protocol):
    """A connection.

    Args:
        registration: Provides the commands and processes the answers.

    Attributes:
        identified: The other side has accepted this broker's identity.
        ended: Completed with the reason when the connection ends.
    """

    def __init__(self, registration: Registration) -> None:
        self._registration = registration
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.identified = False
        self.ended: asyncio.Future[PenstockError] = self._loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to register."""
        # uvloop's transports have asyncio's methods but not its base class.
        self._transport = cast("asyncio.Transport", transport)
        self._registration.opened(self._loop.time())
        self.push()

    def data_received(self, data: bytes) -> None:
        """Process answers, and send further commands."""
        try:
            self._registration.receive_data(data, self._loop.time())
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - part of the answers may be lost
            self._end(Unavailable(f"its answer cannot be processed: {error!r}"))
        else:
            self.identified = self.identified or self._registration.identified
            self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._end(Unavailable(f"the connection was lost: {exc or 'closed by the other side'}"))

    def push(self) -> None:
        """Send pending commands; if that raises, the link ends, and a new one starts over."""
        if self._transport is None:
            return
        try:
            self._push(self._transport)
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - the outermost handler of a callback
            self._end(Unavailable(f"the registration cannot be sent: {error!r}"))

    def _push(self, transport: asyncio.Transport) -> None:
        now_s = self._loop.time()
        self._registration.require_answers(now_s)
        output = self._registration.take_output(now_s)
        if output:
            transport.write(output)
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.01, self._registration.next_check_s(now_s))
        self._timer = self._loop.call_later(wait_s, self.push)

    def close(self) -> None:
        """Close the connection."""
        self._end(Unavailable("closed"))

    def _end(self, error: PenstockError) -> None:
        if self._timer is not None:
            self._timer.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
            self._registration.closed()
        if not self.ended.done():
            self.ended.set_result(error)


_logger = logging.getLogger(__name__)

_FIRST_RETRY_MS: Final = 250
_ADDRESSES_MAX: Final = 100
_PORTS: Final = 65_536
_PORT_DIGITS: Final = 5


class LookupdAnnouncer:
    """Registers this broker's topics at nsqlookupd servers.

    Args:
        identity: NSQ's fields of ``IDENTIFY``, which describe this broker.
        directory: Its topics.
        options: Addresses, time-outs and intervals.
        jitter: Returns a number from 0 to 1, by which pauses vary.

    Raises:
        InvalidRequest: An address is invalid.
    """

    def __init__(
        self,
        identity: dict[str, object],
        directory: RegisteredTopics,
        options: LookupOptions,
        jitter: Callable[[], float],
    ) -> None:
        self._identity = orjson.dumps(identity)
        self._directory = directory
        self._options = options
        self._jitter = jitter
        self._peers: dict[str, _Peer] = {}
        self._addresses = _require_addresses(options.tcp_addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the servers."""
        return self._addresses

    def start(self) -> None:
        """Start connecting."""
        for address in self._addresses:
            self._peers[address] = self._peer(address)

    async def stop(self) -> None:
        """Close the connections, upon which the servers drop all registrations."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.stop()

    async def set_addresses(self, addresses: Sequence[str]) -> None:
        """Replace the servers.

        Raises:
            InvalidRequest: An address is invalid; nothing is changed.
        """
        self._addresses = _require_addresses(addresses)
        gone = [known for known in self._peers if known not in self._addresses]
        leaving = [self._peers.pop(address) for address in gone]
        for address in self._addresses:
            if address not in self._peers:
                self._peers[address] = self._peer(address)
        # Last, because the servers may be replaced again, or the broker stopped, meanwhile.
        for peer in leaving:
            await peer.stop()

    def changed(self, topic: str) -> None:
        """Register that a topic or one of its channels was created or deleted."""
        for peer in self._peers.values():
            peer.changed(topic)

    def http_addresses(self) -> list[str]:
        """Return the HTTP addresses (``HOST:PORT``) of the connected servers."""
        found = (peer.registration for peer in self._peers.values())
        return [known.http_address for known in found if known.identified and known.http_address]

    def _peer(self, address: str) -> _Peer:
        options = self._options
        registration = Registration(
            self._identity,
            self._directory,
            options.ping_interval_ms / 1000,
            options.timeout_ms / 1000,
        )
        return _Peer(address, registration, options, self._jitter)


class _Peer:
    """The connection to one server, restarted when it ends.

    Args:
        address: Address of the server.
        registration: Its registrations.
        options: Time-outs and intervals.
        jitter: Returns a number from 0 to 1.
    """

    def __init__(
        self,
        address: str,
        registration: Registration,
        options: LookupOptions,
        jitter: Callable[[], float],
    ) -> None:
        self.registration = registration
        self._address = address
        self._options = options
        self._jitter = jitter
        self._link: LookupdConnection | None = None
        self._pushing = False
        self._task = keep_running("nsqlookupd announcer", self._run, on_death=OnDeath.RESTART)

    def changed(self, topic: str) -> None:
        """Register a changed topic, together with other changes of this iteration of the loop."""
        self.registration.changed(topic)
        if not self._pushing:
            asyncio.get_running_loop().call_soon(self._push)
            self._pushing = True

    async def stop(self) -> None:
        """Close the connection."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def _push(self) -> None:
        self._pushing = False
        if self._link is not None:
            self._link.push()

    async def _run(self) -> None:
        policy = RetryPolicy(_FIRST_RETRY_MS, self._options.retry_ms, jitter=0.5)
        failures, told = 1, False
        while True:
            failure, was_known = await self._connect_once()
            if was_known or not told:
                _logger.warning("nsqlookupd %s: %s", self._address, failure)
            told = True
            failures = 1 if was_known else failures + 1
            await asyncio.sleep(policy.random_delay_s(failures, self._jitter))

    async def _connect_once(self) -> tuple[str, bool]:
        """Stay connected as long as possible; return why it ended and whether it identified."""
        host, port = split_address(self._address)
        link = LookupdConnection(self.registration)
        try:
            async with asyncio.timeout(self._options.timeout_ms / 1000):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            self._link = link
            failure = await link.ended
        except TimeoutError:
            return "cannot be reached: it does not answer", False
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid host name
            return f"cannot be reached: {error}", False
        except Exception as error:
            # The outermost handler of a task: the next attempt must follow.
            _logger.exception("nsqlookupd %s: the connection failed", self._address)
            return f"cannot be reached: {error!r}", False
        finally:
            self._link = None
            link.close()
        return str(failure), link.identified


def split_address(address: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        InvalidRequest: It is not ``HOST:PORT``.
    """
    host, colon, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (
        not colon
        or not host
        or not (port.isascii() and port.isdecimal() and len(port) <= _PORT_DIGITS)
        or not 0 < int(port) < _PORTS
        or ((":" in host or "/" in host) and not is_bracketed)
    ):
        raise InvalidRequest(
            f"invalid address {address!r} of an nsqlookupd: write HOST:PORT",
            place="lookupd-tcp-addresses",
        )
    return host.strip("[]"), int(port)


def _require_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(addresses))
    if len(found) > _ADDRESSES_MAX:
        raise InvalidRequest(
            f"{len(found)} nsqlookupd servers: specify at most {_ADDRESSES_MAX}",
            place="lookupd-tcp-addresses",
        )
    for address in found:
        split_address(address)
    return found


@dataclass(frozen=True, slots=True)
class LookupOptions:
    """The nsqlookupd servers, and this broker's address for clients.

    Attributes:
        tcp_addresses: ``HOST:PORT`` of each nsqlookupd.
        broadcast_address: The host that clients connect to; None: the bound one, or, if that is
            every interface, the name of this host.
        broadcast_tcp_port: The port of NSQ's protocol for clients; None: the bound one.
        broadcast_http_port: The port of HTTP for clients; None: the bound one.
        ping_interval_ms: Maximum time between two commands to an nsqlookupd.
        timeout_ms: Longest wait for a connection and for an answer.
        retry_ms: Longest pause between two attempts to connect.
    """

    tcp_addresses: tuple[str, ...] = ()
    broadcast_address: str | None = None
    broadcast_tcp_port: int | None = None
    broadcast_http_port: int | None = None
    ping_interval_ms: int = 15_000
    timeout_ms: int = 1_000
    retry_ms: int = 15_000
