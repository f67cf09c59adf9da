"""Answers of HTTP servers that must arrive within one time limit, for clients on `http.client`.

Owns the limit over all reads together. `http.client` applies its limit to each read, so a server
that sends one byte at a time would hold its client as long as it likes.
"""

from __future__ import annotations

import http.client
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from typing_extensions import Buffer as WriteableBuffer

    from penstock.core.clock import Clock


class TimedSocket(io.RawIOBase):
    """A connected socket with a deadline that all its operations share.

    Args:
        connected: The socket; its owner closes it.
        until_s: The deadline, in the monotonic seconds of the clock.
        clock: Time.
    """

    def __init__(self, connected: socket.socket, until_s: float, clock: Clock) -> None:
        self._connected = connected
        self._until_s = until_s
        self._clock = clock

    def limit(self) -> None:
        """Limit the socket's next operation. Raises TimeoutError after the deadline."""
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("no complete answer in time")
        self._connected.settimeout(left_s)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read the bytes that arrive next. Raises TimeoutError after the deadline."""
        self.limit()
        return self._connected.recv_into(buffer)

    def answer(self, method: str) -> http.client.HTTPResponse:
        """Return the answer to a request that was sent, after its head; the caller closes it.

        Args:
            method: The method of the request.

        Raises:
            OSError: The connection fails, or the deadline has passed.
            http.client.HTTPException: It is not an answer of HTTP.
        """
        answer = http.client.HTTPResponse(self._connected, method=method)
        try:
            answer.fp.close()
            answer.fp = io.BufferedReader(self)
            answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer
