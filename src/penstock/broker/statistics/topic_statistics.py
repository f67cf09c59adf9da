"""Topics and channels as shown by ``/stats``.

Owns the fields, which are NSQ's in NSQ's order, followed by Penstock's, and their meaning here:

- ``depth`` of a topic is the number of messages that no channel has; ``depth`` of a channel the
  number that wait, without those in flight or deferred. Both as in NSQ.
- ``backend_depth`` is the part of it that would be read from the disk. All messages are on the
  disk; the newest are also in memory.
- Counts begin at the start of the broker.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from penstock.storage.queue.options import DiskQueueStatistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.channel.channel import Channel
    from penstock.broker.client_registry import ClientStatistics
    from penstock.broker.topics.topic import Topic

Json = dict[str, object]
Shown = orjson.Fragment | str  # an encoded client

_QUEUE_FIELDS: Final = tuple(one.name for one in fields(DiskQueueStatistics))


class StatisticsVisibility(Protocol):
    """Topics and channels that statistics and lists may show to a client."""

    @property
    def everything(self) -> bool:
        """Whether they may show everything, and the numbers of the whole broker."""
        ...

    def topic(self, name: str) -> bool:
        """Return whether they may show a topic."""
        ...

    def channel(self, topic: str, name: str) -> bool:
        """Return whether they may show a channel of a topic that they show."""
        ...


class FullVisibility:
    """Shows everything."""

    everything = True

    def topic(self, _name: str) -> bool:
        """Return True."""
        return True

    def channel(self, _topic: str, _name: str) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of topics and channels for `/stats`.

    Attributes:
        topic: Only this topic; empty: all.
        channel: Only this channel, and topics that have it; empty: all.
        clients: Include the clients.
        visibility: Topics and channels that may be shown.
    """

    topic: str = ""
    channel: str = ""
    clients: bool = True
    visibility: StatisticsVisibility = field(default_factory=FullVisibility)

    def counts_of(self, client: ClientStatistics) -> list[Json]:
        """Return the publishes of a client by selected topic."""
        return [
            {"topic": name, "count": count}
            for name, count in client.published.items()
            if self.topic in {"", name} and self.visibility.topic(name)
        ]


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """Times from the publish of messages to their FIN.

    Attributes:
        count: Number of measured messages.
        percentiles: ``{"quantile": q, "value": nanoseconds}`` each; None: they are not measured.
    """

    count: int = 0
    percentiles: Sequence[dict[str, float]] | None = None


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Statistics of one channel for JSON.

    Attributes:
        clients: Its consumers; added to a document in slices. None: not requested.
        messages_lost: Messages that the disk lost before they were finished.
        messages_expired: Messages that expired before their delivery.
        messages_dead_lettered: Messages over `max_attempts`, moved to the dead-letter topic.
        messages_given_up: Messages over `max_attempts`, without a dead-letter topic.
        messages_shed: Messages deleted before they were finished: the topic drops its oldest, or an
            ephemeral channel exceeded its backlog limit.
        journal_damaged: 1 if the journal was damaged or missing when the broker started, so that
            finished messages are delivered again.
        next_offsets: Offset of the next delivery, by stream partition.
    """

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: list[Shown] | None
    paused: bool
    e2e_processing_latency: LatencyStatistics
    messages_lost: int
    messages_expired: int
    messages_dead_lettered: int
    messages_given_up: int
    messages_shed: int
    journal_damaged: int
    next_offsets: list[int]


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Statistics of one topic for JSON.

    Attributes:
        messages_lost: Messages lost because of damage on the disk.
        messages_dropped: Messages deleted to keep the topic within its maximum size.
        messages_refused: Messages refused because of the maximum size.
        repeated_publishes: Publishes that a producer repeated, and that were stored once.
        partitions: Statistics of the stream partitions.
    """

    topic_name: str
    channels: list[ChannelStatistics]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyStatistics
    messages_lost: int
    messages_dropped: int
    messages_refused: int
    repeated_publishes: int
    partitions: list[Json]


