"""Finds the servers that have a topic by querying NSQ's lookup services over HTTP.

Owns the request and the parsing of the answer. A service that cannot be reached is skipped with a
warning; if none can be reached, the result is unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from penstock.client.addresses import Address
from penstock.core.async_http_client import AsyncHttpClient, shown_server
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 5.0
_ANSWER_BYTES_MAX: Final = 1 << 20
_OK: Final = 200
_NOT_FOUND: Final = 404

_ASKER: Final = AsyncHttpClient(_TIMEOUT_S, _TIMEOUT_S, _ANSWER_BYTES_MAX)

HttpGet = Callable[[str], Awaitable[tuple[int, bytes]]]
"""Takes a URL, returns status and body. Raises `Unavailable`."""


def lookup_url(service: str, topic: str) -> str:
    """Return the URL of a request to a lookup service.

    Args:
        service: ``http://host:port``, or ``host:port``.
        topic: The topic.

    Raises:
        InvalidRequest: The service's address is not an HTTP address.
    """
    base = _url(service)
    parts = urlsplit(base)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidRequest(f"invalid lookup service {shown_server(base)}: write http://host:4161")
    return f"{base.rstrip('/')}/lookup?{urlencode({'topic': topic})}"


def shown_service(service: str) -> str:
    """Return the server of a lookup service's address, which may have a password."""
    return shown_server(_url(service))


def _url(service: str) -> str:
    return service if "://" in service else f"http://{service}"


def parse_answer(status: int, body: bytes) -> list[str]:
    """Return the addresses in an answer; none if the topic is unknown.

    Raises:
        Unavailable: The answer is invalid.
    """
    if status == _NOT_FOUND:
        return []
    if status != _OK:
        raise Unavailable(f"it answers with status {status}")
    try:
        document = json.loads(body)
        # Services before NSQ 1.0 put the answer into an envelope.
        data = document.get("data") or document
        return [_address(producer) for producer in data["producers"]]
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidRequest,
    ) as error:  # fmt: skip
        raise Unavailable("its answer has no list of producers") from error


def _address(producer: Mapping[str, object]) -> str:
    host, port = producer["broadcast_address"], producer["tcp_port"]
    return str(Address.parse(f"[{host}]:{port}"))


async def find_servers(services: Sequence[str], topic: str, get: HttpGet) -> set[str] | None:
    """Query all services; return the addresses they know, or None if no service answered.

    Raises:
        InvalidRequest: A service's address is not an HTTP address.
    """
    urls = [lookup_url(service, topic) for service in services]
    answers = await asyncio.gather(*(_ask(url, get) for url in urls))
    known = [answer for answer in answers if answer is not None]
    return set().union(*known) if known else None


async def _ask(url: str, get: HttpGet) -> list[str] | None:
    try:
        return parse_answer(*await get(url))
    except PenstockError as error:
        _logger.warning("%s: %s; will retry later", shown_server(url), error)
        return None


async def http_get(url: str) -> tuple[int, bytes]:
    """Send an HTTP GET.

    Raises:
        InvalidRequest: The URL is not valid, or the answer is too large.
        Unavailable: No server answered.
    """
    return await _ASKER.fetch(url)
