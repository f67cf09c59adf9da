"""Probe of a leader's address: a killed process refuses connections."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

_TIMEOUT_S = 0.3


def refuses(url: str) -> bool:
    """Return whether the address refuses connections; no answer does not count as refusal.

    A process that hangs or is stopped does not refuse: its kernel still accepts connections.
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
