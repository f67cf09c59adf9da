"""What Spark's errors mean: it broke down, it is not there, or what was asked of it is wrong."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Self, cast

import grpc
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors.exceptions.connect import (
    PythonException,
    SparkConnectGrpcException,
    SparkException,
    UnknownException,
)

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.engine import (
    EngineFailure,
    EngineLost,
    EngineUnavailable,
    InputUnavailable,
)
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import (
    SparkDiskFull,
    SparkRefusal,
    SparkSessionOptions,
    SparkSessions,
    translate,
)
from penstock.spark.sql.fetcher import Fetcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ODD = (
    "Connection refused; OutOfMemoryError, java.io.EOFException, StatusCode.UNAVAILABLE\n"
    "No space left on device, SESSION_NOT_FOUND, Python worker exited unexpectedly"
)
JOB = (
    "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times, most recent failure:"
    " Lost task 1.3 in stage 0.0 (TID 4) (localhost executor driver): "
)
STACK_OF_JAVA = "\n\tat java.base/java.lang.ProcessBuilder$NullOutputStream.write(P.java:442)\n"
BROADCAST = "[INTERNAL_ERROR_BROADCAST] Failed to get locally stored broadcast data:"
PORT = "occurred while reading the port number from pyspark.daemon's stdout."
STACK = "\n\tat org.apache.spark.A.b(A.scala:1)\n\nDriver stacktrace:"


def fail(how: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail in a worker of Spark."""
    for _ in batches:
        if how == "exit":
            os._exit(3)
        if how == "unavailable":
            raise Unavailable("the store does not answer")
        if how == "refused":
            raise ConnectionRefusedError(111, "Connection refused")
        if how == "full":
            raise OSError(28, "No space left on device", "rows")
        raise ValueError(ODD)
    yield from ()


@pytest.fixture(scope="module")
def own_sessions(spark_server: SparkServer) -> Iterator[SparkSessions]:
    """Sessions of this module: a lost one is closed, and others hold the shared one."""
    made = SparkSessions(SparkSessionOptions(spark_server.remote))
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("how", "means"),
    [
        ("exit", EngineLost),
        ("unavailable", EngineUnavailable),
        ("refused", EngineUnavailable),
        ("full", SparkDiskFull),
        ("raise", EngineFailure),
    ],
)
def test_errors_of_workers(
    own_sessions: SparkSessions, how: str, means: type[PenstockError]
) -> None:
    # Spark's workers do not have this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(PenstockError) as refusal, own_sessions.use() as spark:
            spark.range(1).mapInArrow(functools.partial(fail, how), "a string").collect()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert type(refusal.value) is means


@pytest.mark.spark
def test_a_full_disk_ends_no_session(own_sessions: SparkSessions) -> None:
    """Others have it, too, and what they do would have to be done again."""
    before = own_sessions.get()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(SparkDiskFull), own_sessions.use() as spark:
            spark.range(1).mapInArrow(functools.partial(fail, "full"), "a string").collect()
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert own_sessions.get() is before


@pytest.mark.spark
@pytest.mark.parametrize(
    "query",
    [
        f"SELECT raise_error('{ODD}')",
        "SELECT raise_error('x\n\tat a.b(c)\nCaused by: java.net.ConnectException: Connection')",
        f"SELECT assert_true(false, '{ODD}')",
        f"SELECT '{ODD}' + nowhere",
        f"SELECT CAST('{ODD}' AS int) FROM",
        "SELECT from_json('{\"a\":', 'a int', map('mode', 'FAILFAST'))",
    ],
)
def test_what_a_query_says_is_no_word_of_spark(own_sessions: SparkSessions, query: str) -> None:
    with pytest.raises(SparkRefusal), own_sessions.use() as spark:
        spark.sql(query).collect()


