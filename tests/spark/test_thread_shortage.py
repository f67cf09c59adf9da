"""A process that cannot start threads for a while: afterwards Spark answers it as before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from pyspark.sql.connect.proto import (
    CloneSessionRequest,
    CloneSessionResponse,
    ConfigRequest,
    ConfigResponse,
    ExecutePlanRequest,
    ExecutePlanResponse,
)
from pyspark.sql.connect.proto import base_pb2_grpc as connect

from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions


class Answering(connect.SparkConnectServiceServicer):
    """Takes every setting and statement, and answers nothing else."""

    def Config(self, request: ConfigRequest, _: grpc.ServicerContext) -> ConfigResponse:  # noqa: N802
        return ConfigResponse(session_id=request.session_id)

    def CloneSession(  # noqa: N802
        self, request: CloneSessionRequest, _: grpc.ServicerContext
    ) -> CloneSessionResponse:
        new_id = request.session_id.replace("4", "5", 1)
        return CloneSessionResponse(session_id=request.session_id, new_session_id=new_id)

    def ExecutePlan(  # noqa: N802
        self, request: ExecutePlanRequest, _: grpc.ServicerContext
    ) -> Iterator[ExecutePlanResponse]:
        answer = ExecutePlanResponse(
            session_id=request.session_id, operation_id=request.operation_id, response_id="1"
        )
        answer.sql_command_result.relation.CopyFrom(request.plan.command.sql_command.input)
        yield answer
        answer.response_id = "2"
        answer.result_complete.SetInParent()
        yield answer


@pytest.fixture
def address() -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    connect.add_SparkConnectServiceServicer_to_server(Answering(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"sc://127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_call_without_a_thread_does_not_stop_later_ones(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = SparkSessions(SparkSessionOptions(address)).get()
    start, caller = threading.Thread.start, threading.get_ident()

    def refused(thread: threading.Thread) -> None:
        if threading.get_ident() == caller:  # the server's threads start
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                session.sql("SELECT 1")
    # On another thread: a call that hangs cannot be ended.
    after = threading.Thread(target=session.sql, args=("SELECT 1",), daemon=True)
    after.start()
    after.join(120)
    assert not after.is_alive()
