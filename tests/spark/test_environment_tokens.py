"""The token and the name in the environment of a service: no server that a user names gets them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from pyspark.sql.connect.proto import CloneSessionRequest, ConfigRequest, ConfigResponse
from pyspark.sql.connect.proto import base_pb2_grpc as connect

from penstock.indexing.engine import EngineUnavailable
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.flow.service_spark import SERVICE_SPARK
from penstock.spark.flow.sql import SparkSQL
from penstock.testing.flow import ProcessorRunner
from tests.kits.this_host_kit import this_host_listed

TOKEN = "Bearer hush"


class Listener(connect.SparkConnectServiceServicer):
    """A server of somebody else, which keeps the headers of requests and their clients' names."""

    def __init__(self) -> None:
        self.address = ""
        self.headers: list[dict[str, object]] = []
        self.clients: list[str] = []

    def Config(self, request: ConfigRequest, context: grpc.ServicerContext) -> ConfigResponse:  # noqa: N802
        self.headers.append(dict(context.invocation_metadata()))
        self.clients.append(f"{request.client_type} {request.user_context.user_id}")
        return ConfigResponse(session_id=request.session_id)

    def CloneSession(self, _: CloneSessionRequest, context: grpc.ServicerContext) -> None:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found: CloneSession")

    @property
    def tokens(self) -> set[object]:
        """The tokens of all requests so far."""
        return {headers.get("authorization") for headers in self.headers}


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", "hush")
    monkeypatch.setenv("SPARK_CONNECT_USER_AGENT", "hush")
    monkeypatch.setenv("SPARK_USER", "hush")
    service, server = Listener(), grpc.server(ThreadPoolExecutor(2))
    connect.add_SparkConnectServiceServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    # Over a local connection a client shows a token without TLS.
    port = server.add_secure_port("localhost:0", grpc.local_server_credentials())
    server.start()
    service.address = f"sc://localhost:{port}"
    with this_host_listed():
        yield service
    server.stop(None).wait()


def connect_to(options: SparkSessionOptions) -> None:
    with pytest.raises(EngineUnavailable, match="older than"):
        SparkSessions(options).get()


def test_a_server_that_a_user_names_gets_only_the_token_of_its_address(listener: Listener) -> None:
    connect_to(SparkSessionOptions(listener.address))
    assert listener.tokens == {None}
    connect_to(SparkSessionOptions(f"{listener.address}/;token=own"))
    assert listener.tokens == {None, "Bearer own"}
    assert listener.clients
    assert not any("hush" in text for text in listener.clients)


def test_the_server_of_the_service_gets_the_token_of_the_environment(listener: Listener) -> None:
    connect_to(SparkSessionOptions(listener.address, gets_environment_token=True))
    assert listener.tokens == {TOKEN}


def test_a_processor_sends_the_token_to_the_spark_of_its_service_alone(listener: Listener) -> None:
    sql = {"input_format": "json-lines", "out": "SELECT 1"}
    with ProcessorRunner(SparkSQL, {**sql, "spark": listener.address}) as runner:
        runner.enqueue(b'{"a":1}\n')
        runner.run()
    assert listener.tokens == {None}
    SERVICE_SPARK.set(listener.address)
    try:
        with ProcessorRunner(SparkSQL, sql) as runner:
            runner.enqueue(b'{"a":1}\n')
            runner.run()
    finally:
        SERVICE_SPARK.set(None)
    assert listener.tokens == {None, TOKEN}
