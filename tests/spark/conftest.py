"""One Spark Connect server for the whole run, and what there is to read for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.indexing.engine import TopicRange
from penstock.spark import register
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.spark_engine import SparkEngine
from penstock.storage.queue.disk_queue import DiskQueue
from tests.kits.ports_kit import kept_port
from tests.kits.s3_server_kit import s3_environment
from tests.kits.spark_server_kit import start_server
from tests.spark.data_folder_kit import DataFolder
from tests.spark.servers_kit import Served, running_broker
from tests.storage.postgres_server_kit import require_binaries
from tests.storage.reading_database_kit import ReadDatabase, running_database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Folders have names here that a URL or a list must escape.
MakeTopic = Callable[[Sequence[bytes]], tuple[TopicRange, ...]]


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port at which the workers of Spark look for an S3."""
    with kept_port() as port:
        yield port


@pytest.fixture(scope="session")
def spark_server(tmp_path_factory: pytest.TempPathFactory, s3_port: int) -> Iterator[SparkServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(s3_port).items():
            patch.setenv(name, value)
        server = start_server(tmp_path_factory.mktemp("a b#ü%20%,spark"))
    yield server
    server.stop(0.2)


@pytest.fixture(scope="session")
def sessions(spark_server: SparkServer) -> Iterator[SparkSessions]:
    sessions = SparkSessions(SparkSessionOptions(spark_server.remote))
    yield sessions
    sessions.close()


@pytest.fixture(scope="session")
def spark(sessions: SparkSessions) -> SparkSession:
    """A Spark session that knows Penstock's data sources."""
    session = sessions.get()
    register(session)
    return session


@pytest.fixture(scope="session")
def engine(sessions: SparkSessions) -> Iterator[SparkEngine]:
    engine = SparkEngine(sessions)
    yield engine
    engine.close()


@pytest.fixture
def make_topic(tmp_path: Path) -> MakeTopic:
    """Write messages to the log files of a topic with two stream partitions, in turn."""

    def make(messages: Sequence[bytes]) -> tuple[TopicRange, ...]:
        ranges = []
        for partition in range(2):
            folder = str(tmp_path / "a b#ü%20%,topic" / str(partition))
            queue = DiskQueue.open(folder)
            for start in range(partition * 10, len(messages), 20):
                queue.append(list(messages[start : start + 10]))
            queue.sync()
            ranges.append(TopicRange(partition, folder, queue.earliest, queue.latest))
            queue.close()
        return tuple(ranges)

    return make


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DataFolder]:
    """A data folder that tests share, each with datasources of its own."""
    made = DataFolder(tmp_path_factory.mktemp("a b#ü%20%,data"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def router_url(data: DataFolder) -> Iterator[str]:
    """A router that tells the files of `data`."""
    with Served(data.routes()) as served:
        yield served.url


@pytest.fixture(scope="session")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker."""
    with running_broker(tmp_path_factory.mktemp("a b#ü%20%,topics")) as url:
        yield url


@pytest.fixture(scope="session")
def database() -> Iterator[ReadDatabase]:
    """A database that inputs read."""
    with running_database(require_binaries()) as made:
        yield made
