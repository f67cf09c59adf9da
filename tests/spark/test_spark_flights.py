"""The Spark job of flights.yaml: several files are one job, and airlines get names."""

from __future__ import annotations

import io
from pathlib import Path

import orjson
import pyarrow.parquet as pq

from penstock.flow.graph.yaml_reader import read_flow
from penstock.services.demo.flights import read_flights, write_airlines
from penstock.services.examples import example
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.flow.service_spark import SERVICE_SPARK
from penstock.spark.flow.sql import SparkSQL
from penstock.testing.flow import ProcessorRunner

FLOW = read_flow(example("flights.yaml"), "").flow


def test_records_of_several_files_get_the_names_of_airlines(
    tmp_path: Path, spark_server: SparkServer
) -> None:
    write_airlines(tmp_path)
    SERVICE_SPARK.set(spark_server.remote)
    flights = read_flights().slice(800, 200)  # some of them never took off
    properties = dict(FLOW.processors["Enrich"].properties)
    properties["tables"] = str(properties["tables"]).replace("#{folder}", str(tmp_path))
    with ProcessorRunner(SparkSQL, properties) as runner:
        for part in (flights.slice(0, 100), flights.slice(100)):
            out = io.BytesIO()
            pq.write_table(part, out)
            runner.enqueue(out.getvalue())
        runner.run()
        [sent] = runner.sent("enriched")
    SERVICE_SPARK.set(None)
    events = [orjson.loads(line) for line in sent.content.splitlines()]
    airlines = {event["carrier"]: event.pop("airline") for event in events}
    assert airlines["UA"] == "United Air Lines Inc."
    assert None not in airlines.values()
    key = orjson.dumps
    assert sorted(events, key=key) == sorted(flights.to_pylist(), key=key)
    assert any(event["dep_time"] is None for event in events)
