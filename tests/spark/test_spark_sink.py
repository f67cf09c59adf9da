"""The sink of format `penstock` with a real Spark: its API, and its streaming queries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.sink_kit import SinkWorld

pytestmark = pytest.mark.spark


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SinkWorld]:
    with SinkWorld(tmp_path) as made:
        yield made


def frame(spark: SparkSession, days: int, partitions: int = 2) -> DataFrame:
    rows = spark.range(0, days, 1, partitions)
    time = sf.timestamp_millis(sf.lit(1_767_225_600_000) + rows.id * 86_400_000)
    return rows.select(time.alias("__time"), sf.lit("x").alias("a"), rows.id.alias("n"))


def test_a_frame_is_appended_and_replaced(spark: SparkSession, world: SinkWorld) -> None:
    writer = (
        frame(spark, 3).write.format("penstock").options(url=world.url, datasource=world.datasource)
    )
    writer.mode("append").save()
    assert world.rows() == [(1, "x", 0), (2, "x", 1), (3, "x", 2)]
    replacing = (
        frame(spark, 1).write.format("penstock").options(url=world.url, datasource=world.datasource)
    )
    replacing.mode("overwrite").option("overwrite", "2026-01-01/2026-01-03").save()
    assert world.rows() == [(1, "x", 0), (3, "x", 2)]
    with pytest.raises(PySparkException, match="needs option overwrite"):
        replacing.option("overwrite", "").mode("overwrite").save()
    rows = frame(spark, 1).withColumn("__time", sf.lit(None).cast("timestamp"))
    timeless = (
        rows.write.format("penstock")
        .options(url=world.url, datasource=world.datasource)
        .mode("append")
    )
    with pytest.raises(PySparkException, match="because __time is null"):
        timeless.save()


def test_a_query_continues_from_its_checkpoint(
    spark: SparkSession, world: SinkWorld, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    for number in range(4):
        frame(spark, 1).withColumn("n", sf.lit(number)).write.mode("append").parquet(str(source))
        if number not in {1, 3}:
            continue
        stream = spark.readStream.schema("__time timestamp, a string, n bigint")
        query = (
            stream.option("maxFilesPerTrigger", "1")
            .parquet(str(source))
            .writeStream.format("penstock")
            .options(url=world.url, datasource=world.datasource)
            .option("checkpointLocation", str(tmp_path / "check"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
    assert [row[2] for row in world.rows()] == [0, 1, 2, 3]
    batches = [spec["batch"] for spec in world.specs]
    assert len({one["queryId"] for one in batches}) == 1  # type: ignore[index]
    assert query.id == batches[0]["queryId"]  # type: ignore[index]
