"""The documents of ``/stats``: JSON, and a text for users.

Owns their layout, exactly that of NSQ, and time slicing: a broker with very many topics or clients
continues to serve while a document is created. The numbers of each topic are of one moment, and so
are those of each client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

import penstock
from penstock.broker.protocol.negotiation import NSQ_VERSION
from penstock.broker.statistics.broker_info import (
    Json,
    health,
    held,
    http_connections,
    memory,
    publish_statistics,
    unsynced,
)
from penstock.broker.statistics.topic_statistics import Shown, client_json, topic_statistics
from penstock.broker.time_slices import TimeSlices
from penstock.core.instants import format_time
from penstock.core.threads import DEATHS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from penstock.broker.broker import Broker
    from penstock.broker.client_registry import ClientStatistics
    from penstock.broker.statistics.topic_statistics import (
        ChannelStatistics,
        LatencyStatistics,
        Selection,
        TopicStatistics,
    )

_CLIENTS_PER_TURN: Final = 100
_STEPS_PER_TOPIC: Final = 2
_NAMES_PER_STEP: Final = 10
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
    if selection.topic and not _is_shown(broker, selection):
        pieces.append(b"null")
    else:
        described = _topics(broker, selection, lambda c: _json_client(c, selection))
        shown = [orjson.dumps(topic) async for topic in described]
        pieces += [b"[", b",".join(shown), b"]"]
    tail: Json = {}
    is_full = selection.visibility.everything
    if with_memory and is_full:
        tail["memory"] = memory()
    tail["producers"] = (
        await _producers(broker, selection, lambda c: _json_client(c, selection)) or None
    )
    if is_full:
        tail["publishing"] = publish_statistics(broker)
        tail["held"] = held(broker)
        tail["http"] = http_connections(broker)
        tail["loop_stall_ms"] = broker.loop_stalls.to_json()
        tail["unsynced"] = unsynced(broker)
        tail["thread_deaths"] = DEATHS.counts()
        tail["access"] = broker.access.audit.counts()
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
    if with_memory and selection.visibility.everything:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in memory().items()]
    pieces = ["\n".join(lines).encode(), b"\n\nTopics:"]

    def client_line(client: ClientStatistics) -> str:
        return _client_line(client_json(client, selection), now_ms)

    topics = [
        "".join(f"{line}\n" for line in _topic_lines(topic)).encode()
        async for topic in _topics(broker, selection, client_line)
    ]
    pieces += topics or [b" None\n"]
    producers = await _producers(broker, selection, client_line)
    if producers:
        pieces.append(("\nProducers:\n" + "".join(f"   {line}\n" for line in producers)).encode())
    else:
        pieces.append(b"\nProducers: None\n")
    return pieces


def duration_text(duration_ms: int) -> str:
    """Return a duration in Go's format: ``1h2m3.5s``, ``250ms``, ``0s``."""
    if 0 < duration_ms < _SECOND_MS:
        return f"{duration_ms}ms"
    minutes, rest_ms = divmod(max(0, duration_ms), 60 * _SECOND_MS)
    hours, minutes = divmod(minutes, 60)
    seconds, fraction_ms = divmod(rest_ms, _SECOND_MS)
    text = f"{seconds}.{fraction_ms:03}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


async def _topics(
    broker: Broker, selection: Selection, show: Callable[[ClientStatistics], Shown]
) -> AsyncIterator[TopicStatistics]:
    if selection.topic:
        found = broker.topics.find(selection.topic)
        topics = [] if found is None else [found]
    else:
        topics = list(broker.topics)
    turns = TimeSlices(_CLIENTS_PER_TURN)
    for topic in topics:
        if topic.closed:
            continue
        statistics = topic_statistics(topic, selection)
        if statistics is None:
            continue
        channels = statistics.channels
        # Before yielding to the loop, during which channels may be deleted.
        subscribers = [tuple(topic.channels[shown.channel_name].subscribers) for shown in channels]
        for channel, numbers in zip(channels, subscribers, strict=True):
            await turns.step()
            if channel.clients is not None:
                await _add_clients(channel.clients, numbers, broker, show, turns)
        yield statistics
        await turns.step(_STEPS_PER_TOPIC)


async def _add_clients(
    to: list[Shown],
    numbers: Iterable[int],
    broker: Broker,
    show: Callable[[ClientStatistics], Shown],
    turns: TimeSlices,
) -> None:
    for number in numbers:
        client = broker.clients.client(number)
        if client is not None:
            to.append(show(client))
            await turns.step(1 + len(client.published) // _NAMES_PER_STEP)


async def _producers(
    broker: Broker, selection: Selection, show: Callable[[ClientStatistics], Shown]
) -> list[Shown]:
    """Return the clients that publish: only all together, because they publish to many topics."""
    shown: list[Shown] = []
    if selection.clients and selection.visibility.everything:
        await _add_clients(
            shown, broker.clients.producers(), broker, show, TimeSlices(_CLIENTS_PER_TURN)
        )
    return shown


def _is_shown(broker: Broker, selection: Selection) -> bool:
    is_visible = selection.visibility.topic(selection.topic)
    return is_visible and broker.topics.find(selection.topic) is not None


def _json_client(client: ClientStatistics, selection: Selection) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(client_json(client, selection)))


def _topic_lines(topic: TopicStatistics) -> list[str]:
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
        lines += [f"        {client}" for client in channel.clients or ()]
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
