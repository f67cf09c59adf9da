"""The ports that a Spark server opens, tried by a client that runs as another user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from penstock.core.errors import InvalidRequest
from penstock.spark.connect.server_settings import authentication
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions, prepare
from penstock.spark.connect.spark_sessions import (
    EngineUnavailable,
    SparkSessionOptions,
    SparkSessions,
    check_answers,
)
from tests.kits.hostile_client_kit import (
    LOOPBACK,
    answers_to,
    as_somebody_else,
    children,
    family,
    handshake,
    listening,
    ports_of,
    rpc_without_handshake,
    was_refused,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Sends a secret to the sockets of Python workers, which expect its length and its text, and answer
# with the worker's process id first.
WORKER_CLIENT = r"""
import json, socket, sys
answers = {}
for port in json.loads(sys.argv[1]):
    with socket.create_connection(("127.0.0.1", port), 30) as connected:
        connected.sendall(b"\0\0\0\x05wrong")
        answers[port] = connected.makefile("rb").read().decode(errors="replace")
print(json.dumps(answers))
"""

# A process with a classic session that has run Python workers. At the end of its standard input it
# prints what Spark makes of a variable, and the secrets of its Spark and of another one.
CLASSIC = """
import sys
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions

substituted = {"spark.sql.variable.substitute": "true"}
sessions = SparkSessions(SparkSessionOptions("local[2]", conf=substituted))
session = sessions.get()
assert session.range(1).mapInArrow(lambda batches: batches, "id long").count() == 1
print("ready", flush=True)
sys.stdin.read()
print(session.sql("SELECT '${env:PATH}' AS x").collect()[0].x)
for _ in range(2):
    context = sessions.get().sparkContext
    # Py4j cannot list the methods of SparkEnv, as classes of theirs are missing.
    environment = context._jvm.java.lang.Class.forName("org.apache.spark.SparkEnv")
    field = environment.getDeclaredField("securityManager")
    field.setAccessible(True)
    print(field.get(context._jsc.sc().env()).getSecretKey())
    sessions.close()
"""


def test_ports_of_spark_refuse_a_client_without_the_secret(spark_server: SparkServer) -> None:
    assert spark_server.pid is not None
    open_ports = listening(spark_server.pid)
    connect = urlsplit(spark_server.remote).port
    assert set(open_ports.values()) <= LOOPBACK
    others = set(open_ports) - {connect}
    for message in (rpc_without_handshake(), handshake("wrong")):
        answers = answers_to(message, others, answering=2)
        refusing = [port for port, text in answers.items() if was_refused(text)]
        assert len(refusing) == 2, answers  # the driver's RPC, and its blocks
        # A streaming query leaves a socket that its Python worker connected to; no thread reads it.
        silent = [port for port, text in answers.items() if text == "silent"]
        assert sorted(refusing + silent) == sorted(answers), answers


def test_a_classic_session_has_a_secret_for_each_start_that_its_ports_ask_for() -> None:
    command, pipe = [sys.executable, "-c", CLASSIC], subprocess.PIPE
    # Other tests of this process have chosen Spark Connect in its environment.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("SPARK_")}
    # Its JVMs are started as any JVM is: the options of tests/conftest.py do not reach them.
    environment["JDK_JAVA_OPTIONS"] = os.environ["PENSTOCK_SPARK_JAVA_OPTIONS"]
    # The address of another Spark, which PySpark would refuse together with a master.
    environment["SPARK_REMOTE"] = "sc://localhost:1/;token=hush"
    environment["SPARK_CONNECT_MODE_ENABLED"] = "1"
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        python, *descendants = family(process.pid)
        workers = [pid for driver in children(python) for pid in family(driver)[1:]]
        of_workers = ports_of(workers)
        others = ports_of([python, *set(descendants).difference(workers)])
        assert set((others | of_workers).values()) <= LOOPBACK
        answers = answers_to(rpc_without_handshake(), others, answering=2)
        worker_answers = as_somebody_else(WORKER_CLIENT, sorted(of_workers))
        process.stdin.close()
        text, *secrets = process.stdout.read().splitlines()
        assert process.wait(120) == 0
    assert text == "${env:PATH}"
    assert len(set(secrets)) == len(secrets) == 2
    assert all(len(bytes.fromhex(secret)) == 32 for secret in secrets)
    refusing = [port for port, text in answers.items() if was_refused(text)]
    assert len(refusing) == 2, answers  # the driver's RPC, and its blocks
    assert {answers[port] for port in answers.keys() - refusing} == {"silent"}, answers
    assert worker_answers
    assert all(text.endswith("\0\0\0\x03err") for text in worker_answers.values())


@pytest.mark.parametrize("master", ["spark://h:7077", "local-cluster[2,1,1024]"])
def test_a_classic_session_takes_no_master_that_needs_a_secret(master: str) -> None:
    with pytest.raises(InvalidRequest, match="sc://HOST:PORT"):
        SparkSessionOptions(master)


def test_the_connect_port_refuses_a_client_without_the_token(spark_server: SparkServer) -> None:
    port = urlsplit(spark_server.remote).port
    sessions = SparkSessions(SparkSessionOptions(f"sc://localhost:{port}/;token=wrong"))
    with pytest.raises(EngineUnavailable, match="token"):
        sessions.get()


def test_the_check_of_a_worker_accepts_the_token_alone(spark_server: SparkServer) -> None:
    check_answers(spark_server.remote)
    place = spark_server.remote.partition("/;")[0]
    for address in (place, f"{place}/;token=wrong"):
        with pytest.raises(EngineUnavailable, match="refuses the token"):
            check_answers(address)


def test_python_workers_listen_where_no_other_user_reaches_them(
    spark_server: SparkServer, spark: SparkSession
) -> None:
    """A connection costs a process and up to 2 GB before a secret is compared."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    assert spark.range(1).mapInArrow(same, "id long").count() == 1
    assert spark_server.pid is not None
    daemons = children(spark_server.pid)
    assert daemons
    assert [port for child in daemons for port in listening(child)] == []
    folder = Path(f"/proc/{spark_server.pid}/cwd").resolve()
    assert any(one.is_socket() for one in folder.iterdir())
    assert folder.stat().st_mode & 0o077 == 0


