"""What ``/stats`` and ``/info`` say: NSQ's fields, and beside them what a stream partition adds."""

from __future__ import annotations

import gc
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock.core.instants import format_time

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.topic import Topic

Json = dict[str, object]

_NANOSECONDS_PER_SECOND = 1_000_000_000


def info(broker: Broker) -> Json:
    """Return the document of ``/info``."""
    hostname = socket.gethostname()
    return {
        "version": penstock.__version__,
        "broadcast_address": hostname,
        "hostname": hostname,
        "http_port": broker.http_port,
        "tcp_port": broker.tcp_port,
        "start_time": broker.started_ms // 1000,
        "max_heartbeat_interval": 60 * _NANOSECONDS_PER_SECOND,
        "max_output_buffer_size": 65536,
        "max_output_buffer_timeout": 30 * _NANOSECONDS_PER_SECOND,
        "max_deflate_level": 6,
        "topology_zone": "",
        "topology_region": "",
    }


def health(broker: Broker) -> str:
    """Return ``OK``, or ``NOK - `` and why."""
    failure = broker.publisher.health()
    return "OK" if failure is None else f"NOK - {failure}"


def stats(broker: Broker, topic: str | None, *, include_memory: bool) -> Json:
    """Return the document of ``/stats?format=json``, of all topics or one."""
    chosen = [entry for entry in broker.topics if topic is None or entry.name == topic]
    document: Json = {
        "version": penstock.__version__,
        "health": health(broker),
        "start_time": broker.started_ms // 1000,
        "topics": [_topic(entry) for entry in chosen] if chosen or topic is None else None,
        "producers": None,
        "publishing": {
            "held_bytes": broker.budget.held_bytes,
            "waiting_publishers": broker.budget.waiting,
            "refused_publishes": broker.budget.refused,
            "waiting_readers": broker.waiting_readers,
        },
    }
    if include_memory:
        document["memory"] = _memory()
    return document


def stats_text(broker: Broker, topic: str | None, *, include_memory: bool) -> str:
    """Return ``/stats`` for people."""
    now_ms = broker.clock.now_ms()
    lines = [
        f"penstock v{penstock.__version__}",
        f"start_time {format_time(broker.started_ms)}",
        f"uptime {(now_ms - broker.started_ms) / 1000:.3f}s",
        "",
        f"Health: {health(broker)}",
        "",
    ]
    if include_memory:
        lines.append("Memory:")
        lines += [f"   {name:<25}\t{value}" for name, value in _memory().items()]
        lines.append("")
    lines.append("Topics:")
    for entry in broker.topics:
        if topic is not None and entry.name != topic:
            continue
        mark = "*P " if entry.paused else "   "
        lines.append(
            f"{mark}[{entry.name:<15}] depth: {entry.depth:<5} be-depth: {entry.depth:<5} "
            f"msgs: {entry.message_count:<8} e2e%:"
        )
        lines += [
            f"      [partition {number:<4}] earliest: {queue.earliest:<8} latest: {queue.latest:<8}"
            f" durable: {queue.durable}"
            for number, queue in enumerate(entry.queues)
        ]
    return "\n".join(lines) + "\n"


def _topic(topic: Topic) -> Json:
    return {
        "topic_name": topic.name,
        "channels": [],
        "depth": topic.depth,
        "backend_depth": topic.depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": {"count": 0, "percentiles": None},
        "repeated_publishes": topic.repeats,
        "partitions": [
            {"partition": number, **asdict(queue.statistics())}
            for number, queue in enumerate(topic.queues)
        ],
    }


def _memory() -> dict[str, int]:
    """Return NSQ's names with the nearest that Python has; what has no counterpart is 0."""
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
