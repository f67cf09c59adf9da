"""Ports that stay free for a server that starts later, or again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """Keep a port of this host free for one server until the end of the block.

    A port that is only looked up can be taken by any other process before the server listens. The
    server must set SO_REUSEADDR, as all servers of Python, Java and gRPC do.
    """
    with socket.socket() as keeper:
        # With this option a server that has it, too, may listen at a port that is only bound.
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]