@pytest.mark.parametrize(
    ("status", "means"),
    [
        (grpc.StatusCode.UNAVAILABLE, EngineLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, EngineLost),
        (grpc.StatusCode.CANCELLED, EngineLost),
        (grpc.StatusCode.UNAUTHENTICATED, EngineUnavailable),
        (grpc.StatusCode.INTERNAL, EngineFailure),
    ],
)
def test_the_status_of_an_answer_decides(
    status: grpc.StatusCode, means: type[PenstockError]
) -> None:
    for text in ("gone", f"[OTHER] {ODD}"):
        found = translate(SparkConnectGrpcException(text, grpc_status_code=status))
        assert type(found) is means


class RowsOfClosedSession:
    """An answer of Spark whose session another thread closes."""

    def limit(self, _most: int) -> Self:
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 - PySpark's name
        channel = grpc.insecure_channel("localhost:1")
        ask = channel.unary_stream("/spark.connect.SparkConnectService/ExecutePlan")
        channel.close()
        ask(b"")
        raise AssertionError("the call fails")


def test_a_call_in_a_session_that_another_thread_closed_finds_spark_lost() -> None:
    """Not an answer whose type cannot be sent, for which Arrow and PySpark raise the same error."""
    with pytest.raises(ValueError, match="Channel closed") as caught:
        Fetcher([], 10, None, is_large=False).fetch(cast("DataFrame", RowsOfClosedSession()))
    assert type(translate(caught.value)) is EngineLost
    channel = grpc.insecure_channel("localhost:1")
    ask = channel.unary_unary("/spark.connect.SparkConnectService/Config")
    channel.close()
    with pytest.raises(ValueError, match="closed channel") as caught:
        ask(b"")
    assert type(translate(caught.value)) is EngineLost
    for other in (ValueError(ODD), pa.ArrowInvalid("Cannot invoke RPC"), ValueError("a text")):
        assert translate(other) is None


def test_an_answer_that_the_client_cannot_read_is_refused_with_the_remedy() -> None:
    text = '<_InactiveRpcError ...\n\tdetails = "Exception deserializing response!"\n\tdebug>'
    for error in (text, "Exception deserializing response!"):
        found = translate(
            SparkConnectGrpcException(error, grpc_status_code=grpc.StatusCode.INTERNAL)
        )
        assert type(found) is SparkRefusal
        assert "CAST(… AS STRING)" in str(found)
    quoted = SparkConnectGrpcException("[OTHER] 'Exception deserializing response!' is a text")
    assert "CAST" not in str(translate(quoted))


@pytest.mark.parametrize(
    ("condition", "means"),
    [
        ("INVALID_HANDLE.SESSION_NOT_FOUND", EngineLost),
        ("INVALID_HANDLE.OPERATION_ABANDONED", EngineLost),
        ("RETRIES_EXCEEDED", EngineLost),
        ("NO_ACTIVE_SESSION", EngineUnavailable),
        ("INTERNAL_ERROR_BROADCAST", EngineUnavailable),
        ("CAST_INVALID_INPUT", SparkRefusal),
    ],
)
def test_a_condition_decides(condition: str, means: type[PenstockError]) -> None:
    found = translate(SparkConnectGrpcException(f"[{condition}] {ODD}", errorClass=condition))
    assert type(found) is means


