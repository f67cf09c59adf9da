"""Process of the broker: its event loop, and the main thread, which waits for signals."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

import uvloop

from penstock.broker.file_limits import raise_descriptor_limit
from penstock.broker.lookupd.announcer import LookupOptions
from penstock.broker.options import BrokerOptions
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.security.auth_servers import AuthMethod, AuthOptions
from penstock.broker.server import BrokerServer
from penstock.core.durations import parse_duration
from penstock.core.errors import PenstockError, Unavailable
from penstock.core.garbage_collection import freeze_new_objects
from penstock.core.host_memory import keep_freed_memory
from penstock.core.loop_tasks import LoopThread
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.services.host.data_folder import DataFolder, about_process, broker_addresses
from penstock.services.host.tls_settings import server_options
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.membership.membership import Membership, broker_service
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.services.roles.runtime import RoleContext
from penstock.storage.deletion_hold import HoldingFileSystem
from penstock.storage.metadata import MetadataStore

_logger = logging.getLogger(__name__)

_ANNOUNCE_EVERY_S: Final = 2.0
_ANNOUNCE_LIMIT_S: Final = 5.0


def options_of(options: PenstockOptions) -> BrokerOptions:
    """Return the broker's options for the options of a Penstock."""
    socket_path = options.broker_tcp_socket
    return BrokerOptions(
        folder=str(DataFolder(options.data_dir).topics),
        host=options.broker_http_address.host,
        http_port=options.broker_http_address.port,
        https_port=options.broker_https_port,
        tcp_socket=None if socket_path is None else str(socket_path),
        tcp_socket_mode=int(options.broker_tcp_socket_mode, 8),
        allowed_hosts=options.allowed_hosts,
        token=options.token,
        tls=server_options(options),
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


def compose(context: RoleContext) -> Lifecycle:
    """Build the process."""
    options = options_of(context.options)
    server = BrokerServer(
        options,
        fs=HoldingFileSystem(str(context.folder.path), context.clock),
        clock=context.clock,
        access=context.access,
        listeners=[one for one in (context.listener, context.tcp_listener) if one is not None],
        tls=context.tls,
    )
    loop = LoopThread("loop", uvloop.new_event_loop())
    raise_descriptor_limit()
    keep_freed_memory()

    def start() -> None:
        with freeze_new_objects():
            loop.run(server.start())

    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("event loop", loop.start, loop.stop))
    lifecycle.add_handler(
        LifecycleHandler("broker", start, lambda: loop.run(server.stop())),
        StartStage.SERVER,
    )
    if not context.is_launched:
        lifecycle.add_handler(client_file(context), StartStage.ANNOUNCEMENTS)
    context.publish_audit(lifecycle, lambda: HostPort(*context.listener.getsockname()[:2]))
    announcement = _Announcement(context)
    lifecycle.add_handler(
        LifecycleHandler("announcement", announcement.start, announcement.stop),
        StartStage.ANNOUNCEMENTS,
    )
    lifecycle.add_handler(
        LifecycleHandler("readiness", context.start_listener.ready), StartStage.ANNOUNCEMENTS
    )
    return lifecycle


def client_file(context: RoleContext) -> LifecycleHandler:
    """Publish the addresses of a broker without a launcher for clients of this host."""
    assert context.tcp_listener is not None
    http, tcp = (
        HostPort(*one.getsockname()[:2]) for one in (context.listener, context.tcp_listener)
    )

    def write() -> None:
        addresses = {**about_process(context.clock), **broker_addresses(http, tcp)}
        try:
            context.folder.write_client_file(addresses)
        except Unavailable as error:  # narrow: on a full disk, consumers must run to free space
            _logger.warning(
                "commands do not find this broker by its data folder: %s; give them its addresses"
                " %s and %s, or restart it",
                *(error, http, tcp),
            )

    return LifecycleHandler(
        "client file", write, lambda: context.folder.remove_client_file(os.getpid())
    )


class _Announcement:
    """Announces the broker once the metadata database exists; the broker works without it.

    For a broker without other roles, no such database exists or is created. The condition only lets
    `stop` end the waits of the thread.

    Args:
        context: Options, sockets and services of the process.
    """

    def __init__(self, context: RoleContext) -> None:
        self._context = context
        self._changed = threading.Condition()
        self._announced: Lifecycle | None = None
        self._thread = OwnedThread(
            "announcement", self._run, on_death=OnDeath.RESTART, may_return=True
        )

    def start(self) -> None:
        """Begin to try."""
        self._thread.start()

    def stop(self) -> None:
        """Withdraw the announcement."""
        self._thread.end(self._changed, _ANNOUNCE_LIMIT_S)
        if self._announced is not None and not self._thread.is_alive():
            self._announced.stop()

    def _run(self) -> None:
        failure_log = RateLimitedLog(_logger, self._context.clock)
        while not self._thread.is_end_expected:
            try:
                if self._has_database():
                    self._announce()
                    return
            except PenstockError as error:
                failure_log.warning("other processes cannot find this broker yet: %s", error)
            with self._changed:
                if not self._thread.is_end_expected:
                    self._context.clock.wait(self._changed, _ANNOUNCE_EVERY_S)

    def _has_database(self) -> bool:
        options = self._context.options
        return options.metadata_url is not None or self._context.folder.metadata.exists()

    def _announce(self) -> None:
        context = self._context
        assert context.tcp_listener is not None
        services = broker_service(context.tcp_listener.getsockname()[1])
        announced = Lifecycle()
        store = MetadataStore.open(context.options.metadata_address, clock=context.clock)
        is_announced = False
        try:
            announced.add_handler(LifecycleHandler("metadata", stop=store.close))
            membership = Membership(context.options, store, context.clock)
            membership.add_to(announced, "broker", context.instance, context.address, services)
            announced.start()
            is_announced = True
        finally:
            if not is_announced:
                try:
                    announced.stop()
                finally:
                    store.close()
        self._announced = announced
