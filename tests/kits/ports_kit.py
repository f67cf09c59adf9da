"""Ports for servers that cannot be given a socket."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """Keep a port of this host free for a server that starts later, so that others know it before.

    A port that is only looked for may be taken by another program before the server listens.
    """
    with socket.socket() as keeper:
        # With this option a server that has it, too, may listen at a port that is only bound.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
