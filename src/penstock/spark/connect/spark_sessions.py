"""Spark session of a process: made on first use, and made again after Spark was lost.

Owns how a Spark session is reached, and the translation of Spark's errors: this is the only module
that decides whether an error means that Spark was lost or that the request is wrong. It does not
start the JVM (`spark_server`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from penstock.core.clock import pause
from penstock.core.errors import Dependency, InvalidRequest, PenstockError
from penstock.indexing.engine import (
    EngineFailure,
    EngineLost,
    EngineUnavailable,
    InputUnavailable,
)
from penstock.spark.connect.connect_address import SCHEME, ConnectAddress, shown
from penstock.spark.connect.light_client import import_client
from penstock.spark.connect.server_settings import NEEDS_SECRET, authentication
from penstock.spark.connect.session_kind import PROCESS_SESSION_KIND
from penstock.spark.connect.user_types import refuse_unloaded_types

if TYPE_CHECKING:
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    from penstock.core.clock import Clock

CONNECT_TIMEOUT_S: Final = 2.0
ANSWER_TIMEOUT_S: Final = 15.0
"""Time limit of the request of `check_answers`."""

# Releases a session that does not exist: the server checks the token and does nothing, whereas most
# other requests would start a session. Encoded by hand (`ReleaseSessionRequest`: field 1 is the
# session's id, field 2 its user), because importing the message's class costs a process 80 MB.
_RELEASE: Final = "/spark.connect.SparkConnectService/ReleaseSession"
_OF_NOBODY: Final = b"\x0a\x2400000000-0000-4000-8000-000000000000\x12\x11\x0a\x0fpenstock-nobody"

# Spark separates the files and classes that each session adds, and therefore starts Python workers
# for each session. Penstock's sessions add none: see decision 30.
_WORKERS_APART: Final = "spark.sql.artifact.isolation.enabled"

_CASE: Final = "spark.sql.caseSensitive"
EXACT_CONF: Final[Mapping[str, str]] = {_CASE: "true"}
"""Settings of sessions that distinguish names by case: see `core.column_case`."""

_GUARDED: Final[Mapping[str, str]] = {
    # Spark would replace `${env:…}` and `${system:…}` in every text that it parses, including
    # expressions, types and view names, after Penstock has checked the text.
    "spark.sql.variable.substitute": "false",
    # In a folder with a log of Spark's streams (_spark_metadata), Spark would read the files that
    # are named there, which may be any files, instead of those in the folder, which Penstock has
    # checked.
    "spark.sql.streaming.fileStreamSink.ignoreMetadata": "true",
}

# Processes of other hosts do not connect to a driver with a local master.
_LOOPBACK: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

ENDING_S: Final = 1.0
"""Time in seconds within which a JVM that ends has closed its port; a start takes longer."""
OUT_OF_MEMORY_S: Final = 10.0
"""The same for a JVM that has run out of memory: long enough for it to end on a busy machine."""
_ENDING_POLL_S: Final = 0.05

# Conditions, by their first part. Either another thread found the session lost and closed it
# meanwhile, or Spark had no room for the data that it sends to its workers.
_NO_ROOM: Final = "INTERNAL_ERROR_BROADCAST"
_AWAY: Final = frozenset({"NO_ACTIVE_SESSION", _NO_ROOM})
_LOST: Final = frozenset({"INVALID_HANDLE", "RETRIES_EXCEEDED", "UNABLE_TO_ACQUIRE_MEMORY"})
# Without a known condition, the class of an error decides. It is matched only at the beginning of
# the message or of a cause's message, never in text of users.
_BROKEN: Final = re.compile(
    r"[\w.$]*OutOfMemoryError\b|java\.io\.EOFException\b|ExecutorLostFailure\b"
    # The pipes and the first words of a Python daemon that was killed, also during its start.
    r"|java\.io\.IOException: (?:Stream closed|Broken pipe)\b"
    r"|(?:[\w.$]+: )?(?:EOFException occurred while reading the port|No port) number\b"
    r"|(?:[\w.$]+: )?(?:Python worker (?:exited unexpectedly|failed to connect back)"
    r"|Job \d+ cancelled because SparkContext was shut down"
    r"|Cannot call methods on a stopped SparkContext"
    r"|SparkContext (?:was|has been) (?:shut ?down|stopped|cancelled))"
)
# The source that the workers read from does not answer.
_SILENT: Final = re.compile(
    r"penstock\.core\.errors\.(?:Storage|Metadata)?Unavailable: |ConnectionRefusedError: "
    r"|[\w.$]*ConnectException: |java\.net\.SocketException: "
    rf"|(?:[\w.$]+: )?\[{_NO_ROOM}\] "
)
# The dependency, if one of Penstock's errors in a Python worker names it by its class.
_DEPENDENCIES: Final = (
    (re.compile(r"penstock\.core\.errors\.StorageUnavailable: "), Dependency.STORAGE),
    (re.compile(r"penstock\.core\.errors\.MetadataUnavailable: "), Dependency.METADATA),
)
_FULL: Final = re.compile(
    r"OSError: \[Errno 28\]"
    r"|java\.(?:io\.IOException|nio\.file\.FileSystemException): (?:/[^\n]*: )?No space left on"
)
_INPUT_SILENT: Final = re.compile(r"penstock\.indexing\.engine\.InputUnavailable: ")
_REASON: Final = re.compile(r"\A\s*\(([\w.$]+)\) ")
_CAUSE: Final = re.compile(r"\n[ \t]+(?:at [^\n]+|\.{3} \d+ more)\nCaused by: ")
_TRACE: Final = re.compile(
    r"\s*(?:An exception was thrown from the Python worker[^\n]*\n)?"
    r"(?:\[PYTHON_EXCEPTION\] [^\n]*?: )?(?:[\w.$]*PythonException: )?"
    r"Traceback[\s\S]*\n[ \t][^\n]*\n(?=\S)"
)
# End of the readable part of a message: the JVM's stack or the query's plan follows.
_NOISE: Final = re.compile(
    r"\n[ \t]*(?:JVM stacktrace:|Driver stacktrace:|at [\w.$/@]+\()[\s\S]*|;\n(?:'|[A-Z+])[\s\S]*"
)
# A Python worker's traces up to the last error; for a Penstock error the class is left out.
_OF_WORKER: Final = "An exception was thrown from the Python worker"
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAMES: Final = re.compile(r"(?:\n[ \t].*)+\n(?:penstock\.[\w.]+: )?")
_WORKER_END: Final = re.compile(r"\s*(?:-{5,}\s*)?SQLSTATE: \w+\s*\Z")
# Text without use for the user: the place in Spark where a job failed, and classes of the JVM.
_JOB: Final = re.compile(
    r"Job aborted due to stage failure: [^\n]*?most recent failure: Lost task [^\n]*?"
    r"\(TID \d+\) \([^)\n]*\): "
)
_PACKAGE: Final = r"\b(?:org\.apache|org\.antlr|java|javax|jdk|sun|scala|io\.netty|com\.google)"
_NAME: Final = rf"{_PACKAGE}(?:\.[\w$]+){{1,16}}"
_THROWN: Final = re.compile(rf"\({_NAME}\) |{_NAME}: ")
# Advice that no user can follow, because SET is not allowed.
_ADVICE: Final = re.compile(
    r" If necessary set \"?spark\.sql\.ansi\.enabled\"? to \"?false\"? to bypass this error"
    r"(?:, and return NULL instead)?\."
)
_CLASS: Final = re.compile(rf"{_PACKAGE}(?:\.[a-z_]\w*){{0,16}}\.([A-Z][\w$]*)")
# Error of the client: a message of Spark nests deeper than the 100 levels that the client reads.
# This happens only with column types: a list or map takes two levels, a struct three.
_UNREADABLE: Final = "Exception deserializing response!"
_TOO_NESTED: Final = (
    "the type of a column has too many levels to be sent: the limit is about 45 nested lists or 30 "
    "structs. Make it a text with CAST(… AS STRING) or to_json(…), or select a part of it"
)
# Beginning of the error of a call in a session that another thread has closed, which is a plain
# ValueError; a call that was under way ends with the status CANCELLED instead.
_CLOSED_CHANNEL: Final = "Cannot invoke RPC"
_DETAILS: Final = re.compile(r'details = "(.*?)"\n', re.DOTALL)
_TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # a name, no token  # noqa: S105
_USER_AGENT: Final = "_SPARK_CONNECT_PYTHON"  # PySpark's default
# With this option (`grpc.experimental.ChannelOptions.SingleThreadedUnaryStream`), gRPC receives an
# answer on the thread of the caller. Otherwise it starts a thread for the calls of a channel; if
# that fails once, all later calls of the channel wait forever.
_ON_CALLERS_THREAD: Final = "SingleThreadedUnaryStream"
# Parameters of an address that the client itself uses; all others become headers of each request.
_OF_CLIENT: Final = re.compile(r"token|use_ssl|user_id|user_agent|session_id|grpc_keepalive_\w+")
# Classic masters that need no secret.
_MASTER: Final = re.compile(r"local(?:\[[^\]]*\])?|yarn|k8s://\S+")
_LOUD: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "pyspark.sql.connect")
_SHOWN: Final = 2_000
# A message may repeat the whole statement. The patterns above take quadratic time on a hostile
# message while all other threads of the process wait: 35 s for 100 kB, before this bound.
_READ_MAX: Final = 48_000


@dataclass(frozen=True, slots=True)
class SparkSessionOptions:
    """Address and settings of Spark.

    Attributes:
        address: A Connect address (`sc://…`), or the classic master of a session whose driver is
            a child of this process (`local[2]`). Masters that need a secret are refused: PySpark
            would pass it to the driver on its command line, which all users of the host can read.
        app_name: Shown by Spark.
        conf: Settings of the session.
        retry_limit: Maximum number of retries of a call before Spark counts as lost.
        retry_wait_max_ms: The longest pause between two retries.
        gets_environment_token: Whether the server is the one that the operator's variable
            `SPARK_CONNECT_AUTHENTICATE_TOKEN` is for. Only then is that token sent, if the address
            has none. False for an address that a user of this service names.
    """

    address: str
    app_name: str = "penstock"
    conf: Mapping[str, str] = field(default_factory=dict)
    retry_limit: int = 2
    retry_wait_max_ms: int = 500
    gets_environment_token: bool = False

    def __post_init__(self) -> None:
        if not self.address:
            raise InvalidRequest("the address of Spark is empty: use sc://host:port or local[*]")
        for kind in NEEDS_SECRET:
            if self.address.startswith(kind):
                raise InvalidRequest(
                    f"no session can be started on a Spark master {kind}…, because its secret would"
                    " be visible in the list of processes: name a Spark Connect server that runs"
                    " on this master, sc://HOST:PORT; penstock up starts one with --spark-master"
                    " and --spark-secret-file"
                )
        if self.is_connect:
            ConnectAddress.parse(self.address)
        elif not _MASTER.fullmatch(self.address):
            # Not quoted, because it may be the address of a server, with its token.
            raise InvalidRequest("invalid address of Spark: use sc://HOST:PORT or local[N]")

    @property
    def is_connect(self) -> bool:
        """Return whether the address is one of a Spark Connect server."""
        return self.address.startswith(SCHEME)


class SparkRefusal(EngineFailure):
    """Spark refuses the query itself, or because of values that it meets."""


class SparkDiskFull(EngineUnavailable):
    """A disk that Spark writes to is full: until space is freed, a retry fails in the same way."""


class SparkSessions:
    """Provider of the Spark session of this process. Thread-safe.

    A mutex guards the field with the session, and is held while Spark is connected: threads that
    need a session meanwhile need the same one. Mail is not used, because callers wait for the
    session anyway.
    """

    def __init__(self, options: SparkSessionOptions) -> None:
        self._options = options
        self._mutex = threading.Lock()
        self._session: SparkSession | None = None

    def with_conf(self, conf: Mapping[str, str]) -> SparkSessions:
        """Return sessions of the same Spark with other settings; those given here take precedence.

        Sessions that have the settings already are returned themselves: closing one closes it
        for all its users.
        """
        if conf.items() <= self._options.conf.items():
            return self
        return SparkSessions(replace(self._options, conf={**self._options.conf, **conf}))

    def reserve(self) -> None:
        """Reserve the kind of Spark session in this process until `close`; connect to nothing.

        Raises:
            InvalidRequest: This process uses sessions of the other kind.
        """
        address, is_connect = self._options.address, self._options.is_connect
        place = shown(address) if is_connect else address
        PROCESS_SESSION_KIND.reserve(self, place, is_connect=is_connect)

    def get(self) -> SparkSession:
        """Return the session; connect first if there is none.

        Raises:
            EngineUnavailable: Spark cannot be reached.
            InvalidRequest: This process uses sessions of the other kind.
        """
        with self._mutex:
            if self._session is None:
                self.reserve()
                self._session = self._connect()
            return self._session

    def reach(self) -> None:
        """Check that Spark can be reached; reconnect if the session was lost since its last use.

        Raises:
            EngineUnavailable: Spark cannot be reached.
        """
        self.get()
        try:
            with self.use() as session:
                session.conf.get("spark.sql.session.timeZone")
        except EngineUnavailable:
            self.get()  # the lost session has been dropped

    def has_ended(self, clock: Clock, error: EngineLost) -> bool:
        """Return whether the Spark Connect server has ended or is ending.

        Calls fail a moment before a JVM that ends closes its port, for example when memory runs
        out. So an open port is checked again for `ENDING_S`, in which no new server opens it, or
        for `OUT_OF_MEMORY_S`.

        Args:
            clock: Time.
            error: Why a call failed.
        """
        if not self._options.is_connect:
            return False
        limit_s = OUT_OF_MEMORY_S if "OutOfMemoryError" in str(error) else ENDING_S
        until_s = clock.monotonic_s() + limit_s
        while True:
            if not self.is_reachable():
                return True
            if clock.monotonic_s() >= until_s:
                return False
            pause(clock, _ENDING_POLL_S)

    def is_reachable(self) -> bool:
        """Return whether the port of the Spark Connect server answers; without one, True."""
        if not self._options.is_connect:
            return True
        try:
            check_reachable(self._options.address)
        except EngineUnavailable:
            return False
        return True

    @contextlib.contextmanager
    def use(self) -> Iterator[SparkSession]:
        """Lend the session to a block; Spark's errors are translated.

        Raises:
            EngineUnavailable: Spark cannot be reached or was lost; the next use reconnects.
            EngineFailure: The request to Spark failed.
        """
        session = self.get()
        try:
            yield session
        except PenstockError:
            raise
        except Exception as error:  # narrow: the documented boundary; Spark raises many kinds
            ours = translate(error)
            if ours is None:
                raise
            # Others use the session, too: drop it only if it may be lost, not if Spark lacks room.
            if isinstance(ours, EngineUnavailable) and not isinstance(ours, SparkDiskFull):
                self.forget(session)
            raise ours from error

    def forget(self, session: SparkSession) -> None:
        """Drop a lost session, so that the next `get` connects again."""
        self._end(session, tell=False)

    def drop(self) -> None:
        """Drop the session of a Spark that has ended, so that the next `get` connects again."""
        self._end(tell=False)

    def close(self) -> None:
        """Close the session."""
        self._end(tell=True)
        PROCESS_SESSION_KIND.release(self)

    def _end(self, only: SparkSession | None = None, *, tell: bool) -> None:
        """Take out the session, if there is one, and release it; `only`: if it is this one."""
        with self._mutex:
            session = self._session
            if session is None or (only is not None and session is not only):
                return
            self._session = None
        _release(session, tell=tell)

    def _connect(self) -> SparkSession:
        if not self._options.is_connect:
            return _classic(self._options)
        check_reachable(self._options.address)
        try:
            return _connect(self._options)
        except Exception as error:  # the documented boundary, as in `use`
            ours = translate(error)
            if ours is None:
                raise
            raise EngineUnavailable(
                f"Spark at {shown(self._options.address)} does not accept a session: {ours}"
            ) from error


def translate(error: BaseException) -> PenstockError | None:
    """Translate an error of Spark; return None for errors that are not Spark's."""
    # Imported here, like all of PySpark in this module: see `_connect`.
    import grpc  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    text = message_of(error)
    if _is_unreadable(error, text):
        return SparkRefusal(_TOO_NESTED)
    if isinstance(error, grpc.RpcError) or is_of_closed_session(error):
        return EngineLost(f"Spark was lost: {_first_lines(text)}")
    if not isinstance(error, PySparkException):
        return None
    condition = error.getCondition() or ""
    failure_type = _failure_type_in_answer(error) or _failure_type_in_text(condition, text)
    if failure_type is InputUnavailable:
        return InputUnavailable(_first_lines(text))
    if failure_type is SparkDiskFull:
        return SparkDiskFull(f"a disk that Spark writes to is full, free it: {_first_lines(text)}")
    if failure_type is not None:
        dependency = _dependency_in_text(text)
        if dependency is not None:
            return failure_type(_first_lines(text), dependency=dependency)
        return failure_type(f"Spark was lost or cannot work now: {_first_lines(text)}")
    if condition:
        return SparkRefusal(_first_lines(text))
    # A stack overflow has no message.
    silent = "Spark failed without a reason: the statement may be nested too deeply"
    return EngineFailure(_first_lines(text) or silent)


def is_of_closed_session(error: BaseException) -> bool:
    """Return whether a call failed because another thread found its session lost and closed it."""
    # Subclasses have messages of Arrow and PySpark, which may begin with text of users.
    return type(error) is ValueError and str(error).startswith(_CLOSED_CHANNEL)


def _is_unreadable(error: BaseException, text: str) -> bool:
    """Return whether the client cannot read the answer, because it nests too deeply."""
    import grpc  # noqa: PLC0415
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # noqa: PLC0415

    is_of_client = isinstance(error, grpc.RpcError | SparkConnectGrpcException)
    return is_of_client and _UNREADABLE in text and _first_lines(text) == _UNREADABLE


def _failure_type_in_answer(error: PySparkException) -> type[EngineUnavailable] | None:
    """Return the error type for the status of an answer; None: Spark judged the request."""
    from grpc import StatusCode  # noqa: PLC0415
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException  # noqa: PLC0415

    if not isinstance(error, SparkConnectGrpcException):
        return None
    status = error.getGrpcStatusCode()
    if status is StatusCode.UNAUTHENTICATED:
        return EngineUnavailable
    gone = (StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED, StatusCode.CANCELLED)
    return EngineLost if status in gone else None


def _failure_type_in_text(condition: str, text: str) -> type[EngineUnavailable] | None:
    name = condition.partition(".")[0]
    if name in _LOST or name in _AWAY:
        return EngineUnavailable if name in _AWAY else EngineLost
    if name == "USER_RAISED_EXCEPTION":
        return None
    thrown = _REASON.sub(r"\1: ", text)
    for at in _beginnings(thrown):
        if _BROKEN.match(thrown, at):
            return EngineLost
        if _INPUT_SILENT.match(thrown, at):
            return InputUnavailable
        if _FULL.match(thrown, at):
            return SparkDiskFull
        if _SILENT.match(thrown, at):
            return EngineUnavailable
    return None


