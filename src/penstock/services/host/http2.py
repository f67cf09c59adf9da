"""Liveness check of an HTTP/2 server, such as Spark Connect: its answer to a greeting.

Owns the few bytes of the protocol that this needs (RFC 9113, 3.4 and 6.5): a client begins with a
preface and its settings, and a server answers with its own. Such an answer needs no token and costs
the server almost nothing. A process that is stopped, or hangs in a garbage collection, does not
answer, although its kernel still accepts connections.
"""

from __future__ import annotations

import socket
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS: Final = 4
# Length 0, type, no flags, stream 0.
_NO_SETTINGS: Final = b"\x00\x00\x00" + bytes([_SETTINGS]) + b"\x00" + b"\x00\x00\x00\x00"
_HEADER_BYTES: Final = 9
_TYPE_AT: Final = 3
_CONNECT_S: Final = 0.1


class Greeting:
    """A greeting in progress; a `Question`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._heard = b""

    def answered(self) -> bool | None:
        """Return whether settings arrived; False if something else did or nothing can arrive."""
        try:
            heard = self._socket.recv(_HEADER_BYTES - len(self._heard))
        except BlockingIOError:
            return None
        except OSError:
            return False
        self._heard += heard
        if not heard:
            return False
        if len(self._heard) < _HEADER_BYTES:
            return None
        return self._heard[_TYPE_AT] == _SETTINGS

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def greet(port: int) -> Greeting | None:
    """Greet the server at a port of this host; return None if it accepts no connection."""
    connected = socket.socket()
    try:
        connected.settimeout(_CONNECT_S)
        connected.connect(("127.0.0.1", port))
        connected.sendall(_PREFACE + _NO_SETTINGS)
        connected.settimeout(0.0)
    except OSError:
        connected.close()
        return None
    return Greeting(connected)
