"""A Spark Connect server that is too old: whoever names one is told so, not that Spark was lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from pyspark.sql.connect.proto import ConfigRequest, ConfigResponse
from pyspark.sql.connect.proto import base_pb2_grpc as connect

from penstock.indexing.engine import EngineUnavailable
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions


class Older(connect.SparkConnectServiceServicer):
    """Takes settings, as every server does; Spark 4.0 knows no clones of sessions."""

    def Config(self, request: ConfigRequest, _: grpc.ServicerContext) -> ConfigResponse:  # noqa: N802
        return ConfigResponse(session_id=request.session_id)

    def CloneSession(self, _: object, context: grpc.ServicerContext) -> None:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found: CloneSession")


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    connect.add_SparkConnectServiceServicer_to_server(Older(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"sc://127.0.0.1:{port}"
    server.stop(None).wait()


def test_what_is_needed_is_told(address: str) -> None:
    sessions = SparkSessions(SparkSessionOptions(address))
    with pytest.raises(EngineUnavailable) as raised:
        sessions.get()
    assert str(raised.value) == (
        f"Spark at {address} is older than 4.1: start a newer Spark Connect server there, or name"
        " another"
    )