def _beginnings(thrown: str) -> Iterator[int]:
    """Yield where the message of an error and the messages of its causes begin."""
    job = _JOB.match(thrown)
    yield from (
        trace.end() if (trace := _TRACE.match(thrown, start)) else start
        for start in (
            job.end() if job else 0,
            *(cause.end() for cause in _CAUSE.finditer(thrown)),
        )
    )


def _dependency_in_text(text: str) -> Dependency | None:
    """Return the dependency that a Python worker reports as unavailable, if any."""
    thrown = _REASON.sub(r"\1: ", text)
    for at in _beginnings(thrown):
        for pattern, dependency in _DEPENDENCIES:
            if pattern.match(thrown, at):
                return dependency
    return None


def check_reachable(address: str) -> None:
    """Return when the port of a Connect address answers.

    The client itself would retry for many seconds, so the port is checked first.

    Raises:
        EngineUnavailable: Nothing listens there.
    """
    place = ConnectAddress.parse(address)
    try:
        socket.create_connection((place.host, place.port), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise EngineUnavailable(
            f"nothing answers at {shown(address)} ({error}): Spark is starting or has ended: "
            "try again in a moment"
        ) from error


def check_answers(address: str) -> None:
    """Return when Spark answers a request that has the token of the address or the environment.

    It uses no session and does not load PySpark. For a classic master there is no server: its user
    starts the session. The address must be one of the operator, because it gets the token of the
    operator's environment.

    Raises:
        EngineUnavailable: No answer, no answer in time, or the token is refused.
        InvalidRequest: The address is not valid for a session.
    """
    if not SparkSessionOptions(address).is_connect:
        return
    check_reachable(address)
    import grpc  # noqa: PLC0415 - most processes load it with PySpark or not at all

    place = ConnectAddress.parse(address)
    headers = [one for one in place.parameters.items() if not _OF_CLIENT.fullmatch(one[0])]
    try:
        with _channel(place) as channel:
            ask = channel.unary_unary(_RELEASE)
            ask(_OF_NOBODY, timeout=ANSWER_TIMEOUT_S, metadata=headers)
    except grpc.RpcError as error:
        raise EngineUnavailable(f"Spark at {shown(address)} {_refusal(error)}") from error


def _channel(place: ConnectAddress) -> grpc.Channel:
    """Return a channel to an address, built as PySpark's client does."""
    import grpc  # noqa: PLC0415

    token = place.parameters.get("token") or os.environ.get(_TOKEN_VARIABLE)
    with_tls = place.parameters.get("use_ssl", "").lower() == "true"
    if not with_tls and not token:
        return grpc.insecure_channel(place.endpoint)
    is_local = place.host == "localhost" and not with_tls
    credentials = grpc.local_channel_credentials() if is_local else grpc.ssl_channel_credentials()
    if token:
        shows_token = grpc.access_token_call_credentials(token)
        credentials = grpc.composite_channel_credentials(credentials, shows_token)
    return grpc.secure_channel(place.endpoint, credentials)


def _refusal(error: grpc.RpcError) -> str:
    """Describe why a request has no answer."""
    from grpc import StatusCode  # noqa: PLC0415

    code = error.code()
    if code is StatusCode.UNAUTHENTICATED:
        return "refuses the token: compare the token in its address with the server's"
    if code is StatusCode.DEADLINE_EXCEEDED:
        return f"accepts connections, but gave no answer within {ANSWER_TIMEOUT_S:.0f} s"
    return f"does not answer: {error.details()}"


def _connect(options: SparkSessionOptions) -> SparkSession:
    # Imported here: the import costs one second and 60 MB, which commands without Spark save.
    import_client()
    from pyspark.sql.connect.client.core import DefaultChannelBuilder  # noqa: PLC0415
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415
    from pyspark.sql.connect.session import SparkSession as Connected  # noqa: PLC0415

    refuse_unloaded_types()
    _hush()
    PROCESS_SESSION_KIND.fix()
    # Makes `pyspark.sql.functions` build columns of Connect, as PySpark's own builder does.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    policy = DefaultPolicy(max_retries=options.retry_limit, max_backoff=options.retry_wait_max_ms)
    channels = DefaultChannelBuilder(options.address)
    # The client would take both from the environment of this process.
    if not options.gets_environment_token:
        channels.set("token", channels.getDefault("token", None))
    channels.set("user_agent", channels.getDefault("user_agent", _USER_AGENT))
    channels.setChannelOption(_ON_CALLERS_THREAD, 1)
    # The two kinds of Spark session have the same methods, but no common base class.
    first = Connected(channels, userId=options.app_name)
    session = cast("SparkSession", first)
    try:
        first.client.set_retry_policies([policy])
        # The first call of a session decides whether it has its own Python workers; also for a
        # clone.
        session.conf.set(_WORKERS_APART, "false")
        connected = _clone(first, options.address)
        _release(session, tell=True)
        session = cast("SparkSession", connected)
        connected.client.set_retry_policies([policy])
        for key, value in {**options.conf, **_GUARDED}.items():
            session.conf.set(key, value)
    except BaseException:
        _release(session, tell=False)
        raise
    return session


def _clone(session: ConnectSession, address: str) -> ConnectSession:
    # Imported here, like all of PySpark in this module: see `_connect`.
    from grpc import RpcError, StatusCode  # noqa: PLC0415

    try:
        return session.cloneSession()
    except RpcError as error:
        if error.code() is not StatusCode.UNIMPLEMENTED:
            raise
        raise EngineUnavailable(
            f"Spark at {shown(address)} is older than 4.1: start a newer Spark Connect server"
            " there, or name another"
        ) from error


def _hush() -> None:
    """Keep PySpark from printing stack traces that its errors contain anyway."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415

    for name in _LOUD:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]")


def _classic(options: SparkSessionOptions) -> SparkSession:
    # Imported here for the same reason; only explicitly requested masters get here.
    from pyspark.sql import SparkSession  # noqa: PLC0415

    refuse_unloaded_types()
    PROCESS_SESSION_KIND.fix()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # With the address, PySpark would refuse the master, with an error that contains its token; with
    # the mode, it would start a Connect server instead.
    for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
        os.environ.pop(name, None)
    builder = SparkSession.builder.master(options.address).appName(options.app_name)
    conf = {**options.conf, **_GUARDED}
    for key, value in (conf | _driver_conf(options.address)).items():
        if key != _CASE:
            builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        if _CASE in conf:
            # All other sessions of a classic master are the same one, which ignores the case of
            # names.
            session = session.newSession()
            for key, value in conf.items():
                session.conf.set(key, value)
    except Exception as error:  # the documented boundary: the JVM may fail in any way
        raise EngineUnavailable(
            f"Spark with master {options.address} does not start: {_first_lines(message_of(error))}"
        ) from error
    return session


def _driver_conf(master: str) -> dict[str, str]:
    """Return the settings by which a driver started by this process refuses other users.

    PySpark passes them on its command line, so none may be a secret. With a local master, Spark
    generates a secret in memory at each start; YARN and Kubernetes generate their own.
    """
    conf = {**authentication(master, secret=""), "spark.ui.enabled": "false"}
    return {**conf, **_LOOPBACK} if master.startswith("local") else conf


def _release(session: SparkSession, *, tell: bool) -> None:
    """Close the client side; `tell` the server only if it is expected to answer.

    A Connect session that is left to the garbage collector blocks the interpreter's exit.
    """
    if hasattr(session, "release_session_on_close"):
        session.release_session_on_close = tell
    with contextlib.suppress(Exception):
        session.stop()


def message_of(error: BaseException) -> str:
    """Return the message of an error of Spark; of a very long one, the beginning and the end."""
    text = str(error)
    half = _READ_MAX // 2
    return text if len(text) <= _READ_MAX else f"{text[:half]}\n…\n{text[-half:]}"


def _first_lines(text: str) -> str:
    """Return the message without stack traces and without class names of the JVM."""
    details = _DETAILS.search(text)
    clean = _NOISE.sub("", details[1] if details else text).strip()
    if _OF_WORKER in clean:
        last = clean.rfind(_TRACEBACK, clean.index(_OF_WORKER))
        frames = _FRAMES.match(clean, last + len(_TRACEBACK)) if last >= 0 else None
        if frames:
            clean = _WORKER_END.sub("", clean[frames.end() :])
    clean = _CLASS.sub(r"\1", _THROWN.sub("", _JOB.sub("", _ADVICE.sub("", clean))))
    return clean if len(clean) <= _SHOWN else f"{clean[:_SHOWN]}…"


__all__ = [
    "EngineFailure",
    "EngineLost",
    "EngineUnavailable",
    "SparkDiskFull",
    "SparkRefusal",
    "SparkSessionOptions",
    "SparkSessions",
    "check_answers",
    "check_reachable",
    "is_of_closed_session",
    "message_of",
    "translate",
]
