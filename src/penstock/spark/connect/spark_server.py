"""Spark Connect server: one JVM for each host, shared by all Penstock processes.

`SparkServer` owns the command line, environment, files and life of the child process.
`prepare_spark` creates Spark's class archive in advance, so that the first start is fast too:
it starts a server, loads the classes that indexing and SQL use, and stops it. Does not own
Spark sessions (`spark_sessions`), the archive file (`class_archive`) or the decision to restart the
server (the launcher).

Invariants: the JVM ends with the process that started it, where the operating system supports
that. A JVM that an earlier process left over in the same run folder is killed before another
one starts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.core.clock import Clock, pause
from penstock.core.error_output import error_lines, tail
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.spark.connect.class_archive import archive_options, makes_archive, uses_archive
from penstock.spark.connect.java import VECTOR_MODULE, JavaRuntime, find_java
from penstock.spark.connect.server_settings import (
    LOCAL_CLUSTER,
    SCHEDULER_POOLS,
    SERVER_CLASS,
    STANDALONE,
    SUBMIT_CLASS,
    authentication,
    jvm_options,
    log_conf,
    properties,
    python_sockets,
    spark_conf,
)
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.connect.unstoppable_work import stuck_file

_MARK: Final = "-Dpenstock.run.folder="
_POLL_S: Final = 0.05
_FOREIGN_PREFIXES: Final = ("SPARK_", "PYSPARK_", "PYTHON", "JAVA_", "_JAVA", "JDK_")
_OPTION_PREFIX: Final = "PENSTOCK_"


@dataclass(frozen=True, slots=True)
class SparkServerOptions:
    """Settings of the server. All folders are created when missing.

    Attributes:
        run_folder: Generated configuration, and the file of `unstoppable_work`; one server per run
            folder.
        log_folder: `spark.log` (rolled by size) and `spark.out` (output of the JVM).
        temp_folder: Spark's own temporary files; emptied at start and at stop.
        cache_folder: The class archive that shortens later starts; shared between data folders.
        may_make_archive: Whether this server creates a missing archive at its end, which makes its
            stop take up to half a minute; only `prepare_spark` does.
        host: Address to bind; loopback by default.
        port: Port to bind; 0 picks a free one.
        master: Spark master of the server.
        driver_memory: Heap of the JVM.
        java_options: Further options of the JVM; they override the ones set here.
        token: Secret that clients must send; None: no check.
        secret_file: File with the secret that all processes of a standalone cluster share.
        conf: Further Spark settings; they override the ones set here.
    """

    run_folder: Path
    log_folder: Path
    temp_folder: Path
    cache_folder: Path
    may_make_archive: bool = False
    host: str = "127.0.0.1"
    port: int = 0
    master: str = "local[*]"
    driver_memory: str = "2g"
    java_options: tuple[str, ...] = ()
    token: str | None = None
    secret_file: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Command of the server, and the address that clients use."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    remote: str


def prepare(options: SparkServerOptions, environment: Mapping[str, str]) -> ServerCommand:
    """Write the server's configuration files, kill a leftover JVM, and return the command.

    Raises:
        InvalidRequest: The master needs a secret that is missing, or is not supported.
        Unavailable: No Java, or a folder cannot be written.
    """
    kill_leftover(options.run_folder)
    port = options.port or _free_port(options.host)
    options = replace(options, port=port)
    java = find_java(environment, options.run_folder.absolute() / "java")
    try:
        files = _write_files(options)
    except OSError as error:
        raise Unavailable(f"Spark's files cannot be written: {error}") from error
    return ServerCommand(
        _argv(options, java, files),
        _environment(options, java, environment),
        options.temp_folder.absolute(),
        remote_address(port, options.token, options.host),
    )


def remote_address(port: int, token: str | None, host: str = "127.0.0.1") -> str:
    """Return the `sc://` address of a server."""
    # Without TLS, the client sends a token only to a host of exactly this name.
    name = "localhost" if host.startswith("127.") else host
    return f"sc://{name}:{port}" + (f"/;token={quote(token, safe='')}" if token else "")


class SparkServer:
    """The child process, for callers without a launcher.

    Args:
        options: Settings of the server.
        clock: Clock for waits.
        environment: Environment that the JVM inherits, and that locates Java.
    """

    def __init__(
        self, options: SparkServerOptions, clock: Clock, environment: Mapping[str, str]
    ) -> None:
        self._options = options
        self._clock = clock
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._command: ServerCommand | None = None

    def start(self) -> None:
        """Start or restart the JVM; `wait_ready` waits for it.

        Raises:
            Unavailable: No Java, or its files cannot be written.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        # A restarted server keeps its port, so that its clients find it.
        self._command = prepare(self._options, self._environment)
        port = int(self._command.remote.split("/;")[0].rpartition(":")[2])
        self._options = replace(self._options, port=port)
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                self._command.argv,
                cwd=self._command.folder,
                env=dict(self._command.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, timeout_s: float = 60.0) -> str:
        """Wait until the port answers and return the `sc://` address.

        Raises:
            Unavailable: The JVM ended or was not ready in time; the message has its last output.
        """
        until = self._clock.monotonic_s() + timeout_s
        while not _answers(self._options.host, self._options.port):
            code = self.poll()
            if code is not None:
                raise Unavailable(f"Spark ended with code {code} at start:\n{self._last_output()}")
            if self._clock.monotonic_s() > until:
                raise Unavailable(
                    f"Spark did not answer within {timeout_s:.0f} s:\n{self._last_output()}"
                )
            pause(self._clock, _POLL_S)
        return self.remote

    @property
    def remote(self) -> str:
        """Return the `sc://host:port/` address with the token."""
        if self._command is None:
            raise Unavailable("Spark was not started yet: call start() first")
        return self._command.remote

    @property
    def pid(self) -> int | None:
        """Return the process id of the JVM while it runs."""
        return self._process.pid if self._process and self.poll() is None else None

    def poll(self) -> int | None:
        """Return the exit code after the JVM ended, else None."""
        return self._process.poll() if self._process else None

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the JVM, kill it after the time limit, and empty its temporary folder."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        _empty(self._options.temp_folder)

    @property
    def _output(self) -> Path:
        return self._options.log_folder / "spark.out"

    def _last_output(self) -> str:
        return "\n".join(error_lines(tail(self._output)))


