"""Bytes sent to an HTTP port as they are, however malformed."""

from __future__ import annotations

import socket
from contextlib import suppress


def answer_to(port: int, *pieces: bytes) -> bytes:
    """Send pieces as far as they are taken, and read to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        with suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
        with client.makefile("rb") as file, suppress(ConnectionError):
            return file.read()
    return b""
