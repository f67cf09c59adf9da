"""Statistics of the whole broker: ``/info``, its health and its memory, with NSQ's names."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import penstock
from penstock.broker.http_server.host_policy import EVERY_INTERFACE
from penstock.broker.protocol.negotiation import NSQ_VERSION

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.options import BrokerOptions

Json = dict[str, object]

_NANOSECONDS_PER_MS: Final = 1_000_000


def info(broker: Broker) -> Json:
    """Return the document of ``/info``."""
    options, clients = broker.options, broker.options.clients
    return {
        # Tools compare it: it is the supported version of NSQ.
        "version": NSQ_VERSION,
        "broadcast_address": broadcast_address(options),
        "hostname": socket.gethostname(),
        "http_port": broker.http_port,
        "tcp_port": broker.tcp_port,
        "start_time": broker.started_ms // 1000,
        "max_heartbeat_interval": clients.max_heartbeat_ms * _NANOSECONDS_PER_MS,
        "max_output_buffer_size": clients.max_output_buffer_bytes,
        "max_output_buffer_timeout": clients.max_output_timeout_ms * _NANOSECONDS_PER_MS,
        "max_deflate_level": clients.max_deflate_level,
        "topology_zone": "",
        "topology_region": "",
        "penstock_version": penstock.__version__,
    }


def broadcast_address(options: BrokerOptions) -> str:
    """Return the host at which clients can reach the broker."""
    if options.lookup.broadcast_address is not None:
        return options.lookup.broadcast_address
    return socket.gethostname() if options.host in EVERY_INTERFACE else options.host


def health(broker: Broker) -> str:
    """Return ``OK``, or ``NOK - `` and the reason."""
    failure = broker.publisher.health() or broker.topics.parts.sync_failure()
    return "OK" if failure is None else f"NOK - {broker.for_clients(failure)}"


def publish_statistics(broker: Broker) -> Json:
    """Return the numbers of waiting and refused publishes, and of waiting readers."""
    return {
        "held_bytes": broker.budget.held_bytes,
        "waiting_publishers": broker.budget.waiting,
        "refused_publishes": broker.budget.refused,
        "waiting_readers": broker.waiting_readers,
    }


def unsynced(broker: Broker) -> Json:
    """Return the age of the oldest message that is not durable, and its limit."""
    parts = broker.topics.parts
    return {
        "age_ms": int(parts.unsynced_age_s() * 1000),
        "limit_ms": int(parts.unsynced_limit_s() * 1000),
    }


def http_connections(broker: Broker) -> Json:
    """Return the number of HTTP connections, and of refusals by reason."""
    guard = broker.guard
    return {"connections": guard.connections, "refused": dict(sorted(guard.refused.items()))}


def held(broker: Broker) -> Json:
    """Return the use of the memory budget (`MemoryBudget`)."""
    budget = broker.memory
    return {
        "limit_bytes": budget.limit_bytes,
        "held_bytes": budget.held_bytes,
        "cached_bytes": budget.cached_bytes,
        "peak_bytes": budget.peak_bytes,
        "caches_let_go": budget.releases,
    }


def memory() -> dict[str, int]:
    """Return Python's closest values under NSQ's names; 0 if there is no counterpart."""
    pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    return {
        "heap_objects": 0,
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }
