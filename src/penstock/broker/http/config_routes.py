"""``/config/<option>``: options of the broker under NSQ's names.

Owns which of NSQ's options exist here, their values in NSQ's forms (durations in nanoseconds, texts
without quotes), and which can be changed while the broker runs. An option of NSQ without a
counterpart is unknown, instead of having a meaningless value.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import orjson

from penstock.broker.http.exchange import ApiError, HttpResponse, Request, json_response
from penstock.broker.security.tls import Requirement
from penstock.broker.statistics.broker_info import broadcast_address
from penstock.core.errors import InvalidRequest, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.broker import Broker

    Value = str | int | bool | list[str]

_NANOSECONDS_PER_MS: Final = 1_000_000
_SECOND_MS: Final = 1000
# NSQ's names, and Python's levels.
_LOG_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
_PYTHON_LEVELS_PER_NUMBER: Final = 10
_TLS_REQUIREMENTS: Final = {
    Requirement.NOBODY: 0,
    Requirement.REMOTE: 0,  # has no number in NSQ
    Requirement.ALL_BUT_HTTP: 1,
    Requirement.ALL: 2,
}


class SettingsRoutes:
    """Handles requests for options.

    Args:
        broker: The broker.
        log: The logger whose level is the broker's.
    """

    def __init__(self, broker: Broker, log: logging.Logger | None = None) -> None:
        self._broker = broker
        self._log = log or logging.getLogger("penstock")
        self._timeout_s = broker.options.body_timeout_ms / _SECOND_MS
        self._setters: dict[str, Callable[[bytes], Awaitable[None]]] = {
            "log_level": self._set_log_level,
            "nsqlookupd_tcp_addresses": self._set_lookup_addresses,
        }

    async def get(self, request: Request) -> HttpResponse:
        """Return the value of an option."""
        name = _option(request)
        value = self._values().get(name)
        if value is None:
            raise _unknown(name)
        return (
            HttpResponse(body=(value.encode(),)) if isinstance(value, str) else json_response(value)
        )

    async def put(self, request: Request) -> HttpResponse:
        """Change an option until the broker stops."""
        limit = self._broker.options.max_message_bytes
        body = await request.body(limit, "INVALID_VALUE", self._timeout_s)
        if not body:
            raise ApiError(413, "INVALID_VALUE", "send the value as the body")
        name = _option(request)
        setter = self._setters.get(name)
        if setter is None:
            raise _unknown(name)
        await setter(body)
        return await self.get(request)

    async def _set_log_level(self, body: bytes) -> None:
        level = _LOG_LEVELS.get(body.decode(errors="replace").lower())
        if level is None:
            raise ApiError(400, "INVALID_VALUE", f"use one of the levels {', '.join(_LOG_LEVELS)}")
        self._log.setLevel(level)

    async def _set_lookup_addresses(self, body: bytes) -> None:
        try:
            addresses = orjson.loads(body)
        except orjson.JSONDecodeError:
            addresses = None
        if not isinstance(addresses, list) or not all(isinstance(a, str) for a in addresses):
            raise ApiError(400, "INVALID_VALUE", 'send a list: ["HOST:PORT", …]')
        if self._broker.announcer is None:
            raise Unavailable("the broker is starting: try again")
        try:
            await self._broker.announcer.set_addresses(addresses)
        except InvalidRequest as error:
            raise ApiError(400, "INVALID_VALUE", str(error)) from error

    def _values(self) -> dict[str, Value]:
        return self._network() | self._storing() | self._limits() | self._security()

    def _network(self) -> dict[str, Value]:
        broker, options = self._broker, self._broker.options
        lookup, announcer = options.lookup, broker.announcer
        addresses = lookup.tcp_addresses if announcer is None else announcer.addresses
        level = max(1, self._log.getEffectiveLevel() // _PYTHON_LEVELS_PER_NUMBER)
        return {
            "log_level": level,
            "tcp_address": _address(options.host, broker.tcp_port),
            "http_address": _address(options.host, broker.http_port),
            "https_address": _address(options.host, broker.https_port),
            "broadcast_address": broadcast_address(options),
            "broadcast_tcp_port": lookup.broadcast_tcp_port or broker.tcp_port,
            "broadcast_http_port": lookup.broadcast_http_port or broker.http_port,
            "nsqlookupd_tcp_addresses": list(addresses),
        }

    def _storing(self) -> dict[str, Value]:
        options, queues = self._broker.options, self._broker.topics.parts.queue_options
        return {
            "data_path": options.folder,
            "mem_queue_size": options.mem_queue_size,
            "max_bytes_per_file": queues.max_bytes_per_file,
            "sync_every": queues.sync_every_messages,
            "sync_timeout": _ns(queues.sync_interval_ms),
        }

    def _limits(self) -> dict[str, Value]:
        options, clients = self._broker.options, self._broker.options.clients
        return {
            "msg_timeout": _ns(clients.message_timeout_ms),
            "max_msg_timeout": _ns(clients.max_message_timeout_ms),
            "max_msg_size": options.max_message_bytes,
            "max_body_size": options.max_body_bytes,
            "max_req_timeout": _ns(options.max_requeue_ms),
            "max_heartbeat_interval": _ns(clients.max_heartbeat_ms),
            "max_rdy_count": clients.max_ready_count,
            "max_output_buffer_size": clients.max_output_buffer_bytes,
            "max_output_buffer_timeout": _ns(clients.max_output_timeout_ms),
            "min_output_buffer_timeout": _ns(clients.min_output_timeout_ms),
            "max_channel_consumers": options.max_channel_consumers,
            "deflate": clients.deflate,
            "max_deflate_level": clients.max_deflate_level,
            "snappy": clients.snappy,
        }

    def _security(self) -> dict[str, Value]:
        tls, auth = self._broker.options.tls, self._broker.options.auth
        return {
            "tls_cert": tls.certificate or "",
            "tls_key": tls.key or "",
            "tls_root_ca_file": tls.root_ca or "",
            "tls_client_auth_policy": tls.client_certificates.value,
            "tls_required": _TLS_REQUIREMENTS[tls.requirement],
            "auth_http_addresses": list(auth.addresses),
            "auth_http_request_method": auth.method.value,
            "http_client_connect_timeout": _ns(auth.connect_timeout_ms),
            "http_client_request_timeout": _ns(auth.request_timeout_ms),
        }


def _option(request: Request) -> str:
    return request.path.rpartition("/")[2]


def _unknown(name: str) -> ApiError:
    return ApiError(400, "INVALID_OPTION", f"this broker has no option {name!r}")


def _address(host: str, port: int) -> str:
    """Return an address; empty if nothing is served there."""
    return f"{host}:{port}" if port > 0 else ""


def _ns(duration_ms: int) -> int:
    return duration_ms * _NANOSECONDS_PER_MS
