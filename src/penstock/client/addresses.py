"""Addresses of servers: ``host:port``, ``[::1]:port``, or ``unix:/path`` of a socket."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.core.errors import InvalidRequest

_PORT = re.compile(r"[0-9]{1,5}")
_PORTS = 65_536


@dataclass(frozen=True, slots=True)
class Address:
    """One address: a host and a port, or a path."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address.

        Raises:
            InvalidRequest: It is not a valid address.
        """
        if text.startswith("unix:") and len(text) > len("unix:"):
            return cls(path=text.removeprefix("unix:"))
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        bracketed = bare != host
        if not bare or not _PORT.fullmatch(port) or not 0 < int(port) < _PORTS:
            raise InvalidRequest(
                f"invalid server address {text!r}: write host:port, such as 127.0.0.1:4150, or"
                " unix:/path"
            )
        if ":" in bare and not bracketed:
            raise InvalidRequest(f"invalid server address {text!r}: write [{host}]:{port}")
        return cls(bare, int(port))

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
