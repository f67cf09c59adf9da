"""Answers of nsqlookupd's API about this broker, for clients that query it instead of nsqlookupd.

Owns the documents, which contain only this producer. Does not own the topics of other brokers: for
several brokers, configure all of them in the client, or run nsqlookupd.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from penstock.broker.protocol.negotiation import NSQ_VERSION
from penstock.broker.statistics.broker_info import broadcast_address

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.statistics.topic_statistics import StatisticsVisibility
    from penstock.broker.topics.topic import Topic

Json = dict[str, object]


def identity(broker: Broker) -> Json:
    """Return the fields with which the broker identifies itself to an nsqlookupd."""
    lookup = broker.options.lookup
    tcp_port, http_port = lookup.broadcast_tcp_port, lookup.broadcast_http_port
    return {
        "hostname": socket.gethostname(),
        "broadcast_address": broadcast_address(broker.options),
        "tcp_port": broker.tcp_port if tcp_port is None else tcp_port,
        "http_port": broker.http_port if http_port is None else http_port,
        "version": NSQ_VERSION,
        "topology_zone": "",
        "topology_region": "",
    }


def lookup(broker: Broker, topic: Topic, visibility: StatisticsVisibility) -> Json:
    """Return the producers of a topic, and its visible channels."""
    return {"channels": channel_names(topic, visibility), "producers": [_producer(broker)]}


def topic_names(broker: Broker, visibility: StatisticsVisibility) -> list[str]:
    """Return the names of the visible topics."""
    return [topic.name for topic in broker.topics if visibility.topic(topic.name)]


def channel_names(topic: Topic, visibility: StatisticsVisibility) -> list[str]:
    """Return the names of a topic's visible channels."""
    return sorted(name for name in topic.channels if visibility.channel(topic.name, name))


def nodes(broker: Broker, visibility: StatisticsVisibility) -> Json:
    """Return the producers with their visible topics."""
    topics = topic_names(broker, visibility)
    node = {**_producer(broker), "tombstones": [False] * len(topics), "topics": topics}
    return {"producers": [node]}


def registrations(broker: Broker, visibility: StatisticsVisibility) -> dict[str, list[Json]]:
    """Return every visible topic and channel with its producer, for ``/debug``."""
    entry: Json = {
        "id": _remote_address(broker),
        **identity(broker),
        "last_update": broker.clock.now_ms() * 1_000_000,
        "tombstoned": False,
        "tombstoned_at": 0,
    }
    found = {"client::": [entry]}
    for topic in broker.topics:
        if not visibility.topic(topic.name):
            continue
        found[f"topic:{topic.name}:"] = [entry]
        for channel in channel_names(topic, visibility):
            found[f"channel:{topic.name}:{channel}"] = [entry]
    return found


def _producer(broker: Broker) -> Json:
    return {"remote_address": _remote_address(broker), **identity(broker)}


def _remote_address(broker: Broker) -> str:
    host = broadcast_address(broker.options)
    return f"[{host}]:{broker.tcp_port}" if ":" in host else f"{host}:{broker.tcp_port}"
