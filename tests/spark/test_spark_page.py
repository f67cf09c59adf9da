"""The examples of the page on Spark run, from top to bottom."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from data_folder_kit import DataFolder, table
from pyspark.sql import SparkSession

from penstock.broker.broker_client import BrokerClient

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parent.parent.parent / "docs" / "spark.md"
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
    given = {
        NEW_SESSION: "given_session",
        "http://127.0.0.1:4151": broker_url,
        "http://127.0.0.1:8888": router_url,
    }
    names: dict[str, object] = {"given_session": spark}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = "\n".join(examples)
    for written, ours in given.items():
        assert written in text
        text = text.replace(written, ours)
    exec(compile(text, str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*0\|\s*1\|", shown)  # one message in stream partition 0
    assert re.search(r"\|\s*UA\|\s*1\|", shown)
    assert re.search(r"\|\s*B6\|\s*NULL\|", shown)
    assert spark.read.parquet("flights/rows").select("carrier", "flight").collect() == [
        ("UA", 1545)
    ]
