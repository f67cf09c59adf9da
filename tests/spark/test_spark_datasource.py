"""The data source `penstock` as a user of Spark meets it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import penstock.spark
from penstock.core.errors import InvalidRequest, NotFound, PenstockError
from penstock.core.intervals import Interval
from penstock.spark.datasource import PenstockSource
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.views import table as scanned_by_the_jvm
from penstock.storage.sqlite_urls import sqlite_url
from tests.spark.data_folder_kit import FEBRUARY, JANUARY, DataFolder, table
from tests.spark.servers_kit import Served

pytestmark = pytest.mark.spark


def read(
    spark: SparkSession, data: DataFolder, name: str, schema: str = "", **options: str
) -> DataFrame:
    reader = spark.read.format("penstock").options(
        dataDir=str(data.folder), datasource=name, **options
    )
    return (reader.schema(schema) if schema else reader).load()


def ints(*values: int | None) -> pa.Array:
    return pa.array(values, pa.int64())


def column(rows: DataFrame, name: str) -> list[object]:
    return [row[0] for row in rows.orderBy("__time").select(name).collect()]


def test_rows_of_all_visible_segments(spark: SparkSession, data: DataFolder) -> None:
    january = table(["2013-01-01", "2013-01-02T03:04:05.678Z"], origin=pa.array(["EWR", None]))
    data.publish("two-months", january)
    data.publish("two-months", table(["2013-02-01"], origin=pa.array(["JFK"])), FEBRUARY)
    rows = read(spark, data, "two-months")
    assert rows.schema.simpleString() == "struct<__time:timestamp,origin:string>"
    times = rows.select(sf.date_format("__time", "MM-dd HH:mm:ss.SSS").alias("__time"), "origin")
    assert times.orderBy("__time").collect() == [
        ("01-01 00:00:00.000", "EWR"),
        ("01-02 03:04:05.678", None),
        ("02-01 00:00:00.000", "JFK"),
    ]


def test_a_router_tells_the_same_files(
    spark: SparkSession, data: DataFolder, router_url: str
) -> None:
    name = "a/b c"
    data.publish(name, table(["2013-01-01"], n=ints(1)))
    rows = spark.read.format("penstock").options(url=router_url, datasource=name).load()
    assert column(rows, "n") == [1]


def test_a_router_may_ask_for_a_token(spark: SparkSession, data: DataFolder) -> None:
    data.publish("guarded", table(["2013-01-01"], n=ints(1)))
    with Served(data.routes(), token="secret") as served:
        reader = spark.read.format("penstock").options(url=served.url, datasource="guarded")
        with pytest.raises(PySparkException, match=r': set option\("token"'):
            reader.load().count()
        assert reader.option("token", "secret").load().count() == 1


def test_metadata_and_deep_storage_by_their_addresses(
    spark: SparkSession, data: DataFolder
) -> None:
    data.publish("addressed", table(["2013-01-01"], n=ints(1)))
    rows = spark.read.format("penstock").options(
        metadata=sqlite_url(f"{data.folder}/metadata.db"),
        deepStorage=data.deep_storage,
        datasource="addressed",
    )
    assert rows.load().count() == 1


def test_replaced_and_half_hidden_segments_count_as_the_timeline_says(
    spark: SparkSession, data: DataFolder
) -> None:
    days = [f"2013-01-{day:02}" for day in range(1, 32)]
    data.publish("clipped", table(days, n=ints(*range(31))), version="v1")
    second = Interval.parse("2013-01-10/2013-01-12")
    data.publish("clipped", table(["2013-01-10"], n=ints(100)), second, version="v2")
    rows = read(spark, data, "clipped")
    assert rows.count() == 30  # the whole month without the 10th and 11th, and the new row
    assert column(rows, "n") == [*range(9), 100, *range(11, 31)]


def test_a_half_hidden_segment_within_an_interval(spark: SparkSession, data: DataFolder) -> None:
    hours = [f"2013-01-01T{hour:02}:00Z" for hour in range(24)]
    data.publish("hours", table(hours, n=ints(*range(24))), version="v1")
    noon = Interval.parse("2013-01-01T12:00Z/PT1H")
    data.publish("hours", table(["2013-01-01T12:00Z"], n=ints(100)), noon, version="v2")
    rows = read(spark, data, "hours", interval="2013-01-01T10:30Z/2013-01-01T14:00Z")
    assert column(rows, "n") == [11, 100, 13]


def test_running_tasks_rows_on_request(spark: SparkSession, data: DataFolder) -> None:
    data.publish("live", table(["2013-01-01"], n=ints(1)))
    data.announce("live", table(["2013-01-02"], n=ints(2), late=pa.array(["x"])))
    published = read(spark, data, "live")
    assert published.columns == ["__time", "n"]
    assert column(published, "n") == [1]
    everything = read(spark, data, "live", includeRunning="true")
    assert column(everything, "late") == [None, "x"]


def test_columns_are_the_same_as_in_sql(spark: SparkSession, data: DataFolder) -> None:
    texts = pa.array([1e10, 5.0, 0.1, 1e-4, -0.0, 123456.789, 1e7, float("nan"), None])
    times = [f"2013-01-01T0{hour}:00Z" for hour in range(9)]
    data.publish("mixed", table(times, v=texts, w=texts.cast(pa.float32()), N=ints(*range(9))))
    words = pa.array(["word"])
    data.publish("mixed", table(["2013-02-01"], v=words, w=words, n=pa.array([0.5])), FEBRUARY)
    data.publish("mixed", table(["2013-01-31"], b=pa.array([True])), number=1)
    files = data.source.tables().of("mixed")
    rows = read(spark, data, "mixed")
    assert [(f.name, f.dataType.simpleString()) for f in rows.schema] == list(union_columns(files))
    assert rows.columns == ["__time", "v", "w", "N", "b"]
    theirs = scanned_by_the_jvm(spark, files).orderBy("__time").collect()
    assert rows.orderBy("__time").collect() == theirs


def test_an_interval_leaves_files_unopened(spark: SparkSession, data: DataFolder) -> None:
    data.publish("pruned", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)))
    gone = data.publish("pruned", table(["2013-02-01"], n=ints(3)), FEBRUARY)
    file = data.file(gone)
    file.rename(file.with_suffix(".away"))
    assert column(read(spark, data, "pruned", interval="2013-01-01/2013-02-01"), "n") == [1, 2]
    assert column(read(spark, data, "pruned", interval="2013-01-02/P1D"), "n") == [2]
    assert read(spark, data, "pruned", interval="2012-01-01/2013-01-01").count() == 0
    with pytest.raises(PySparkException, match="its segment may have been replaced meanwhile"):
        read(spark, data, "pruned").count()
    with pytest.raises(PySparkException, match="invalid interval 'May'"):
        read(spark, data, "pruned", interval="May").count()
    file.with_suffix(".away").rename(file)
    assert read(spark, data, "pruned").count() == 3


def test_one_use_of_a_frame_leaves_the_others_alone(spark: SparkSession, data: DataFolder) -> None:
    data.publish("reused", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)))
    rows = read(spark, data, "reused")
    assert rows.where("n = 1").count() == 1
    assert rows.count() == 2
    assert rows.where("n = 1").unionAll(rows).count() == 3
    assert rows.where("n is null or n > 1").count() == 1


def test_a_table_that_the_jvm_reads(spark: SparkSession, data: DataFolder, router_url: str) -> None:
    data.publish("scanned", table(["2013-01-01", "2013-01-02"], n=ints(1, 2)))
    data.publish("scanned", table(["2013-02-01"], s=pa.array(["x"])), FEBRUARY)
    data.announce("scanned", table(["2013-02-02"], n=pa.array([0.5])), FEBRUARY)

    def rows(**options: str) -> DataFrame:
        return penstock.spark.table(spark, datasource="scanned", url=router_url, **options)

    assert rows().schema == read(spark, data, "scanned").schema
    assert column(rows(), "n") == [1, 2, None]
    assert column(rows(interval="2013-01-02/2013-03-01"), "n") == [2, None]
    assert column(rows(includeRunning="true"), "n") == [1.0, 2.0, None, 0.5]
    nothing = rows(interval="2014-01-01/P1D")
    assert (nothing.count(), nothing.schema) == (0, rows().schema)
    with pytest.raises(NotFound, match='no datasource "nowhere"'):
        penstock.spark.table(spark, datasource="nowhere", url=router_url)
    with pytest.raises(InvalidRequest, match=r'or option\("dataDir"'):
        penstock.spark.table(spark, datasource="scanned")


def test_a_schema_picks_columns(spark: SparkSession, data: DataFolder) -> None:
    data.publish("picked", table(["2013-01-01"], n=ints(1), s=pa.array(["x"])))
    assert read(spark, data, "picked", "s string, n double").collect() == [("x", 1.0)]
    with pytest.raises(PySparkException, match="no column 'nn': there are __time, n, s"):
        read(spark, data, "picked", "nn bigint").collect()
    with pytest.raises(PySparkException, match="column 's' is string: read it as that, and cast"):
        read(spark, data, "picked", "s bigint").collect()


def test_a_new_frame_sees_new_rows(spark: SparkSession, data: DataFolder) -> None:
    data.publish("growing", table(["2013-01-01"], n=ints(1)))
    assert read(spark, data, "growing").count() == 1
    data.publish("growing", table(["2013-01-02"], n=ints(2)), number=1)
    assert read(spark, data, "growing").count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'set option\\("datasource", …\\)'),
        ({"datasource": "x"}, 'or option\\("dataDir", …\\)'),
        ({"datasource": "x", "metadata": "sqlite:////m.db"}, 'option\\("deepStorage", …\\)'),
        ({"datasource": "x", "dataDir": "/nowhere"}, "/nowhere has no metadata.db"),
        ({"datasource": "x", "url": "localhost"}, "invalid router address"),
        ({"datasource": "x", "url": "http://127.0.0.1:1"}, "does not answer"),
        ({"datasource": "x", "includeRunning": "maybe"}, "must be true or false, not 'maybe'"),
    ],
)
def test_wrong_options_are_refused_with_the_remedy(options: dict[str, str], message: str) -> None:
    # Not through Spark, which starts a Python for each; the next test does.
    with pytest.raises(PenstockError, match=message):
        PenstockSource(options).schema()


def test_a_wrong_option_is_reported_by_spark(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match='set option\\("datasource", …\\)'):
        spark.read.format("penstock").load().collect()


def test_a_datasource_without_data(spark: SparkSession, data: DataFolder, router_url: str) -> None:
    data.publish("there", table(["2013-01-01"]))
    data.announce("soon", table(["2013-01-01"]), JANUARY)
    known = 'no datasource "nowhere" with data; known are: .*"there"'
    with pytest.raises(PySparkException, match=known):
        read(spark, data, "nowhere").count()
    with pytest.raises(PySparkException, match=known):
        spark.read.format("penstock").options(url=router_url, datasource="nowhere").load().count()
    with pytest.raises(PySparkException, match='"soon" has no published segment yet: set option'):
        read(spark, data, "soon").count()
