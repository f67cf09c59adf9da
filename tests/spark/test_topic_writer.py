"""The sink `penstock.topic` as Spark's tasks call it, with a real broker and without a JVM."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole
from penstock.spark.topic import writer
from penstock.spark.topic.offset_splits import SourceRange
from penstock.spark.topic.source import TopicSource
from penstock.spark.topic.split_reader import read_raw
from penstock.storage.disk import OsFileSystem
from tests.spark.servers_kit import running_broker

_topics = (f"things-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as url:
        yield url


def batches(messages: Sequence[bytes], sizes: Sequence[int] = ()) -> Iterator[pa.RecordBatch]:
    left = list(messages)
    for size in [*sizes, len(left)]:
        yield pa.record_batch([pa.array(left[:size], pa.binary())], names=["message"])
        left = left[size:]


def stored(client: BrokerClient, topic: str, partition: int = 0) -> list[bytes]:
    [place] = client.offsets(topic, durable=True).partitions
    found = read_raw(OsFileSystem(), [SourceRange(0, place.folder, place.earliest, place.latest)])
    return [message for batch in found for message in batch.column("message").to_pylist()]


PUBLISH = BrokerClient.publish_numbered


class PatientClock:
    """A clock whose waits take no time."""

    def __init__(self) -> None:
        self._s = 0.0

    def now_ms(self) -> int:
        return int(self._s * 1000)

    def monotonic_s(self) -> float:
        return self._s

    def wait(self, _condition: threading.Condition, timeout_s: float | None) -> bool:
        self._s += timeout_s or 0
        return False


class Killed(Exception):
    """The attempt of the task ends."""


texts = st.lists(st.binary(min_size=1, max_size=40), max_size=30)


@given(
    partitions=st.lists(texts, min_size=1, max_size=3),
    attempts=st.lists(st.tuples(st.randoms(use_true_random=False), st.integers(0, 4)), max_size=4),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_each_row_is_a_message_once_whatever_attempts_there_are(
    broker: str,
    monkeypatch: pytest.MonkeyPatch,
    partitions: list[list[bytes]],
    attempts: list[tuple[object, int]],
) -> None:
    monkeypatch.setattr(writer, "PUBLISH_BYTES", 100)
    monkeypatch.setattr(BrokerClient, "publish_numbered", PUBLISH)
    with BrokerClient(broker) as client:
        topic = next(_topics)
        client.create_topic(topic, 1)
        options = {"url": broker, "topic": topic}
        for random, publishes in attempts:
            left = itertools.count(publishes, -1)

            def limited(self: BrokerClient, *given: object, left: Iterator[int] = left) -> bool:
                if next(left) <= 0:
                    raise Killed
                return PUBLISH(self, *given)  # type: ignore[arg-type]

            monkeypatch.setattr(BrokerClient, "publish_numbered", limited)
            for number, messages in enumerate(partitions):
                shuffled = list(messages)
                random.shuffle(shuffled)  # type: ignore[attr-defined]
                try:
                    writer.publish(options, batches(shuffled, [2]), f"spark.q.{number}", 7 << 16)
                except Killed:
                    break
        monkeypatch.setattr(BrokerClient, "publish_numbered", PUBLISH)
        done = [
            writer.publish(options, batches(messages), f"spark.q.{number}", 7 << 16)
            for number, messages in enumerate(partitions)
        ]
        expected = Counter(message for messages in partitions for message in messages)
        assert Counter(stored(client, topic)) == expected
        assert sum(one.messages for one in done) == expected.total()
        again = [
            writer.publish(options, batches(messages), f"spark.q.{number}", 7 << 16)
            for number, messages in enumerate(partitions)
        ]
        assert all(one.repeated == one.publishes for one in again)
        assert Counter(stored(client, topic)) == expected


def test_messages_that_fit_into_one_publish_keep_their_order(broker: str) -> None:
    messages = [b"%d" % number for number in (5, 3, 4, 1, 2)]
    with BrokerClient(broker) as client:
        topic = next(_topics)
        client.create_topic(topic, 1)
        writer.publish({"url": broker, "topic": topic}, batches(messages, [2, 1]), "p", 0)
        assert stored(client, topic) == messages


def test_repeated_publishes_are_counted_by_the_broker(broker: str) -> None:
    topic = next(_topics)
    for _ in range(3):
        writer.publish({"url": broker, "topic": topic}, batches([b"a"]), "p", 0)
    stats = JsonClient(broker).get("/stats", {"format": "json", "topic": topic})
    assert [whole(one, "repeated_publishes") for one in objects(stats, "topics")] == [2]


def test_a_broker_that_restarts_is_asked_again(
    broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([Unavailable("it restarts"), Unavailable("it restarts"), None])

    def restarting(self: BrokerClient, *given: object) -> bool:
        if (error := next(answers)) is not None:
            raise error
        return PUBLISH(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BrokerClient, "publish_numbered", restarting)
    topic = next(_topics)
    clock = PatientClock()
    done = writer.publish({"url": broker, "topic": topic}, batches([b"a"]), "p", 0, clock=clock)
    assert (done.messages, done.repeated) == (1, 0)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [([b"a", b""], "has no message, or an empty one"), ([b"a", None], "has no message")],
)
def test_rows_without_a_message_are_refused_before_others_are_published(
    broker: str, rows: list[bytes], problem: str
) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        writer.publish({"url": broker, "topic": "none"}, batches(rows, [1]), "p", 0)
    stats = JsonClient(broker).get("/stats", {"format": "json", "topic": "none"})
    assert objects(stats, "topics") == []


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (StructType().add("a", LongType()).add("message", StringType()), r"to_json\(struct"),
        (StructType().add("message", LongType()), "is bigint: make it a string or binary"),
    ],
)
def test_rows_that_are_no_messages_are_refused(schema: StructType, problem: str) -> None:
    source = TopicSource({"url": "http://127.0.0.1:1", "topic": "things"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(InvalidRequest, match=problem):
            make(schema, False)  # noqa: FBT003
        with pytest.raises(InvalidRequest, match="not overwritten"):
            make(StructType().add("message", BinaryType()), True)  # noqa: FBT003
