"""Each page of the manual with commands, followed by a reader at one running Penstock."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.testing.server import LocalPenstock
from tests.broker.kafka_kit import mock_cluster
from tests.docs.markdown_kit import ROOT
from tests.kits.this_host_kit import LISTED
from tests.system.manual_kit import HOME, PAGES, Reader, commands_of
from tests.system.serving_kit import serving
from tests.system.walking_kit import within

pytestmark = pytest.mark.system

# The page whose flow has a processor of its own, and the folder in which it is.
OWN_PROCESSORS = ("write-a-processor", "processors")


@pytest.fixture(scope="module")
def pages_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the data folder, and one folder for each page."""
    return tmp_path_factory.mktemp("manual")


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """Brokers of a cluster of librdkafka, for the page that reads from Kafka."""
    with mock_cluster() as cluster:
        yield cluster.servers


@pytest.fixture(scope="module")
def served(pages_folder: Path, shared_spark: str) -> Iterator[LocalPenstock]:
    """One Penstock for all pages: each has topics and datasources of its own."""
    processors = pages_folder.joinpath(*OWN_PROCESSORS)
    processors.mkdir(parents=True)
    variables = {
        "PENSTOCK_SPARK_CONNECT": shared_spark,
        "PENSTOCK_WORKER_CAPACITY": "8",
        "PENSTOCK_FLOW_MODULES": str(processors),
        "PENSTOCK_REACHABLE_HOSTS": LISTED,  # for Kafka
    }
    with serving(pages_folder / "data", variables) as server:
        yield server


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if commands_of(page)],
    ids=lambda page: str(page.relative_to(ROOT / "docs").with_suffix("")),
)
def test_page(page: Path, served: LocalPenstock, kafka: str, pages_folder: Path) -> None:
    folder = pages_folder / page.stem
    folder.mkdir(exist_ok=True)
    variables = {"PENSTOCK_DATA_DIR": str(served.folder)}
    addresses = {
        f"{HOME}/data": str(served.folder),
        "127.0.0.1:8888": urlsplit(served.api_url).netloc,
        "127.0.0.1:4151": urlsplit(served.http_url).netloc,
        "127.0.0.1:4150": served.tcp_address,
        "kafka-1:9092,kafka-2:9092": kafka,
        "asyncio.sleep(0.2)": "asyncio.sleep(0.1)",  # a reader types more slowly
    }
    try:
        Reader(folder, variables, addresses).follow(page)
    finally:
        end_work_of(page, folder, variables)


def end_work_of(page: Path, folder: Path, variables: Mapping[str, str]) -> None:
    """End the supervisors and the flow of a page, which would take cores from the next pages."""

    def penstock(*arguments: str) -> str:
        return within(arguments, folder, variables).output

    for supervisor in json.loads(penstock("supervisor", "list", "--json") or "[]"):
        penstock("supervisor", "terminate", supervisor["id"])
    if any(command.text.startswith("penstock flow apply") for command in commands_of(page)):
        penstock("flow", "stop")
        for connection in json.loads(penstock("flow", "queue", "list", "--json") or "[]"):
            penstock("flow", "queue", "drop", connection["id"], "--yes")
        (folder / "empty.yaml").write_text("name: empty\n")
        penstock("flow", "apply", "empty.yaml")
