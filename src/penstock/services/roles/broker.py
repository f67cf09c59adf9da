"""The broker's process: the broker's event loop beside the main thread, which waits for signals."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import uvloop

from penstock.broker.lookupd.options import LookupOptions
from penstock.broker.options import BrokerOptions
from penstock.broker.process.collecting import lasting_objects
from penstock.broker.process.limits import raise_descriptor_limit
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.security.options import AuthMethod, AuthOptions
from penstock.broker.security.tls import ClientCertificates, Requirement, TlsOptions, TlsVersion
from penstock.broker.server import BrokerServer
from penstock.core.durations import parse_duration
from penstock.services.config import Options
from penstock.services.host.datafolder import DataFolder
from penstock.services.lifecycle import Handler, Lifecycle, Stage
from penstock.services.roles.runtime import RoleContext

T = TypeVar("T")


class LoopThread:
    """An asyncio loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        result: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return result.result()

    def stop(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def options_of(options: Options) -> BrokerOptions:
    """Return what a broker is told by the options of a Penstock."""
    socket_path = options.broker_tcp_socket
    return BrokerOptions(
        folder=str(DataFolder(options.data_dir).topics),
        host=options.broker_http.host,
        http_port=options.broker_http.port,
        https_port=options.broker_https_port,
        tcp_socket=None if socket_path is None else str(socket_path),
        tcp_socket_mode=int(options.broker_tcp_socket_mode, 8),
        token=options.token,
        tls=_tls_options(options),
        auth=AuthOptions(
            addresses=options.auth_http_addresses,
            method=AuthMethod(options.auth_http_request_method),
        ),
        lookup=LookupOptions(
            tcp_addresses=options.lookupd_tcp_addresses,
            broadcast_address=options.broadcast_address,
        ),
        clients=NegotiationLimits(
            max_ready_count=options.max_rdy_count,
            message_timeout_ms=parse_duration(options.msg_timeout),
            max_message_timeout_ms=parse_duration(options.max_msg_timeout),
            max_heartbeat_ms=parse_duration(options.max_heartbeat_interval),
        ),
        max_channel_consumers=options.max_channel_consumers,
        mem_bytes=options.mem_bytes,
        mem_queue_size=options.mem_queue_size,
        retention_ms=options.topic_retention_ms,
        retention_bytes=options.topic_retention_bytes,
    )


def _tls_options(options: Options) -> TlsOptions:
    def name(path: Path | None) -> str | None:
        return None if path is None else str(path)

    return TlsOptions(
        certificate=name(options.tls_cert),
        key=name(options.tls_key),
        root_ca=name(options.tls_root_ca),
        client_certificates=ClientCertificates(options.tls_client_auth_policy),
        required=Requirement(options.tls_required),
        min_version=TlsVersion(options.tls_min_version),
        plain_loopback=True,  # the other processes of this host
    )


def compose(context: RoleContext) -> Lifecycle:
    """Put the process together."""
    options = options_of(context.options)
    server = BrokerServer(
        options,
        clock=context.clock,
        listener=context.listener,
        tcp_listener=context.tcp_listener,
    )
    loop = LoopThread()
    raise_descriptor_limit()

    def start() -> None:
        with lasting_objects():
            loop.run(server.start())

    lifecycle = Lifecycle()
    lifecycle.add_handler(Handler("event loop", loop.start, loop.stop))
    lifecycle.add_handler(
        Handler("broker", start, lambda: loop.run(server.stop())),
        Stage.SERVER,
    )
    lifecycle.add_handler(Handler("readiness", context.say_ready), Stage.ANNOUNCEMENTS)
    return lifecycle