def kill_leftover(run_folder: Path) -> list[int]:
    """Kill JVMs that an earlier process of this run folder left behind, and return their ids.

    They are identified by a mark on their command line, not by a file with a process id, which may
    already belong to another process.
    """
    mark = os.fsencode(_MARK + str(run_folder.absolute()))
    killed = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (entry / "cmdline").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                killed.append(int(entry.name))
    return killed


@dataclass(frozen=True, slots=True)
class _Files:
    spark: Path
    log: Path


def _write_files(options: SparkServerOptions) -> _Files:
    _empty(options.temp_folder)
    for folder in (options.run_folder, options.log_folder, options.temp_folder):
        folder.mkdir(parents=True, exist_ok=True)
    options.temp_folder.chmod(0o700)  # contains the sockets of `python_sockets`
    run = options.run_folder.absolute()
    files = _Files(run / "spark.properties", run / "spark-log.properties")
    pools = run / "spark-pools.xml"
    stuck_file(run).unlink(missing_ok=True)  # left by an earlier process
    pools.write_text(SCHEDULER_POOLS, encoding="utf-8")
    files.log.write_text(log_conf(options.log_folder.absolute(), run), encoding="utf-8")
    conf = spark_conf(
        host=options.host,
        port=options.port,
        master=options.master,
        cores=os.cpu_count() or 1,
        temp_folder=options.temp_folder.absolute(),
        pools=pools,
    )
    conf |= authentication(options.master, _secret(options)) | python_sockets(options.master)
    _write_privately(files.spark, properties({**conf, **options.conf}))
    return files


def _secret(options: SparkServerOptions) -> str:
    """Return the secret of a standalone cluster, empty for a master that generates its own.

    Raises:
        InvalidRequest: A standalone cluster's secret is missing, or cannot be read; or the
            master is `local-cluster[...]`.
    """
    if options.master.startswith(LOCAL_CLUSTER):
        raise InvalidRequest(
            f"the Spark master {options.master} is for Spark's own tests: its executors do not"
            " start from an installed PySpark; use local[N] or a standalone cluster, spark://HOST:PORT"
        )
    if not options.master.startswith(STANDALONE):
        return ""
    if options.secret_file is None:
        raise InvalidRequest(
            f"the Spark cluster at {options.master} needs a secret: without one its ports would run"
            " code of anyone who can reach them: set spark.authenticate and"
            " spark.authenticate.secret for its master and workers, set spark.master.rest.enabled"
            " to false, because that port of the master needs no secret, write the secret into a"
            " file that only you can read, and name the file with --spark-secret-file"
        )
    try:
        secret = options.secret_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"the secret of the Spark cluster cannot be read ({error}): name the file with it"
            " with --spark-secret-file"
        ) from None
    if not secret:
        raise InvalidRequest(
            f"{options.secret_file} is empty: write the secret of the Spark cluster into it"
        )
    return secret


