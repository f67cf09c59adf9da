"""The data source `penstock.topic`, as users of Spark meet it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from penstock.broker.broker_client import BrokerClient
from penstock.indexing.engine import TopicRange
from tests.spark.conftest import MakeTopic
from tests.spark.servers_kit import running_broker

pytestmark = pytest.mark.spark

COLUMNS = "__time timestamp, name string, n bigint, price double"


def as_option(ranges: tuple[TopicRange, ...]) -> str:
    return json.dumps([[r.partition, r.folder, r.start, r.end] for r in ranges])


def messages(count: int) -> list[bytes]:
    return [
        json.dumps(
            {"timestamp": 1357034400000 + n, "name": f"n{n}", "n": n, "price": n / 4}
        ).encode()
        for n in range(count)
    ]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with running_broker(tmp_path / "broker") as url:
        yield url


def test_raw_messages_with_their_places(spark: SparkSession, make_topic: MakeTopic) -> None:
    ranges = make_topic(messages(40))
    rows = spark.read.format("penstock.topic").option("ranges", as_option(ranges)).load()
    assert rows.schema.simpleString() == (
        "struct<partition:int,offset:bigint,timestamp:timestamp,message:binary>"
    )
    found = {(row.partition, row.offset): bytes(row.message) for row in rows.collect()}
    assert len(found) == 40
    assert found[0, 0] == messages(40)[0]
    assert found[1, 19] == messages(40)[39]


def test_a_schema_makes_typed_columns(spark: SparkSession, make_topic: MakeTopic) -> None:
    ranges = make_topic(messages(40))
    rows = (
        spark.read.format("penstock.topic")
        .schema(COLUMNS)
        .options(ranges=as_option(ranges), splits=4, splitBytes=100)
        .load()
    )
    [total] = rows.agg(
        sf.sum("n"), sf.max("price"), sf.count_distinct("name"), sf.max(sf.unix_millis("__time"))
    ).collect()
    assert tuple(total) == (780, 9.75, 40, 1357034400039)


def test_a_message_that_does_not_parse_is_named(
    spark: SparkSession, make_topic: MakeTopic, tmp_path: Path
) -> None:
    ranges = make_topic([*messages(14), b"oops"])
    reader = (
        spark.read.format("penstock.topic")
        .schema(COLUMNS)
        .options(ranges=as_option(ranges), topic="things")
    )
    with pytest.raises(PySparkException, match="topic 'things', stream partition 1, offset 4"):
        reader.load().collect()
    assert reader.option("badFolder", str(tmp_path / "bad")).load().count() == 14
    [bad] = (tmp_path / "bad").iterdir()
    assert json.loads(bad.read_bytes())["offset"] == 4
    dropped = spark.read.format("penstock.topic").schema(COLUMNS).option("mode", "DROPMALFORMED")
    assert dropped.option("ranges", as_option(ranges)).load().count() == 14


@pytest.mark.parametrize(
    ("options", "schema", "problem"),
    [
        ({}, "", "url"),
        ({"ranges": "[[0]]"}, "", "option ranges must be"),
        ({"ranges": "[]"}, "a date", "column 'a': date cannot be read from JSON"),
        ({"ranges": "[]", "mode": "MAYBE"}, COLUMNS, "mode 'MAYBE' is unknown"),
        ({"ranges": "[]", "splits": "few"}, "", "option splits must be a whole number"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    spark: SparkSession, options: dict[str, str], schema: str, problem: str
) -> None:
    reader = spark.read.format("penstock.topic").options(**options)
    with pytest.raises(PySparkException, match=problem):
        (reader.schema(schema) if schema else reader).load().collect()


def test_a_topic_of_a_broker(spark: SparkSession, broker: str) -> None:
    with BrokerClient(broker) as client:
        client.create_topic("things", 2)
        for partition in (0, 1):
            client.publish("things", messages(10), partition=partition)
    reader = spark.read.format("penstock.topic").options(url=broker, topic="things")
    assert reader.load().count() == 20
    some = reader.options(startingOffsets='{"0": 7, "1": -1}', endingOffsets="latest")
    assert sorted(row.offset for row in some.load().collect()) == [7, 8, 9]
    with pytest.raises(PySparkException, match="use earliest, latest or"):
        reader.option("startingOffsets", "first").load().collect()


def test_a_stream_of_a_topic(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with BrokerClient(broker) as client:
        client.create_topic("things", 2)
        client.publish("things", messages(10), partition=0)
        rows = (
            spark.readStream.format("penstock.topic")
            .schema(COLUMNS)
            .options(url=broker, topic="things", startingOffsets="earliest")
            .options(maxOffsetsPerTrigger=4)
            .load()
        )
        query = (
            rows.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "out"))
        )
        try:
            query.processAllAvailable()
            client.publish("things", messages(12), partition=1)
            query.processAllAvailable()
            assert spark.read.parquet(str(tmp_path / "out")).agg(sf.sum("n")).first()[0] == 45 + 66
        finally:
            query.stop()


def test_a_stream_does_not_go_on_in_a_topic_that_was_made_again(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    def run() -> None:
        reader = spark.readStream.format("penstock.topic").options(url=broker, topic="things")
        query = (
            reader.option("startingOffsets", "earliest")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start(str(tmp_path / "out"))
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    with BrokerClient(broker) as client:
        client.publish("things", messages(10))
        run()
        # A checkpoint of before there were ids goes on, and knows it from then on.
        for path in (tmp_path / "checkpoint" / "offsets").iterdir():
            if path.suffix != ".crc":
                text = path.read_text()
                path.write_text(re.sub(r',\s*"id":\s*"\w+"', "", text))
                assert path.read_text() != text
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        client.publish("things", messages(10))
        run()
        assert spark.read.parquet(str(tmp_path / "out")).count() == 20
        client.delete_topic("things")
        client.publish("things", messages(30))
        with pytest.raises(PySparkException, match="start the query with a new checkpointLocation"):
            run()
        assert spark.read.parquet(str(tmp_path / "out")).count() == 20