def test_no_secret_is_in_the_process_list_or_in_a_file_for_others(
    spark_server: SparkServer, spark: SparkSession
) -> None:
    command = Path(f"/proc/{spark_server.pid}/cmdline").read_text().replace("\0", " ")
    assert "secret+" not in command
    file = Path(command.partition("--properties-file ")[2].partition(" --class")[0])
    assert file.stat().st_mode & 0o077 == 0
    assert "spark.authenticate.secret" not in file.read_text()
    assert spark.conf.get("spark.authenticate") == "true"


def test_the_master_of_sparks_own_tests_is_refused(tmp_path: Path) -> None:
    made = {name: tmp_path / name for name in ("run", "log", "tmp", "cache")}
    options = {f"{name.replace('tmp', 'temp')}_folder": folder for name, folder in made.items()}
    with pytest.raises(InvalidRequest, match="standalone cluster"):
        prepare(SparkServerOptions(**options, master="local-cluster[2,1,1024]"), os.environ)


def test_a_standalone_cluster_needs_its_own_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    made = {name: tmp_path / name for name in ("run", "log", "tmp", "cache")}
    options = {f"{name.replace('tmp', 'temp')}_folder": folder for name, folder in made.items()}
    with pytest.raises(InvalidRequest, match="--spark-secret-file"):
        prepare(SparkServerOptions(**options, master="spark://h:7077"), os.environ)
    with_file = SparkServerOptions(**options, master="spark://h:7077", secret_file=file)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        prepare(with_file, os.environ)
    file.write_text("known to the cluster\n")
    prepare(with_file, os.environ)
    text = (tmp_path / "run" / "spark.properties").read_text()
    assert "spark.authenticate.secret known to the cluster\n" in text
    for setting in ("network.crypto.enabled true", "io.encryption.enabled true"):
        assert f"spark.{setting}\n" in text


@pytest.mark.parametrize("master", ["local[*]", "spark://h:7077", "yarn", "k8s://https://h:6443"])
def test_what_processes_send_each_other_is_always_encrypted(master: str) -> None:
    conf = authentication(master, "s")
    assert conf["spark.authenticate"] == "true"
    assert conf["spark.network.crypto.enabled"] == "true"
    assert conf["spark.network.crypto.saslFallback"] == "false"
    assert ("spark.io.encryption.enabled" in conf) is not master.startswith("local")
