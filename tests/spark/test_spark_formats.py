"""The formats where Penstock is installed and nobody registers them; a Declarative Pipeline.

The page "Write from Spark" has programs with a classic session, which a system test runs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pyspark_penstock
import pyspark_penstock_topic
from penstock.broker.broker_client import BrokerClient
from penstock.core.clock import SystemClock
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from tests.harness.engine_kit import read_rows
from tests.kits.spark_server_kit import server_options
from tests.spark.sink_kit import SinkWorld

ROOT = Path(__file__).parent.parent.parent
FORMATS = ("penstock", "penstock.topic")
COLUMNS = "__time timestamp, page string, ms bigint"


def test_the_wheel_has_a_module_for_each_format() -> None:
    modules = (pyspark_penstock, pyspark_penstock_topic)
    assert tuple(module.DefaultSource.name() for module in modules) == FORMATS
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    there = {f"src/{path.parent.name}" for path in (ROOT / "src").glob("*/__init__.py")}
    assert set(wheel["packages"]) == there


@pytest.mark.spark
def test_a_session_of_spark_connect_knows_the_formats(spark_server: SparkServer) -> None:
    sessions = SparkSessions(SparkSessionOptions(spark_server.remote))
    try:
        session = sessions.get()
        for name in FORMATS:
            with pytest.raises(PySparkException, match=r'set option\("'):
                session.read.format(name).load().collect()
    finally:
        sessions.close()


@pytest.fixture
def server_of_pipelines(tmp_path: Path) -> Iterator[SparkServer]:
    """A server for sessions with files of their own, as pipelines have.

    Their Python workers start in a folder of the session, where the relative names of the Unix
    sockets of Penstock's own server lead nowhere.
    """
    conf = {"spark.python.unix.domain.socket.enabled": "false"}
    options = replace(server_options(tmp_path / "spark"), conf=conf)
    server = SparkServer(options, SystemClock(), os.environ)
    server.start()
    server.wait_ready(240)
    yield server
    server.stop(0.2)


def run_pipeline(folder: Path, remote: str) -> None:
    """Run a pipeline, and again while Spark gives up on a Python worker.

    Spark waits ten seconds for a worker that begins, whatever its options say, and a machine under
    load needs longer for those of three streams.
    """
    for _ in range(20):
        done = _run_once(folder, remote)
        if done.returncode == 0 or "worker failed to connect back" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout + done.stderr


def _run_once(folder: Path, remote: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", "spark-pipeline.yml"],
        cwd=folder,
        env={**os.environ, "SPARK_REMOTE": remote},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def messages(spark: SparkSession, url: str, topic: str) -> list[dict[str, object]]:
    rows = spark.read.format("penstock.topic").options(url=url, topic=topic).load()
    return [json.loads(bytes(row.message)) for row in rows.orderBy("offset").collect()]


@pytest.mark.spark
def test_the_example_of_a_pipeline_runs(
    spark: SparkSession, server_of_pipelines: SparkServer, broker_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "pipeline", folder)
    clicks = [{"time": "2026-11-30T04:00:00Z", "page": "/", "ms": ms} for ms in (10, 2000)]
    with BrokerClient(broker_url) as client:
        client.publish("clicks", [json.dumps(one).encode() for one in clicks])
    with SinkWorld(tmp_path / "world") as world:
        world.datasource = "clicks"
        world.write([("2026-01-01T00:00:00", "/", 5)], schema=COLUMNS)
        given: Mapping[str, str] = {
            "file:///var/lib/penstock/pipelines/clicks": f"file://{tmp_path}/state",
            "http://127.0.0.1:4151": broker_url,
            "http://127.0.0.1:8888": world.url,
        }
        for name in ("spark-pipeline.yml", "transformations/clicks.py"):
            path = folder / name
            text = path.read_text()
            for written, ours in given.items():
                text = text.replace(written, ours)
            path.write_text(text)
        for _ in range(2):  # nothing is written again
            run_pipeline(folder, server_of_pipelines.remote)
        views = [
            (row["page"], row["ms"])
            for segment in world.visible("page_views")
            for row in read_rows(world.deep_store.location(segment.load_spec))
        ]
    assert sorted(views) == [("/", 10), ("/", 2000)]
    assert [one["ms"] for one in messages(spark, broker_url, "slow-clicks")] == [2000]
    found = messages(spark, broker_url, "corrections")
    assert [(one["_change_type"], one["page"]) for one in found] == [("insert", "/")]