def topic_statistics(topic: Topic, selection: Selection) -> TopicStatistics | None:
    """Return the statistics of a topic without clients.

    None: it may not be shown, or lacks the selected channel.
    """
    visibility = selection.visibility
    if not visibility.topic(topic.name):
        return None
    channels = sorted(
        entry for entry in topic.channels.items() if visibility.channel(topic.name, entry[0])
    )
    if selection.channel:
        channels = [entry for entry in channels if entry[0] == selection.channel]
        if not channels:
            return None
    queues = [queue.statistics() for queue in topic.queues]
    return TopicStatistics(
        topic_name=topic.name,
        channels=[channel_statistics(channel, selection) for _, channel in channels],
        depth=topic.depth,
        backend_depth=topic.backend_depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        e2e_processing_latency=LatencyStatistics(),
        messages_lost=sum(queue.messages_lost for queue in queues),
        messages_dropped=sum(queue.messages_dropped for queue in queues),
        messages_refused=topic.messages_refused,
        repeated_publishes=topic.repeats,
        partitions=[_partition(number, queue) for number, queue in enumerate(queues)],
    )


def channel_statistics(channel: Channel, selection: Selection) -> ChannelStatistics:
    """Return the statistics of a channel without clients."""
    counts, counters = channel.counts(), channel.counters
    return ChannelStatistics(
        channel_name=channel.name,
        depth=counts.depth,
        backend_depth=channel.backend_depth,
        in_flight_count=counts.in_flight,
        deferred_count=counts.deferred,
        message_count=channel.message_count,
        requeue_count=channel.state.requeued_count,
        timeout_count=channel.state.timed_out_count,
        client_count=len(channel.subscribers),
        clients=[] if selection.clients else None,
        paused=channel.paused,
        e2e_processing_latency=LatencyStatistics(),
        messages_lost=counters.lost,
        messages_expired=counters.expired,
        messages_dead_lettered=counters.dead_lettered,
        messages_given_up=counters.out_of_attempts,
        messages_shed=counters.trimmed,
        journal_damaged=counters.journal_damaged,
        next_offsets=[progress.next for progress in channel.state.progress],
    )


def client_json(client: ClientStatistics, selection: Selection) -> Json:
    """Return a client for JSON, with its publishes to the selected topics."""
    document: Json = {
        "client_id": client.client_id,
        "hostname": client.hostname,
        "version": "V2",
        "remote_address": client.address,
        "state": client.state,
        "ready_count": client.ready,
        "in_flight_count": client.in_flight,
        "message_count": client.messages,
        "finish_count": client.finished,
        "requeue_count": client.requeued,
        "connect_ts": client.connected_ms // 1000,
        "sample_rate": client.sample_rate,
        "deflate": client.deflate,
        "snappy": client.snappy,
        "user_agent": client.user_agent,
    }
    if client.authorized:
        document["authed"] = True
    if client.identity:
        document["auth_identity"] = client.identity
    if client.identity_url:
        document["auth_identity_url"] = client.identity_url
    document["topology_zone"] = client.topology_zone
    document["topology_region"] = client.topology_region
    published = selection.counts_of(client)
    if published:
        document["pub_counts"] = published
    tls = client.tls
    document["tls"] = tls is not None
    document["tls_cipher_suite"] = "" if tls is None else tls.cipher
    document["tls_version"] = "" if tls is None else tls.version
    document["tls_negotiated_protocol"] = "" if tls is None else tls.protocol
    # Go's name for ALPN, which TLS has always used.
    document["tls_negotiated_protocol_is_mutual"] = tls is not None
    return document


def _partition(number: int, queue: DiskQueueStatistics) -> Json:
    return {"partition": number} | {name: getattr(queue, name) for name in _QUEUE_FIELDS}
