"""Address of a Spark Connect server: parsed once, and shown without its parameters.

Owns the form `sc://HOST:PORT/;name=value;…`. Parameters contain tokens, so no error and no text of
this module contains them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from penstock.core.errors import InvalidRequest
from penstock.core.printable import escaped

SCHEME: Final = "sc://"
_PORT: Final = 15002
_PORT_MAX: Final = 65_535
# Parameters of Spark's own client that are not secret; others may be headers with a secret.
_PUBLIC: Final = frozenset({"use_ssl", "user_agent", "user_id"})
_PLACE: Final = r"sc://(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::(?P<port>[0-9]{1,5}))?"
_PARAMETER: Final = r"[\w.-]+=[^\s=;?#/]*"
_ADDRESS: Final = re.compile(
    rf"{_PLACE}(?:/(?:;(?P<parameters>{_PARAMETER}(?:;{_PARAMETER})*)?)?)?"
)
# A host and a port that the rest of a malformed address cannot make a part of a secret.
_CERTAIN: Final = re.compile(rf"{_PLACE}(?=[/;?#]|\Z)(?!.*@)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ConnectAddress:
    """Address of a Spark Connect server.

    Attributes:
        host: Name or IP address, in lower case; an IPv6 address has no brackets.
        port: Port.
        parameters: Parameters by name, decoded. Their values may be secrets.
    """

    host: str
    port: int
    parameters: Mapping[str, str] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> ConnectAddress:
        """Parse an address.

        Raises:
            InvalidRequest: It has another form. The message does not contain its secrets.
        """
        match = _ADDRESS.fullmatch(text)
        port = int(match["port"] or _PORT) if match else 0
        if match is None or not 0 < port <= _PORT_MAX:
            raise InvalidRequest(
                f"invalid address of Spark {_certain(text)}: write sc://HOST:PORT, or"
                " sc://HOST:PORT/;token=TOKEN with a slash before the first parameter; a parameter"
                " is NAME=VALUE, and = ; / ? # in its value are percent-encoded, such as %3D"
            )
        parts = [part.partition("=") for part in (match["parameters"] or "").split(";")]
        parameters = {name: unquote(value) for name, equals, value in parts if equals}
        return cls(match["host"].strip("[]").lower(), port, parameters)

    @property
    def endpoint(self) -> str:
        """Return `HOST:PORT`."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def masked(self, mask: str) -> str:
        """Return the address with a mask for each value that may be secret."""
        shown = [
            f";{one}={escaped(value) if one in _PUBLIC else mask}"
            for one, value in self.parameters.items()
        ]
        return f"{self}/{''.join(shown)}" if shown else str(self)

    def __str__(self) -> str:
        return f"{SCHEME}{self.endpoint}"


def shown(address: str) -> str:
    """Return the scheme, host and port of an address, for messages."""
    try:
        return str(ConnectAddress.parse(address))
    except InvalidRequest:
        return f"{SCHEME}…"


def _certain(text: str) -> str:
    match = _CERTAIN.match(text)
    return f"{match[0]}…" if match else f"{SCHEME}…"
