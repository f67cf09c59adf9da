"""Unread rest of a request's body after an early answer.

A server that answers before it has read a whole body, and then closes the connection, makes the
system reset the connection: the client's next write fails, and clients that write before they read
(Python's urllib, most HTTP libraries) never see the answer. So the rest is read and dropped, within
a time and size limit, after the answer was sent and before the connection closes.

Used by every HTTP port: the broker's, the API's of all processes, and ListenHTTP's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ANNOUNCED_BYTES_MAX: Final = 268_435_456
"""The rest of a body of at most this announced size is read to its end."""
ENDLESS_BYTES_MAX: Final = 33_554_432
"""Maximum to read of a larger body, or one of unknown size; then its connection is closed."""
TOTAL_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 5.0


class BodyDrain:
    """ASGI application that reads the rest of a request's body before its connection is closed.

    A connection that stays open needs no help: uvicorn drops the rest itself. A client that waits
    for `100 Continue` has sent nothing yet: its connection is closed at once.

    Args:
        application: The application that answers.
        total_timeout_s: Time limit for the rest.
        idle_timeout_s: Time limit without input.
    """

    def __init__(
        self,
        application: ASGIApp,
        total_timeout_s: float = TOTAL_TIMEOUT_S,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self._application = application
        self._total_timeout_s = total_timeout_s
        self._idle_timeout_s = idle_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not _announces_body(scope):
            await self._application(scope, receive, send)
            return
        headers = dict(scope["headers"])
        waits = headers.get(b"expect", b"").lower() == b"100-continue"
        size_bytes = int(headers.get(b"content-length", ANNOUNCED_BYTES_MAX + 1))
        is_large = size_bytes > ANNOUNCED_BYTES_MAX
        drop_bytes = ENDLESS_BYTES_MAX if is_large else size_bytes
        closes = scope.get("http_version") == "1.0" or _says_close(scope["headers"])
        is_read = False

        async def tracked() -> Message:
            nonlocal is_read, waits
            waits = False
            message = await receive()
            is_read = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def answer(message: Message) -> None:
            nonlocal closes
            if message["type"] == "http.response.start":
                closes = closes or _says_close(message["headers"])
                if not (closes or is_read) and (waits or is_large):
                    closes = True
                    close = (b"connection", b"close")
                    message = {**message, "headers": [*message["headers"], close]}
            elif closes and not (message.get("more_body", False) or is_read or waits):
                # The client has its whole answer, and the connection is still open.
                await send({**message, "more_body": True})
                await self._drop(tracked, drop_bytes, lambda: is_read)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._application(scope, tracked, answer)

    async def _drop(self, receive: Receive, most_bytes: int, is_read: Callable[[], bool]) -> None:
        dropped_bytes = 0
        try:
            async with asyncio.timeout(self._total_timeout_s):
                while not is_read() and dropped_bytes <= most_bytes:
                    message = await asyncio.wait_for(receive(), self._idle_timeout_s)
                    dropped_bytes += len(message.get("body", b""))
        except TimeoutError:
            pass


def _announces_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in scope["headers"]
    )


def _says_close(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"connection" and b"close" in value.lower() for name, value in headers
    )
