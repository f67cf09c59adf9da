"""The stream reader of `penstock.topic` as Spark calls it, with a real broker and without a JVM."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType, TimestampType

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import InvalidRequest
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects
from penstock.spark.topic.source import TopicSource, TopicSplit, TopicStreamReader
from tests.spark.servers_kit import running_broker

Place = dict[str, int | str]
RAW = (
    StructType()
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("message", BinaryType())
)
_topics = (f"things-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("broker")) as url:
        yield url


def a_reader(url: str, topic: str, **options: str) -> TopicStreamReader:
    made = TopicSource({"url": url, "topic": topic, "startingOffsets": "earliest", **options})
    reader = made.streamReader(RAW)
    assert isinstance(reader, TopicStreamReader)
    return reader


def a_topic(client: BrokerClient, partitions: int = 2) -> str:
    topic = next(_topics)
    client.create_topic(topic, partitions)
    return topic


def read(reader: TopicStreamReader, start: Place, end: Place) -> list[bytes]:
    splits = reader.partitions(start, end)
    assert all(isinstance(split, TopicSplit) for split in splits)
    batches = (batch for split in splits for batch in reader.read(split))
    return [message for batch in batches for message in batch.column("message").to_pylist()]


def run_available(reader: TopicStreamReader, start: Place) -> tuple[Place, list[list[bytes]]]:
    """Do what Spark does with the trigger `availableNow`; return the end and the micro-batches."""
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(read(reader, start, end))
        start = end
    return start, batches


@given(
    rounds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), max_size=4),  # publishes
            st.integers(1, 5),  # the limit of the run
            st.integers(0, 3),  # messages published while it runs
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_run_ends_at_what_was_there_and_each_message_comes_once(
    broker: str, rounds: list[tuple[list[tuple[int, int]], int, int]]
) -> None:
    numbers = itertools.count()
    with BrokerClient(broker) as client:
        topic = a_topic(client, 3)
        place = a_reader(broker, topic).initialOffset()
        expected: list[bytes] = []
        found: list[bytes] = []
        for publishes, limit, meanwhile in rounds:
            for partition, count in publishes:
                messages = [b"%d" % next(numbers) for _ in range(count)]
                client.publish(topic, messages, partition=partition)
                expected += messages
            reader = a_reader(broker, topic, maxOffsetsPerTrigger=str(limit))  # restarted
            reader.prepareForTriggerAvailableNow()
            late = [b"%d" % next(numbers) for _ in range(meanwhile)]
            if late:
                client.publish(topic, late, partition=0)
            while (end := reader.latestOffset(place, reader.getDefaultReadLimit())) != place:
                batch = read(reader, place, end)
                assert 0 < len(batch) <= limit
                found += batch
                place = end
            assert sorted(found) == sorted(expected)
            expected += late
        _, batches = run_available(a_reader(broker, topic), place)
        assert sorted(found + [one for batch in batches for one in batch]) == sorted(expected)


def test_a_repeated_micro_batch_is_divided_as_before(broker: str) -> None:
    """Sinks recognize rows by the number of their Spark partition."""
    with BrokerClient(broker) as client:
        topic = a_topic(client)
        for partition in (0, 1):
            client.publish(topic, [b"%d" % number for number in range(50)], partition=partition)
        reader = a_reader(broker, topic, splits="3", splitBytes="100")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())

        def parts(reader: TopicStreamReader) -> list[list[bytes]]:
            return [
                [text for batch in reader.read(one) for text in batch["message"].to_pylist()]
                for one in reader.partitions(start, end)
            ]

        planned = parts(reader)
        assert len(planned) == 3
        assert sum(map(len, planned)) == 100
        # The query starts again, on another host, when the log files have grown.
        client.publish(topic, [b"x" * 1000] * 50, partition=1)
        assert parts(a_reader(broker, topic, splits="8", splitBytes="1")) == planned


def test_the_end_of_the_topic_is_reported_beside_that_of_the_batch(broker: str) -> None:
    with BrokerClient(broker) as client:
        topic = a_topic(client)
        client.publish(topic, [b"a"] * 10, partition=1)
        reader = a_reader(broker, topic, maxOffsetsPerTrigger="4")
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        assert (end["0"], end["1"]) == (0, 4)
        assert reader.reportLatestOffset() == {**start, "0": 0, "1": 10}
        client.publish(topic, [b"a"], partition=0)
        assert reader.reportLatestOffset() == {**start, "0": 1, "1": 10}


def test_a_cursor_follows_completed_micro_batches(broker: str) -> None:
    everything: ReadLimit = ReadAllAvailable()
    with BrokerClient(broker) as client:
        topic = a_topic(client)
        reader = a_reader(broker, topic, cursor="copies")
        start = reader.initialOffset()
        client.publish(topic, [b"a"] * 10, partition=1)

        def cursors() -> list[object]:
            stats = JsonClient(broker).get("/stats", {"format": "json", "topic": topic})
            [document] = objects(stats, "topics")
            return [part["cursors"] for part in objects(document, "partitions")]

        end = reader.latestOffset(start, everything)
        assert cursors() == [{"copies": 0}, {"copies": 0}]
        # The micro-batch has ended when Spark asks for the next one.
        assert reader.latestOffset(end, everything) == end
        assert cursors() == [{"copies": 0}, {"copies": 10}]


@pytest.mark.parametrize("name", ["supervisor.clicks", "a b"])
def test_a_wrong_name_of_a_cursor_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        a_reader("http://127.0.0.1:1", "things", cursor=name)
