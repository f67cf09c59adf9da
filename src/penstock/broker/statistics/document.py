"""The documents of ``/stats``: JSON, and the text for people.

Owns their layout, NSQ's to the letter, and that a broker with very many topics goes on serving
while one is made: topics are written a few at a time. Each topic's numbers are of one moment.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

import penstock
from penstock.broker.protocol.negotiation import NSQ_VERSION
from penstock.broker.statistics.server import Json, health, held, memory, publishing
from penstock.broker.statistics.topics import client_json, topic_statistics
from penstock.core.instants import format_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.broker.broker import Broker
    from penstock.broker.statistics.topics import (
        ChannelStatistics,
        LatencyStatistics,
        Selection,
        TopicStatistics,
    )

_TOPICS_PER_TURN: Final = 50  # about 2 ms
_SECOND_MS: Final = 1000
_NANOSECOND_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


async def json_pieces(broker: Broker, selection: Selection, *, with_memory: bool) -> list[bytes]:
    """Return the JSON document in pieces."""
    head: Json = {
        "version": NSQ_VERSION,
        "health": health(broker),
        "start_time": broker.started_ms // _SECOND_MS,
    }
    pieces = [orjson.dumps(head)[:-1], b',"topics":']
    if selection.topic and broker.topics.find(selection.topic) is None:
        pieces.append(b"null")
    else:
        lists = [orjson.dumps(few)[1:-1] async for few in _few_at_a_time(broker, selection) if few]
        pieces += [b"[", b",".join(lists), b"]"]
    tail: Json = {}
    if with_memory:
        tail["memory"] = memory()
    tail["producers"] = _producers(broker, selection) or None
    tail["publishing"] = publishing(broker)
    tail["held"] = held(broker)
    pieces += [b",", orjson.dumps(tail)[1:]]
    return pieces


async def text_pieces(broker: Broker, selection: Selection, *, with_memory: bool) -> list[bytes]:
    """Return the text in pieces."""
    now_ms = broker.clock.now_ms()
    lines = [
        f"penstock v{penstock.__version__} (nsqd v{NSQ_VERSION})",
        f"start_time {format_time(broker.started_ms)}",
        f"uptime {duration_text(now_ms - broker.started_ms)}",
        "",
        f"Health: {health(broker)}",
    ]
    if with_memory:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in memory().items()]
    pieces = ["\n".join(lines).encode(), b"\n\nTopics:"]
    count = 0
    async for few in _few_at_a_time(broker, selection):
        count += len(few)
        shown = [line for topic in few for line in _topic_lines(topic, now_ms)]
        pieces.append("".join(f"{line}\n" for line in shown).encode())
    if not count:
        pieces.append(b" None\n")
    producers = [_client_line(client, now_ms) for client in _producers(broker, selection)]
    if producers:
        pieces.append(("\nProducers:\n" + "".join(f"   {line}\n" for line in producers)).encode())
    else:
        pieces.append(b"\nProducers: None\n")
    return pieces


def duration_text(duration_ms: int) -> str:
    """Return a duration as Go writes it: ``1h2m3.5s``, ``250ms``, ``0s``."""
    if 0 < duration_ms < _SECOND_MS:
        return f"{duration_ms}ms"
    minutes, rest_ms = divmod(max(0, duration_ms), 60 * _SECOND_MS)
    hours, minutes = divmod(minutes, 60)
    seconds, fraction_ms = divmod(rest_ms, _SECOND_MS)
    text = f"{seconds}.{fraction_ms:03}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


async def _few_at_a_time(
    broker: Broker, selection: Selection
) -> AsyncIterator[list[TopicStatistics]]:
    if selection.topic:
        found = broker.topics.find(selection.topic)
        topics = [] if found is None else [found]
    else:
        topics = list(broker.topics)
    for start in range(0, len(topics), _TOPICS_PER_TURN):
        if start:
            await asyncio.sleep(0)
        few = [
            topic_statistics(topic, selection, broker.clients)
            for topic in topics[start : start + _TOPICS_PER_TURN]
            if not topic.closed
        ]
        yield [statistics for statistics in few if statistics is not None]


def _producers(broker: Broker, selection: Selection) -> list[Json]:
    if not selection.clients:
        return []
    return [client_json(client, selection.topic) for client in broker.clients.producers()]


def _topic_lines(topic: TopicStatistics, now_ms: int) -> list[str]:
    mark = "*P " if topic.paused else "   "
    head = (
        f"{mark}[{topic.topic_name:<15}] depth: {topic.depth:<5} be-depth: "
        f"{topic.backend_depth:<5} msgs: {topic.message_count:<8} e2e%: "
        f"{_latency_text(topic.e2e_processing_latency)}"
    )
    lines = ["", head]
    if topic.messages_lost or topic.messages_dropped:
        lines.append(f"      lost: {topic.messages_lost} dropped: {topic.messages_dropped}")
    for channel in topic.channels:
        lines.append(_channel_line(channel))
        lines += [f"        {_client_line(client, now_ms)}" for client in channel.clients or ()]
    return lines


def _channel_line(channel: ChannelStatistics) -> str:
    mark = "   *P " if channel.paused else "      "
    return (
        f"{mark}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} "
        f"def: {channel.deferred_count:<4} re-q: {channel.requeue_count:<5} "
        f"timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} e2e%: "
        f"{_latency_text(channel.e2e_processing_latency)}"
    )


def _client_line(client: Json, now_ms: int) -> str:
    connected_ts, address = client["connect_ts"], client["remote_address"]
    assert isinstance(connected_ts, int)
    assert isinstance(address, str)
    connected = duration_text((now_ms // _SECOND_MS - connected_ts) * _SECOND_MS)
    who = f"{client['hostname']}:{address.rpartition(':')[2]} {client['user_agent']}"
    published = client.get("pub_counts")
    if isinstance(published, list):
        total = sum(entry["count"] for entry in published)
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in published)
        return f"[V2 {who:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[V2 {who:<21}] state: {client['state']} inflt: {client['in_flight_count']:<4} "
        f"rdy: {client['ready_count']:<4} fin: {client['finish_count']:<8} "
        f"re-q: {client['requeue_count']:<8} msgs: {client['message_count']:<8} "
        f"connected: {connected}"
    )


def _latency_text(latency: LatencyStatistics) -> str:
    return ", ".join(_nanoseconds_text(entry["value"]) for entry in latency.percentiles or ())


def _nanoseconds_text(value: float) -> str:
    for size, unit in _NANOSECOND_UNITS:
        if value > size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.1f}ns"
