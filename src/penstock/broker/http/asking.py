"""HTTP requests that the broker makes itself: of authorization servers and nsqlookupd.

Owns their bounds: how long an answer may take as a whole and how large it may be. Redirects are not
followed and no proxy is used: who asks names the server it means.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpx

from penstock.core.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

# It writes each request's URL to the log at INFO, and the questions hold clients' secrets.
logging.getLogger("httpx").setLevel(logging.WARNING)


_PORTS: Final = 65_536


class HttpAsker:
    """Asks; used on the broker's event loop.

    Args:
        connect_timeout_s: Longest wait for a connection.
        request_timeout_s: Longest wait for a whole answer.
        max_answer_bytes: Largest answer.
    """

    def __init__(
        self, connect_timeout_s: float, request_timeout_s: float, max_answer_bytes: int
    ) -> None:
        self._request_timeout_s = request_timeout_s
        self._max_answer_bytes = max_answer_bytes
        timeout = httpx.Timeout(request_timeout_s, connect=connect_timeout_s)
        self._client = httpx.AsyncClient(
            timeout=timeout, trust_env=False, headers={"accept": "application/vnd.nsq; version=1.0"}
        )

    async def get(self, url: str, query: Mapping[str, str]) -> bytes:
        """Return the answer to a GET.

        Raises:
            InvalidRequest: The URL is none, or the answer is an error, or too large.
            Unavailable: There was no answer in time.
        """
        return await self._ask(_request("GET", url, params=dict(query)))

    async def post(self, url: str, body: bytes) -> bytes:
        """Return the answer to a POST of JSON. Raises as `get`."""
        request = _request("POST", url, content=body)
        request.headers["content-type"] = "application/json"
        return await self._ask(request)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _ask(self, request: httpx.Request) -> bytes:
        place = f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.path}"
        request.headers["accept"] = "application/vnd.nsq; version=1.0"
        try:
            async with asyncio.timeout(self._request_timeout_s):
                response = await self._client.send(request, stream=True)
                try:
                    return await self._read(place, response)
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise Unavailable(
                f"{place}: no whole answer within {self._request_timeout_s:g} s"
            ) from error
        except (httpx.HTTPError, UnicodeError) as error:  # the latter of what is no host's name
            # Of the error only its kind: its text may hold the question.
            raise Unavailable(f"{place}: {type(error).__name__}") from error

    async def _read(self, place: str, response: httpx.Response) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > self._max_answer_bytes:
                raise InvalidRequest(
                    f"{place}: an answer of more than {self._max_answer_bytes} bytes"
                )
            pieces.append(piece)
        if response.status_code != httpx.codes.OK:
            raise InvalidRequest(f"{place}: answered {response.status_code}")
        return b"".join(pieces)


def _request(
    method: str, url: str, params: dict[str, str] | None = None, content: bytes | None = None
) -> httpx.Request:
    try:
        request = httpx.Request(method, url, params=params, content=content)
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{url!r:.200} cannot be asked: {error}") from error
    if (request.url.port or 1) >= _PORTS:
        raise InvalidRequest(f"{url!r:.200} cannot be asked: there is no such port")
    return request