@pytest.mark.parametrize(
    ("text", "means"),
    [
        (f"{JOB}java.lang.OutOfMemoryError: Java heap space{STACK}", EngineLost),
        (f"{JOB}org.apache.spark.memory.SparkOutOfMemoryError: [X] y{STACK}", EngineLost),
        (f"{JOB}org.apache.spark.SparkException: Python worker exited unexpectedly", EngineLost),
        # Python daemons that were killed: with their workers, and at their start.
        (f"{JOB}java.io.IOException: Stream closed{STACK_OF_JAVA}", EngineLost),
        (f"{JOB}java.io.IOException: Broken pipe{STACK_OF_JAVA}", EngineLost),
        (f"{JOB}org.apache.spark.SparkException: EOFException {PORT}{STACK}", EngineLost),
        (f"EOFException {PORT}", EngineLost),
        (f"{JOB}ExecutorLostFailure (executor 1 exited) Reason: killed", EngineLost),
        (f"{JOB}java.io.IOException: No space left on device{STACK}", SparkDiskFull),
        (f"{BROADCAST} broadcast_9 SQLSTATE: XX000", EngineUnavailable),
        (
            f"{JOB}org.apache.spark.SparkException: {BROADCAST} broadcast_9{STACK}",
            EngineUnavailable,
        ),
        ("Job 3 cancelled because SparkContext was shut down", EngineLost),
        (f"{JOB}java.io.IOException: {ODD}{STACK}", EngineFailure),
        (f"{JOB}org.apache.spark.SparkRuntimeException: [USER] {ODD}{STACK}", EngineFailure),
        (
            f"{JOB}a.B: x\n\tat a.B.c(d)\nCaused by: java.net.ConnectException: no{STACK}",
            EngineUnavailable,
        ),
    ],
)
def test_the_class_of_an_error_without_a_condition_decides(
    text: str, means: type[PenstockError]
) -> None:
    assert type(translate(SparkException(text))) is means


def test_a_full_disk_is_told_as_such() -> None:
    found = translate(SparkException(f"{JOB}java.io.IOException: No space left on device{STACK}"))
    assert str(found) == "a disk that Spark writes to is full, free it: No space left on device"


def test_an_error_of_a_killed_daemon_is_told_without_the_stack() -> None:
    closed = UnknownException(f"Stream closed{STACK_OF_JAVA}", reason="java.io.IOException")
    found = translate(closed)
    assert type(found) is EngineLost
    assert "Stream closed" in str(found)
    assert "NullOutputStream" not in str(found)


def test_a_class_that_spark_does_not_know_is_told_as_the_reason() -> None:
    lost = UnknownException("Java heap space", reason="java.lang.OutOfMemoryError")
    assert type(translate(lost)) is EngineLost
    assert type(translate(UnknownException(ODD, reason="a.B"))) is EngineFailure


def test_an_error_of_a_worker_is_the_last_of_its_trace() -> None:
    trace = (
        "[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):\n  in x\n"
    )
    away = translate(
        PythonException(f"{trace}penstock.indexing.engine.InputUnavailable: s3://b/k is away")
    )
    assert isinstance(away, InputUnavailable)
    assert "s3://b/k is away" in str(away)
    silent = f"{trace}penstock.core.errors.Unavailable: {ODD}"
    assert type(translate(PythonException(silent))) is EngineUnavailable
    damaged = f"{trace}penstock.core.errors.CorruptData: {ODD}"
    assert type(translate(PythonException(damaged))) is EngineFailure


@pytest.mark.parametrize(
    "piece",
    [
        *("\n", " \n", "java.", "(java.a", "File /", "FAILED_READ_FILE", "\n at x\nCaused by: "),
        *(
            "\n at x\nCaused by: Traceback\n x",
            "Job aborted due to stage failure: ",
            "Traceback\n x",
        ),
        "An exception was thrown from the Python workerTraceback (most recent call last):\n x",
    ],
)
def test_a_message_of_any_length_is_understood_at_once(piece: str) -> None:
    """A message repeats the statement; without a bound one of 1 MB holds all threads for hours."""
    text = f"[CAST_INVALID_INPUT] The value '{piece * (1_000_000 // len(piece))}' is not one."
    for condition in ("CAST_INVALID_INPUT", None):
        found = translate(SparkConnectGrpcException(text, errorClass=condition))
        assert found is not None
        assert len(str(found)) < 3_000


def test_spark_does_not_advise_a_setting_that_no_user_can_make() -> None:
    said = (
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return"
        ' NULL instead. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error.'
        " SQLSTATE: 22012\n== SQL (line 1, position 8) ==\nSELECT 1/0"
    )
    error = translate(SparkException(said))
    assert error is not None
    assert "return NULL instead. SQLSTATE: 22012" in str(error)
    assert "ansi" not in str(error)
