"""The nsqlookupd servers that are told what this broker has.

Owns which they are, and connecting again to one that was lost. Does not own what they are told
(`registration`) nor the topics.

Invariants: used on the broker's event loop; no server is waited for, neither by the others nor by
who makes a topic; what happens to one that cannot be reached is logged once until it is back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import orjson

from penstock.broker.lookupd.link import Link
from penstock.broker.lookupd.registration import Registration
from penstock.core.errors import InvalidRequest
from penstock.core.looptasks import keep_running
from penstock.core.threads import OnDeath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.broker.lookupd.options import LookupOptions
    from penstock.broker.lookupd.registration import Directory

_logger = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.25
_ADDRESSES_MAX: Final = 100
_PORTS: Final = 65_536
_PORT_DIGITS: Final = 5


class Announcer:
    """Tells nsqlookupd servers of this broker's topics.

    Args:
        identity: What this broker says of itself: NSQ's fields of ``IDENTIFY``.
        directory: Its topics.
        options: Which servers, and how patiently.
        jitter: Returns a number from 0 to 1, by which pauses differ.

    Raises:
        InvalidRequest: An address is none.
    """

    def __init__(
        self,
        identity: dict[str, object],
        directory: Directory,
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
        """The servers."""
        return self._addresses

    def start(self) -> None:
        """Begin to connect."""
        for address in self._addresses:
            self._peers[address] = self._peer(address)

    async def stop(self) -> None:
        """Close the connections; the servers forget this broker then."""
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            await peer.stop()

    async def set_addresses(self, addresses: Sequence[str]) -> None:
        """Tell other servers from now on.

        Raises:
            InvalidRequest: An address is none; nothing changes.
        """
        self._addresses = _require_addresses(addresses)
        gone = [known for known in self._peers if known not in self._addresses]
        leaving = [self._peers.pop(address) for address in gone]
        for address in self._addresses:
            if address not in self._peers:
                self._peers[address] = self._peer(address)
        # Last, for meanwhile they may be set anew, or the broker stops.
        for peer in leaving:
            await peer.stop()

    def changed(self, topic: str) -> None:
        """Tell that a topic or its channels came or went."""
        for peer in self._peers.values():
            peer.changed(topic)

    def http_addresses(self) -> list[str]:
        """Return where the servers that are connected can be asked, ``HOST:PORT``."""
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
    """One server.

    Args:
        address: Where it is.
        registration: What it was told.
        options: How patiently.
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
        self._link: Link | None = None
        self._pushing = False
        self._task = keep_running("nsqlookupd announcer", self._run, on_death=OnDeath.RESTART)

    def changed(self, topic: str) -> None:
        """Tell of a topic, together with what else changes in this turn of the loop."""
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
        longest_s = self._options.retry_ms / 1000
        pause_s, told = _FIRST_RETRY_S, False
        while True:
            failure, was_known = await self._connect_once()
            if was_known or not told:
                _logger.warning("nsqlookupd %s: %s", self._address, failure)
            told = True
            pause_s = _FIRST_RETRY_S if was_known else min(pause_s * 2, longest_s)
            await asyncio.sleep(pause_s * (0.5 + self._jitter() / 2))

    async def _connect_once(self) -> tuple[str, bool]:
        """Stay connected as long as it lasts; returns why it ended, and whether it had worked."""
        host, port = split_address(self._address)
        link = Link(self.registration)
        try:
            async with asyncio.timeout(self._options.timeout_ms / 1000):
                await asyncio.get_running_loop().create_connection(lambda: link, host, port)
            self._link = link
            failure = await link.ended
        except TimeoutError:
            return "cannot be reached: it does not answer", False
        except (OSError, UnicodeError) as error:  # the latter of what can be no host's name
            return f"cannot be reached: {error}", False
        except Exception as error:
            # The top of a task: the next attempt must come.
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
            f"{address!r} is no address of an nsqlookupd: write HOST:PORT",
            place="lookupd-tcp-addresses",
        )
    return host.strip("[]"), int(port)


def _require_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(addresses))
    if len(found) > _ADDRESSES_MAX:
        raise InvalidRequest(
            f"{len(found)} nsqlookupd servers: name {_ADDRESSES_MAX} at most",
            place="lookupd-tcp-addresses",
        )
    for address in found:
        split_address(address)
    return found
