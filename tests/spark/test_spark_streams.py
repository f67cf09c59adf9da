"""Streams and sinks of Penstock's data sources, as users of Spark meet them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock.broker.broker_client import BrokerClient
from penstock.services.json_client import JsonClient
from penstock.services.json_values import objects, whole
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table

pytestmark = pytest.mark.spark

_topics = (f"streamed-{number}" for number in itertools.count())


@pytest.fixture
def topic(broker_url: str) -> Iterator[str]:
    """A topic with two stream partitions."""
    name = next(_topics)
    with BrokerClient(broker_url) as client:
        client.create_topic(name, 2)
        yield name
        client.delete_topic(name)


def publish(url: str, topic: str, first: int, count: int, partition: int = 0) -> None:
    with BrokerClient(url) as client:
        messages = [json.dumps({"n": n}).encode() for n in range(first, first + count)]
        client.publish(topic, messages, partition=partition)


def to_parquet(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Run a query over all stored rows, and return it when it has ended."""
    writer = rows.writeStream.format("parquet").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/rows")
    query.awaitTermination()
    return query


def batches_of(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """The reports of a query, without those that Spark adds after seconds without a batch."""
    return [one for one in query.recentProgress if one.numInputRows]


def numbers(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.n for row in spark.read.parquet(f"{folder}/rows").collect())


def test_a_restarted_run_reads_all_that_is_there_within_the_limit(
    spark: SparkSession, broker_url: str, topic: str, tmp_path: Path
) -> None:
    """It ended after one micro-batch, and the next run read the rest in one, without the limit."""
    rows = (
        spark.readStream.format("penstock.topic")
        .schema("n bigint")
        .options(url=broker_url, topic=topic, startingOffsets="earliest", cursor="copies")
        .option("maxOffsetsPerTrigger", 5)
        .load()
    )
    for first in (0, 20):
        publish(broker_url, topic, first, 10)
        publish(broker_url, topic, first + 10, 7, partition=1)
        query = to_parquet(rows, tmp_path)
        batches = batches_of(query)
        assert [one.numInputRows for one in batches] == [5, 5, 5, 2]
        [source] = batches[0].sources
        ends = (json.loads(text) for text in (source.latestOffset, source.endOffset))
        assert [end["0"] + end["1"] for end in ends] == ([17, 5] if not first else [34, 22])
    assert numbers(spark, tmp_path) == [*range(17), *range(20, 37)]
    stats = JsonClient(broker_url).get("/stats", {"format": "json", "topic": topic})
    parts = [part for one in objects(stats, "topics") for part in objects(one, "partitions")]
    assert [part["cursors"] for part in parts] == [{"copies": 20}, {"copies": 14}]


def stored(spark: SparkSession, url: str, topic: str) -> Counter[int]:
    reader = spark.read.format("penstock.topic").options(url=url, topic=topic).schema("n bigint")
    return Counter(row.n for row in reader.load().collect())


def test_rows_of_a_batch_job_become_messages(
    spark: SparkSession, broker_url: str, topic: str
) -> None:
    rows = spark.range(1_000).repartition(3).selectExpr("to_json(struct(id AS n)) AS message")
    writer = rows.write.format("penstock.topic").options(url=broker_url, topic=topic)
    writer.mode("append").save()
    assert stored(spark, broker_url, topic) == Counter(range(1_000))
    with pytest.raises(PySparkException, match=r'are not overwritten: use mode\("append"\)'):
        writer.mode("overwrite").save()
    wrong = spark.range(3).write.format("penstock.topic").options(url=broker_url, topic=topic)
    with pytest.raises(PySparkException, match=r"to_json\(struct\(\*\)\) AS message"):
        wrong.mode("append").save()
    assert stored(spark, broker_url, topic) == Counter(range(1_000))


def test_a_repeated_micro_batch_is_stored_once(
    spark: SparkSession, broker_url: str, topic: str, tmp_path: Path
) -> None:
    source = f"{topic}-source"
    rows = (
        spark.readStream.format("penstock.topic")
        .schema("n bigint")
        .options(url=broker_url, topic=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load()
        .repartition(2)
        .selectExpr("to_json(struct(n)) AS message")
    )

    def run() -> None:
        writer = rows.writeStream.format("penstock.topic").trigger(availableNow=True)
        writer = writer.options(url=broker_url, topic=topic)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.awaitTermination()

    publish(broker_url, source, 0, 100)
    run()
    assert stored(spark, broker_url, topic) == Counter(range(100))
    # As if the query had ended before it recorded its last micro-batch.
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("2", ".2.crc"):
        (commits / name).unlink(missing_ok=True)
    publish(broker_url, source, 100, 10)
    run()
    assert stored(spark, broker_url, topic) == Counter(range(110))
    stats = JsonClient(broker_url).get("/stats", {"format": "json", "topic": topic})
    assert [whole(one, "repeated_publishes") for one in objects(stats, "topics")] == [2]


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int64())


def test_new_segments_of_a_datasource_are_read_once(
    spark: SparkSession, data: DataFolder, router_url: str, tmp_path: Path
) -> None:
    name = "a/b stream"
    data.publish(name, table(["2013-01-01", "2013-01-02"], n=ints(1, 2)))
    rows = (
        spark.readStream.format("penstock")
        .schema("n bigint")
        .options(url=router_url, datasource=name, maxFilesPerTrigger=1)
        .load()
    )
    to_parquet(rows, tmp_path)
    assert numbers(spark, tmp_path) == [1, 2]
    data.publish(name, table(["2013-02-01"], n=ints(3)), FEBRUARY)
    data.publish(name, table(["2013-02-02"], n=ints(4)), FEBRUARY, number=1)
    query = to_parquet(rows, tmp_path)
    batches = batches_of(query)
    assert [one.numInputRows for one in batches] == [1, 1]
    [source] = batches[0].sources
    newest, end = (json.loads(text)["revision"] for text in (source.latestOffset, source.endOffset))
    assert newest > end
    assert numbers(spark, tmp_path) == [1, 2, 3, 4]
    data.publish(name, table(["2013-02-02"], n=ints(5)), FEBRUARY, version="v2")
    with pytest.raises(PySparkException, match=r'went at revision .*"replaced", "skip"'):
        to_parquet(rows, tmp_path)
    assert numbers(spark, tmp_path) == [1, 2, 3, 4]


def test_changes_have_their_kind_and_revision(
    spark: SparkSession, data: DataFolder, router_url: str, tmp_path: Path
) -> None:
    data.publish("changing", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)))
    first = data.store.revision()
    rows = (
        spark.readStream.format("penstock")
        .options(url=router_url, datasource="changing", replaced="changes")
        .load()
    )
    assert rows.columns == ["__time", "n", "_change_type", "_revision"]
    to_parquet(rows, tmp_path)
    data.publish("changing", table(["2013-01-02"], n=ints(3)), version="v2")
    second = data.store.revision()
    to_parquet(rows, tmp_path)
    found = spark.read.parquet(f"{tmp_path}/rows").select("n", "_change_type", "_revision")
    assert sorted(map(tuple, found.collect())) == [
        (1, "delete", second),
        (1, "insert", first),
        (2, "delete", second),
        (2, "insert", first),
        (3, "insert", second),
    ]
    only = rows.select("_change_type").groupBy("_change_type").agg(sf.count("*"))
    assert only.columns == ["_change_type", "count(1)"]
    with pytest.raises(PySparkException, match="option replaced is for streams"):
        spark.read.format("penstock").options(
            url=router_url, datasource="changing", replaced="skip"
        ).load().count()
