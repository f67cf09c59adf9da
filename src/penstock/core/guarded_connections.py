"""Connections on behalf of flows, specs and statements, only to addresses that were checked.

Owns the guard of this process (`NETWORK_GUARD`) and the resolution of names. `core.network_guard`
owns the rule.

Invariants: clients connect to the addresses that were checked, without a second resolution, so that
a name whose answer changes in between does not bypass the check. All addresses of a name are
checked before the first is used. Libraries that connect by themselves get `check` before they are
called: they resolve the name again.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.network_guard import Address, NetworkDestination, NetworkGuard, canonical_host

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host; raises OSError."""


class RefusedDestination(InvalidRequest):
    """Inputs and flows must not connect there."""


def system_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host as the operating system resolves it, each once.

    Raises:
        OSError: It has none, or the name servers do not answer.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


def is_of_this_host(address: Address) -> bool:
    """Return whether an address belongs to an interface of this host, which may bind to it."""
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError as error:
        # Without IPv6 on this host none of its addresses belongs to it.
        return error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}
    return True


class ServiceNetworkGuard:
    """The guard of this process; set when the process starts, used from any thread.

    Args:
        resolve: Resolves names.
        is_here: Returns whether an address belongs to this host.
    """

    def __init__(
        self,
        resolve: Resolve = system_addresses,
        is_here: Callable[[Address], bool] = is_of_this_host,
    ) -> None:
        self._guard = NetworkGuard()
        self._resolve = resolve
        self._is_here = is_here

    def set(self, guard: NetworkGuard) -> None:
        """Replace the guard."""
        self._guard = guard

    def get(self) -> NetworkGuard:
        """Return the guard; without a service, all hosts except this one may be reached."""
        return self._guard

    def check(self, to: NetworkDestination) -> None:
        """Resolve a host and check its addresses, before a library connects to it by itself.

        The library resolves the name again, so a name whose answer changes is not noticed. A name
        that cannot be resolved here, such as a logical one of Hadoop, is checked as a name.

        Raises:
            RefusedDestination: Inputs and flows must not connect there.
        """
        try:
            self.addresses(to)
        except OSError:
            self._raise(to, self._guard.name_refusal(to))

    def addresses(self, to: NetworkDestination) -> list[str]:
        """Return the addresses to which a client may connect, in order.

        Raises:
            RefusedDestination: Inputs and flows must not connect there.
            OSError: The name cannot be resolved.
        """
        host = canonical_host(to.host)
        texts = self._resolve(host, to.port)
        found = [ip_address(text) for text in texts]
        here = {one for one in found if self._is_here(one)}
        self._raise(to, self._guard.refusal(to, found, here))
        return list(texts)

    @staticmethod
    def _raise(to: NetworkDestination, reason: str | None) -> None:
        if reason is not None:
            raise RefusedDestination(
                f"{to.shown}: flows and tasks must not connect there: {reason}"
            )


NETWORK_GUARD: Final = ServiceNetworkGuard()
