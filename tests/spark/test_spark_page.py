"""The examples of the pages on Spark run, from top to bottom."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.broker.broker_client import BrokerClient
from tests.spark.data_folder_kit import DataFolder, table

pytestmark = pytest.mark.spark

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = DOCS / "reference" / "spark-data-sources.md"
GUIDE = DOCS / "howto" / "stream-with-spark.md"
NEW_SESSION = 'SparkSession.builder.master("local[2]").getOrCreate()'


def test_the_examples_run(
    spark: SparkSession,
    data: DataFolder,
    router_url: str,
    broker_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flight = {"time_hour": "2013-01-01T05:00:00Z", "carrier": "UA", "flight": 1545, "dep_delay": 2}
    with BrokerClient(broker_url) as client:
        client.publish("flights", [json.dumps(flight).encode()])
    columns = {"carrier": pa.array(["UA", "B6"]), "dep_delay": pa.array([2.0, None])}
    data.publish("flights", table(["2013-01-01", "2013-01-02"], **columns))
    run_examples(PAGE, spark, broker_url, router_url)
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*0\|\s*1\|", shown)  # one message in stream partition 0
    assert re.search(r"\|\s*UA\|\s*1\|", shown)
    assert re.search(r"\|\s*B6\|\s*NULL\|", shown)
    assert spark.read.parquet("flights/rows").select("carrier", "flight").collect() == [
        ("UA", 1545)
    ]


def test_the_examples_of_the_guide_run(
    spark: SparkSession,
    data: DataFolder,
    router_url: str,
    broker_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = {"page": pa.array(["/", "/docs"]), "ms": pa.array([12, 31])}
    data.publish("views", table(["2013-01-01", "2013-01-02"], **columns))
    run_examples(GUIDE, spark, broker_url, router_url)
    shown = capsys.readouterr().out
    assert "31|" in shown
    with BrokerClient(broker_url) as client:
        counts = [
            sum(place.latest for place in client.offsets(topic).partitions)
            for topic in ("hits", "slow-hits")
        ]
    assert counts == [1000, 10]


def run_examples(page: Path, spark: SparkSession, broker_url: str, router_url: str) -> None:
    """Run the examples of a page with a session and servers that run already."""
    given = {
        NEW_SESSION: "given_session",
        "http://127.0.0.1:4151": broker_url,
        "http://127.0.0.1:8888": router_url,
    }
    names: dict[str, object] = {"given_session": spark}
    text = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    for written, ours in given.items():
        assert written in text
        text = text.replace(written, ours)
    exec(compile(text, str(page), "exec"), names)
