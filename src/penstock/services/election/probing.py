"""Whether anything listens at a leader's address: a process that was killed refuses connections."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_TIMEOUT_S = 0.3


def refuses(url: str) -> bool:
    """Whether the address says that nobody listens; a host that does not answer says nothing.

    A process that hangs or is stopped does not refuse: its kernel goes on to accept.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        return False
    try:
        with socket.create_connection((parts.hostname, parts.port), _TIMEOUT_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
