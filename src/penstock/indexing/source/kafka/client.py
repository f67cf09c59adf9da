"""The Kafka client: librdkafka through ``confluent-kafka``, the extra ``penstock-io[kafka]``.

The only module that imports it. Its errors are translated; they name brokers and topics, never
settings.
"""

from __future__ import annotations

import logging
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar, cast

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        Message,
        TopicCollection,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
except ImportError as error:  # pragma: no cover - a machine without the extra
    from penstock.core.errors import InvalidRequest

    raise InvalidRequest(
        "reading Kafka requires a client: pip install 'penstock-io[kafka]' where overlord, workers"
        " and Spark run"
    ) from error

from penstock.core.errors import Dependency, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.network_guard import NetworkDestination
from penstock.indexing.kafka_settings import PLACE, READ_COMMITTED, destinations
from penstock.indexing.secrets import may_be_secret
from penstock.indexing.source.kafka.kafka_protocols import (
    KafkaRecords,
    OffsetsGoneError,
    TopicShape,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.indexing.kafka_settings import Settings

T = TypeVar("T")
_Headers = list[tuple[str, bytes | None]] | None

_log = logging.getLogger(__name__)

_ANSWER_S: Final = 10.0
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_GONE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})  # noqa: SLF001
_NO_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001
    }
)
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001
# Settings that only a reader accepts.
_READING: Final = ("check.", "fetch.", "max.partition.", "queued.max.messages.kbytes")


class ConfluentAdmin:
    """Queries a cluster. See `KafkaAdmin`.

    librdkafka resolves names and connects by itself, so the hosts of the settings are checked
    before it exists, and the brokers that the cluster announces with each description.
    """

    def __init__(self, settings: Settings) -> None:
        given = dict(settings)
        for destination in destinations(given):
            NETWORK_GUARD.check(destination)
        committed = given.pop("isolation.level", READ_COMMITTED) == READ_COMMITTED
        self._isolation = (
            IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        )
        config: dict[str, str | int | float | bool] = {
            **{n: v for n, v in given.items() if not n.startswith(_READING)},
            # A query for a topic must not create it.
            "allow.auto.create.topics": False,
        }
        self._client = _made(lambda: AdminClient(config, logger=_log), settings)

    def describe(self, topic: str) -> TopicShape:
        """Return the partitions and the id of a topic."""
        try:
            self._client.poll(0)
            cluster = self._client.list_topics(topic, timeout=_ANSWER_S)
            for broker in cluster.brokers.values():
                NETWORK_GUARD.check(NetworkDestination("kafka", str(broker.host), int(broker.port)))
            found = cluster.topics[topic]
            if found.error is not None:
                raise translated(found.error, f"topic {topic}")
            # Only a controller provides ids.
            known = cluster.controller_id in cluster.brokers
            return TopicShape(self._topic_id(topic) if known else "", tuple(found.partitions))
        except KafkaException as error:
            raise translated(error.args[0], f"topic {topic}") from None

    def _topic_id(self, topic: str) -> str:
        answer = self._client.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_S)
        found = str(answer[topic].result(2 * _ANSWER_S).topic_id)
        return "" if found == _NO_ID else found

    def offsets(self, topic: str, partitions: Iterable[int], *, latest: bool) -> dict[int, int]:
        """Return the first offset of each partition, or the one after its last durable record."""
        # The type stubs do not declare the return types.
        spec = OffsetSpec.latest() if latest else OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, p): spec for p in partitions}
        if not wanted:
            return {}
        try:
            answers = self._client.list_offsets(
                wanted, isolation_level=self._isolation, request_timeout=_ANSWER_S
            )
            return {
                place.partition: int(answer.result(2 * _ANSWER_S).offset)
                for place, answer in answers.items()
            }
        except KafkaException as error:
            raise translated(error.args[0], f"topic {topic}") from None


class ConfluentLog:
    """Reads one partition. See `KafkaLog`."""

    def __init__(
        self, settings: Settings, topic: str, partition: int, start: int, *, whole: bool = False
    ) -> None:
        self._whole = whole
        self._place = f"topic {topic}, partition {partition}"
        self._next = start
        config: dict[str, str | int | bool] = {
            "queued.max.messages.kbytes": 32 * 1024,
            **dict(settings),
            # The client requires a group; nothing is ever committed to it.
            "group.id": "penstock",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
        }
        self._client = _made(lambda: Consumer(config, logger=_log), settings)
        self._client.assign([TopicPartition(topic, partition, start)])

    def take(self, most: int, wait_s: float) -> KafkaRecords:
        """Return the next records."""
        try:
            messages = self._client.consume(most, timeout=wait_s)
        except KafkaException as error:
            raise translated(error.args[0], self._place) from None
        end = None
        if any(map(Message.error, messages)):
            end = self._end_of_partition([m for m in messages if m.error() is not None])
            messages = [m for m in messages if m.error() is None]
        # The type stubs allow None, but a consumed message always has an offset.
        offsets = cast("list[int]", list(map(Message.offset, messages)))
        if offsets:
            self._next = offsets[-1] + 1
        values = list(map(Message.value, messages))
        if not self._whole:
            return KafkaRecords(offsets, values, end)
        return KafkaRecords(
            offsets,
            values,
            end,
            keys=list(map(Message.key, messages)),
            # Each is a pair (type of time, time).
            times_ms=list(map(itemgetter(1), map(Message.timestamp, messages))),
            # The type stubs also cover the headers of sent messages.
            headers=cast("list[_Headers]", list(map(Message.headers, messages))),
        )

    def _end_of_partition(self, events: list[Message]) -> int | None:
        """Return the reported end of the partition, if any; raise errors that are permanent."""
        end = None
        for event in events:
            error = event.error()
            if error is None:
                continue
            code = error.code()
            if code == _END:
                end = event.offset()
            elif code in _GONE:
                raise OffsetsGoneError(
                    f"Kafka's {self._place} no longer holds offset {self._next}: have Kafka"
                    " keep records for longer, and reset the supervisor's offsets or set"
                    " resetOffsetAutomatically"
                )
            elif code in _NO_TOPIC or code in _REFUSED:
                raise translated(error, self._place)
            else:
                _log.info("Kafka's %s: %s", self._place, error.str())
        return end

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def translated(error: KafkaError, what: str) -> PenstockError:
    """Return the Penstock error for an error of the client."""
    text = f"Kafka's {what}: {error.str()}"
    if error.code() in _NO_TOPIC:
        return NotFound(f"{text}: create it, or correct the name")
    if error.code() in _REFUSED:
        return InvalidRequest(f"{text}: correct the credentials in consumerProperties, or the ACLs")
    return Unavailable(f"{text}: check that the cluster is up", dependency=Dependency.STREAM)


def _made(make: Callable[[], T], settings: Settings) -> T:
    try:
        return make()
    except (KafkaException, TypeError, ValueError) as error:
        text = str(error.args[0].str() if isinstance(error, KafkaException) else error)
        for name, value in settings:
            if value and may_be_secret(name):
                text = text.replace(value, "(hidden)")
        raise InvalidRequest(f"Kafka's client refuses its settings: {text}", place=PLACE) from None
