"""Kafka for tests: librdkafka's own cluster in this process, and a stand-in for what it cannot."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Producer

from penstock.core.errors import NotFound
from penstock.indexing.kafka_settings import Settings
from penstock.indexing.source.kafka import KafkaRecords, OffsetsGoneError, TopicShape
from tests.kits.this_host_kit import this_host_listed


@dataclass
class MockCluster:
    """The cluster that a librdkafka producer starts; others connect to its port."""

    producer: Producer
    servers: str

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers}

    def create(self, topic: str) -> list[int]:
        """Make a topic, with as many partitions as the cluster gives it."""
        return sorted(self.producer.list_topics(topic, timeout=60).topics[topic].partitions)

    def add(self, topic: str, partition: int, messages: Iterable[bytes | None]) -> None:
        for number, message in enumerate(messages):
            self.producer.produce(topic, message, partition=partition)
            if number % 10_000 == 9_999:
                self.producer.poll(0)
        assert self.producer.flush(30) == 0

    def add_whole(self, topic: str, partition: int, records: Iterable[StandInRecord]) -> None:
        """Send records with keys, headers and times."""
        for record in records:
            self.producer.produce(
                topic,
                record.value,
                record.key,
                partition=partition,
                headers=None if record.headers is None else [*record.headers],
                timestamp=record.time_ms,
            )
        assert self.producer.flush(30) == 0


@dataclass(frozen=True)
class StandInRecord:
    """A record with all that it has."""

    value: bytes | None = None
    key: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    time_ms: int = -1


@contextmanager
def mock_cluster() -> Iterator[MockCluster]:
    # What it prints goes nowhere.
    starter = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = starter.list_topics(timeout=60).brokers.values()
    servers = f"{broker.host}:{broker.port}"
    with this_host_listed():
        yield MockCluster(Producer({"bootstrap.servers": servers, "log_level": 0}), servers)
    del starter


@dataclass
class StandInTopic:
    """Records by partition: offset -> record, or value alone. `ends` is where reading ends.

    That is behind markers, too.
    """

    id: str
    logs: dict[int, dict[int, bytes | StandInRecord | None]]
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def begin(self, partition: int) -> int:
        return self.begins.get(partition, 0)

    def end(self, partition: int) -> int:
        return self.ends.get(partition, max(self.logs[partition], default=-1) + 1)


@dataclass
class StandIn:
    """A cluster in memory: a `Connect`."""

    topics: dict[str, StandInTopic] = field(default_factory=dict)
    connected: list[dict[str, object]] = field(default_factory=list)
    asked: int = 0
    most: int = 3
    silent: bool = False
    ids: Iterator[int] = field(default_factory=itertools.count)

    def create(self, topic: str, **logs: dict[int, bytes | StandInRecord | None]) -> StandInTopic:
        made = StandInTopic(f"id{next(self.ids)}", {int(p[1:]): log for p, log in logs.items()})
        self.topics[topic] = made
        return made

    def admin(self, settings: Settings) -> StandIn:
        self.connected.append(dict(settings))
        return self

    def describe(self, topic: str) -> TopicShape:
        self.asked += 1
        found = self._topic(topic)
        return TopicShape(found.id, tuple(found.logs))

    def offsets(self, topic: str, partitions: Iterable[int], *, latest: bool) -> dict[int, int]:
        found = self._topic(topic)
        return {p: found.end(p) if latest else found.begin(p) for p in partitions}

    def log(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> _StandInLog:
        return _StandInLog(self, self._topic(topic), partition, start, whole=whole)

    def _topic(self, topic: str) -> StandInTopic:
        if topic not in self.topics:
            raise NotFound(f"topic {topic}: there is none")
        return self.topics[topic]


@dataclass
class _StandInLog:
    cluster: StandIn
    topic: StandInTopic
    partition: int
    at: int
    whole: bool = False

    def take(self, most: int, wait_s: float) -> KafkaRecords:
        if self.cluster.silent:
            return KafkaRecords()
        if not self.topic.begin(self.partition) <= self.at <= self.topic.end(self.partition):
            raise OffsetsGoneError(f"no longer holds offset {self.at}")
        log = self.topic.logs[self.partition]
        offsets = [o for o in sorted(log) if o >= self.at][: min(most, self.cluster.most)]
        if offsets:
            self.at = offsets[-1] + 1
            found = [_record(log[o]) for o in offsets]
            values = [one.value for one in found]
            if not self.whole:
                return KafkaRecords(offsets, values)
            return KafkaRecords(
                offsets,
                values,
                keys=[one.key for one in found],
                times_ms=[one.time_ms for one in found],
                headers=[one.headers for one in found],
            )
        self.at = self.topic.end(self.partition)
        return KafkaRecords(end=self.at)

    def close(self) -> None:
        pass


def _record(given: bytes | StandInRecord | None) -> StandInRecord:
    return given if isinstance(given, StandInRecord) else StandInRecord(given)
