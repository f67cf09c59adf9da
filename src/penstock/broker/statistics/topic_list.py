"""One page of the list of topics, searched and sorted, for pages about many topics.

Owns the search, the order, and the sums over all visible topics. The size of a page does not depend
on the number of topics. `topic_statistics` has everything about one topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from heapq import nlargest, nsmallest
from typing import TYPE_CHECKING, Final

from penstock.broker.statistics.topic_statistics import FullVisibility, Json
from penstock.broker.time_slices import TimeSlices

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.statistics.topic_statistics import StatisticsVisibility
    from penstock.broker.topics.topic import Topic

LIMIT_MAX: Final = 500
_TOPICS_PER_TURN: Final = 200


class TopicOrder(StrEnum):
    """Orders of a list of topics: names ascending, numbers descending."""

    NAME = "name"
    MESSAGES = "messages"
    DEPTH = "depth"
    IN_FLIGHT = "in_flight"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Selection of topics for a page.

    Attributes:
        search: Part of the name, without regard to case; empty: all topics.
        order: The field that sorts them.
        skip: Number of topics to leave out at the beginning.
        limit: Maximum number of topics, up to `LIMIT_MAX`.
        visibility: Topics and channels that may be shown.
    """

    search: str = ""
    order: TopicOrder = TopicOrder.NAME
    skip: int = 0
    limit: int = 50
    visibility: StatisticsVisibility = field(default_factory=FullVisibility)


@dataclass(frozen=True, slots=True)
class _Row:
    """Numbers of one topic; those of its channels are sums over the visible ones."""

    topic: Topic
    depth: int
    in_flight: int
    deferred: int
    clients: int
    channels: int

    @property
    def size_bytes(self) -> int:
        return sum(queue.statistics().bytes for queue in self.topic.queues)

    def to_json(self) -> Json:
        topic = self.topic
        return {
            "topic_name": topic.name,
            "paused": topic.paused,
            "partitions": len(topic.queues),
            "message_count": topic.message_count,
            "message_bytes": topic.message_bytes,
            "topic_depth": topic.depth,
            "depth": self.depth,
            "in_flight_count": self.in_flight,
            "deferred_count": self.deferred,
            "client_count": self.clients,
            "channel_count": self.channels,
            "bytes": self.size_bytes,
        }


async def topic_list(broker: Broker, page: TopicPage) -> Json:
    """Return a page of the list, with sums over all visible topics.

    `depth` is the sum over the channels of the messages that wait; `topic_depth` counts the
    messages that no channel has, as `depth` of `/stats` does.
    """
    search, rows = page.search.casefold(), []
    slices = TimeSlices(_TOPICS_PER_TURN)
    sums = dict.fromkeys(("message_count", "message_bytes", "depth", "in_flight_count"), 0)
    topics = 0
    for topic in list(broker.topics):
        if topic.closed or not page.visibility.topic(topic.name):
            continue
        row = _row(topic, page.visibility)
        topics += 1
        sums["message_count"] += topic.message_count
        sums["message_bytes"] += topic.message_bytes
        sums["depth"] += row.depth
        sums["in_flight_count"] += row.in_flight
        if search in topic.name.casefold():
            rows.append(row)
        await slices.step(1 + row.channels)
    first = _first(rows, page.order, page.skip + page.limit)[page.skip :]
    return {
        "at": broker.clock.now_ms(),
        "topics": topics,
        "found": len(rows),
        **sums,
        "page": [row.to_json() for row in first],
    }


def _row(topic: Topic, visibility: StatisticsVisibility) -> _Row:
    shown = [one for name, one in topic.channels.items() if visibility.channel(topic.name, name)]
    counts = [channel.counts() for channel in shown]
    return _Row(
        topic,
        depth=sum(one.depth for one in counts),
        in_flight=sum(one.in_flight for one in counts),
        deferred=sum(one.deferred for one in counts),
        clients=sum(len(channel.subscribers) for channel in shown),
        channels=len(shown),
    )


def _first(rows: list[_Row], order: TopicOrder, count: int) -> list[_Row]:
    """Return the first rows in an order; rows with equal numbers by their names."""
    if order is TopicOrder.NAME:
        return nsmallest(count, rows, key=lambda row: row.topic.name)
    by_name = sorted(rows, key=lambda row: row.topic.name)
    match order:
        case TopicOrder.MESSAGES:
            return nlargest(count, by_name, key=lambda row: row.topic.message_count)
        case TopicOrder.DEPTH:
            return nlargest(count, by_name, key=lambda row: row.depth)
        case TopicOrder.IN_FLIGHT:
            return nlargest(count, by_name, key=lambda row: row.in_flight)
        case TopicOrder.BYTES:
            return nlargest(count, by_name, key=lambda row: row.size_bytes)