def _write_privately(path: Path, text: str) -> None:
    """Write a file that only this user can read, because it may contain a secret."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _argv(options: SparkServerOptions, java: JavaRuntime, files: _Files) -> tuple[str, ...]:
    jars = f"{_spark_home()}/jars/*"
    temp = options.temp_folder.absolute()
    pair = f"{java.release} {java.home} {jars} {_spark_version()}"
    vector = [f"--add-modules={VECTOR_MODULE}"] if java.has_vector_module else []
    return (
        *_dies_with_parent(),
        str(java.executable),
        *jvm_options(options.driver_memory, temp, files.log, java.version),
        *vector,
        *archive_options(options.cache_folder.absolute(), pair, may_make=options.may_make_archive),
        *options.java_options,
        _MARK + str(options.run_folder.absolute()),
        "-cp",
        jars,
        SUBMIT_CLASS,
        "--properties-file",
        str(files.spark),
        "--class",
        SERVER_CLASS,
        "spark-internal",
    )


def _dies_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def _environment(
    options: SparkServerOptions, java: JavaRuntime, inherited: Mapping[str, str]
) -> dict[str, str]:
    # Settings of another Spark or Python in the user's shell must not affect this one. Options of
    # Penstock, which may be secrets, must not be visible to code that runs in Spark.
    left_out = (*_FOREIGN_PREFIXES, _OPTION_PREFIX)
    environment = {k: v for k, v in inherited.items() if not k.startswith(left_out)}
    environment |= {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONHASHSEED": "0",
        # Java encodes file names in the locale's encoding, which is only ASCII in the C locale.
        "LC_ALL": "C.UTF-8",
        # Python workers do one thing at a time, so arenas and threads for more would waste memory.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",
    }
    if options.token:
        environment["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = options.token
    return environment


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("PySpark is not installed: `pip install 'pyspark[connect]==4.3.0'`")
    return Path(spec.origin).parent


def _spark_version() -> str:
    return next((p.name for p in (_spark_home() / "jars").glob("spark-core_*.jar")), "")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1.0).close()
    except OSError:
        return False
    return True


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_START_TIMEOUT_S = 120.0
# Writing the archive takes about ten seconds on two cores; no user waits for this stop.
_STOP_TIMEOUT_S = 120.0


def prepare_spark(cache_folder: Path, environment: Mapping[str, str], clock: Clock) -> bool:
    """Create the class archive if it is missing; return whether it was created.

    Raises:
        Unavailable: There is no Java, Spark does not start, or it did not write the archive.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-prepare-") as name:
        folder = Path(name)
        options = SparkServerOptions(
            run_folder=folder / "run",
            log_folder=folder / "log",
            temp_folder=folder / "tmp",
            cache_folder=cache_folder,
            may_make_archive=True,
            java_options=("-XX:TieredStopAtLevel=1",),
        )
        argv = prepare(options, environment).argv
        if uses_archive(argv):
            return False
        if makes_archive(argv):
            server = SparkServer(options, clock, environment)
            server.start()
            try:
                _load_classes(server.wait_ready(_START_TIMEOUT_S), str(folder / "rows"))
            finally:
                server.stop(_STOP_TIMEOUT_S)
            if uses_archive(prepare(options, environment).argv):
                return True
    raise Unavailable(
        f"Spark did not write its class archive into {cache_folder}, for which it has"
        f" {_STOP_TIMEOUT_S:.0f} s: check that the folder is writable, that its path has no colon,"
        " and that its disk has 400 MB free, and repeat the command"
    )


def _load_classes(remote: str, path: str) -> None:
    sessions = SparkSessions(SparkSessionOptions(remote))
    with sessions.use() as session:
        rows = session.sql("SELECT id, id % 7 AS k, timestamp_millis(id) AS t FROM range(9)")
        rows.repartition(2, "k").sortWithinPartitions("t").write.parquet(path)
        session.read.parquet(path).createOrReplaceTempView("rows")
        session.sql("SELECT k, count(*), avg(id) FROM rows GROUP BY k ORDER BY k").toArrow()
    sessions.close()
