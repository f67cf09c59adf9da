"""Flows and tasks reach no service of this host unless it is listed, and never Penstock's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.guarded_connections import NETWORK_GUARD, RefusedDestination
from penstock.core.network_guard import NetworkGuard
from penstock.core.read_guard import READ_GUARD, ReadGuard
from penstock.flow.processor import Processor, PropertyValue
from penstock.flow.processors.files.folders import open_folder
from penstock.flow.processors.http.invoke_http import InvokeHTTP
from penstock.flow.processors.topics.consume_topic import ConsumeTopic
from penstock.flow.processors.topics.publish_topic import PublishTopic
from penstock.flow.processors.topics.put_datasource import PutDatasource
from penstock.indexing.kafka_settings import destinations
from penstock.services.host.private_files import network_guard, read_guard
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import PenstockOptions
from penstock.spark.batch.input.http_files import fetch
from penstock.storage.databases.database_address import DatabaseAddress
from penstock.storage.databases.postgres_reader import opened
from penstock.testing.flow import ProcessorRunner
from tests.kits.this_host_kit import LISTED

THIS_HOST = "is this host"
OWN = "is a port of Penstock itself"


@pytest.fixture
def own() -> Iterator[int]:
    """Return a port of Penstock itself, although all of this host is listed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        options = PenstockOptions(
            http=HostPort("127.0.0.1", listening.getsockname()[1]),
            reachable_hosts=tuple(LISTED.split(",")),
        )
        NETWORK_GUARD.set(network_guard(options))
        yield options.http.port
        NETWORK_GUARD.set(NetworkGuard())
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):
            listening.accept()  # nobody has connected


def through_postgres(port: int) -> None:
    with opened(DatabaseAddress("localhost", port, "shop"), "reader", "p", lambda: None):
        pass


def through_http(port: int, folder: Path = Path("/nonexistent")) -> None:
    url = f"http://localhost:{port}/a.json"
    fetch(url, folder, headers={}, auth=None, bytes_max=9, timeout_s=60, check=lambda: None)


def through_a_store(port: int) -> None:
    options = {"client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}
    open_folder("s3://bucket/a", options)


def through_kafka(port: int) -> None:
    for destination in destinations({"bootstrap.servers": f"PLAINTEXT://[::1]:{port}, "}):
        NETWORK_GUARD.check(destination)


CLIENTS = [through_postgres, through_http, through_a_store, through_kafka]


@pytest.mark.parametrize("client", CLIENTS)
def test_inputs_reach_no_own_port(client: Callable[[int], None], own: int) -> None:
    with pytest.raises(RefusedDestination, match=OWN):
        client(own)


@pytest.mark.parametrize("client", CLIENTS)
def test_inputs_do_not_reach_this_host_by_default(client: Callable[[int], None]) -> None:
    with pytest.raises(RefusedDestination, match=THIS_HOST):
        client(1)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "localhost."])
def test_a_request_of_a_flow_reaches_no_own_port(host: str, own: int) -> None:
    with ProcessorRunner(InvokeHTTP, {"url": f"http://{host}:{own}/druid/v2/sql"}) as runner:
        runner.enqueue(b"")
        runner.run()
        assert OWN in runner.sent("failure")[0].attributes["error.reason"]


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (PublishTopic, {"topic": "t", "broker_url": "http://127.0.0.1:{}"}),
        (PutDatasource, {"datasource": "d", "overlord_url": "http://localhost:{}"}),
        (ConsumeTopic, {"topic": "t", "channel": "c", "addresses": "localhost:{}"}),
        (ConsumeTopic, {"topic": "t", "channel": "c", "lookup": "http://[::1]:{}"}),
    ],
)
def test_addresses_of_brokers_lead_to_no_own_port(
    kind: type[Processor], properties: dict[str, PropertyValue], own: int
) -> None:
    """Without an address a flow uses the broker of its service, with what its owner may do."""
    given = {name: str(value).format(own) for name, value in properties.items()}
    with pytest.raises(InvalidRequest, match=OWN), ProcessorRunner(kind, given) as runner:
        runner.run()


def test_a_flow_opens_no_socket_of_this_host() -> None:
    given: dict[str, PropertyValue] = {"topic": "t", "channel": "c", "addresses": "unix:/run/x"}
    told = pytest.raises(InvalidRequest, match="sockets of this host")
    with told, ProcessorRunner(ConsumeTopic, given) as runner:
        runner.run()


def test_only_listed_folders_are_read(tmp_path: Path) -> None:
    listed, other, data = tmp_path / "listed", tmp_path / "other", tmp_path / "data"
    for folder in (listed / "deep", other, data / "segments", data / "run"):
        folder.mkdir(parents=True)
        (folder / "a.json").write_text("{}")
    (listed / "link.json").symlink_to(other / "a.json")
    options = PenstockOptions(data_dir=data, readable_folders=(listed, data / "run"))
    READ_GUARD.set(read_guard(options, {}))
    try:
        reads = READ_GUARD.now()
        for path in (listed, listed / "deep" / "a.json", listed / "new"):
            reads.path(str(path))
        with pytest.raises(InvalidRequest):
            reads.path(str(data / "segments/a.json"))
        for path in (other / "a.json", listed / "link.json", listed / "../other/a.json", tmp_path):
            with pytest.raises(InvalidRequest, match="--readable-folders"):
                reads.path(str(path))
        with pytest.raises(InvalidRequest, match="Penstock keeps"):
            reads.path(str(data / "run" / "a.json"))
        with pytest.raises(InvalidRequest, match="--readable-folders"):
            reads.path("/dev/shm/a")
        with (other / "a.json").open() as file, pytest.raises(InvalidRequest):
            reads.opened(file.fileno(), str(listed / "a.json"))
    finally:
        READ_GUARD.set(ReadGuard())
