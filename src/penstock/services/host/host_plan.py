"""Processes of one host, and how each is started: what `penstock up` launches.

Owns the list, the sockets that the children inherit, and the file with their options. `launcher`
starts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, Dependency, InvalidRequest
from penstock.core.host_memory import total_memory_bytes
from penstock.services.host.data_folder import DataFolder, check_path, queries_run_folder
from penstock.services.host.folder_permissions import hadoop_umask
from penstock.services.host.launcher import ChildPlan
from penstock.services.host.liveness import LivenessCheck, greet
from penstock.services.host.memory import SHARED, query_spark
from penstock.services.host.process import ChildCommand, free_port, is_free, listen
from penstock.services.host.query_isolation import Isolation, isolation
from penstock.services.host.restart_policy import ENDS_BEFORE_READY_MAX, FLOW_ENDS_MAX
from penstock.services.host.secret_variables import open_variables, secret_variables
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort
from penstock.services.options.table import VARIABLE_PREFIX, PenstockOptions, local_path
from penstock.spark.connect.unstoppable_work import stuck_reason

if TYPE_CHECKING:
    from penstock.spark.connect.spark_server import SparkServerOptions

# Without these, each Python child would keep an arena per thread, a BLAS thread per core, and a
# thread that returns Arrow's unused memory, which allocations do as well.
_LEAN = {
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_STOP_TIMEOUTS_S = {
    "router": 6.0,
    "worker": 15.0,
    "flow": 15.0,
    "overlord": 8.0,
    "spark": 10.0,
    "queries": 10.0,
    "broker": 8.0,
}

# Clients are stopped before the services that they use; children of one number do not use each
# other. The end of streams and flows is reported to the overlord and the broker, and both use
# Spark.
_STOP_STAGES = {
    "router": 2,
    "worker": 2,
    "flow": 2,
    "overlord": 1,
    "broker": 0,
    "spark": 0,
    "queries": 0,
}

# One more than `FLOW_ENDS_MAX`, so that the flow is started once with its components stopped before
# the launcher gives up.
_ENDS_MAX = {"flow": FLOW_ENDS_MAX + 1}

_EVERY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with addresses in options
# In the form of `penstock.spark.connect.spark_server.remote_address`. A remote Spark has no token.
_OWN_SPARK = re.compile(r"sc://localhost:(?P<port>\d{1,5})/;token=(?P<token>[\w-]+)")


def child_environment(
    environment: Mapping[str, str], secret_names: Collection[str] = ()
) -> dict[str, str]:
    """Return the environment of Python children, which get options only from the file.

    The name of the file of options stays, because flows must not change that file.

    Args:
        environment: The environment of this process.
        secret_names: Variables with secrets, which children get in another way.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name not in secret_names
        and (not name.startswith(VARIABLE_PREFIX) or name == resolution.CONFIG_VARIABLE)
    }
    return {**kept, **_LEAN, "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, slots=True)
class _Spark:
    """A Spark server of this host: its name among the children, its heap, and its users."""

    name: str
    memory: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def remote(self) -> str:
        """Its `sc://` address."""
        # Imported here and below, because a host that uses a remote Spark does not need it.
        from penstock.spark.connect.spark_server import remote_address  # noqa: PLC0415

        return remote_address(self.port, self.token)


class HostPlan:
    """The children of one host and the sockets they listen on.

    Args:
        options: The user's options.
        folder: The data folder, prepared and locked.
        environment: Variables of this process.
        clock: Time.
    """

    def __init__(
        self,
        options: PenstockOptions,
        folder: DataFolder,
        environment: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._given = options
        self._folder = folder
        self._environment = environment
        self._clock = clock
        self._secret_variables = secret_variables(environment, folder.secrets)
        self._secrets_fd: int | None = None
        self._sockets: dict[str, list[socket.socket]] = {}
        # Addresses that are open, with the option of each.
        self._opened: list[tuple[HostPort, str]] = []
        self._sparks: list[_Spark] = []
        self._before: Mapping[str, tuple[int, str]] = {}
        self.queries = query_spark(options, total_memory_bytes())
        self.isolation: Isolation | None = None
        self.options = options

    def open(self, listen_on: Callable[[HostPort, str], socket.socket] = listen) -> None:
        """Open the sockets and write the options for the children.

        Args:
            listen_on: Opens a listening socket at an address; the text is the option's name.

        Raises:
            Conflict: A port is taken.
            InvalidRequest: Queries are configured with two Sparks, Spark cannot read the path of
                the deep storage, or two options have the same port.
            Unavailable: An address cannot be listened on.
        """
        if self._given.query_memory not in (None, SHARED) and self._given.query_connect is not None:
            raise InvalidRequest(
                "--query-memory starts a Spark for queries, and --query-connect uses another: "
                "give one of them"
            )
        deep_storage = local_path(self._given.deep_storage_address)
        if deep_storage is not None:
            check_path(deep_storage, "--deep-storage")
        try:
            http = self._listen(listen_on, "router", self._given.http, "--http")
            broker = self._listen(
                listen_on, "broker", self._given.broker_http_address, "--broker-http"
            )
            tcp = self._listen(listen_on, "broker", self._given.broker_tcp_address, "--broker-tcp")
            internal = HostPort(self._given.http.host, 0)
            self._listen(listen_on, "overlord", internal, "--http")
            self._listen(listen_on, "flow", internal, "--http")
            self._listen(listen_on, "worker", internal, "--http")
        except BaseException:
            self.close()
            raise
        if self._secret_variables:
            self._secrets_fd = open_variables(self._secret_variables)
        self._before = _sparks_before(self._folder)
        connect, query_connect = self._given.spark_connect, self._given.query_connect
        if connect is None:
            connect = self._add_spark("spark", self._given.spark_memory)
        if self.queries.memory is not None:
            query_connect = self._add_spark("queries", self.queries.memory)
            cache = spark_cache_folder(self._environment)
            self.isolation = isolation(self._given, self._folder, cache)
        self.options = dataclasses.replace(
            self._given,
            data_dir=self._folder.path.absolute(),
            http=http,
            broker_http=broker,
            broker_tcp=tcp,
            spark_connect=connect,
            query_connect=query_connect,
        )
        path = self._folder.children_options
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(resolution.to_json(self.options))

    def close(self) -> None:
        """Close the sockets, and the memory with secrets."""
        descriptor, self._secrets_fd = self._secrets_fd, None
        if descriptor is not None:
            os.close(descriptor)
        for listener in itertools.chain.from_iterable(self._sockets.values()):
            with contextlib.suppress(OSError):
                listener.close()

    def children(self) -> list[ChildPlan]:
        """Return the children in starting order."""
        names = ["broker", "overlord", "flow", "worker", "router"]
        plans = [self._python(name) for name in names]
        # JVMs take longest to start.
        return [*map(self._spark, self._sparks), *plans]

    def _add_spark(self, name: str, memory: str) -> str:
        """Add a Spark, if possible at the address of its predecessor.

        A worker outside of this Penstock has only that address.
        """
        before = self._before.get(name)
        if before is not None and is_free(before[0]):
            self._sparks.append(_Spark(name, memory, *before))
        else:
            self._sparks.append(_Spark(name, memory, free_port()))
        return self._sparks[-1].remote

    def _listen(
        self,
        listen_on: Callable[[HostPort, str], socket.socket],
        name: str,
        address: HostPort,
        option: str,
    ) -> HostPort:
        try:
            listener = listen_on(address, option)
        except Conflict:  # narrow: the port is taken
            other = next((opt for opened, opt in self._opened if _overlap(opened, address)), None)
            if other is None:
                raise
            raise InvalidRequest(
                f"{other} and {option} both have port {address.port}: give one of them another"
                " port (port 0 picks a free one)"
            ) from None
        self._sockets.setdefault(name, []).append(listener)
        port: int = listener.getsockname()[1]
        opened = HostPort(address.host, port)
        self._opened.append((opened, option))
        return opened

    def _python(self, name: str) -> ChildPlan:
        def command(ready_fd: int) -> ChildCommand:
            listeners = tuple(listener.fileno() for listener in self._sockets[name])
            secret = () if self._secrets_fd is None else (self._secrets_fd,)
            argv = (
                *(sys.executable, "-P", "-m", "penstock.services.roles", name),
                *("--options", str(self._folder.children_options)),
                *("--parent", str(os.getpid()), "--ready-fd", str(ready_fd)),
                *(part for number in listeners for part in ("--listen-fd", str(number))),
                *(part for number in secret for part in ("--secrets-fd", str(number))),
            )
            environment = child_environment(self._environment, self._secret_variables)
            return ChildCommand(argv, environment, inherited=(*listeners, *secret))

        return ChildPlan(
            name,
            command,
            stop_timeout_s=_STOP_TIMEOUTS_S[name],
            stop_stage=_STOP_STAGES[name],
            log_file=self._folder.log / f"{name}.log",
            ends_before_ready_max=_ENDS_MAX.get(name, ENDS_BEFORE_READY_MAX),
        )

    def _spark(self, spark: _Spark) -> ChildPlan:
        from penstock.spark.connect.spark_server import SparkServerOptions, prepare  # noqa: PLC0415

        # The Spark of tasks keeps its original folders; the one of queries has its own.
        below = "" if spark.name == "spark" else spark.name
        options = SparkServerOptions(
            run_folder=queries_run_folder(self._folder) if below else self._folder.run,
            log_folder=self._folder.log / below,
            temp_folder=self._folder.tmp / spark.name,
            cache_folder=spark_cache_folder(self._environment),
            port=spark.port,
            master=self._given.spark_master,
            driver_memory=spark.memory,
            java_options=self._given.spark_java_options,
            token=spark.token,
            secret_file=self._given.spark_secret_file,
            conf={"spark.hadoop.fs.permissions.umask-mode": hadoop_umask(self._given)},
        )

        isolated = self.isolation if below else None

        def command(_ready_fd: int) -> ChildCommand:
            secret = self._secret_variables
            prepared = prepare(
                options, {n: v for n, v in self._environment.items() if n not in secret}
            )
            plain = ChildCommand(prepared.argv, prepared.environment, prepared.folder)
            return plain if isolated is None else isolated.wrapped(plain, spark.port)

        return ChildPlan(
            spark.name,
            command,
            ready_port=spark.port,
            stop_timeout_s=_STOP_TIMEOUTS_S[spark.name],
            stop_stage=_STOP_STAGES[spark.name],
            pulse=LivenessCheck(lambda: greet(spark.port), self._clock),
            restart_reason=lambda: stuck_reason(options.run_folder),
            log_file=options.log_folder / "spark.log",
            provides=Dependency.SPARK,
        )


def _overlap(one: HostPort, other: HostPort) -> bool:
    """Return whether only one of two addresses can be listened on."""
    is_everywhere = not _EVERY_HOST.isdisjoint({one.host, other.host})
    return one.port == other.port and (one.host == other.host or is_everywhere)


def trial_options(
    folder: Path, options: PenstockOptions, environment: Mapping[str, str]
) -> SparkServerOptions:
    """Return how `penstock doctor` starts Spark for a short time, with all files in a folder."""
    # Imported here, because the launcher of a remote Spark does not need it.
    from penstock.spark.connect.spark_server import SparkServerOptions  # noqa: PLC0415

    return SparkServerOptions(
        run_folder=folder / "run",
        log_folder=folder / "log",
        temp_folder=folder / "tmp",
        cache_folder=spark_cache_folder(environment),
        master=options.spark_master,
        driver_memory=options.spark_memory,
        java_options=options.spark_java_options,
        token=secrets.token_urlsafe(24),
        secret_file=options.spark_secret_file,
    )


def _sparks_before(folder: DataFolder) -> dict[str, tuple[int, str]]:
    """Return port and token of each Spark of the last launcher in a data folder."""
    try:
        before = resolution.from_json(folder.children_options.read_text())
    except (OSError, ValueError, InvalidRequest):
        return {}  # there was none, or it was of another release
    found = {}
    for name, address in (("spark", before.spark_connect), ("queries", before.query_connect)):
        own = None if address is None else _OWN_SPARK.fullmatch(address)
        if own is not None:
            found[name] = int(own["port"]), own["token"]
    return found


def spark_cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder, shared by data folders, of the files that speed up Spark's start."""
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "penstock"
