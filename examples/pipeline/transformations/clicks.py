"""A pipeline between topics and datasources of Penstock.

`slow_clicks` gets the slow requests of the topic `clicks`, seconds after they are published.
`corrections` gets each row of the datasource `clicks` that went or appeared, with its revision.
`page_views` is a datasource with the requests of each page; it is created with its first rows.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

BROKER = "http://127.0.0.1:4151"
ROUTER = "http://127.0.0.1:8888"

spark = SparkSession.active()

dp.create_sink("slow_clicks", "penstock.topic", {"url": BROKER, "topic": "slow-clicks"})
dp.create_sink("corrections", "penstock.topic", {"url": BROKER, "topic": "corrections"})
dp.create_sink("page_views", "penstock", {"url": ROUTER, "datasource": "page_views"})


@dp.append_flow(target="slow_clicks")
def slow() -> DataFrame:
    clicks = (
        spark.readStream.format("penstock.topic")
        .schema("time string, page string, ms bigint")
        .option("url", BROKER)
        .option("topic", "clicks")
        .option("startingOffsets", "earliest")
        .load()
    )
    return clicks.where("ms > 1000").selectExpr("to_json(struct(*)) AS message")


@dp.append_flow(target="corrections")
def changed_rows() -> DataFrame:
    rows = (
        spark.readStream.format("penstock")
        .option("url", ROUTER)
        .option("datasource", "clicks")
        .option("replaced", "changes")
        .load()
    )
    return rows.selectExpr("to_json(struct(*)) AS message")


@dp.append_flow(target="page_views")
def views() -> DataFrame:
    clicks = (
        spark.readStream.format("penstock.topic")
        .schema("__time timestamp, page string, ms bigint")
        .option("url", BROKER)
        .option("topic", "clicks")
        .option("startingOffsets", "earliest")
        .option("timeColumn", "time")
        .load()
    )
    return clicks.where("page IS NOT NULL")
